"""PyTorch, or an error that says how to get it."""

from hewfl.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    _TEXT = "hewfl.problems.TorchModule needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(_TEXT) from error

__all__ = ["torch"]
