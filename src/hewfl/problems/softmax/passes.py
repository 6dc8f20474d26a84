"""Passes over pooled samples: losses, gradients, norms and moments.

    ℓ(s, y) = log Σ_k exp s_k − s_y,     ∇ℓ(s, y) = softmax(s) − e_y

Scores have the class on the second last axis and the sample on the last, so that every
reduction runs over contiguous rows of samples. Samples are taken a block at a time, and
one product serves all models. A client holds a range of rows; clients with the same
range share its result. Everywhere

    W      models, one matrix of classes × features each
    X, y   samples a_j as rows, and their labels
    spans  ranges of rows; results come in their order
"""

from collections.abc import Iterator
from typing import Any

import array_api_compat as compat
import numpy as np

from hewfl.core.array_types import Bool, Float, Float64, Int
from hewfl.core.validation import Array
from hewfl.displacements.backend import to_host
from hewfl.problems.softmax.kernel import compiled_losses, takes_scores

POWER_TOLERANCE, POWER_STEPS = 1e-6, 5000
"""Residual ‖Mv − θv‖/θ of the power iteration; θ is off by about its square."""
BLOCK = 2**20
"""Numbers converted to float64 at a time: a copy of all samples need not fit."""
PASS_BLOCK = 2**20
"""Numbers, samples and scores together, of one product of a pass: they stay in cache,
and the product is large enough for full speed."""

Spans = list[tuple[int, int]]
"""Ranges of rows: the first, and the one after the last."""


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
    scores: Float[Any, "models c b"], labels: Int[Any, " b"]
) -> Float64[Any, "models b"]:
    """ℓ = log Σ_k exp s_k − s_y of every model and sample.

    Float64 from the scores on, whatever their type: losses are summed over all samples
    and compared between rounds. Compiled if the kernel takes the scores.
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
    scores: Float[Any, "models c b"], labels: Int[Any, " b"]
) -> tuple[Float64[Any, "models b"], Bool[Any, "models b"]]:
    """Cross-entropy, and whether the label is the first of the largest scores."""
    if takes_scores(scores):
        hits = np.empty((scores.shape[0], scores.shape[2]), dtype=bool)
        return compiled_losses(scores, labels, hits), hits
    xp = compat.array_namespace(scores)
    return losses(scores, labels), xp.argmax(scores, axis=1) == labels


def mean_losses(
    W: Float[Any, "models c p"], X: Float[Any, "m p"], y: Int[Any, " m"], spans: Spans
) -> list[Float64[Any, " models"]]:
    """(1/m) Σ_j ℓ(W a_j, y_j) over each range; one pass, as ranges may overlap."""
    xp = compat.array_namespace(W)
    means = [xp.zeros_like(W[:, 0, 0], dtype=xp.float64) for _ in spans]
    for at, _, S in _score_blocks(W, X, 0, X.shape[0]):
        values = losses(S, y[at])
        for k, (lo, hi) in enumerate(spans):
            if lo < at.stop and at.start < hi:
                part = values[:, max(lo - at.start, 0) : hi - at.start]
                means[k] += xp.sum(part, axis=1) / (hi - lo)
    return means


def mean_gradients(
    W: Float[Any, "models c p"], X: Float[Any, "m p"], y: Int[Any, " m"], spans: Spans
) -> list[Float[Any, "models c p"]]:
    """(1/m) Σ_j r_j a_jᵀ over each range, with r_j = softmax(W a_j) − e_{y_j}."""
    xp = compat.array_namespace(W)
    means = []
    for lo, hi in spans:
        G = xp.zeros_like(W)
        for at, A, S in _score_blocks(W, X, lo, hi):
            G += _outer_sum(residuals(S, y[at]), A)
        means.append(G / (hi - lo))
    return means


def hits_and_loss(
    W: Float[Any, "models c p"], X: Float[Any, "m p"], y: Int[Any, " m"]
) -> tuple[Bool[Any, "models m"], Float64[Any, " models"]]:
    """Samples whose label has the first largest score, and the mean loss of all."""
    xp = compat.array_namespace(W)
    all_hits, all_losses = [], []
    for at, _, S in _score_blocks(W, X, 0, X.shape[0]):
        loss, hits = losses_and_hits(S, y[at])
        all_losses.append(loss)
        all_hits.append(hits)
    losses = xp.concat(all_losses, axis=1)
    return xp.concat(all_hits, axis=1), xp.mean(losses, axis=1)


def _score_blocks(
    W: Float[Any, "models c p"], X: Float[Any, "m p"], lo: int, hi: int
) -> Iterator[tuple[slice, Float[Any, "b p"], Float[Any, "models c b"]]]:
    """Rows lo to hi, a block at a time.

    Yields:
        The rows, the samples A, and the scores S = W Aᵀ of all models from one product,
        in the precision of W.
    """
    xp = compat.array_namespace(W)
    models, c, p = W.shape
    flat = xp.reshape(W, (models * c, p))
    rows = max(1, PASS_BLOCK // (p + models * c))
    for start in range(lo, hi, rows):
        at = slice(start, min(start + rows, hi))
        A = xp.astype(X[at, :], W.dtype, copy=False)
        yield at, A, xp.reshape(flat @ A.T, (models, c, -1))


def _outer_sum(
    R: Float[Any, "models c b"], A: Float[Any, "b p"]
) -> Float[Any, "models c p"]:
    """Σ_j r_j a_jᵀ for all models in one product."""
    xp = compat.array_namespace(R)
    models, c, b = R.shape
    return xp.reshape(xp.reshape(R, (models * c, b)) @ A, (models, c, -1))


def squared_norms(features: Float[Any, "m p"]) -> Float64[Array, " m"]:
    """‖a_j‖² of every sample, in float64 and on the host."""
    return np.concatenate([(A**2).sum(axis=1) for A in _wide_parts(features)])


def second_moment(features: Float[Any, "m p"]) -> Float64[Array, "p p"]:
    """(1/m) Σ_j a_j a_jᵀ, in float64 and on the host."""
    total = sum(A.T @ A for A in _wide_parts(features))
    return np.asarray(total / features.shape[0])


def largest_eigenvalue(M: Float64[Array, "p p"]) -> float:
    """θ of a positive semidefinite matrix by power iteration, approached from below."""
    v = np.random.default_rng(0).standard_normal(len(M))  # generic but fixed
    top = 0.0
    for _ in range(POWER_STEPS):
        v /= np.linalg.norm(v)
        w = M @ v
        top = float(v @ w)
        if np.linalg.norm(w - top * v) <= POWER_TOLERANCE * top:
            break
        v = w
    return top


def _wide_parts(features: Float[Any, "m p"]) -> Any:
    X = to_host(features)
    parts = np.array_split(X, -(-X.size // BLOCK))
    return (A.astype(np.float64) for A in parts)
