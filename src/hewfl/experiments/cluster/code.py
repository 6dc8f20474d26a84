"""Code of the user's own on a worker: the client's version of it, and no other."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hewfl.core.own_code import code_files
from hewfl.data.places import download_root
from hewfl.errors import HewError
from hewfl.experiments.cluster.data import CODE, DataPart, is_file_name, place_of
from hewfl.experiments.own import own_names
from hewfl.experiments.spec import Spec

Modules = Mapping[tuple[str, str], str]
"""Checksums of code that is installed, by its name in a spec and its group."""


def installed_code(specs: Sequence[Spec]) -> dict[tuple[str, str], str]:
    """Checksums of the code that specs name by module or entry point.

    Such code does not travel: it must be installed at every worker, and the same.
    """
    names = {name for spec in specs for name in own_names(spec).values()}
    return {name: _digest(*name) for name in sorted(names) if not is_file_name(name[0])}


def _digest(name: str, group: str) -> str:
    files = code_files(name, group)
    content = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest() if files else "missing"


def require_same_code(modules: Modules, worker: str) -> None:
    """Require that this worker has the client's version of installed code."""
    for (name, group), digest in modules.items():
        here = _digest(name, group)
        if here != digest:
            has = "no" if here == "missing" else "another version of"
            told = f"worker {worker} has {has} {name}, which the spec names"
            raise HewError(f"{told}; install the client's there, and start it again")


def forget_other_code(parts: Sequence[DataPart]) -> None:
    """Forget modules of code that came for other tasks.

    A worker lives long: `import helper` in an edited rule would find the helper of the
    version before among the modules that Python has loaded.
    """
    root = download_root() / CODE
    own = [
        place.parent for p in parts if (place := place_of(p)) and _below(place, root)
    ]
    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and _below(Path(file), root) and Path(file).parent not in own:
            del sys.modules[name]
    sys.path[:] = [
        path for path in sys.path if not _below(Path(path), root) or Path(path) in own
    ]


def _below(place: Path, root: Path) -> bool:
    return root in place.parents
