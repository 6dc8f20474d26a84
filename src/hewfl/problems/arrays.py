"""What the problems need of an array library: NumPy and torch, on their device."""

from typing import Any

import array_api_compat as compat
import numpy as np
from jaxtyping import Float, Float64, Int, Int64, Num

from hewfl.core.checks import Ints
from hewfl.core.displacements import to_host


def conform(array: Any, like: Any) -> Any:
    """The same numbers in the library and on the device of `like`; no copy if there."""
    if isinstance(array, np.ndarray) and isinstance(like, np.ndarray):
        return array
    xp = compat.array_namespace(like)
    if compat.array_namespace(array) is not xp:
        array = xp.asarray(to_host(array), copy=True)  # torch refuses read-only memory
    return compat.to_device(array, compat.device(like))


def gather(
    data: Num[Any, "m ..."], samples: Int[Any, "a b"], dtype: Any
) -> Num[Any, "a b ..."]:
    """Rows of the pooled data, one minibatch per client, in the precision asked for."""
    xp = compat.array_namespace(data)
    flat = xp.reshape(conform(samples, data), (-1,))
    rows = xp.astype(xp.take(data, flat, axis=0), dtype, copy=False)
    return xp.reshape(rows, (*samples.shape, *data.shape[1:]))


def shares(
    samples: Int[Any, "a b"], counts: Int[Any, " a"], like: Float[Any, "..."]
) -> Float[Any, "a b"]:
    """1/b_i on the first b_i columns and 0 on the padding: a mean as a product."""
    xp = compat.array_namespace(like)
    b = xp.astype(conform(counts, like), like.dtype)[:, None]
    columns = xp.arange(samples.shape[1], device=compat.device(like))[None, :]
    return xp.astype(columns < b, like.dtype) / b


def score(W: Float[Any, "lanes a c p"], A: Float[Any, "a b p"]) -> Any:
    """S = W_i a_ij for every lane, client and sample, shape (lanes, a, c, b).

    NumPy walks the small products of one lane and client straight through memory.
    torch would copy A for every lane; its einsum sets the lanes side by side instead.
    """
    if isinstance(W, np.ndarray):
        return W @ A.swapaxes(-1, -2)
    return compat.array_namespace(W).einsum("lacp,abp->lacb", W, A)


def spread(R: Float[Any, "lanes a c b"], A: Float[Any, "a b p"]) -> Any:
    """G = Σ_j R_ij a_ijᵀ, the transpose of `score`, shape (lanes, a, c, p)."""
    if isinstance(R, np.ndarray):
        return R @ A
    return compat.array_namespace(R).einsum("lacb,abp->lacp", R, A)


def two_means(
    losses: Float64[Any, "lanes n"], data_sizes: Int64[Ints, " n"]
) -> Float64[Any, "lanes 2"]:
    """(1/n) Σ F_i and Σ m_i F_i/Σ m_i side by side."""
    n = len(data_sizes)
    weights = np.stack([np.full(n, 1 / n), data_sizes / data_sizes.sum()], axis=1)
    return losses @ conform(weights, losses)
