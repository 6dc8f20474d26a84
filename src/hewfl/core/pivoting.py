"""Block pivoting: guess the support, solve on its face, exchange every offender at once.

    min  ⟨c, w⟩ + ½ wᵀ H w   over  w ∈ Δ_n

Often a handful of factorisations where an active set needs one exchange per member
[JudicePires1994]. It may cycle, so an answer counts only when it passes the active
set's own optimality test; what does not pass is handed to `active_set`. All problems of
a stack move together.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray

from hewfl.core.active_set import OPTIMALITY, error_scale
from hewfl.core.checks import Array

MAX_SWEEPS = 20
PATIENCE = 4
"""Sweeps without fewer offenders before a problem is given up."""
RIDGE = 1e-13
"""Relative ridge that keeps the masked systems solvable; refinement removes its bias."""


def block_pivoting(
    H: Float64[Array, "b n n"],
    c: Float64[Array, "b n"],
    guess: Bool[NDArray[np.bool_], "b n"],
) -> tuple[
    Float64[Array, "b n"],
    Int64[NDArray[np.int64], " b"],
    Bool[NDArray[np.bool_], " b"],
]:
    """Solve a stack of problems, as far as block pivoting can.

    Args:
        H: symmetric positive semidefinite matrices, largest entries near one.
        c: linear terms on the same scale.
        guess: first supports, nonempty.

    Returns:
        Weights; sweeps used; which problems passed the optimality test.
    """
    count, n = c.shape
    weights = guess / guess.sum(-1, keepdims=True)
    sweeps = np.zeros(count, dtype=np.int64)
    solved = np.zeros(count, dtype=np.bool_)
    fewest, stalled = np.full(count, n + 1), np.zeros(count, dtype=np.int64)
    support, confirmed = guess.copy(), np.zeros(count, dtype=np.bool_)
    todo = np.arange(count)
    for _ in range(MAX_SWEEPS):
        w, offenders = _sweep(H[todo], c[todo], support[todo], weights[todo])
        weights[todo] = w
        sweeps[todo] += 1
        amount = offenders.sum(-1)
        solved[todo] = confirmed[todo] & (amount == 0)
        confirmed[todo] = amount == 0  # the sweep that confirms also refines
        stalled[todo] = np.where(amount < fewest[todo], 0, stalled[todo] + 1)
        fewest[todo] = np.minimum(amount, fewest[todo])
        support[todo] ^= offenders
        hopeless = (stalled[todo] >= PATIENCE) | ~support[todo].any(-1)
        todo = todo[~(solved[todo] | hopeless)]
        if len(todo) == 0:
            break
    weights = np.maximum(weights, 0.0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return weights, sweeps, solved


def _sweep(
    H: Float64[Array, "b n n"],
    c: Float64[Array, "b n"],
    support: Bool[NDArray[np.bool_], "b n"],
    start: Float64[Array, "b n"],
) -> tuple[Float64[Array, "b n"], Bool[NDArray[np.bool_], "b n"]]:
    """Minimise on the faces; an offender has w ≤ 0 inside or a negative cost outside."""
    diagonal = np.diagonal(H, axis1=1, axis2=2)
    sigma = np.partition(diagonal, diagonal.shape[1] // 2)[:, diagonal.shape[1] // 2]
    sigma = np.where(sigma > 0, sigma, diagonal.max(-1) + (diagonal.max(-1) == 0))
    inside = support.astype(np.float64)
    K = (H + sigma[:, None, None]) * inside[:, :, None] * inside[:, None, :]
    every = np.arange(c.shape[1])
    K[:, every, every] += np.where(support, RIDGE * (diagonal + sigma[:, None]), 1.0)
    w = start * inside
    w += (1.0 - w.sum(-1, keepdims=True)) * inside / inside.sum(-1, keepdims=True)
    gradient = np.matvec(H, w) + c
    level = (w * gradient).sum(-1, keepdims=True)
    right = np.stack([inside, (level - gradient) * inside], axis=-1)
    solution = np.linalg.solve(K, right)
    u, p = solution[..., 0], solution[..., 1]
    w = w + p - (p.sum(-1) / u.sum(-1))[:, None] * u
    gradient = np.matvec(H, w) + c
    w_plus = np.maximum(w, 0.0)
    level = (w_plus * gradient).sum(-1, keepdims=True) / w_plus.sum(-1, keepdims=True)
    scale = error_scale(np.sqrt(diagonal), c, w_plus)
    return w, np.where(support, w <= 0, gradient - level < -OPTIMALITY * scale)
