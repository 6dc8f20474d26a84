"""The least-norm point of an optimal face: a minimiser that is unique.

Minimisers of ⟨c, w⟩ + ½ wᵀHw over the simplex need not be unique (equal clients, more
clients than dimensions), but all of them share Hw, so they are

    { v ≥ 0 : Fᵀv = Fᵀw },     rows of F: the columns on the face, lifted by a one.

Its point of least norm is unique, moves with a permutation of the clients, and gives
equal clients equal weight (erratum E-13).
"""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.solver import lapack
from hewfl.solver.active_set import OPTIMALITY, Index, gram_around

FACE = 1e-12
"""An index is on the optimal face when its reduced cost is below this × error scale."""
RANK = 1e-11
"""Squared relative distance below which a column counts as dependent on others. It lies
above float32 rounding of the data and below real differences between clients; the
least-norm minimiser jumps with rank, so this number is part of its definition."""
TIE_COST = 1e-10
"""What the tie rule may add to a relative reduced cost: columns of very unequal length
leave this much rounding in the face."""
SHORTEST = 1e-9
"""Relative duality gap above which a point is not called the one of least norm."""
EXACT = 1e-13
"""And to the gap, relative to the size of the objective."""
EPS = float(np.finfo(np.float64).eps)
_NEWTON_STEPS = 60

UNIQUE = "optimal: the minimiser is unique"
LEAST_NORM = "optimal: least-norm point of a face of minimisers"
UNRESOLVED = "optimal: one of several minimisers, the least-norm one was not resolved"


@runtime_checkable
class SimplexQP(Protocol):
    """A quadratic on the simplex, with what the least-norm rule needs of it."""

    @property
    def size(self) -> float:
        """Magnitude of the objective over the simplex."""

    def reduced_costs(
        self, w: Float64[Array, " n"]
    ) -> tuple[Float64[Array, " n"], Float64[Array, " n"]]:
        """∇_i − ⟨w, ∇⟩ and its error scale e_i."""

    def polish(self, w: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """Weights w with the rounding errors of their face removed."""

    def face_basis(self, members: Index) -> Float64[Array, "m r"] | None:
        """Orthonormal row space of the columns on a face, None if independent."""


def least_norm_minimiser(
    problem: SimplexQP, w: Float64[Array, " n"], *, independent: bool
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
    E = np.flatnonzero((cost <= FACE * scale) | (w > 0))
    if independent and len(E) == np.count_nonzero(w):
        return w, UNIQUE
    basis = problem.face_basis(E)
    if basis is None:
        return w, UNIQUE
    shortest = np.zeros_like(w)
    shortest[E], gap = least_norm_weights(basis, w[E])
    if gap > SHORTEST:
        return w, UNRESOLVED
    cost, scale = problem.reduced_costs(shortest)
    if (cost < -OPTIMALITY * scale).any():
        shortest = problem.polish(shortest)
        cost, scale = problem.reduced_costs(shortest)
    if (cost < -TIE_COST * scale).any() or -cost.min() > EXACT * problem.size:
        return w, UNRESOLVED
    return shortest, LEAST_NORM


def row_space_of_factor(rows: Float64[Array, "m d"]) -> Float64[Array, "m r"] | None:
    """Orthonormal row space of a face from its columns, None if independent.

    For m > d; `row_space` needs the Gram matrix only.

    Args:
        rows: the columns on the face, one in each row.

    Returns:
        V with 1 in its range, r = rank + 1.
    """
    # Rank is decided from the shortest column and on unit length: a common part or one
    # long column would otherwise make all the others look dependent.
    lengths = np.einsum("ij,ij->i", rows, rows)
    apart = rows - rows[int(np.argmin(lengths))]
    size = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    far = size > np.sqrt(RANK * (lengths + lengths.min()))
    size = np.where(far, size, size.max() or 1.0)
    unit = np.where(far[:, None], apart, 0.0) / size[:, None]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    ranked = values > RANK * max(values[-1], 1.0)
    if np.count_nonzero(ranked) >= len(rows) - 1:
        return None
    basis = np.ones((len(rows), np.count_nonzero(ranked) + 1))
    basis[:, :-1] = unit @ (vectors[:, ranked] / np.sqrt(values[ranked]))
    basis[:, :-1] *= size[:, None] / np.median(size)
    return _orthonormalise(basis, size)


def _orthonormalise(
    basis: Float64[Array, "m r"], size: Float64[Array, " k"]
) -> Float64[Array, "m r"]:
    """Make columns orthonormal; `size` shows how unequal the rows are.

    A Cholesky factor does for rows of one size. For very unequal ones, Householder
    reflections with rows sorted and columns pivoted keep the digits of short rows.
    """
    basis = basis / np.linalg.norm(basis, axis=0)
    if len(size) == 0 or size.max() < 1e3 * size.min():
        factor, info = lapack.dpotrf(basis.T @ basis)
        if info == 0 and np.diagonal(factor).min() > 1e-4:
            return np.asarray(lapack.dtrsm(1.0, factor, basis, side=1))
        return np.asarray(np.linalg.qr(basis)[0])
    from scipy.linalg import qr  # noqa: PLC0415 - slow to import

    order = np.argsort(-np.abs(basis).max(axis=1), kind="stable")
    rotated = qr(basis[order], mode="economic", pivoting=True)[0]
    sorted_back = np.empty_like(rotated)
    sorted_back[order] = rotated
    return sorted_back


@final
@dataclass(frozen=True, slots=True)
class _FaceFactor:
    """Pivoted Cholesky of a face around its shortest column, on unit diagonal.

    Attributes:
        origin: that column.
        rest: the other columns.
        M: inner products of their differences to it.
        size: their distances from it, zero where they coincide with it.
        factor: lower factor of M on unit diagonal, rows in `order`.
        order: pivots first.
        rank: how many columns are independent of those before them.
    """

    origin: int
    rest: list[int]
    M: Float64[Array, "k k"]
    size: Float64[Array, " k"]
    factor: Float64[Array, "k k"]
    order: NDArray[np.integer]
    rank: int


def _factorise_face(H: Float64[Array, "m m"]) -> _FaceFactor:
    """Factorise a face given by its Gram matrix."""
    diagonal = np.diagonal(H)
    origin = int(np.argmin(diagonal))
    rest = [i for i in range(len(H)) if i != origin]
    M = gram_around(H, origin, rest, rest)
    apart = np.diagonal(M) > RANK * (diagonal[rest] + diagonal[origin])
    size = np.sqrt(np.where(apart, np.diagonal(M), 1.0))
    unit = M * np.outer(apart / size, apart / size)
    factor, order, rank, _ = lapack.dpstrf(unit, tol=RANK, lower=1)
    size = np.where(apart, size, 0.0)
    return _FaceFactor(origin, rest, M, size, factor, order - 1, int(rank))


def row_space(H: Float64[Array, "m m"]) -> Float64[Array, "m r"] | None:
    """Orthonormal row space of a face from its Gram matrix, None if independent.

    Differences to the shortest column are factorised. Rank is decided on unit diagonal,
    where a long column cannot hide the others; one subspace iteration then removes the
    dropped directions.

    Args:
        H: inner products of the columns on the face.

    Returns:
        V with 1 in its range, r = rank + 1.
    """
    m = len(H)
    face = _factorise_face(H)
    rank, order, size = face.rank, face.order, face.size
    if rank == m - 1:
        return None
    inner = np.zeros((m - 1, rank))  # range of the factor: rows I, then L₂L₁⁻¹
    if rank > 0:
        head, rest = face.factor[:rank, :rank], face.factor[rank:, :rank]
        tail, _ = lapack.dtrtrs(head, rest.T, 1, 1)
        inner[order[:rank]] = np.eye(rank)
        inner[order[rank:]] = tail.T
        apart = np.where(size > 0, size, np.inf)[:, None]
        inner = face.M @ (inner / apart)
        inner[size == 0] = 0.0
    basis = np.ones((m, rank + 1))  # the last column: Σv_i = 1
    basis[face.rest, :rank] = inner
    basis[face.origin, :rank] = 0.0
    return _orthonormalise(basis, size[size > 0])


def newton_polish(
    H: Float64[Array, "m m"], gradient: Float64[Array, " m"], v: Float64[Array, " m"]
) -> Float64[Array, " m"]:
    """Move weights v > 0 by a Newton step on an independent part of the face.

    Long columns have tiny weights, of which the projection gives absolute digits; this
    restores their relative digits.

    Args:
        H: inner products of the columns with weight.
        gradient: Hv + c on them.
        v: the weights.

    Returns:
        The moved weights, or v where the step would leave the simplex.
    """
    face = _factorise_face(H)
    if face.rank == 0:
        return v
    chosen = face.order[: face.rank]
    part, size = np.array(face.rest)[chosen], face.size[chosen]
    rest = (gradient[face.origin] - gradient[part]) / size
    step, _ = lapack.dpotrs(face.factor[: face.rank, : face.rank], rest, lower=1)
    step /= size
    moved = v.copy()
    moved[part] += step
    moved[face.origin] -= step.sum()
    return moved if (moved > 0).all() else v


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
        # Singular while few v_i are positive; a ridge that shrinks with the squared
        # residual keeps the factor and, near the end, Newton's quadratic speed.
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
    gap = abs(float(0.5 * (v @ v) - value)) / max(float(0.5 * (v @ v)), 1e-300)
    v = np.where(v > 4 * len(v) * EPS * v.max(), v, 0.0)  # rounding is no weight
    return v / v.sum(), gap
