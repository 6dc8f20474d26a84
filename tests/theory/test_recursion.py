"""What all families share, on the coefficients of each."""

from collections.abc import Callable

import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory import Recursion, System
from hewfl.theory.comparators import comparator_coefficients
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
)
from hewfl.theory.recursion import by_round
from hewfl.theory.scalar import scalar_rate
from hewfl.theory.uniform import uniform_coefficients

SYSTEM = System([1.0, 2.0], 1.0, [4, 4], 8, 1e-4)
CONTROLS = PostLocal(0.02, [2.0, 4.0])
FAMILIES: dict[str, Callable[[], Recursion]] = {
    "comparator": lambda: comparator_coefficients(SYSTEM, [0.5, 0.5], 0.01),
    "corrected": lambda: heterogeneous_coefficients(SYSTEM, CONTROLS),
    "plain": lambda: homogeneous_coefficients(SYSTEM, CONTROLS),
    "uniform": lambda: uniform_coefficients(SYSTEM, 0.02).recursion,
}
START = (np.array([0.3, 0.4]), np.array([1e-3, 0.0]))
families = pytest.mark.parametrize("family", FAMILIES)


@families
def test_a_trajectory_is_its_step_repeated(family: str) -> None:
    k = FAMILIES[family]()
    path = k.trajectory(START, 5, solver_gap=1e-5)
    for t in range(5):
        u, q = k.step((path.gap[t], path.tracking[t]), 1e-5)
        np.testing.assert_array_equal(path.gap[t + 1], u)
        np.testing.assert_array_equal(path.tracking[t + 1], q)
    assert (path.gap <= k.cap).all()


@families
def test_the_closed_rate_bounds_the_trajectory(family: str) -> None:
    k, rounds = FAMILIES[family](), np.arange(41)[:, None]
    rate = k.rate(START, rounds)
    assert (k.trajectory(START, 40).gap <= rate.value * (1 + 1e-12)).all()
    a, beta, d = k.scalar_form(START[1])
    floor = scalar_rate(START[0], a, beta, d, rounds).floor
    np.testing.assert_array_equal(rate.floor, floor)
    np.testing.assert_array_equal(rate.vacuous, floor >= k.cap)


def test_the_flow_stays_below_its_quadratic_form() -> None:
    """T_a(u) ≤ u − a u²/(1 + a f̄) on [0, f̄]: what lets closed rates use the latter."""
    k = heterogeneous_coefficients(SYSTEM, CONTROLS)
    u = np.linspace(0, 1, 50)[:, None] * k.cap
    flow = u / (1 + k.descent * u)
    assert (flow <= (u - k.capped_descent * u * u) * (1 + 1e-12)).all()


def test_a_contraction_needs_a_slope() -> None:
    uniform = uniform_coefficients(SYSTEM, 0.02).recursion
    assert (uniform.contraction(0.5) > 0).all()
    with pytest.raises(InvalidInputError, match="`recursion` must be one that states"):
        FAMILIES["corrected"]().contraction(0.5)


@pytest.mark.parametrize("family", ["comparator", "corrected", "uniform"])
def test_one_configuration_out_of_bounds_does_not_void_the_others(family: str) -> None:
    """C ≥ 1 is NaN and says which hypothesis failed; alone it raises."""
    one = System(1.0, 1.0, [4, 4], 8, 1e-4)
    theta = np.array([0.005, 0.3])
    controls = PostLocal(theta, [2.0, 1.5])
    k = {
        "comparator": lambda: comparator_coefficients(one, [0.5, 0.5], theta[:, None]),
        "corrected": lambda: heterogeneous_coefficients(one, controls),
        "uniform": lambda: uniform_coefficients(one, theta).recursion,
    }[family]()
    rate = k.rate((0.4, 1e-4), 10)
    assert np.isnan(rate.value).tolist() == [False, True]
    assert np.isnan(rate.floor).tolist() == [False, True]
    assert rate.vacuous[1]
    assert rate.holds.tolist() == [True, False]
    failed = {h.name for h in rate.hypotheses if not np.all(h.holds)}
    assert "C < 1" in failed


def test_without_coupling_nothing_is_asked_of_the_tracking_error() -> None:
    one = System(1.0, 1.0, [1, 1], 8, 1e-4)
    k = uniform_coefficients(one, 0.9, variant="sharp").recursion
    assert k.staleness == 0
    assert k.tracking.tracking > 1
    rate = k.rate((0.4, 1e-4), 10)
    assert rate.holds
    assert rate.value < 0.2


def test_constants_are_repeated_and_schedules_are_kept() -> None:
    constant, pair = by_round(3, np.asarray(1.0), np.array([1.0, 2.0]))
    assert constant.shape == pair.shape == (3, 2)
    (schedule,) = by_round(None, np.array([1.0, 2.0]))
    assert schedule.tolist() == [1.0, 2.0]
    with pytest.raises(InvalidInputError, match="`rounds` must be given"):
        by_round(None, np.asarray(1.0))
