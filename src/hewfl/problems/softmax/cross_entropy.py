"""The cross-entropy of samples as a function of their scores.

    ℓ(s, y) = log Σ_k exp s_k − s_y,     ∇ℓ(s, y) = softmax(s) − e_y

The class is the second last axis and the sample the last, so that every reduction runs
over whole contiguous rows of samples.
"""

from typing import Any

import array_api_compat as compat
import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from hewfl.problems.softmax.kernel import compiled_losses, takes_scores


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
