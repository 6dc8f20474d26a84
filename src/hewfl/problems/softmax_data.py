"""Softmax regressions from arrays and a partition of their rows."""

from collections.abc import Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from hewfl.core.checks import ArrayLike, invalid, nonnegative, shown, whole
from hewfl.problems.arrays import check_pair, conform, shards_of
from hewfl.problems.softmax import Softmax
from hewfl.problems.softmax_checks import check_samples

Samples = tuple[Any, Any]


def softmax_from_arrays(
    X: Any,
    y: Any,
    partition: Sequence[ArrayLike],
    *,
    l2: float,
    test: Samples | None = None,
    dtype: Any = None,
) -> Softmax:
    """The softmax regression of clients that hold given rows of X.

    Rows are copied client by client; a row in no shard is left out, a row in two is
    copied twice. A bias is a column of ones in X.

    Args:
        X: samples, shape (m, p); NumPy, array-like, or torch on any device.
        y: labels, whole numbers from 0; the largest, here or in `test`, sets c.
        partition: rows of each client, nonempty.
        l2: λ ≥ 0.
        test: features and labels held out.
        dtype: "float32" or "float64"; that of X if it is one of them, else float64.

    Raises:
        InvalidInputError: shapes, labels or rows break a rule above.

    >>> problem = softmax_from_arrays(
    ...     [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], [0, 1, 1], [[0, 1], [2]], l2=0.1
    ... )
    >>> problem.n, problem.d, problem.smoothness
    (2, 4, 2.6)
    """
    features, labels, classes, held_out = _converted(X, y, test, dtype)
    shards = shards_of(partition, len(features))
    order = conform(np.concatenate(shards), features)
    sizes = np.array([len(rows) for rows in shards])
    xp = compat.array_namespace(features)
    return Softmax(
        features=xp.take(features, order, axis=0),
        labels=xp.take(labels, order, axis=0),
        offsets=np.cumsum(sizes) - sizes,
        data_sizes=sizes,
        classes=classes,
        l2=nonnegative("l2", l2),
        test=held_out,
    )


def softmax_common_pool(
    X: Any,
    y: Any,
    n: int,
    *,
    l2: float,
    test: Samples | None = None,
    dtype: Any = None,
) -> Softmax:
    """Clients that all draw from all of X: F_i = F, the homogeneous case proper.

    A pool shuffled and split once is not homogeneous, as its shards stay different from
    round to round (erratum E-14). The rows are stored once. Arguments are those of
    `softmax_from_arrays`.
    """
    n = whole("n", n, least=1)
    features, labels, classes, held_out = _converted(X, y, test, dtype)
    zeros = np.zeros(n, dtype=np.int64)
    sizes = np.full(n, len(features))
    penalty = nonnegative("l2", l2)
    return Softmax(features, labels, zeros, sizes, classes, penalty, held_out)


def _converted(
    X: Any, y: Any, test: Samples | None, dtype: Any
) -> tuple[Any, Any, int, Samples | None]:
    """Arrays of one library and precision, checked, and the number of classes."""
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
