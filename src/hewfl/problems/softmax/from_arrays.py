"""Softmax regressions from arrays and a partition of their rows."""

from collections.abc import Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from hewfl.core.checks import ArrayLike, nonnegative, whole
from hewfl.problems.arrays import conform, shards_of
from hewfl.problems.softmax.regression import Softmax
from hewfl.problems.softmax.samples import Samples, converted


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

    Returns:
        The problem, in the array library and on the device of X.

    Raises:
        InvalidInputError: shapes, labels or rows break a rule above.

    Examples:
        >>> problem = softmax_from_arrays(
        ...     [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], [0, 1, 1], [[0, 1], [2]], l2=0.1
        ... )
        >>> problem.n, problem.d, problem.smoothness
        (2, 4, 2.6)
    """
    features, labels, classes, held_out = converted(X, y, test, dtype)
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
    round to round (erratum E-14). The rows are stored once.

    Args:
        X: samples, as for `softmax_from_arrays`.
        y: labels, likewise.
        n: clients.
        l2: λ ≥ 0.
        test: features and labels held out.
        dtype: "float32" or "float64"; that of X if it is one of them, else float64.

    Returns:
        The problem, in the array library and on the device of X.

    Raises:
        InvalidInputError: an argument breaks its rule.
    """
    n = whole("n", n, least=1)
    features, labels, classes, held_out = converted(X, y, test, dtype)
    zeros = np.zeros(n, dtype=np.int64)
    sizes = np.full(n, len(features))
    penalty = nonnegative("l2", l2)
    return Softmax(features, labels, zeros, sizes, classes, penalty, held_out)
