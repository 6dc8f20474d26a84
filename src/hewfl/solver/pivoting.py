"""Block pivoting: guess the support, solve on its face, exchange all offenders.

    min  ⟨c, w⟩ + ½ wᵀ H w   over  w ∈ Δ_n

Often a handful of factorisations where an active set needs one exchange per member
[JudicePires1994]. It may cycle, so an answer counts only when it passes the optimality
test of the active set; the callers fall back on `active_set`.

`block_pivoting` solves a stack of small problems together. `schur_pivoting` solves one
large problem from a single factorisation: the lift K = H + σ11ᵀ changes nothing on the
simplex and is usually positive definite. With B the indices at zero, a step on the face
comes from P = K⁻¹ by a Schur complement:

    δ = P(f + ν1 + E_B z),     P_BB z = −(Pf + νP1)_B,     1ᵀδ = 0.

So a sweep costs |B| triangular columns and a small system instead of a factorisation.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np

from hewfl.core.array_types import Bool, Float64, Int64
from hewfl.core.validation import Array, Ints, Mask
from hewfl.solver import lapack
from hewfl.solver.active_set import OPTIMALITY, error_scale

MAX_SWEEPS = 20
PATIENCE = 4
"""Sweeps without fewer offenders before a problem is given up."""
RIDGE = 1e-13
"""Relative ridge that keeps masked systems solvable; refinement removes its bias."""
BORDER = 0.4
"""Above this share of indices at zero, factorising the face itself is cheaper."""


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
    open_, support = np.arange(count), guess.copy()
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
            weights[open_[over]], solved[open_[over]] = w[over], done[over]
            sweeps[open_[over]] = sweep
            on = ~over
            open_, H, c, support, w = open_[on], H[on], c[on], support[on], w[on]
            fewest, stalled, confirmed = fewest[on], stalled[on], confirmed[on]
        if len(open_) == 0:
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
    """A Newton step on each face, around its shortest member as in `active_set`.

    Returns:
        Weights; offenders (w ≤ 0 inside, a negative cost outside); whether the members
        of the face are level.
    """
    stack = np.arange(len(c))
    diagonal = np.diagonal(H, axis1=1, axis2=2)
    origin = np.where(support, diagonal, np.inf).argmin(axis=1)
    w = np.where(support, start, 0.0)
    w += support * ((1.0 - w.sum(-1)) / support.sum(-1))[:, None]
    gradient = np.matvec(H, w) + c
    rest_of_face = support.copy()
    rest_of_face[stack, origin] = False
    column = H[stack, origin]
    corner = diagonal[stack, origin][:, None]
    M = (H - column[:, :, None]) - (column - corner)[:, None, :]  # as in `gram_around`
    # Faces of different size in one stack: rows off the face are made those of the unit
    # matrix, so that one batched solve does for all of them.
    M *= rest_of_face[:, :, None] & rest_of_face[:, None, :]
    corners = np.einsum("bii->bi", M)  # a view of the diagonal
    ridge = RIDGE * corners + (1e-30 * (diagonal + corner) + 1e-300)
    corners[...] = np.where(rest_of_face, corners + ridge, 1.0)
    rest = rest_of_face * (gradient[stack, origin][:, None] - gradient)
    step = np.linalg.solve(M, rest[:, :, None])[:, :, 0]
    step[stack, origin] = -step.sum(-1)
    with np.errstate(all="ignore"):  # what is not finite is given up by the caller
        w += step
        gradient = np.matvec(H, w) + c
        w_plus = np.maximum(w, 0.0)
        w_plus /= np.maximum(w_plus.sum(-1, keepdims=True), 1e-300)
        cost = gradient - (w_plus * gradient).sum(-1, keepdims=True)
        low = cost < -OPTIMALITY * error_scale(np.sqrt(diagonal), c, w_plus)
    offenders = np.where(support, ~(w > 0), low)
    return w, offenders, ~(low & support).any(-1)


@final
@dataclass(slots=True)
class _Border:
    """Columns R⁻ᵀE_B computed so far and their inner products (P on them)."""

    factor: Float64[Array, "n n"]
    place: Int64[Ints, " n"]
    columns: Float64[Array, "n m"]
    products: Float64[Array, "m m"] = field(default_factory=lambda: np.zeros((0, 0)))

    def inverse(self, B: Int64[Ints, " b"]) -> Float64[Array, "b b"]:
        """P_BB, adding the columns that are new."""
        fresh = B[self.place[B] < 0]
        if len(fresh) > 0:
            unit = np.zeros((len(self.place), len(fresh)), order="F")
            unit[fresh, np.arange(len(fresh))] = 1.0
            more = lapack.dtrsm(1.0, self.factor, unit, trans_a=1, overwrite_b=1)
            known = len(self.products)
            self.place[fresh] = known + np.arange(len(fresh))
            cross = self.columns.T @ more
            corner = more.T @ more
            self.products = np.block([[self.products, cross], [cross.T, corner]])
            self.columns = np.hstack([self.columns, more])
        at = self.place[B]
        return self.products[np.ix_(at, at)]


def schur_pivoting(
    H: Float64[Array, "n n"],
    c: Float64[Array, " n"],
    factor: Float64[Array, "n n"],
    guess: Bool[Mask, " n"],
    most: float = 1.0,
) -> tuple[Float64[Array, " n"], int, bool]:
    """Exchange all offenders at once, starting from a guess of the support.

    Args:
        H: symmetric positive semidefinite.
        c: linear term.
        factor: upper triangular R with RᵀR = H + σ11ᵀ, σ > 0.
        guess: first support, nonempty.
        most: give up at once when the first sweep exchanges more than this share.

    Returns:
        Weights; sweeps; whether the optimality test was passed.
    """
    n = len(c)
    root = np.sqrt(np.diagonal(H))
    border = _Border(factor, np.full(n, -1), np.zeros((n, 0), order="F"))
    support, fewest, stalled, confirmed = guess.copy(), n + 1, 0, False
    w = support / support.sum()
    for sweep in range(1, MAX_SWEEPS + 1):
        w = np.where(support, w, 0.0)
        w += (1.0 - w.sum()) * support / support.sum()
        w = w + _face_step(H, -(H @ w + c), border, support)
        gradient = H @ w + c
        w_plus = np.maximum(w, 0.0)
        w_plus /= w_plus.sum()
        cost = gradient - w_plus @ gradient
        too_low = cost < -OPTIMALITY * error_scale(root, c, w_plus)
        offenders = np.where(support, w <= 0, too_low)
        amount = int(offenders.sum())
        if amount == 0 and confirmed:
            return w_plus, sweep, True
        confirmed = amount == 0  # the sweep that confirms also refines
        stalled = 0 if amount < fewest else stalled + 1
        fewest = min(amount, fewest)
        support ^= offenders
        if stalled >= PATIENCE or not support.any() or fewest > most * n:
            break
    return w_plus, sweep, False


def _face_step(
    H: Float64[Array, "n n"],
    f: Float64[Array, " n"],
    border: _Border,
    support: Bool[Mask, " n"],
) -> Float64[Array, " n"]:
    """Step to the minimiser on the affine hull of a face from minus the gradient f."""
    S, B = np.flatnonzero(support), np.flatnonzero(~support)
    f = f - f[S].mean()  # changes no step; left in, p − (Σp/Σu) u would cancel
    if len(B) <= BORDER * len(f):
        return _bordered_step(f, border, B)
    block = H[np.ix_(S, S)] + np.median(np.diagonal(H))
    both, _ = lapack.dpotrs(
        lapack.dpotrf(block, overwrite_a=1)[0],
        np.stack([np.ones(len(S)), f[S]], axis=1),
    )
    step = np.zeros_like(f)
    step[S] = both[:, 1] - (both[:, 1].sum() / both[:, 0].sum()) * both[:, 0]
    return step


def _bordered_step(
    f: Float64[Array, " n"], border: _Border, B: Int64[Ints, " b"]
) -> Float64[Array, " n"]:
    """Step to the minimiser on the face where the indices B are held at zero.

    By the Schur complement of B in P = K⁻¹. P itself is never formed: R⁻ᵀE_B and its
    products are kept from sweep to sweep, and only new indices cost a solve.
    """
    both, _ = lapack.dpotrs(border.factor, np.stack([np.ones_like(f), f], axis=1))
    if len(B) > 0:
        factor, _ = lapack.dpotrf(border.inverse(B), overwrite_a=1)
        full = np.zeros_like(both, order="F")
        full[B] = lapack.dpotrs(factor, both[B])[0]
        both -= lapack.dpotrs(border.factor, full, overwrite_b=1)[0]
        both[B] = 0.0
    u, p = both[:, 0], both[:, 1]
    step: Float64[Array, " n"] = p - (p.sum() / u.sum()) * u
    return step
