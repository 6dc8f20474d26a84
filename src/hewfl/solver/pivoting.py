"""Block pivoting: guess the support, solve on its face, exchange all offenders.

    min  ⟨c, w⟩ + ½ wᵀ H w   over  w ∈ Δ_n

Often a handful of factorisations where an active set needs one exchange per member
[JudicePires1994]. It may cycle, so an answer counts only when it passes the active
set's own optimality test; what does not pass is handed to `active_set`. All problems of
a stack move together.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64

from hewfl.core.checks import Array, Ints, Mask
from hewfl.solver.active_set import OPTIMALITY, error_scale

MAX_SWEEPS = 20
PATIENCE = 4
"""Sweeps without fewer offenders before a problem is given up."""
RIDGE = 1e-13
"""Relative ridge that keeps masked systems solvable; refinement removes its bias."""


def block_pivoting(
    H: Float64[Array, "b n n"],
    c: Float64[Array, "b n"],
    guess: Bool[Mask, "b n"],
) -> tuple[
    Float64[Array, "b n"],
    Int64[Ints, " b"],
    Bool[Mask, " b"],
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
    weights, solved = np.zeros((count, n)), np.zeros(count, dtype=np.bool_)
    sweeps = np.zeros(count, dtype=np.int64)
    lanes, support = np.arange(count), guess.copy()
    w = support / support.sum(-1, keepdims=True)
    fewest, stalled = np.full(count, n + 1), np.zeros(count, dtype=np.int64)
    confirmed = np.zeros(count, dtype=np.bool_)
    for sweep in range(1, MAX_SWEEPS + 1):
        w, offenders, level = _sweep(H, c, support, w)
        amount = offenders.sum(-1)
        done = confirmed & level & (amount == 0)
        confirmed = amount == 0  # the sweep that confirms also refines
        stalled = np.where(amount < fewest, 0, stalled + 1)
        fewest = np.minimum(amount, fewest)
        support ^= offenders
        over = done | (stalled >= PATIENCE) | ~support.any(-1) | np.isnan(w).any(-1)
        if sweep == MAX_SWEEPS:
            over[:] = True
        if over.any():
            weights[lanes[over]], solved[lanes[over]] = w[over], done[over]
            sweeps[lanes[over]] = sweep
            on = ~over
            lanes, H, c, support, w = lanes[on], H[on], c[on], support[on], w[on]
            fewest, stalled, confirmed = fewest[on], stalled[on], confirmed[on]
        if len(lanes) == 0:
            break
    weights = np.maximum(weights, 0.0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return weights, sweeps, solved


def _sweep(
    H: Float64[Array, "b n n"],
    c: Float64[Array, "b n"],
    support: Bool[Mask, "b n"],
    start: Float64[Array, "b n"],
) -> tuple[
    Float64[Array, "b n"],
    Bool[Mask, "b n"],
    Bool[Mask, " b"],
]:
    """A Newton step on each face, seen from its shortest member as in `active_set`.

    Returns:
        Weights; offenders (w ≤ 0 inside, a negative cost outside); whether the members
        of the face are level.
    """
    lanes = np.arange(len(c))
    diagonal = np.diagonal(H, axis1=1, axis2=2)
    origin = np.where(support, diagonal, np.inf).argmin(axis=1)
    w = np.where(support, start, 0.0)
    w += support * ((1.0 - w.sum(-1)) / support.sum(-1))[:, None]
    gradient = np.matvec(H, w) + c
    others = support.copy()
    others[lanes, origin] = False
    column = H[lanes, origin]
    corner = diagonal[lanes, origin][:, None]
    M = (H - column[:, :, None]) - (column - corner)[:, None, :]  # as `seen_from` pairs
    # Faces of different size in one stack: rows off the face are made those of the unit
    # matrix, so that one batched solve serves all of them.
    M *= others[:, :, None] & others[:, None, :]
    own = np.einsum("bii->bi", M)  # a view of the diagonal
    ridge = RIDGE * own + (1e-30 * (diagonal + corner) + 1e-300)
    own[...] = np.where(others, own + ridge, 1.0)
    rest = others * (gradient[lanes, origin][:, None] - gradient)
    step = np.linalg.solve(M, rest[:, :, None])[:, :, 0]
    step[lanes, origin] = -step.sum(-1)
    with np.errstate(all="ignore"):  # what is not finite is given up by the caller
        w += step
        gradient = np.matvec(H, w) + c
        w_plus = np.maximum(w, 0.0)
        w_plus /= np.maximum(w_plus.sum(-1, keepdims=True), 1e-300)
        cost = gradient - (w_plus * gradient).sum(-1, keepdims=True)
        low = cost < -OPTIMALITY * error_scale(np.sqrt(diagonal), c, w_plus)
    offenders = np.where(support, ~(w > 0), low)
    return w, offenders, ~(low & support).any(-1)
