"""Features and labels of a softmax regression: conversion and checks."""

from typing import Any

import array_api_compat as compat
import numpy as np

from hewfl.core.checks import invalid, shown
from hewfl.problems.arrays import check_pair, conform

Samples = tuple[Any, Any]
"""Features (m, p) and labels (m,), both of one array library."""


def check_samples(kind: str, features: Any, labels: Any, classes: int) -> None:
    """Require finite features (m, p) and labels (m,) from 0 to classes − 1.

    Args:
        kind: what precedes the names in an error: empty, or "test ".
        features: a_j as rows, float32 or float64.
        labels: y_j, whole numbers of the same array library.
        classes: c.

    Raises:
        InvalidInputError: naming `kind` features or `kind` labels.
    """
    names = f"{kind}features", f"{kind}labels"
    if features.ndim != 2 or 0 in features.shape:
        raise invalid(names[0], "of shape (m, p) with m, p ≥ 1", tuple(features.shape))
    if not str(features.dtype).endswith(("float32", "float64")):
        raise invalid(names[0], "float32 or float64", features.dtype)
    if tuple(labels.shape) != (features.shape[0],):
        rule = f"of shape ({features.shape[0]},), one per sample"
        raise invalid(names[1], rule, tuple(labels.shape))
    xp = compat.array_namespace(features)
    if compat.array_namespace(labels) is not xp:
        rule = f"of the array library of `{names[0]}`"
        raise invalid(names[1], rule, type(labels).__name__)
    if not xp.isdtype(labels.dtype, "integral"):
        raise invalid(names[1], "whole numbers", f"dtype {labels.dtype}")
    if not bool(xp.all(xp.isfinite(features))):
        raise invalid(names[0], "finite", "NaN or infinite entries")
    low, high = int(xp.min(labels)), int(xp.max(labels))
    if low < 0 or high >= classes:
        raise invalid(names[1], f"from 0 to {classes - 1}", low if low < 0 else high)


def converted(
    X: Any, y: Any, test: Samples | None, dtype: Any
) -> tuple[Any, Any, int, Samples | None]:
    """Features, labels, number of classes c and test part from what a user gave.

    Args:
        X: samples; NumPy, array-like, or torch on any device.
        y: labels, whole numbers from 0; the largest, here or in `test`, sets c.
        test: features and labels held out, or None.
        dtype: "float32" or "float64"; that of X if it is one of them, else float64.

    Returns:
        All arrays in the library and on the device of X, features in one precision.

    Raises:
        InvalidInputError: shapes, types or labels break a rule.
    """
    if test is not None:
        check_pair("test", test)
    sets = [("", X, y)] if test is None else [("", X, y), ("test ", *test)]
    library = X if compat.is_array_api_obj(X) else np.zeros(0)
    found: list[Samples] = []
    for kind, given, given_labels in sets:
        features = _features(f"{kind}features", given, dtype)
        labels = _array(f"{kind}labels", given_labels)
        if labels.ndim != 1 or 0 in labels.shape:
            rule = "a nonempty vector"
            raise invalid(f"{kind}labels", rule, f"shape {tuple(labels.shape)}")
        found.append((conform(features, library), conform(labels, library)))
    classes = max(2, *(int(labels.max()) + 1 for _, labels in found))
    for (kind, *_), (features, labels) in zip(sets, found, strict=True):
        check_samples(kind, features, labels, classes)
    return (*found[0], classes, found[1] if test is not None else None)


def _array(name: str, value: Any) -> Any:
    if compat.is_array_api_obj(value):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:  # ragged
        raise invalid(name, "an array", repr(value)[:80]) from error


def _features(name: str, value: Any, dtype: Any) -> Any:
    array = _array(name, value)
    xp = compat.array_namespace(array)
    if dtype is None:
        kept = str(array.dtype).endswith(("float32", "float64"))
        wanted = array.dtype if kept else xp.float64
    else:
        known = str(dtype).rpartition(".")[2].rstrip("'>")
        if known not in ("float32", "float64"):
            raise invalid("dtype", '"float32" or "float64"', shown(dtype))
        wanted = getattr(xp, known)
    if not xp.isdtype(array.dtype, ("bool", "real floating", "integral")):
        raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")
    return xp.astype(array, wanted, copy=False)
