"""The one-step bounds against the exact worst case of a round."""

from pathlib import Path

import numpy as np
import pytest
from tests.theory.reality.performance_estimation import (
    CASES,
    GAP,
    certified_gaps,
    table,
    worst_gap,
)

SOLVED = 1e-6
"""Accuracy of the interior-point solver."""


@pytest.mark.parametrize("theta", [0.05, 0.3, 1.0])
def test_one_client_is_gradient_descent(theta: float) -> None:
    """LR²/(2(1 + 2ϑ)) after a step of ϑ/L: attained by Huber's function of that slope.

    For F = τ|x| − τ²/2 beyond τ and x = R = L = 1 the next gap is τ(1 − ϑτ) − τ²/2,
    largest at τ = 1/(1 + 2ϑ).
    """
    known = 1 / (2 + 4 * theta)
    assert worst_gap([1], theta, 0.5, 0.0) == pytest.approx(known, abs=SOLVED)
    assert worst_gap([1, 1], theta, 0.5, 0.0) == pytest.approx(known, abs=SOLVED)


@pytest.mark.parametrize(("weights", "H", "theta", "tracking"), CASES)
def test_no_bound_is_below_the_worst_case(
    weights: list[float], H: int, theta: float, tracking: float
) -> None:
    for horizons in ([H, H], [1, H]):
        worst = worst_gap(horizons, theta, GAP, tracking, weights=weights)
        bounds = certified_gaps(horizons, theta, (GAP, tracking), weights)
        assert min(bounds.values()) >= worst - SOLVED
        assert bounds["joint"] <= bounds["absorbed"] <= bounds["sharp"]
        assert bounds["sharp"] <= bounds["paper"]


def test_random_rounds(rng: np.random.Generator) -> None:
    for _ in range(10):
        n = int(rng.integers(1, 4))
        horizons = [int(h) for h in rng.integers(1, 4, n)]
        weights = [float(w) for w in rng.dirichlet(np.ones(n))]
        theta, state = (
            float(rng.uniform(0.01, 1)),
            (0.5 * rng.random(), 0.1 * rng.random()),
        )
        worst = worst_gap(horizons, theta, *state, weights=weights)
        assert (
            min(certified_gaps(horizons, theta, state, weights).values())
            >= worst - SOLVED
        )


def test_the_table_of_the_docs_is_this_one() -> None:
    page = Path(__file__).parents[3] / "docs" / "theory.md"
    assert table() in page.read_text(encoding="utf-8")
