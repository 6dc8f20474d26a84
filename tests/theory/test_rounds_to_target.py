"""Rounds to a target by the recursion: one by one, and in stages."""

from dataclasses import replace

import numpy as np
import pytest
from tests.theory.cases import RICH

from hewfl import InvalidInputError
from hewfl.theory.post_local import PostLocal
from hewfl.theory.recursion import Recursion
from hewfl.theory.rounds_to_target import first_round_at, rounds_in_stages
from hewfl.theory.systems import System
from hewfl.theory.theorem_table import THEOREMS, theorem_curve

THETA = np.geomspace(1e-3, 0.05, 7)
labels = pytest.mark.parametrize("theorem", THEOREMS)


def law_of(theorem: str, theta: object = THETA) -> Recursion:
    law = theorem_curve(theorem, RICH, PostLocal(theta, 2.0), "sharp").recursion  # type: ignore[arg-type]
    assert law is not None
    return law


@labels
def test_the_first_round_is_that_of_the_trajectory(theorem: str) -> None:
    law, start = law_of(theorem), RICH.start
    path = law.trajectory(start, 3000).gap
    for target in (0.45, 0.2, 0.06):
        result = first_round_at(law, start, target, most=3000)
        reached = (path <= target).any(0)
        exact = np.where(reached, (path <= target).argmax(0), np.inf)
        np.testing.assert_array_equal(result, exact)


@labels
def test_stages_are_certified_and_close(theorem: str) -> None:
    law, start = law_of(theorem), RICH.start
    for target in (0.45, 0.2, 0.06):
        real, whole = rounds_in_stages(law, start, target)
        exact = first_round_at(law, start, target)
        known = np.isfinite(exact) & np.isfinite(real)
        assert (whole >= exact)[known].all()
        assert (real >= exact - 1)[known].all()
        clear = known & (target > 1.25 * law.floor)  # at the floor time has no scale
        assert (real <= 1.06 * exact + 1)[clear].all()
        assert not np.isfinite(real[np.isinf(exact) & (law.floor > target)]).any()


@labels
def test_the_floor_is_where_trajectories_come_to_rest(theorem: str) -> None:
    law = law_of(theorem, 0.02)
    if not law.floor < 0.4:
        return
    u, q = np.asarray(law.floor), np.asarray(0.0)
    if (law.staleness > 0).all():
        t = law.tracking
        q = np.asarray((t.noise + t.gap * u) / (1 - t.tracking))
    np.testing.assert_allclose(law.step((u, q))[0], u, rtol=1e-12)
    assert law.decrease(np.asarray(u * 1.01), q) > 0


@labels
def test_targets_near_the_floor_are_reached_in_stages(theorem: str) -> None:
    law = law_of(theorem, 0.02)
    floor = float(law.floor)
    if floor < 0.4:
        near, below = rounds_in_stages(
            law, RICH.start, [floor * 1.0002, floor * 0.999]
        )[1]
        assert np.isfinite(near)
        assert below == np.inf


def test_a_large_tracking_error_at_the_start_is_given_time() -> None:
    law = law_of("th:sur-cvx", 0.01)
    real, whole = rounds_in_stages(law, (0.2, 10.0), 0.1)
    exact = first_round_at(law, (0.2, 10.0), 0.1)
    assert exact <= whole <= 1.2 * exact + 100
    assert real <= whole


def test_no_coupling_no_overflow() -> None:
    """H = 1 and ϑ = 1: q doubles its digits each round, and costs nothing."""
    case = replace(RICH, system=System(1.0, 1.0, [1] * 10, 1, 0.0))
    law = theorem_curve(
        "th:direct-bellman", case, PostLocal(1.0, 2.0), "sharp"
    ).recursion
    assert law is not None
    assert law.tracking.tracking > 40
    with np.errstate(over="ignore"):
        assert np.isfinite(law.trajectory((0.5, 1.0), 400).gap).all()
    assert first_round_at(law, (0.5, 1.0), 0.005) < 400


def test_a_start_at_the_target_takes_no_round() -> None:
    law = law_of("th:sur-cvx")
    for result in (
        *rounds_in_stages(law, (0.1, 0.0), 0.1),
        first_round_at(law, (0.0, 0.0), 0.1),
    ):
        assert (result == 0).all()
    with pytest.raises(InvalidInputError, match="`target` must be positive"):
        first_round_at(law, (0.1, 0.0), 0.0)
