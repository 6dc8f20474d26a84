"""The exact solver: proofs attached, relations, degenerate cases, second opinions."""

from dataclasses import replace

import clarabel
import numpy as np
import piqp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import nnls
from tests import known_solutions as problems
from tests.solver.prepared import Array, assert_proved, prepared, scale, solve
from tests.tolerances import (
    SECOND_OPINION,
    WEIGHTS,
)

from hewfl import solve_simplex_qp, threshold_weights
from hewfl.errors import SolverError
from hewfl.solver.active_set import SolverResult
from hewfl.solver.simplex import ACCEPTED, require_optimal
from hewfl.solver.weight_problem import scale_problem

pytestmark = pytest.mark.usefixtures("path")


@given(seed=st.integers(0, 10_000), n=st.integers(1, 40), share=st.floats(0.05, 1.0))
def test_chosen_minimisers_are_found(seed: int, n: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    support = max(1, round(share * n))
    instance = problems.constructed_instance(rng, n, n + 20, support)
    assert instance.weights is not None
    solution = solve(instance)
    assert_proved(solution, *prepared(instance))
    assert np.abs(solution.weights - instance.weights).max() <= WEIGHTS


@given(seed=st.integers(0, 10_000), n=st.integers(1, 30))
def test_permuting_clients_permutes_weights(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    instance = problems.gaussian_instance(rng, n, 12)
    order = rng.permutation(n)
    first = solve(instance).weights
    again = solve(problems.permuted(instance, order)).weights
    assert np.abs(again - first[order]).max() <= WEIGHTS * first.max()


@given(seed=st.integers(0, 10_000), decade=st.integers(-150, 150))
def test_scaling_the_objective_changes_nothing(seed: int, decade: int) -> None:
    rng = np.random.default_rng(seed)
    gram, linear, curvature = prepared(problems.gaussian_instance(rng, 15, 30))
    first = solve_simplex_qp(gram, linear, curvature=curvature)
    factor = 2.0 ** round(decade / np.log10(2.0))
    again = solve_simplex_qp(gram * factor, linear * factor, curvature=curvature)
    assert np.array_equal(again.weights, first.weights)
    assert float(again.value) == pytest.approx(float(first.value) * factor)


@given(seed=st.integers(0, 10_000), shift=st.floats(-1e6, 1e6))
def test_a_constant_in_the_linear_term_changes_nothing(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    gram, linear, curvature = prepared(problems.gaussian_instance(rng, 15, 30))
    first = solve_simplex_qp(gram, linear, curvature=curvature)
    again = solve_simplex_qp(gram, linear + shift, curvature=curvature)
    assert np.abs(again.weights - first.weights).max() <= 1e-6


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60))
def test_diagonal_problems_follow_the_threshold_law(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    gains, risks = rng.normal(size=n), rng.uniform(0.1, 5.0, n)
    qp = solve_simplex_qp(np.diag(risks), -gains)
    law = threshold_weights(gains, risks)
    assert np.abs(qp.weights - law.weights).max() <= 1e-12
    assert float(qp.value) == pytest.approx(float(law.value), abs=1e-13)


def test_vanishing_and_exploding_curvature_reach_their_limits(
    rng: np.random.Generator,
) -> None:
    instance = problems.gaussian_instance(rng, 12, 30)
    G, q = instance.gram, instance.linear
    best = solve_simplex_qp(G, q, curvature=1e-12).weights
    assert best[np.argmin(q)] == 1.0
    shortest = solve_simplex_qp(G, np.zeros(12)).weights
    limit = solve_simplex_qp(G, q, curvature=1e12).weights
    assert np.abs(limit - shortest).max() <= 1e-9


@pytest.mark.parametrize("shape", [(), (1,), (25,), (3, 4)])
def test_a_stack_equals_its_problems(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    n = 20
    D = rng.standard_normal((*shape, n, 30))
    D[..., 1, :] = D[..., 0, :]  # a tie in every problem
    G, q = D @ D.swapaxes(-1, -2), rng.standard_normal((*shape, n))
    q[..., 1] = q[..., 0]
    lam = rng.uniform(0.5, 2.0, shape)
    stack = solve_simplex_qp(G, q, curvature=lam)
    assert stack.weights.shape == (*shape, n)
    assert stack.value.shape == stack.gap.shape == stack.iterations.shape == shape
    for index in np.ndindex(shape):
        one = solve_simplex_qp(G[index], q[index], curvature=float(lam[index]))
        assert np.abs(one.weights - stack.weights[index]).max() <= 1e-13
        assert float(one.gap) == pytest.approx(float(stack.gap[index]), abs=1e-13)


def test_arguments_are_left_alone(rng: np.random.Generator) -> None:
    gram, linear, lam = prepared(problems.gaussian_instance(rng, 20, 30))
    before = gram.copy(), linear.copy()
    solve_simplex_qp(gram, linear, curvature=lam)
    assert np.array_equal(gram, before[0])
    assert np.array_equal(linear, before[1])


# ------------------------------------------------------------------ second opinions


def by_piqp(H: Array, c: Array) -> Array:
    n = len(c)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-10
    bounds = {"x_l": np.zeros(n), "x_u": np.full(n, np.inf)}
    solver.setup(H, c, np.ones((1, n)), np.ones(1), **bounds)
    solver.solve()
    return np.asarray(solver.result.x)


def by_clarabel(H: Array, c: Array) -> Array:
    n = len(c)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    A = sparse.csc_matrix(np.vstack([np.ones((1, n)), -np.eye(n)]))
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    b = np.concatenate([[1.0], np.zeros(n)])
    P = sparse.csc_matrix(np.triu(H))
    return np.asarray(clarabel.DefaultSolver(P, c, A, b, cones, settings).solve().x)


def by_nnls(H: Array, c: Array) -> Array:
    """‖(F − z1ᵀ)y‖² + (1ᵀy − 1)² over y ≥ 0 has the minimiser's direction."""
    n = len(c)
    lifted = H + np.trace(H) / n
    values, vectors = np.linalg.eigh(lifted)
    root = np.sqrt(np.maximum(values, 1e-14 * values[-1]))
    F = root[:, None] * vectors.T
    z = -(vectors.T @ c) / root
    y, _ = nnls(np.vstack([F - z[:, None], np.ones((1, n))]), np.eye(n + 1)[-1])
    return np.asarray(y / y.sum())


@pytest.mark.parametrize("judge", [by_piqp, by_clarabel, by_nnls])
@pytest.mark.parametrize("n", [3, 20, 80])
def test_independent_libraries_agree(
    judge: object, n: int, rng: np.random.Generator
) -> None:
    assert callable(judge)
    for instance in (
        problems.gaussian_instance(rng, n, n + 10),
        problems.sgd_round(rng, n, 40, skew=0.3),
    ):
        gram, linear, lam = prepared(instance)
        unit = scale(gram, linear, lam)
        H, c = lam * gram / unit, linear / unit
        other = np.maximum(judge(H, c), 0)
        other /= other.sum()
        ours = solve_simplex_qp(gram, linear, curvature=lam)
        value = float(c @ other + 0.5 * other @ H @ other)
        mine = float(ours.value) / unit
        assert mine <= value + 1e-15  # nobody is better
        assert value - mine <= SECOND_OPINION  # and they are nearly as good
        assert value - mine >= -float(ours.gap) / unit - 1e-15  # the gap was honest


def test_weights_that_are_no_minimiser_are_refused() -> None:
    problem = scale_problem(np.eye(3), np.zeros(3), 1.0)
    far = SolverResult(np.array([1.0, 0.0, 0.0]), 7, solved=False, independent=True)
    text = r"relative residual \d.*e[+-]\d+ above 1e-09; the Gram matrix is probably"
    with pytest.raises(SolverError, match=text):
        require_optimal(problem, far)
    require_optimal(problem, replace(far, solved=True))  # has passed a stricter test
    require_optimal(problem, replace(far, weights=np.full(3, 1 / 3)))
    away = np.array([2.0, -1.0, -1.0])
    require_optimal(problem, replace(far, weights=1 / 3 + 0.1 * ACCEPTED * away))
    with pytest.raises(SolverError):
        require_optimal(problem, replace(far, weights=1 / 3 + 10 * ACCEPTED * away))
