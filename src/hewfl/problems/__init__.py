"""Problems that simulated clients optimise: quadratic, softmax, any PyTorch module."""

from importlib import import_module
from typing import Any

from hewfl.problems.problem import Optimum, Problem
from hewfl.problems.quadratic import Quadratic, random_quadratic
from hewfl.problems.softmax import Softmax, softmax_common_pool, softmax_from_arrays

__all__ = [
    "Optimum",
    "Problem",
    "Quadratic",
    "Softmax",
    "random_quadratic",
    "softmax_common_pool",
    "softmax_from_arrays",
]


def __getattr__(name: str) -> Any:
    """Import the names of `hewfl.problems.module` when asked for: torch is an extra."""
    if name in ("TorchModule", "Training", "torch_from_arrays"):
        return getattr(import_module("hewfl.problems.module"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
