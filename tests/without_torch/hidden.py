"""Run Python code as if some packages were not installed.

    python hidden.py torch,flwr 'import hewfl; ...' argument ...

`sys.argv[1:]` of the code are the arguments. At the end no hidden package may have
been imported.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = sys.argv[1].split(",") if __name__ == "__main__" else []


class Blind(PathFinder):
    """Finds what `sys.path` holds, but for the hidden packages."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] in HIDDEN:
            return None
        return super().find_spec(fullname, path, target)


if __name__ == "__main__":
    sys.meta_path = [Blind if f is PathFinder else f for f in sys.meta_path]
    code, sys.argv = sys.argv[2], sys.argv[2:]
    exec(compile(code, "<code>", "exec"), {"__name__": "__hidden__"})
    found = [name for name in HIDDEN if name in sys.modules]
    assert not found, found
