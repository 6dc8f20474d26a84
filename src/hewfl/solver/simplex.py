"""The exact weight problem: a convex quadratic on the simplex, solved and certified.

    min over w ∈ Δ_n of  ⟨q, w⟩ + (Λ/2) wᵀ G w

Small problems go through block pivoting, then the active set, all problems of a stack
together. Large ones start with the active set, change to block pivoting from one
factorisation when the support is large, and to column generation when G is singular.
All weights pass the same optimality test, the same rule for ties and get the same
certificate.
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
from hewfl.solver.active_set import SolverResult, active_set, is_independent
from hewfl.solver.large import lifted_factor, solve_large
from hewfl.solver.least_norm import UNIQUE, SimplexQP, least_norm_minimiser
from hewfl.solver.pivoting import block_pivoting
from hewfl.solver.weight_problem import (
    Stack,
    WeightProblem,
    check_finite,
    check_gram,
    check_semidefinite,
    check_symmetric,
    scale_problem,
    stack_problems,
)

SMALL = 256
"""Up to this many clients a problem is solved whole; measured in benchmarks/solvers."""
ACCEPTED = 1e-9
"""A reduced cost below −this × error scale is a failure, never an answer."""


@np.errstate(all="ignore")  # what is not finite is an error, not a warning
def solve_simplex_qp(
    gram: ArrayLike,
    linear: ArrayLike,
    *,
    curvature: ArrayLike = 1.0,
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
    stack = stack_problems(gram, linear, curvature)
    return _solve(stack).unstack(stack.batch)


def solve_gram(products: RoundProducts, curvature: float) -> SimplexSolution:
    """Weights of a round from inner products that hewfl formed itself.

    Such a matrix is symmetric and semidefinite by construction: it is not factorised
    once more only to prove that.

    Args:
        products: G, q and the constant of the objective.
        curvature: Λ > 0.

    Returns:
        Weights with value, multipliers and certified gap in the units of the data.

    Raises:
        InvalidInputError: Λ is out of range, or products are not finite.
        SolverError: the optimality test failed; the text gives the residual.
    """
    numbers = (products.gram, products.linear, products.offset)
    if not all(np.isfinite(part).all() for part in numbers):
        rule = "so short that products with each other, the reference and the "
        rule += "curvature stay below 1.8e308"
        raise invalid("displacements", rule, "longer ones")
    stack = stack_problems(products.gram, products.linear, curvature)
    solution = _solve(replace(stack, tolerance=np.inf)).unstack(())
    value = np.asarray(solution.value + products.offset)
    return in_given_units(replace(solution, value=value), products.exponent)


def in_given_units(solution: SimplexSolution, exponent: int) -> SimplexSolution:
    """A solution in units of 2^exponent as one in the units of the data.

    Raises:
        InvalidInputError: its value or a multiplier is beyond the range of float64.
    """
    with np.errstate(over="ignore"):
        value, gap = (
            np.asarray(np.ldexp(x, exponent)) for x in (solution.value, solution.gap)
        )
        multipliers = np.ldexp(solution.multipliers, exponent)
    if not (np.isfinite(value) and np.isfinite(gap) and np.isfinite(multipliers).all()):
        known = [abs(float(solution.value)), float(solution.multipliers.max()), 1.0]
        size = max(x for x in known if np.isfinite(x))  # products are near one
        rule = "so short that products times the curvature stay below 1.8e308"
        power = np.log10(size) + exponent * np.log10(2.0)
        raise invalid("displacements", rule, f"products near 1e{power:.0f}")
    return replace(solution, value=value, gap=gap, multipliers=multipliers)


@final
@dataclass(frozen=True, slots=True)
class _Solutions:
    """Solutions of a stack, its batch dimensions flattened."""

    weights: Float64[Array, "b n"]
    multipliers: Float64[Array, "b n"]
    value: Float64[Array, " b"]
    gap: Float64[Array, " b"]
    iterations: Int64[Ints, " b"]
    notes: set[str]
    finite: bool

    def unstack(self, batch: tuple[int, ...]) -> SimplexSolution:
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


def require_optimal(problem: SimplexQP, result: SolverResult) -> None:
    """Refuse weights with a reduced cost that stays negative.

    Args:
        problem: the quadratic.
        result: of a solver; solved weights have passed a stricter test.

    Raises:
        SolverError: the residual is above `ACCEPTED`.
    """
    if result.solved:
        return
    cost, scale = problem.reduced_costs(result.weights)
    residual = float((-cost / scale).max())
    if residual > ACCEPTED:
        text = (
            f"the simplex problem was not solved: relative residual {residual:.1e} "
            f"above {ACCEPTED:.0e}; the Gram matrix is probably indefinite"
        )
        raise SolverError(text)


def _solve(stack: Stack) -> _Solutions:
    """The one dispatch: by size, then compiled or NumPy."""
    if stack.n > SMALL:
        return _solve_large(stack)
    return _solve_plain(stack) if library(SOLVER) is None else _solve_compiled(stack)


def _solve_compiled(stack: Stack) -> _Solutions:
    """All small problems in one compiled call; ties are resolved one by one."""
    kernels = library(SOLVER)
    assert kernels is not None
    count, n = stack.q.shape
    w, z, info = np.zeros((count, n)), np.empty((count, n)), np.empty((count, 4))
    pivots = np.empty(count, dtype=np.int64)
    data = (stack.G, stack.q, stack.curvature)
    lowest, unique, finite = kernels.solve(
        *data, w, z, info, pivots, count, n, False, stack.tolerance
    )
    if lowest == -2:  # the kernel only reports a bad matrix; this names the fault
        check_gram(stack)
        raise invalid("gram", "positive semidefinite", "a matrix at the edge of it")
    value, gap = info[:, 0], info[:, 1]
    notes = {UNIQUE} if unique > 0 else set()
    for t in np.flatnonzero(info[:, 3] == 0) if unique < count else ():
        problem = scale_problem(stack.G[t], stack.q[t], float(stack.curvature[t]))
        independent = bool(info[t, 2])
        require_optimal(
            problem, SolverResult(w[t], 0, bool(pivots[t] >= 0), independent)
        )
        w[t], note = least_norm_minimiser(problem, w[t], independent=independent)
        z[t], value[t], gap[t] = problem.certificate(w[t])
        notes.add(note)
    sweeps = np.maximum(pivots, 0)
    return _Solutions(w, z, value, gap, sweeps, notes, finite=bool(finite))


def _solve_plain(stack: Stack) -> _Solutions:
    """Small problems without the compiled kernels."""
    check_gram(stack)
    problems = _scale_problems(stack)
    return _certify(problems, _solve_small(problems))


def _solve_large(stack: Stack) -> _Solutions:
    """One after the other; the solver's factorisation proves a matrix semidefinite."""
    check_finite(stack)
    results, problems = [], _scale_problems(stack)
    for t, problem in enumerate(problems):
        lifted = None
        if stack.tolerance < np.inf:
            where = f" (problem {t})" if len(problems) > 1 else ""
            check_symmetric(stack.G[t], stack.tolerance, where)
            lifted = lifted_factor(problem.H)
            if not lifted.semidefinite:
                check_semidefinite(stack.G[t], stack.tolerance, where)
        results.append(solve_large(problem.H, problem.c, lifted))
    return _certify(problems, results)


def _scale_problems(stack: Stack) -> list[WeightProblem]:
    each = zip(stack.G, stack.q, stack.curvature, strict=True)
    return [scale_problem(G, q, float(curvature)) for G, q, curvature in each]


def _certify(problems: list[WeightProblem], results: list[SolverResult]) -> _Solutions:
    """Test optimality, resolve ties, compute certificates."""
    w, z = np.empty((2, len(problems), len(problems[0].c)))
    value, gap = np.empty((2, len(problems)))
    notes = set()
    for t, (problem, result) in enumerate(zip(problems, results, strict=True)):
        require_optimal(problem, result)
        w[t], note = least_norm_minimiser(
            problem, result.weights, independent=result.independent
        )
        z[t], value[t], gap[t] = problem.certificate(w[t])
        notes.add(note)
    pivots = np.array([result.pivots for result in results], dtype=np.int64)
    finite = bool(np.isfinite(value).all())
    return _Solutions(w, z, value, gap, pivots, notes, finite)


def _solve_small(problems: list[WeightProblem]) -> list[SolverResult]:
    """Block pivoting for the stack, the active set for the problems it leaves."""
    H = np.stack([p.H for p in problems])
    c = np.stack([p.c - p.c[np.argmin(0.5 * np.diagonal(p.H) + p.c)] for p in problems])
    weights, sweeps, solved = block_pivoting(H, c, np.ones(c.shape, dtype=np.bool_))
    return [
        SolverResult(weights[t], int(sweeps[t]), True, is_independent(H[t], weights[t]))
        if solved[t]
        else active_set(H[t], c[t])
        for t in range(len(c))
    ]
