"""Ties: the least-norm minimiser, and the row spaces it is projected in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from tests import known_solutions as problems
from tests.known_solutions import QPInstance
from tests.solver.prepared import Array, solve
from tests.tolerances import COMPONENTWISE, GAP, HIDDEN, PERMUTATION, WEIGHTS

from hewfl import solve_simplex_qp
from hewfl.solver.least_norm import (
    UNIQUE,
    least_norm_minimiser,
    least_norm_weights,
    newton_polish,
    row_space,
    row_space_of_factor,
)
from hewfl.solver.weight_problem import scale_problem

pytestmark = pytest.mark.usefixtures("path")

ORTHONORMAL = 2e-8
"""What a Cholesky factor leaves whose pivots are above 1e-4: eps over their square."""

DEGENERATE = problems.degenerate_instances()
TIES = problems.tie_instances()


@pytest.mark.parametrize("instance", DEGENERATE + TIES, ids=lambda i: i.name)
def test_degenerate_instances_are_solved_and_settled(instance: QPInstance) -> None:
    solution = solve(instance)
    assert problems.relative_gap(instance, solution.weights) <= GAP
    assert problems.componentwise_gap(instance, solution.weights) <= COMPONENTWISE
    if instance.weights is not None:
        error = np.abs(solution.weights - instance.weights).max()
        assert error <= instance.tolerance * instance.weights.max()


@pytest.mark.parametrize("instance", TIES, ids=lambda i: i.name)
def test_ties_do_not_depend_on_the_order_of_clients(
    instance: QPInstance, rng: np.random.Generator
) -> None:
    first = solve(instance).weights
    order = rng.permutation(instance.n)
    again = solve(problems.permuted(instance, order)).weights
    loose = 1e-8 if "1e6" in instance.name else PERMUTATION
    assert np.abs(again - first[order]).max() <= loose * first.max()


@given(seed=st.integers(0, 10_000))
def test_fuzzed_degenerate_problems(seed: int) -> None:
    instance = problems.random_degenerate(np.random.default_rng(seed))
    solution = solve(instance)
    assert problems.relative_gap(instance, solution.weights) <= GAP
    # wrong weights among ordinary columns must not hide behind a long one
    assert problems.componentwise_gap(instance, solution.weights) <= HIDDEN


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 30),
    copies=st.integers(2, 4),
)
def test_a_repeated_client_shares_its_weight(seed: int, n: int, copies: int) -> None:
    rng = np.random.default_rng(seed)
    instance = problems.gaussian_instance(rng, n, n + 10)
    single = solve(instance).weights
    repeated = problems.repeated(instance, np.full(n, copies))
    shared = solve(repeated).weights.reshape(n, copies)
    assert np.abs(shared - single[:, None] / copies).max() <= WEIGHTS
    assert np.ptp(shared, axis=1).max() <= PERMUTATION


def test_identical_clients_get_the_uniform_vector() -> None:
    for n in (1, 2, 3, 17, 100, 300):
        weights = solve_simplex_qp(np.ones((n, n)), np.full(n, 0.3)).weights
        assert np.abs(weights - 1 / n).max() <= 1e-14


def test_a_unique_minimiser_at_zero_is_called_unique_or_least_norm() -> None:
    G = [[5, 2, 1, 0], [2, 4, -2, 0], [1, -2, 2, 0], [0, 0, 0, 0]]
    solution = solve_simplex_qp(G, np.zeros(4))
    assert "one of several" not in solution.status
    assert float(solution.gap) < 1e-15


# ------------------------------------------------------------------ the parts


@given(seed=st.integers(0, 10_000), d=st.integers(1, 6), spread=st.floats(0, 3))
def test_both_row_spaces_are_the_same_space(seed: int, d: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    m = 2 * d + 3
    rows = rng.standard_normal((m, d)) * 10 ** (spread * rng.uniform(-1, 1, (m, 1)))
    by_rows, by_gram = row_space_of_factor(rows), row_space(rows @ rows.T)
    assert by_rows is not None
    assert by_gram is not None
    assert by_rows.shape == by_gram.shape == (m, d + 1)
    for basis in (by_rows, by_gram):
        assert np.abs(basis.T @ basis - np.eye(d + 1)).max() < ORTHONORMAL
        ones = np.ones(m)
        assert np.abs(basis @ (basis.T @ ones) - ones).max() < 1e-9
    cosines = np.linalg.svd(by_rows.T @ by_gram, compute_uv=False)
    assert cosines.min() > 1 - 1e-9


def test_independent_columns_have_no_row_space(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((6, 9))
    assert row_space(rows @ rows.T) is None
    assert row_space_of_factor(rows) is None


@given(seed=st.integers(0, 10_000), d=st.integers(1, 5))
def test_the_least_norm_point_is_that_of_another_solver(seed: int, d: int) -> None:
    """min ‖v‖² subject to Fᵀv = Fᵀw, v ≥ 0 is the limit of penalised least squares."""
    rng = np.random.default_rng(seed)
    m = 3 * d + 4
    rows, w = rng.standard_normal((m, d)), rng.dirichlet(np.ones(m))
    basis = row_space_of_factor(rows)
    assert basis is not None
    v, gap = least_norm_weights(basis, w)
    assert gap < 1e-9
    assert v.min() >= 0
    assert np.abs(rows.T @ (v - w)).max() < 1e-12
    strong = 1e7
    system = np.vstack([np.eye(m), strong * basis.T])
    other, _ = nnls(system, np.concatenate([np.zeros(m), strong * (basis.T @ w)]))
    assert np.abs(v - other).max() < 1e-6


def test_a_unique_minimiser_is_left_to_the_bit(rng: np.random.Generator) -> None:
    instance = problems.constructed_instance(rng, 12, 30, 5)
    problem = scale_problem(instance.gram, instance.linear, 1.0)
    w = solve(instance).weights
    for known in (True, False):
        settled, note = least_norm_minimiser(problem, w, independent=known)
        assert note == UNIQUE
        assert np.array_equal(settled, w)


def test_levelling_brings_back_the_digits_of_a_tiny_weight(
    rng: np.random.Generator,
) -> None:
    rows = rng.standard_normal((4, 9))
    rows[0] *= 1e6
    exact = np.array([1e-10, 0.25, 0.5, 0.25 - 1e-10])
    H = rows @ rows.T
    c = -H @ exact  # the gradient vanishes at the exact weights
    rough: Array = exact + 1e-12 * np.array([1.0, -1.0, 0.0, 0.0])
    once = newton_polish(H, H @ rough + c, rough)
    assert abs(once[0] / exact[0] - 1) < 1e-6 < abs(rough[0] / exact[0] - 1)
