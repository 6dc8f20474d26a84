"""What an answer says besides the weights, and whom an error names."""

from typing import Any

import numpy as np
import pytest
from tests.tolerances import WEIGHTS

from hewfl import solve_simplex_qp
from hewfl.core.displacements import RoundProducts
from hewfl.errors import InvalidInputError
from hewfl.solver.active_set import active_set, error_scale
from hewfl.solver.large import (
    DenseColumns,
    column_generation,
    lifted_factor,
    solve_large,
)
from hewfl.solver.least_norm import LEAST_NORM, UNIQUE
from hewfl.solver.simplex import solve_gram
from hewfl.solver.threshold import threshold_law
from hewfl.solver.weight_problem import scale_problem

pytestmark = pytest.mark.usefixtures("path")


def test_a_status_tells_whether_the_minimiser_is_unique() -> None:
    unique, ties = np.eye(3), np.ones((3, 3))
    q = np.zeros(3)
    assert solve_simplex_qp(unique, q).status == UNIQUE
    assert solve_simplex_qp(ties, q).status == LEAST_NORM
    both = solve_simplex_qp(np.stack([unique, ties]), np.stack([q, q]))
    assert sorted(both.status.split("; ")) == sorted([UNIQUE, LEAST_NORM])


@pytest.mark.parametrize("n", [12, 300])
def test_answers_from_products_have_the_units_of_the_data(
    n: int, rng: np.random.Generator
) -> None:
    D = rng.standard_normal((n, n + 50))
    G, q = D @ D.T, 5 * D @ rng.standard_normal(n + 50)
    plain = solve_simplex_qp(G, q, curvature=2.5)
    result = solve_gram(RoundProducts(np.ldexp(G, -40), np.ldexp(q, -40), 0.5, 40), 2.5)
    assert np.abs(result.weights - plain.weights).max() <= WEIGHTS
    offset = float(np.ldexp(0.5, 40))
    assert float(result.value) == pytest.approx(float(plain.value) + offset)
    size = plain.multipliers.max()
    assert size > 1
    np.testing.assert_allclose(result.multipliers, plain.multipliers, atol=1e-9 * size)


def large(rng: np.random.Generator, pull: float) -> tuple[Any, Any]:
    D = rng.standard_normal((300, 400))
    g = -pull * D.mean(axis=0) + (1 - pull) * 10 * rng.standard_normal(400)
    problem = scale_problem(D @ D.T, D @ g, 1.0)
    return problem.H, problem.c


@pytest.mark.parametrize("pull", [0.0, 0.9])
def test_large_answers_count_their_work(pull: float, rng: np.random.Generator) -> None:
    H, c = large(rng, pull)
    cold = solve_large(H, c)
    assert (cold.solved, cold.independent) == (True, True)
    assert cold.pivots >= 2
    known = solve_large(H, c, lifted_factor(H))
    assert np.abs(known.weights - cold.weights).max() <= WEIGHTS


def test_a_warm_start_saves_pivots(rng: np.random.Generator) -> None:
    H, c = large(rng, 0.0)
    cold = active_set(H, c)
    assert active_set(H, c, cold.weights).pivots == 0 < cold.pivots
    by_columns = column_generation(DenseColumns(H, c), 16)
    assert by_columns.pivots >= np.count_nonzero(cold.weights) - 1
    assert np.abs(by_columns.weights - cold.weights).max() <= WEIGHTS


def test_scales_of_a_stack_are_those_of_its_problems(rng: np.random.Generator) -> None:
    root, c = rng.uniform(0.1, 9.0, (3, 5)), rng.standard_normal((3, 5))
    w = rng.dirichlet(np.ones(5), 3)
    together = error_scale(root, c, w)
    alone = [error_scale(*parts) for parts in zip(root, c, w, strict=True)]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_the_threshold_is_the_distance_of_gains_from_it(
    rng: np.random.Generator,
) -> None:
    gains, risks = rng.standard_normal(9), rng.uniform(0.5, 2.0, 9)
    law = threshold_law(gains, risks)
    above = law.above(gains)
    np.testing.assert_allclose(above, gains - law.level, atol=1e-14)
    np.testing.assert_allclose(law.weights, np.maximum(above, 0.0) / risks, atol=1e-15)


@pytest.mark.parametrize("n", [3, 300])
def test_a_bad_matrix_is_named_by_its_place_in_a_stack(n: int) -> None:
    good, skew, bad = np.eye(n), np.eye(n), np.eye(n)
    skew[0, 1], bad[2, 2] = 0.5, -1.0
    q = np.zeros((2, n))
    for wrong, text in ((skew, "symmetric"), (bad, "semidefinite")):
        with pytest.raises(InvalidInputError, match=rf"{text}.*\(problem 1\)"):
            solve_simplex_qp(np.stack([good, wrong]), q)
        with pytest.raises(InvalidInputError, match=text) as message:
            solve_simplex_qp(wrong, q[0])
        assert "problem" not in str(message.value)


@pytest.mark.parametrize(
    ("kind", "skew", "accepted"),
    [
        (np.float64, 1e-12, True),
        (np.float64, 1e-8, False),
        (np.float32, 1e-5, True),
        (np.float32, 1e-2, False),
        (np.float16, 1e-2, True),
        (np.float16, 0.3, False),
        (list, 1e-12, True),
        (list, 1e-8, False),
    ],
)
def test_asymmetry_is_forgiven_as_the_kind_of_number_explains(
    kind: Any, skew: float, accepted: bool
) -> None:
    G = np.eye(3)
    G[0, 1] += skew
    given = G.tolist() if kind is list else G.astype(kind)
    if accepted:
        result = solve_simplex_qp(given, np.zeros(3)).weights
        assert np.abs(result - 1 / 3).max() <= skew
    else:
        with pytest.raises(InvalidInputError, match="`gram` must be symmetric"):
            solve_simplex_qp(given, np.zeros(3))
