"""What simulated clients optimise."""

from importlib import import_module
from typing import Any

from hewfl.problems.problem import LinearProblem, Optimum, Problem
from hewfl.problems.quadratic import Quadratic
from hewfl.problems.random_quadratic import random_quadratic
from hewfl.problems.softmax import Softmax
from hewfl.problems.softmax_data import softmax_common_pool, softmax_from_arrays

_TORCH = {
    "TorchModule": "torch_module",
    "Training": "torch_training",
    "torch_from_arrays": "torch_arrays",
}

__all__ = [
    "LinearProblem",
    "Optimum",
    "Problem",
    "Quadratic",
    "Softmax",
    "random_quadratic",
    "softmax_common_pool",
    "softmax_from_arrays",
]


def __getattr__(name: str) -> Any:
    """PyTorch is an extra: its problems are imported when asked for."""
    if name in _TORCH:
        return getattr(import_module(f"hewfl.problems.{_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
