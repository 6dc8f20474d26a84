"""Weight problems with many clients: three methods, the cheapest that fits first.

The active set, for a small support. Block pivoting from one factorisation
(`hewfl.solver.pivoting`), for a large one. Column generation, where the Gram matrix is
singular, huge or never formed: the caller provides columns by index and one product
with all of them.
"""

from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.solver import lapack
from hewfl.solver.active_set import (
    INDEPENDENT,
    OPTIMALITY,
    Index,
    SolverResult,
    active_set_compiled,
    error_scale,
)
from hewfl.solver.pivoting import schur_pivoting

FIRST_PIVOTS = 48
"""Exchanges after which a support is called large; measured in benchmarks/solvers."""
SLACK = 1e-10
"""Negative curvature allowed for rounding, relative to a median diagonal entry."""
MOSTLY_RIGHT = 0.3
"""Share of indices a first exchange may move before the support is called small."""


@runtime_checkable
class Columns(Protocol):
    """A quadratic ⟨c, w⟩ + ½ wᵀHw that is read a few columns at a time."""

    @property
    def diagonal(self) -> Float64[Array, " n"]:
        """H_ii."""

    @property
    def linear(self) -> Float64[Array, " n"]:
        """The linear term c."""

    def block(self, rows: Index, columns: Index) -> Float64[Array, "k m"]:
        """H restricted to rows × columns."""

    def gradient(
        self, members: Index, weights: Float64[Array, " k"]
    ) -> Float64[Array, " n"]:
        """H w + c for w supported on `members`."""


@final
@dataclass(frozen=True, slots=True)
class DenseColumns:
    """The columns of a matrix in memory."""

    H: Float64[Array, "n n"]
    linear: Float64[Array, " n"]

    @property
    def diagonal(self) -> Float64[Array, " n"]:
        """H_ii."""
        return np.diagonal(self.H)

    def block(self, rows: Index, columns: Index) -> Float64[Array, "k m"]:
        """H restricted to rows × columns."""
        return self.H[np.ix_(rows, columns)]

    def gradient(self, members: Index, weights: Array) -> Float64[Array, " n"]:
        """H w + c for w supported on `members`."""
        gradient: Array = self.H[members].T @ weights + self.linear
        return gradient


def column_generation(problem: Columns, batch: int) -> SolverResult:
    """Minimise over the simplex: solve on few columns, price all, add the violated.

    Args:
        problem: the quadratic.
        batch: columns added at a time.

    Returns:
        The weights; solved means that no column is violated any more.
    """
    diagonal, c = problem.diagonal, problem.linear
    root = np.sqrt(diagonal)
    members = np.argsort(0.5 * diagonal + c, kind="stable")[:batch]
    H = problem.block(members, members)
    w, pivots = np.zeros(len(c)), 0
    start: Array | None = None
    while True:
        result = active_set_compiled(H, c[members] - c[members[0]], start)
        pivots += result.pivots
        w[:] = 0.0
        w[members] = result.weights
        S = members[result.weights > 0]
        gradient = problem.gradient(S, w[S])
        violation = w[S] @ gradient[S] - gradient
        violation /= error_scale(root, c - c[members[0]], w)
        fresh = np.flatnonzero(violation > OPTIMALITY)
        fresh = fresh[~np.isin(fresh, members)]
        if len(fresh) == 0:
            solved = bool((violation <= OPTIMALITY).all())
            return SolverResult(w, pivots, solved, result.independent)
        order = np.argsort(-violation[fresh], kind="stable")[:batch]
        fresh = fresh[order]
        # Members never leave: a column dropped and added again could cycle without end.
        cross = problem.block(members, fresh)
        H = np.block([[H, cross], [cross.T, problem.block(fresh, fresh)]])
        members = np.concatenate([members, fresh])
        start = w[members]


@final
@dataclass(frozen=True, slots=True)
class LiftedFactor:
    """Upper factor R of H + σ11ᵀ, which is H as far as the simplex can see.

    Attributes:
        factor: R.
        independent: whether the pivots prove the columns affinely independent.
        semidefinite: whether H ⪰ 0 up to rounding: only v = (H + σ11ᵀ)⁻¹1 could be a
            direction of negative curvature, and vᵀHv is not negative.
    """

    factor: Float64[Array, "n n"]
    independent: bool
    semidefinite: bool


def lifted_factor(H: Float64[Array, "n n"]) -> LiftedFactor:
    """Factorise H + σ11ᵀ, and prove H semidefinite by the way.

    Args:
        H: symmetric, largest entry near one.

    Returns:
        The factor, with σ the median diagonal entry, and what it proves.
    """
    # The median: a σ of the size of one very long column would swamp all others.
    lift = float(np.median(np.diagonal(H)) or np.mean(np.diagonal(H)) or 1.0)
    K = H + lift  # symmetric, so its transpose is the column-major copy LAPACK wants
    corner = np.diagonal(K).copy()
    factor, info = lapack.dpotrf(K.T, clean=0, overwrite_a=1)
    if info != 0 or not (np.diagonal(factor) ** 2 > INDEPENDENT * corner).all():
        return LiftedFactor(factor, independent=False, semidefinite=False)
    # The lift may hide one direction of negative curvature, no more (it has rank one),
    # and that is v. A second factorisation of H itself would cost as much as the solve.
    v, _ = lapack.dpotrs(factor, np.ones(len(H)))
    total = float(v.sum())
    lowest = total * (1.0 - lift * total) / float(v @ v)  # vᵀHv / vᵀv
    return LiftedFactor(factor, independent=True, semidefinite=lowest >= -SLACK * lift)


def solve_large(
    H: Float64[Array, "n n"],
    c: Float64[Array, " n"],
    lifted: LiftedFactor | None = None,
) -> SolverResult:
    """Minimise ⟨c, w⟩ + ½ wᵀHw over the simplex for n in the hundreds and above.

    Args:
        H: symmetric positive semidefinite, largest entry near one.
        c: linear term on the same scale.
        lifted: the factor of H + σ11ᵀ, where it is known already.

    Returns:
        The result of the first of three methods to pass the optimality test.
    """
    c = c - c[np.argmin(0.5 * np.diagonal(H) + c)]
    guess, pivots = np.ones(len(c), dtype=np.bool_), 0
    if lifted is not None and lifted.independent:
        w, pivots, solved = schur_pivoting(H, c, lifted.factor, guess, MOSTLY_RIGHT)
        if solved:
            return SolverResult(w, pivots, solved=True, independent=True)
    result = active_set_compiled(H, c, max_pivots=FIRST_PIVOTS)
    pivots += result.pivots
    if result.solved:
        return replace(result, pivots=pivots)
    lifted = lifted_factor(H) if lifted is None else lifted
    if lifted.independent:
        w, sweeps, solved = schur_pivoting(H, c, lifted.factor, guess)
        pivots += sweeps
        if solved:
            return SolverResult(w, pivots, solved=True, independent=True)
    result = column_generation(DenseColumns(H, c), max(64, len(c) // 8))
    return replace(result, pivots=pivots + result.pivots)
