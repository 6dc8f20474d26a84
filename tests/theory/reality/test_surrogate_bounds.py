"""Schedules computed before the run, then played over the exact law of the state."""

import numpy as np
import pytest
from tests.theory.reality.enumeration import (
    ROUNDING,
    Cloud,
    Work,
    fixed_rule,
    play,
    slack,
    start,
)
from tests.theory.reality.scenario import LINKS, Scenario, random_scenario

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.validation import Array
from hewfl.theory import surrogate
from hewfl.theory.appendix.surrogate_controls import surrogate_under
from hewfl.theory.comparators import comparator_coefficients
from hewfl.theory.statement import all_hold

ROUNDS = 4
HORIZONS, BATCHES = (1, 2), (2, 1)
kinds = pytest.mark.parametrize("kind", list(LINKS))
variants = pytest.mark.parametrize("variant", VARIANTS)


def scene(kind: str, seed: int, error: float) -> tuple[Scenario, Cloud]:
    rng = np.random.default_rng(seed)
    scenario = random_scenario(rng, kind, noise=0.5)
    return scenario, start(scenario, rng, error)


def play_surrogate(
    scenario: Scenario, cloud: Cloud, weights: Array, amplitudes: Array
) -> tuple[Array, Array, float]:
    """g_t, q_t and the radius under a schedule, rounds first."""
    clouds = [cloud]
    for w, theta in zip(weights, amplitudes, strict=True):
        work = Work(theta, HORIZONS, BATCHES)
        clouds.append(play(scenario, work, clouds[-1], fixed_rule(w)).after)
    g = np.array([cloud.gap(scenario) for cloud in clouds])
    q = np.array([cloud.tracking(scenario).max() for cloud in clouds])
    return g, q, max(cloud.radius for cloud in clouds)


@kinds
@variants
@pytest.mark.parametrize("end", [0.02, 0.5])
def test_the_optimal_schedule_is_bounded_by_its_own_system(
    kind: str, variant: Variant, end: float
) -> None:
    """th:sur-system, in a ball that the run computed for it does not leave."""
    scenario, cloud = scene(kind, 12, 0.001)
    first = (cloud.gap(scenario), float(cloud.tracking(scenario).max()))
    R = 1.5 * cloud.radius
    system = Work(np.ones(2), HORIZONS, BATCHES).system(scenario, R)
    run = surrogate(system, (1e-4, end), first, ROUNDS, variant=variant)
    assert all_hold(run.hypotheses)
    g, q, reached = play_surrogate(scenario, cloud, run.weights, run.amplitudes)
    assert reached <= R
    assert slack(run.gap, g).min() >= -ROUNDING
    assert slack(run.tracking, q).min() >= -ROUNDING
    assert run.amplitudes.max() > 1e-3
    assert run.gap[1] < run.gap[0]  # later it stalls (E-09)


@kinds
@variants
@pytest.mark.parametrize("largest", [0.02, 0.5])
def test_any_schedule_is_bounded_by_its_system(
    kind: str, variant: Variant, largest: float
) -> None:
    """th:sur-majorant: the controls need not be the best, only fixed beforehand."""
    rng = np.random.default_rng(13)
    scenario, cloud = scene(kind, 14, 0.1)
    w = rng.dirichlet([1, 1], ROUNDS)
    theta = largest * rng.uniform(0.1, 1, (ROUNDS, 2))
    g, q, R = play_surrogate(scenario, cloud, w, theta)
    system = Work(np.ones(2), HORIZONS, BATCHES).system(scenario, R)
    path = surrogate_under(system, (w, theta), (g[0], q[0]), variant=variant)
    assert all_hold(path.hypotheses)
    assert slack(path.gap, g).min() >= -ROUNDING
    assert slack(path.tracking, q).min() >= -ROUNDING
    # from the true state of every round: the strictest start
    for t in range(ROUNDS):
        now = (w[t : t + 1], theta[t : t + 1])
        step = surrogate_under(system, now, (g[t], q[t]), variant=variant)
        assert slack(step.gap[1], g[t + 1]) >= -ROUNDING
        assert slack(step.tracking[1], q[t + 1]) >= -ROUNDING


@kinds
@variants
def test_comparators_bound_what_they_play(kind: str, variant: Variant) -> None:
    """def:cvx-comp and th:sur-cvx hold for the comparator's own run as well."""
    scenario, cloud = scene(kind, 15, 0.01)
    w, theta = np.array([0.3, 0.7]), np.array([0.01, 0.03])
    steady = np.broadcast_to(w, (ROUNDS, 2)), np.broadcast_to(theta, (ROUNDS, 2))
    g, q, R = play_surrogate(scenario, cloud, *steady)
    system = Work(np.ones(2), HORIZONS, BATCHES).system(scenario, R)
    k = comparator_coefficients(system, w, theta, variant=variant)
    path = k.trajectory((g[0], q[0]), ROUNDS)
    assert all_hold(path.hypotheses)
    assert slack(path.gap, g).min() >= -ROUNDING
    assert slack(path.gap, g).min() < 1e-3
    rate = k.rate((g[0], q[0]), np.arange(ROUNDS + 1))
    assert slack(rate.value, g).min() >= -ROUNDING
