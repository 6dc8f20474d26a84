"""Array operations of the problems: NumPy or torch, minibatches, rows of clients."""

from collections.abc import Iterable, Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from hewfl.core.array_types import Float, Float64, Int, Int64, Num
from hewfl.core.validation import ArrayLike, Ints, format_value, invalid
from hewfl.displacements.backend import to_host


def conform(array: Any, like: Any) -> Any:
    """An array in the library and on the device of another; not copied if it is there.

    Args:
        array: of NumPy or torch.
        like: the array to follow; its precision does not matter.
    """
    if isinstance(array, np.ndarray) and isinstance(like, np.ndarray):
        return array
    xp = compat.array_namespace(like)
    if compat.array_namespace(array) is not xp:
        array = xp.asarray(to_host(array), copy=True)  # torch refuses read-only memory
    return compat.to_device(array, compat.device(like))


def checked_shards(partition: Sequence[ArrayLike], m: int) -> list[Int64[Ints, " k"]]:
    """Rows of each client as vectors of int64, from a partition that a user gave.

    Args:
        partition: a vector of rows for each client.
        m: number of rows.

    Raises:
        InvalidInputError: there is no client, or a row is out of range.
    """
    if not isinstance(partition, Iterable):
        raise invalid(
            "partition", "one list of rows per client", format_value(partition)
        )
    shards = [_checked_rows(i, rows, m) for i, rows in enumerate(partition)]
    if not shards:
        raise invalid("partition", "one list of rows per client", "an empty one")
    return shards


def _checked_rows(client: int, given: ArrayLike, m: int) -> Int64[Ints, " k"]:
    name, rule = f"partition[{client}]", "a nonempty vector of rows"
    try:
        rows = np.asarray(given)
    except ValueError as error:  # ragged
        raise invalid(name, rule, format_value(given)) from error
    if rows.ndim != 1 or len(rows) == 0 or rows.dtype.kind not in "iu":
        raise invalid(name, rule, format_value(given))
    if rows.min() < 0 or rows.max() >= m:
        outside = rows[(rows < 0) | (rows >= m)][0]
        raise invalid(name, f"rows from 0 to {m - 1}", outside)
    return rows.astype(np.int64)


def check_ranges(offsets: Ints, data_sizes: Ints, m: int) -> None:
    """Require one nonempty range of rows within 0 to m for each client.

    Args:
        offsets: first row of each client's samples.
        data_sizes: m_i, how many rows follow.
        m: number of rows.

    Raises:
        InvalidInputError: a range is empty or leaves the rows.
    """
    names = "offsets, data_sizes"
    if len(offsets) != len(data_sizes) or len(offsets) == 0:
        got = f"lengths {len(offsets)}, {len(data_sizes)}"
        raise invalid(names, "vectors of one length n ≥ 1", got)
    if offsets.dtype.kind not in "iu" or data_sizes.dtype.kind not in "iu":
        got = f"dtypes {offsets.dtype}, {data_sizes.dtype}"
        raise invalid(names, "whole numbers", got)
    if (data_sizes < 1).any():
        raise invalid("data_sizes", "at least 1", data_sizes.min())
    low, high = int(offsets.min()), int((offsets + data_sizes).max())
    if low < 0 or high > m:
        raise invalid(names, f"rows from 0 to {m}", f"rows from {low} to {high}")


def check_pair(name: str, given: object) -> None:
    """Require features and labels, two arrays in a tuple or a list.

    Args:
        name: of the argument, for the error.
        given: its value.

    Raises:
        InvalidInputError: it is no pair.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise invalid(name, "a pair of features and labels", type(given).__name__)


def gather(
    data: Num[Any, "m ..."], samples: Int[Any, "a b"], dtype: Any
) -> Num[Any, "a b ..."]:
    """Rows of the pooled data, one minibatch per client, in the given precision."""
    xp = compat.array_namespace(data)
    flat = xp.reshape(conform(samples, data), (-1,))
    rows = xp.astype(xp.take(data, flat, axis=0), dtype, copy=False)
    return xp.reshape(rows, (*samples.shape, *data.shape[1:]))


def shares(
    samples: Int[Any, "a b"], counts: Int[Any, " a"], like: Float[Any, "..."]
) -> Float[Any, "a b"]:
    """Weights 1/b_i on the first b_i columns and 0 on the padding.

    A product with them is the mean of a minibatch. Minibatches of different sizes share
    one array, and the padding has no effect.
    """
    xp = compat.array_namespace(like)
    b = xp.astype(conform(counts, like), like.dtype)[:, None]
    columns = xp.arange(samples.shape[1], device=compat.device(like))[None, :]
    return xp.astype(columns < b, like.dtype) / b


def score(W: Float[Any, "models a c p"], A: Float[Any, "a b p"]) -> Any:
    """S = W_i a_ij for every model, client and sample, shape (models, a, c, b).

    NumPy computes the small products of one model and client in memory order. torch
    would copy A for every model; its einsum makes one product of all models instead.
    """
    if isinstance(W, np.ndarray):
        return W @ A.swapaxes(-1, -2)
    return compat.array_namespace(W).einsum("lacp,abp->lacb", W, A)


def weighted_sums(R: Float[Any, "models a c b"], A: Float[Any, "a b p"]) -> Any:
    """G = Σ_j R_ij a_ijᵀ, the transpose of `score`, shape (models, a, c, p)."""
    if isinstance(R, np.ndarray):
        return R @ A
    return compat.array_namespace(R).einsum("lacb,abp->lacp", R, A)


def two_means(
    losses: Float64[Any, "models n"], data_sizes: Int64[Ints, " n"]
) -> Float64[Any, "models 2"]:
    """(1/n) Σ F_i and Σ m_i F_i/Σ m_i side by side."""
    n = len(data_sizes)
    weights = np.stack([np.full(n, 1 / n), data_sizes / data_sizes.sum()], axis=1)
    return losses @ conform(weights, losses)
