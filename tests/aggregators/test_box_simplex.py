"""The shortest combination with weights in a box: known answers and the certificate."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.tolerances import GAP, PERMUTATION, WEIGHTS

from hewfl import SolverError, solve_simplex_qp
from hewfl.core.displacements import RoundProducts
from hewfl.displacements.dense import as_dense
from hewfl.solver.box_simplex import box_simplex_gap, solve_box_simplex

Array = NDArray[np.floating[Any]]


def box(centre: Array, radius: float) -> tuple[Array, Array, Array]:
    """Lower and upper ends within a radius of a centre, and the centre."""
    return np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0), centre


def products(vectors: Array) -> RoundProducts:
    return as_dense("vectors", vectors).products()


def unit_rows(rng: np.random.Generator, n: int, d: int, kind: str) -> Array:
    rows = rng.standard_normal((n, d))
    if kind == "repeated":
        rows = rows[rng.integers(0, max(1, n // 2), n)]
    if kind == "some at rest":
        rows[rng.random(n) < 0.3] = 0.0
    if kind == "aligned":
        rows += 3.0
    if kind == "nearly equal":
        rows = rows[0] + 1e-5 * rows
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = rows / np.where(length > 0, length, 1.0)
    return unit


def test_a_bound_that_holds() -> None:
    # u = e_1, e_1, e_2: free weights ¼, ¼, ½; in |λ − ⅓| ≤ 1/12 the last stops at 5/12
    u = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    weights, gap = solve_box_simplex(products(u), *box(np.full(3, 1 / 3), 1 / 12))
    np.testing.assert_allclose(weights, [7 / 24, 7 / 24, 10 / 24], rtol=1e-14)
    assert gap < GAP


def test_vectors_at_rest_leave_the_least_norm_point() -> None:
    u = np.zeros((3, 2))
    centre = np.array([0.6, 0.3, 0.1])
    weights, gap = solve_box_simplex(
        products(u), *box(centre, 0.2)
    )  # third stops at 0.3
    np.testing.assert_allclose(weights, [0.4, 0.3, 0.3], rtol=1e-14)
    assert gap == 0.0


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 14),
    d=st.integers(1, 20),
    kind=st.sampled_from(
        ["plain", "repeated", "some at rest", "aligned", "nearly equal"]
    ),
    radius=st.sampled_from([0.0, 1e-6, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9]),
)
def test_every_answer_is_certified_and_moves_with_its_clients(
    seed: int, n: int, d: int, kind: str, radius: float
) -> None:
    rng = np.random.default_rng(seed)
    u = unit_rows(rng, n, d, kind)
    sizes = rng.integers(1, 50, n)
    lower, upper, centre = box(sizes / sizes.sum(), radius)
    weights, _ = solve_box_simplex(products(u), lower, upper, centre)
    assert (weights >= lower).all()
    assert (weights <= upper).all()
    assert abs(weights.sum() - 1) < 1e-12
    assert box_simplex_gap(u @ (weights @ u), lower, upper, weights) < 2 * GAP

    order = rng.permutation(n)
    again, _ = solve_box_simplex(
        products(u[order]), lower[order], upper[order], centre[order]
    )
    blur = 1e-6 if kind == "nearly equal" else 1e-7 if kind == "some at rest" else 1e-9
    np.testing.assert_allclose(again, weights[order], atol=max(PERMUTATION, blur))


def test_a_box_that_is_the_simplex_gives_the_simplex_solution(
    rng: np.random.Generator,
) -> None:
    for n, d in ((5, 9), (12, 4)):
        u = unit_rows(rng, n, d, "plain")
        weights, _ = solve_box_simplex(
            products(u), np.zeros(n), np.ones(n), np.full(n, 1 / n)
        )
        expected = solve_simplex_qp(u @ u.T, np.zeros(n)).weights
        np.testing.assert_allclose(weights, expected, atol=WEIGHTS)


@pytest.mark.parametrize(
    ("seed", "n", "d", "radius"), [(1923, 10, 12, 0.05), (11094, 11, 6, 0.1)]
)
def test_twins_next_to_a_bound_share_alike(
    seed: int, n: int, d: int, radius: float
) -> None:
    # rare draws where the active set leaves one of two equal vectors at its bound
    rng = np.random.default_rng(seed)
    rng.integers(4, 20), rng.integers(2, 15)
    rows = rng.integers(0, n // 2, n)
    u = rng.standard_normal((n // 2, d))
    u = (u / np.linalg.norm(u, axis=1, keepdims=True))[rows]
    weights, _ = solve_box_simplex(products(u), *box(np.full(n, 1 / n), radius))
    for row in set(rows.tolist()):
        assert np.ptp(weights[rows == row]) < WEIGHTS


def test_the_gap_sees_a_wrong_answer() -> None:
    u = np.eye(2)
    lower, upper, centre = box(np.array([0.7, 0.3]), 0.1)
    # ∇ = (0.7, 0.3), the best vertex is (0.6, 0.4): gap = 0.07 − 0.03
    gap = box_simplex_gap(u @ (centre @ u), lower, upper, centre)
    assert gap == pytest.approx(0.04, rel=1e-14)


def test_a_miss_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*arguments: Any) -> Any:
        start = arguments[3]
        return start, np.ones(len(start), dtype=np.bool_), np.zeros(len(start))

    monkeypatch.setattr("hewfl.solver.box_simplex._active_set", stuck)
    u = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(SolverError, match="were not found: gap"):
        solve_box_simplex(products(u), *box(np.array([0.6, 0.3, 0.1]), 0.05))
