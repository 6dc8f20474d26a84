"""Many clients: proved answers on every route, and what the lifted factor proves."""

import numpy as np
import pytest
from tests import known_solutions as problems
from tests.solver.prepared import assert_proved, scaled_problem

from hewfl import solve_simplex_qp
from hewfl.core.displacements import RoundProducts
from hewfl.solver.active_set import active_set
from hewfl.solver.large import lifted_factor, solve_large
from hewfl.solver.simplex import solve_gram

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("n", [257, 400, 700])
@pytest.mark.parametrize("kind", ["wide", "narrow", "few", "ties"])
def test_large_problems_on_every_route(
    n: int, kind: str, rng: np.random.Generator
) -> None:
    d = {"wide": 3 * n, "narrow": 60, "few": 3 * n, "ties": 60}[kind]
    D = rng.standard_normal((n, d))
    g = rng.standard_normal(d)
    if kind == "wide":  # nearly all clients carry weight
        g = -0.9 * D.mean(axis=0)
    if kind == "ties":  # the target lies inside the hull: a face of minimisers
        g = -D[: n // 2].mean(axis=0)
    G, q = D @ D.T, D @ g
    solution = solve_simplex_qp(G, q)
    assert_proved(solution, G, q, 1.0)
    count = int(solution.support.sum())
    assert {
        "wide": count > 0.5 * n,
        "narrow": count <= 61,
        "few": True,
        "ties": count > 61,
    }[kind]


def test_the_factor_is_that_of_the_lifted_matrix(rng: np.random.Generator) -> None:
    D = rng.standard_normal((30, 50))
    H = D @ D.T / 50
    lifted = lifted_factor(H)
    R = np.triu(lifted.factor)
    lift = float(np.median(np.diagonal(H)))
    assert np.abs(R.T @ R - (H + lift)).max() < 1e-13
    assert (lifted.independent, lifted.semidefinite) == (True, True)


def test_the_lift_hides_no_negative_curvature() -> None:
    """I − (1 + ε)11ᵀ/n is indefinite along 1 alone, which the lift makes positive."""
    n = 40
    ones = np.ones((n, n)) / n
    for excess, semidefinite in [(-1e-3, True), (0.0, True), (1e-6, False), (1, False)]:
        lifted = lifted_factor(np.eye(n) - (1 + excess) * ones)
        assert lifted.independent
        assert lifted.semidefinite == semidefinite


def test_dependent_columns_prove_nothing(rng: np.random.Generator) -> None:
    D = rng.standard_normal((20, 5))
    assert not lifted_factor(D @ D.T).independent


@pytest.mark.parametrize(("n", "d"), [(60, 90), (60, 8), (60, 61)])
def test_large_and_small_methods_agree(
    n: int, d: int, rng: np.random.Generator
) -> None:
    for pull in (0.0, 0.5, 1.0):
        instance = problems.gaussian_instance(rng, n, d)
        D = instance.displacements
        instance = problems.with_reference(instance, -pull * D.mean(axis=0))
        H, c = scaled_problem(instance)
        ours, other = solve_large(H, c), active_set(H, c)
        assert ours.solved
        assert other.solved
        values = [0.5 * w @ H @ w + c @ w for w in (ours.weights, other.weights)]
        assert values[0] == pytest.approx(values[1], abs=1e-14)


@pytest.mark.parametrize("n", [12, 300])
def test_products_in_other_units_give_the_same_weights(
    n: int, rng: np.random.Generator
) -> None:
    D = rng.standard_normal((n, n + 50))
    G, q = D @ D.T, D @ D[0]
    plain = solve_gram(RoundProducts(G, q, 0.0, 0), 2.0)
    moved = solve_gram(RoundProducts(np.ldexp(G, -80), np.ldexp(q, -80), 0.0, 80), 2.0)
    assert np.array_equal(moved.weights, plain.weights)
    assert float(moved.value) == pytest.approx(float(plain.value), rel=1e-14)
    assert float(moved.gap) == float(plain.gap)
    raised = solve_gram(RoundProducts(G, q, 3.0, 0), 2.0)
    assert float(raised.value) == pytest.approx(float(plain.value) + 3.0)
