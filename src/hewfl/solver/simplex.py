"""The exact weight problem: a convex quadratic on the simplex, solved and certified.

    min over w ∈ Δ_n of  ⟨q, w⟩ + (Λ/2) wᵀ G w

Small problems go through block pivoting with the active set behind it, all problems of
a stack together; large ones start as an active set, move to block pivoting from one
factorisation when the support turns out large, and to column generation when G is
singular. Whatever produced the weights, the same test accepts them, the same tie rule
settles them, and the same certificate leaves with them.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import RoundProducts
from hewfl.core.native import SOLVER, library
from hewfl.core.records import SimplexSolution
from hewfl.core.validation import Array, ArrayLike, Ints, invalid
from hewfl.errors import SolverError
from hewfl.solver.active_set import Found, active_set, is_independent
from hewfl.solver.large import lifted_factor, solve_large
from hewfl.solver.least_norm import UNIQUE, Faced, least_norm_minimiser
from hewfl.solver.pivoting import block_pivoting
from hewfl.solver.problem import (
    Stack,
    WeightProblem,
    check_finite,
    check_gram,
    check_semidefinite,
    check_symmetric,
    scaled,
    stacked,
)

SMALL = 256
"""Up to this many clients a problem is solved whole; measured in benchmarks/solvers."""
ACCEPTED = 1e-9
"""A reduced cost below −this × error scale is a failure, never an answer."""


def solve_simplex_qp(
    gram: ArrayLike,
    linear: ArrayLike,
    *,
    curvature: ArrayLike = 1.0,
    start: ArrayLike | None = None,
) -> SimplexSolution:
    """Weights that minimise a round's quadratic model over the simplex, exactly.

        w* = argmin over w ∈ Δ_n of  ⟨q, w⟩ + (Λ/2) wᵀ G w

    Among several minimisers the one of least norm is returned: it is unique, moves with
    a permutation of the clients and gives equal clients equal weight (erratum E-13).
    Leading batch dimensions are solved together.

    Args:
        gram: G, symmetric positive semidefinite up to the rounding of its dtype,
            shape (*batch, n, n).
        linear: q, shape (*batch, n).
        curvature: Λ > 0, one number or one per problem.
        start: weights near the answer, such as last round's; changes the time taken,
            not the answer.

    Returns:
        Weights with value, multipliers and certified gap.

    Raises:
        InvalidInputError: an argument breaks a rule above.
        SolverError: the optimality test failed; the text gives the residual.

    Examples:
        >>> import numpy as np
        >>> solution = solve_simplex_qp(np.diag([1.0, 1.0, 4.0]), np.zeros(3))
        >>> np.round(solution.weights, 4)
        array([0.4444, 0.4444, 0.1111])
        >>> bool(solution.gap < 1e-15), solution.status
        (True, 'optimal: the minimiser is unique')
    """
    stack = stacked(gram, linear, curvature, start)
    if stack.n > SMALL:
        answer = _solve_large(stack)
    elif library(SOLVER) is not None:
        answer = _solve_compiled(stack)
    else:
        answer = _solve_plain(stack)
    return answer.reshaped(stack.batch)


def solve_gram(products: RoundProducts, curvature: float) -> SimplexSolution:
    """Weights of a round from inner products that hewfl formed itself.

    Such a matrix is semidefinite by construction: above `SMALL` clients it is not
    factorised once more only to prove that.

    Args:
        products: G, q and the constant of the objective.
        curvature: Λ > 0.

    Returns:
        Weights with value, multipliers and certified gap in the units of the data.

    Raises:
        InvalidInputError: Λ is out of range, or products are not finite.
        SolverError: the optimality test failed; the text gives the residual.
    """
    gram, linear = products.gram, products.linear
    offset, exponent = products.offset, products.exponent
    if len(linear) > SMALL:
        problem = scaled(gram, linear, curvature)
        answer = _finish([problem], [solve_large(problem.H, problem.c)])
        solution = answer.reshaped(())
    else:
        solution = solve_simplex_qp(gram, linear, curvature=curvature)
    return replace(
        solution,
        value=np.asarray(np.ldexp(solution.value + offset, exponent)),
        gap=np.asarray(np.ldexp(solution.gap, exponent)),
        multipliers=np.ldexp(solution.multipliers, exponent),
    )


# ------------------ answers


@final
@dataclass(frozen=True, slots=True)
class _Answer:
    """Results of a stack before its batch dimensions come back."""

    weights: Float64[Array, "b n"]
    multipliers: Float64[Array, "b n"]
    value: Float64[Array, " b"]
    gap: Float64[Array, " b"]
    iterations: Int64[Ints, " b"]
    notes: set[str]
    finite: bool

    def reshaped(self, batch: tuple[int, ...]) -> SimplexSolution:
        if not self.finite:
            got = "a product beyond the range of float64"
            raise invalid("curvature", "such that curvature × gram is finite", got)
        full = (*batch, self.weights.shape[1])
        return SimplexSolution(
            weights=self.weights.reshape(full),
            value=self.value.reshape(batch),
            gap=self.gap.reshape(batch),
            multipliers=self.multipliers.reshape(full),
            support=(self.weights > 0).reshape(full),
            iterations=self.iterations.reshape(batch),
            status="; ".join(sorted(self.notes)),
        )


def accept(problem: Faced, found: Found) -> None:
    """Refuse weights with a reduced cost that stays negative.

    Args:
        problem: the quadratic.
        found: what a solver returned; solved weights passed a stricter test already.

    Raises:
        SolverError: the residual is above `ACCEPTED`.
    """
    if found.solved:
        return
    cost, scale = problem.reduced_costs(found.weights)
    residual = float((-cost / scale).max())
    if residual > ACCEPTED:
        text = (
            f"the simplex problem was not solved: relative residual {residual:.1e} "
            f"above {ACCEPTED:.0e}; the Gram matrix is probably indefinite"
        )
        raise SolverError(text)


# ------------------ the three paths


def _solve_compiled(stack: Stack) -> _Answer:
    """All small problems in one compiled call; ties are settled one by one."""
    native = library(SOLVER)
    assert native is not None
    count, n = stack.q.shape
    w = np.zeros((count, n)) if stack.start is None else stack.start
    z, info = np.empty((count, n)), np.empty((count, 4))
    pivots = np.empty(count, dtype=np.int64)
    data = (stack.G, stack.q, stack.curvature)
    warm = stack.start is not None
    lowest, unique, finite = native.solve(
        *data, w, z, info, pivots, count, n, warm, stack.tolerance
    )
    if lowest == -2:  # the kernel only says that a matrix is bad; this finds out why
        check_gram(stack)
        raise invalid("gram", "positive semidefinite", "a matrix at the edge of it")
    value, gap = info[:, 0], info[:, 1]
    notes = {UNIQUE} if unique > 0 else set()
    for t in np.flatnonzero(info[:, 3] == 0) if unique < count else ():
        problem = scaled(stack.G[t], stack.q[t], float(stack.curvature[t]))
        independent = bool(info[t, 2])
        accept(problem, Found(w[t], 0, bool(pivots[t] >= 0), independent))
        w[t], note = least_norm_minimiser(problem, w[t], independent=independent)
        z[t], value[t], gap[t] = problem.certificate(w[t])
        notes.add(note)
    done = np.maximum(pivots, 0)
    return _Answer(w, z, value, gap, done, notes, finite=bool(finite))


def _solve_plain(stack: Stack) -> _Answer:
    """Small problems without the compiled kernels."""
    check_gram(stack)
    problems = _problems(stack)
    return _finish(problems, _solve_small(problems, stack.start))


def _solve_large(stack: Stack) -> _Answer:
    """One after the other; a factorisation proves the matrix semidefinite, too."""
    check_finite(stack)
    found, problems = [], _problems(stack)
    for t, problem in enumerate(problems):
        where = f" (problem {t})" if len(problems) > 1 else ""
        check_symmetric(stack.G[t], stack.tolerance, where)
        lifted = lifted_factor(problem.H)
        if not lifted.semidefinite:
            check_semidefinite(stack.G[t], stack.tolerance, where)
        start = None if stack.start is None else stack.start[t]
        found.append(solve_large(problem.H, problem.c, start, lifted))
    return _finish(problems, found)


def _problems(stack: Stack) -> list[WeightProblem]:
    each = zip(stack.G, stack.q, stack.curvature, strict=True)
    return [scaled(G, q, float(curvature)) for G, q, curvature in each]


def _finish(problems: list[WeightProblem], found: list[Found]) -> _Answer:
    """Accept or refuse, settle ties, certify."""
    w, z = np.empty((2, len(problems), len(problems[0].c)))
    value, gap = np.empty((2, len(problems)))
    notes = set()
    for t, (problem, result) in enumerate(zip(problems, found, strict=True)):
        accept(problem, result)
        independent = result.independent
        w[t], note = least_norm_minimiser(
            problem, result.weights, independent=independent
        )
        z[t], value[t], gap[t] = problem.certificate(w[t])
        notes.add(note)
    pivots = np.array([result.pivots for result in found], dtype=np.int64)
    finite = bool(np.isfinite(value).all())
    return _Answer(w, z, value, gap, pivots, notes, finite)


def _solve_small(problems: list[WeightProblem], start: Array | None) -> list[Found]:
    """Block pivoting for the stack, the active set for what it leaves."""
    H = np.stack([p.H for p in problems])
    c = np.stack([p.c - p.c[np.argmin(0.5 * np.diagonal(p.H) + p.c)] for p in problems])
    guess = np.ones(c.shape, dtype=np.bool_) if start is None else start > 0
    weights, sweeps, solved = block_pivoting(H, c, guess)
    return [
        Found(weights[t], int(sweeps[t]), True, is_independent(H[t], weights[t]))
        if solved[t]
        else active_set(H[t], c[t])
        for t in range(len(c))
    ]
