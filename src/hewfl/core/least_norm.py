"""The least-norm point of an optimal face: the one minimiser everybody can agree on.

Minimisers of ⟨c, w⟩ + ½ wᵀHw over the simplex need not be unique (equal clients, more
clients than dimensions), but all of them share Hw, so they are

    { v ≥ 0 : Fᵀv = Fᵀw },     rows of F: the columns on the face, lifted by a one.

Its point of least norm is unique, moves with a permutation of the clients, and gives
equal clients equal weight (erratum E-13).
"""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import lapack

from hewfl.core.checks import Array
from hewfl.core.quadratic import Quadratic

FACE = 1e-12
"""An index is on the optimal face when its reduced cost is below this × error scale."""
RANK = 1e-11
"""Squared relative distance below which a column counts as dependent on others. It lies
above float32 rounding of the data and below real differences between clients; the
least-norm minimiser jumps with rank, so this number is part of its definition."""
SETTLED = 1e-10
"""What the tie rule may add to a relative reduced cost: columns of very unequal length
leave this much rounding in the face."""
_NEWTON_STEPS = 60

UNIQUE = "optimal: the minimiser is unique"
LEAST_NORM = "optimal: least-norm point of a face of minimisers"
UNSETTLED = "optimal: one of several minimisers, the least-norm one was not resolved"


def settle_ties(
    problem: Quadratic, w: Float64[Array, " n"], *, independent: bool
) -> tuple[Float64[Array, " n"], str]:
    """The least-norm minimiser, given any minimiser.

    Args:
        problem: the quadratic.
        w: a minimiser.
        independent: whether the support of w is known to be affinely independent.

    Returns:
        Weights, and a sentence on uniqueness.
    """
    cost, scale = problem.reduced_costs(w)
    E = np.flatnonzero(cost <= FACE * scale)
    if independent and len(E) == np.count_nonzero(w):
        return w, UNIQUE
    K = problem.H[np.ix_(E, E)]
    sizes = np.diagonal(K)
    basis = row_space(K + (np.median(sizes) or np.mean(sizes) or 1.0))
    if basis is None:
        return w, UNIQUE
    settled = np.zeros_like(w)
    settled[E], _ = least_norm_weights(basis, w[E])
    cost, scale = problem.reduced_costs(settled)
    if (cost < -SETTLED * scale).any() or -cost.min() > FACE:  # H and c are of size one
        return w, UNSETTLED
    return settled, LEAST_NORM


def row_space(K: Float64[Array, "m m"]) -> Float64[Array, "m r"] | None:
    """Orthonormal basis of the range of a singular PSD matrix, None if it has full rank.

    Rank is decided on the unit-diagonal matrix, where one long column cannot hide the
    others, by pivoted Cholesky; one subspace iteration then removes what the dropped
    directions left behind.
    """
    size = np.sqrt(np.diagonal(K))
    unit = K / np.outer(size, size)
    factor, order, rank, _ = lapack.dpstrf(unit, tol=RANK, lower=1)
    if rank == len(K):
        return None
    tail, _ = lapack.dtrtrs(factor[:rank, :rank], factor[rank:, :rank].T, 1, 1)
    basis = np.empty((len(K), rank))  # range of the factor: rows I, then L₂L₁⁻¹
    basis[order[:rank] - 1] = np.eye(rank)
    basis[order[rank:] - 1] = tail.T
    basis, _ = np.linalg.qr(size[:, None] * (unit @ basis))
    return np.asarray(basis)


def least_norm_weights(
    basis: Float64[Array, "m r"], weights: Float64[Array, " m"]
) -> tuple[Float64[Array, " m"], float]:
    """Project zero onto {v ≥ 0 : Vᵀv = Vᵀw} by a semismooth Newton method on the dual.

        max_y  ⟨b, y⟩ − ½‖(Vy)₊‖²,     v = (Vy)₊,     b = Vᵀw

    Args:
        basis: V, orthonormal columns spanning the row space; 1 must lie in it.
        weights: w, any minimiser on the face.

    Returns:
        v, and its duality gap ½‖v‖² − (⟨b, y⟩ − ½‖(Vy)₊‖²) relative to ½‖v‖².
    """
    b = basis.T @ weights
    y, residual = b, np.inf
    v = np.maximum(basis @ y, 0.0)
    value = b @ y - 0.5 * (v @ v)
    for _ in range(_NEWTON_STEPS):
        rest = b - basis.T @ v
        last, residual = residual, float(np.linalg.norm(rest))
        if residual == 0.0 or (residual < 1e-12 and residual >= 0.5 * last):
            break
        active = basis[v > 0]
        hessian = active.T @ active
        hessian[np.diag_indices_from(hessian)] += 1e-15 + 1e-6 * min(residual, 1.0) ** 2
        step, _ = lapack.dpotrs(lapack.dpotrf(hessian, overwrite_a=1)[0], rest)
        slope, length = float(rest @ step), 1.0
        while True:
            trial = y + length * step
            v_trial = np.maximum(basis @ trial, 0.0)
            value_trial = b @ trial - 0.5 * (v_trial @ v_trial)
            if value_trial >= value + 1e-4 * length * slope - 1e-16 or length < 1e-8:
                break
            length *= 0.5
        y, v, value = trial, v_trial, value_trial
    total = v.sum()
    gap = float(0.5 * (v @ v) - value) / max(float(0.5 * (v @ v)), 1e-300)
    return v / total, gap
