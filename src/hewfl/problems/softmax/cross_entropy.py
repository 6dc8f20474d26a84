"""The cross-entropy as a function of the scores, and passes over pooled samples.

    ℓ(s, y) = log Σ_k exp s_k − s_y,     ∇ℓ(s, y) = softmax(s) − e_y

The class is the second last axis and the sample the last, so that every reduction runs
over whole contiguous rows of samples.
"""

from collections.abc import Iterator
from typing import Any

import array_api_compat as compat
import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from hewfl.problems.softmax.kernel import compiled_losses, takes_scores

BLOCK = 2**20
"""Numbers, samples and scores together, of one product of a pass: they stay in cache,
and the product is large enough for full speed."""


def residuals(
    scores: Float[Any, "*batch c b"], labels: Int[Any, "*clients b"]
) -> Float[Any, "*batch c b"]:
    """R = softmax(s) − e_y: the gradient of the cross-entropy in the scores."""
    xp = compat.array_namespace(scores)
    # exp overflows at 89 in float32; after the shift the largest exponent is 0
    r = xp.exp(scores - xp.max(scores, axis=-2, keepdims=True))
    r /= xp.sum(r, axis=-2, keepdims=True)
    classes = xp.arange(scores.shape[-2], device=compat.device(scores))
    r -= xp.astype(labels[..., None, :] == classes[:, None], r.dtype)
    return r


def losses(
    scores: Float[Any, "lanes c b"], labels: Int[Any, " b"]
) -> Float64[Any, "lanes b"]:
    """ℓ = log Σ_k exp s_k − s_y of every lane and sample.

    Float64 from the scores on, whatever their type: losses are summed over all samples
    and compared between rounds. Compiled where the kernel takes the scores.
    """
    if takes_scores(scores):
        return compiled_losses(scores, labels)
    xp = compat.array_namespace(scores)
    s = xp.astype(scores, xp.float64, copy=False)
    top = xp.max(s, axis=1)
    log_sum = xp.log(xp.sum(xp.exp(s - top[:, None, :]), axis=1))
    columns = xp.arange(s.shape[2], device=compat.device(s))
    # top − s_y first: it is small where the model is right, and keeps its digits
    return log_sum + (top - s[:, labels, columns])


def losses_and_hits(
    scores: Float[Any, "lanes c b"], labels: Int[Any, " b"]
) -> tuple[Float64[Any, "lanes b"], Bool[Any, "lanes b"]]:
    """Cross-entropy, and whether the label is the first of the largest scores."""
    if takes_scores(scores):
        hits = np.empty((scores.shape[0], scores.shape[2]), dtype=bool)
        return compiled_losses(scores, labels, hits), hits
    xp = compat.array_namespace(scores)
    return losses(scores, labels), xp.argmax(scores, axis=1) == labels


def score_blocks(
    W: Float[Any, "lanes c p"], X: Float[Any, "m p"], lo: int, hi: int
) -> Iterator[tuple[slice, Float[Any, "b p"], Float[Any, "lanes c b"]]]:
    """Rows lo to hi a block at a time: where, the samples, all lanes' scores S = W Aᵀ.

    One product serves all lanes; it runs in the precision of W.
    """
    xp = compat.array_namespace(W)
    lanes, c, p = W.shape
    flat = xp.reshape(W, (lanes * c, p))
    rows = max(1, BLOCK // (p + lanes * c))
    for start in range(lo, hi, rows):
        at = slice(start, min(start + rows, hi))
        A = xp.astype(X[at, :], W.dtype, copy=False)
        yield at, A, xp.reshape(flat @ A.T, (lanes, c, -1))


def outer_sum(
    R: Float[Any, "lanes c b"], A: Float[Any, "b p"]
) -> Float[Any, "lanes c p"]:
    """Σ_j r_j a_jᵀ for all lanes in one product."""
    xp = compat.array_namespace(R)
    lanes, c, b = R.shape
    return xp.reshape(xp.reshape(R, (lanes * c, b)) @ A, (lanes, c, -1))
