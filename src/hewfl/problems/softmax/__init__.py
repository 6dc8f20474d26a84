"""Softmax regression over clients' samples, with its constants and its minimiser."""

from hewfl.problems.softmax.regression import (
    Softmax,
    softmax_common_pool,
    softmax_from_arrays,
)

__all__ = ["Softmax", "softmax_common_pool", "softmax_from_arrays"]
