"""Exact-weight aggregation for local SGD with unequal local work.

The server solves for the weights of a round instead of fixing them by a rule:

- `solve_simplex_qp`, `threshold_weights`: the exact weight problems;
- `post_local_weights`, `combine`: weights and step from the clients' displacements;
- `predictive_control`: weights and amplitudes before the round;
- `HewControl`, `HewHet`, `HewHom`: the paper's algorithms, beside their rivals;
- `simulate`: any set of methods on the same clients, work and minibatches.

Every answer carries a certificate that the caller can recompute.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _public_names() -> dict[str, str]:
    """The public names and their modules, from the imports of `__init__.pyi`."""
    stub = Path(__file__).with_name("__init__.pyi").read_text("utf-8")
    imports = [
        node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)
    ]
    return {name.name: str(node.module) for node in imports for name in node.names}


_MODULES = _public_names()
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the list


def __getattr__(name: str) -> Any:
    """A public name or a package, imported at its first use."""
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'hewfl' has no attribute '{name}'")
    else:
        try:
            return import_module(f"hewfl.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"hewfl.{name}":
                raise
            text = f"module 'hewfl' has no attribute '{name}'"
            raise AttributeError(text) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
