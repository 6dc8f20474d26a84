"""Rounds whose weights are chosen after the draws, walked along every path.

The weights are those of `hewfl.post_local_weights`. Rounds follow each other with the
exact law of the state; the bounds are asked for from the true (g_t, q_t), which is the
strictest start, and as a recursion from the first round on.
"""

from functools import cache

import numpy as np
import pytest
from tests.theory.reality.enumeration import (
    ROUNDING,
    Cloud,
    Work,
    fixed_rule,
    heterogeneous_rule,
    homogeneous_rule,
    mean_slope,
    play,
    rounds,
    slack,
    start,
)
from tests.theory.reality.scenario import LINKS, Scenario, random_scenario

from hewfl.control.certificate import Variant
from hewfl.core.validation import Array
from hewfl.theory import pathwise_bound
from hewfl.theory.appendix.lemmas import (
    homogeneous_advantage,
    homogeneous_slope_error,
    uniform_model_value,
)
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
)
from hewfl.theory.statement import Constants, all_hold

pytestmark = pytest.mark.unchecked
kinds = pytest.mark.parametrize("kind", list(LINKS))
variants = pytest.mark.parametrize("variant", ["paper", "sharp"])
amplitudes = pytest.mark.parametrize("theta", [0.055, 0.2, 0.45])
"""Only the first allows a contracting recursion of Q; Λϑ ≤ L/2 for all."""
ROUNDS = 3


def work_of(
    theta: float, H: tuple[int, int], *, heterogeneous_rule: bool = True
) -> Work:
    return Work(np.full(2, theta), H, (1, 1), heterogeneous_rule)


# path by path


@kinds
@pytest.mark.parametrize("H", [(1, 3), (2, 2)])
@pytest.mark.parametrize(("theta", "ratio"), [(0.2, 1.1), (1.0, 1.5), (8.0, 1.01)])
def test_no_path_breaks_the_certificates(
    kind: str, H: tuple[int, int], theta: float, ratio: float
) -> None:
    """th:realized-het-one-step, th:realized-hom-one-step: any ϑ, any Λ > L (E-02)."""
    rng = np.random.default_rng(3)
    for uses_variates in (True, False):
        scenario = random_scenario(rng, kind)
        L, cloud = scenario.smoothness, start(scenario, rng, 0.3)
        Lambda = ratio * L
        work = work_of(theta, H, heterogeneous_rule=uses_variates)
        rule = heterogeneous_rule(Lambda) if uses_variates else homogeneous_rule(Lambda)
        round_ = play(scenario, work, cloud, rule)
        d, moved = round_.moves[0], round_.displacements
        c = cloud.variates.mean(1)
        if not uses_variates:
            c = mean_slope(scenario, work, moved)[0]
        psi = (c * d).sum(-1) + Lambda / 2 * (d**2).sum(-1)
        slope = scenario.gradients(cloud.anchors[0]).mean(0)
        mismatch = ((slope - c) ** 2).sum(-1)
        bound = pathwise_bound(cloud.gap(scenario), psi, mismatch, Lambda, L)
        room = slack(bound, scenario.gap(cloud.anchors + d))
        assert room.min() >= -ROUNDING
        assert room.min() < 0.9 or theta > 1
        if not uses_variates:
            uniform = uniform_model_value(theta, Lambda, L, (c**2).sum(-1))
            middle = moved[0].mean(1)
            again = (c * middle).sum(-1) + Lambda / 2 * (middle**2).sum(-1)
            np.testing.assert_allclose(uniform, again, rtol=1e-9)
            gain = homogeneous_advantage(uniform, psi)
            assert (gain >= -ROUNDING * np.abs(psi)).all()
            assert gain.max() > 0


# Algorithm 2


@cache
def corrected_run(kind: str, theta: float) -> tuple[Scenario, Work, float, list[Cloud]]:
    """Three rounds of unequal horizons; c_i of the start misses."""
    rng = np.random.default_rng(5)
    scenario = random_scenario(rng, kind, noise=0.5)
    work, cloud = work_of(theta, (1, 2)), start(scenario, rng, 0.05)
    Lambda = scenario.smoothness * min(2.0, 0.5 / theta)
    return (
        scenario,
        work,
        Lambda,
        rounds(scenario, work, cloud, heterogeneous_rule(Lambda), ROUNDS),
    )


@kinds
@variants
@amplitudes
@pytest.mark.parametrize("printed", [False, True])
def test_the_corrected_recursion_bounds_gap_and_tracking(
    kind: str, variant: Variant, theta: float, printed: bool
) -> None:
    """th:realized-het-global; the printed Q is true for two clients and ϑ² ≤ 1/5."""
    scenario, work, Lambda, clouds = corrected_run(kind, theta)
    g = np.array([cloud.gap(scenario) for cloud in clouds])
    q = np.array([cloud.tracking(scenario).max() for cloud in clouds])
    system = work.system(scenario, max(cloud.radius for cloud in clouds))
    k = heterogeneous_coefficients(
        system, PostLocal(theta, Lambda), variant=variant, printed=printed
    )
    path = k.trajectory((g[0], q[0]), ROUNDS)
    assert all_hold(path.hypotheses) or (printed and theta**2 > 1 / 5)
    assert slack(path.gap, g).min() >= -ROUNDING
    assert slack(path.tracking, q).min() >= -ROUNDING
    step = k.trajectory((g[:-1], q[:-1]), 1)
    assert slack(step.gap[1], g[1:]).min() >= -ROUNDING
    assert slack(step.tracking[1], q[1:]).min() >= -ROUNDING
    assert slack(step.gap[1], g[1:]).min() < 0.9


@kinds
@variants
@pytest.mark.parametrize("uniform", [False, True])
def test_any_comparator_will_do(kind: str, variant: Variant, uniform: bool) -> None:
    scenario, work, Lambda, clouds = corrected_run(kind, 0.055)
    g = np.array([cloud.gap(scenario) for cloud in clouds])
    q = np.array([cloud.tracking(scenario).max() for cloud in clouds])
    system = work.system(scenario, max(cloud.radius for cloud in clouds))
    a = [0.5, 0.5] if uniform else [1.0, 0.0]
    k = heterogeneous_coefficients(
        system, PostLocal(0.055, Lambda), comparator=a, variant=variant
    )
    step = k.trajectory((g[:-1], q[:-1]), 1)
    assert slack(step.gap[1], g[1:]).min() >= -ROUNDING
    rate = k.rate((g[0], q[0]), np.arange(ROUNDS + 1))
    assert slack(rate.value, g).min() >= -ROUNDING


# Algorithm 3


@cache
def plain_run(kind: str, theta: float) -> tuple[Scenario, Work, float, list[Cloud]]:
    """Three rounds on one objective, with unequal horizons and noise."""
    rng = np.random.default_rng(6)
    scenario = random_scenario(rng, kind, homogeneous=True, noise=0.5)
    work = work_of(theta, (1, 2), heterogeneous_rule=False)
    Lambda = scenario.smoothness * min(2.0, 0.5 / theta)
    cloud = start(scenario, rng, 0.0)
    return (
        scenario,
        work,
        Lambda,
        rounds(scenario, work, cloud, homogeneous_rule(Lambda), ROUNDS),
    )


def pl_constant(scenario: Scenario, clouds: list[Cloud]) -> float:
    """The largest μ with ‖∇F‖² ≥ 2μ(F − F*) at every anchor that was reached."""
    x = np.concatenate([cloud.anchors for cloud in clouds])
    slopes: Array = scenario.gradients(x).mean(1)
    return float(((slopes**2).sum(-1) / (2 * scenario.gap(x))).min())


@kinds
@pytest.mark.parametrize("variant", ["paper", "sharp", "joint"])
@amplitudes
def test_the_plain_bellman_inequality_holds(
    kind: str, variant: Constants, theta: float
) -> None:
    """th:realized-hom-bellman and its two corollaries."""
    scenario, work, Lambda, clouds = plain_run(kind, theta)
    g = np.array([cloud.gap(scenario) for cloud in clouds])
    system = work.system(scenario, max(cloud.radius for cloud in clouds))
    k = homogeneous_coefficients(system, PostLocal(theta, Lambda), variant=variant)
    assert all_hold(k.hypotheses)
    assert slack(k.trajectory((g[0], 0.0), ROUNDS).gap, g).min() >= -ROUNDING
    room = slack(k.step((g[:-1], 0.0))[0], g[1:])
    assert room.min() >= -ROUNDING
    assert room.min() < 0.9 or theta > 0.2
    rate = k.rate((g[0], 0.0), np.arange(ROUNDS + 1))
    assert slack(rate.value, g).min() >= -ROUNDING
    # eq:realized-hom-PL-rec, also where β leaves nothing to contract
    rho = k.contraction(pl_constant(scenario, clouds))
    assert slack((1 - rho) * g[:-1] + k.noise, g[1:]).min() >= -ROUNDING


@kinds
@pytest.mark.parametrize("H", [(1, 1), (1, 4), (3, 3)])
def test_plain_rounds_of_any_controls(kind: str, H: tuple[int, int]) -> None:
    """One round from many starts, at any Λ and ϑ that the theorem allows (T9)."""
    rng = np.random.default_rng(8)
    rooms = []
    for noise in [0.0, 0.03, 1.0] * 8:
        scenario = random_scenario(rng, kind, homogeneous=True, noise=noise)
        L, ratio = scenario.smoothness, float(rng.uniform(1.02, 2))
        theta = 0.5 / ratio * float(rng.choice([1 - 1e-12, 0.3, 0.05, 0.005]))
        work = Work(np.full(2, theta), H, (1, 1), heterogeneous_rule=False)
        cloud = start(scenario, rng, 0.0)
        after = play(scenario, work, cloud, homogeneous_rule(ratio * L)).after
        system = work.system(scenario, max(cloud.radius, after.radius))
        controls = PostLocal(theta, ratio * L)
        for variant in ("sharp", "joint"):
            k = homogeneous_coefficients(system, controls, variant=variant)
            assert all_hold(k.hypotheses)
            bound = k.step((cloud.gap(scenario), 0.0))[0]
            rooms.append(float(slack(bound, after.gap(scenario))))
    assert min(rooms) >= -ROUNDING
    assert min(rooms) < 0.05


@kinds
@variants
@amplitudes
def test_the_mean_local_gradient_is_as_close_as_promised(
    kind: str, variant: Variant, theta: float
) -> None:
    """lem:realized-hom-q, with three steps and more than one sample."""
    rng = np.random.default_rng(7)
    rooms = []
    for _ in range(30):
        scenario = random_scenario(rng, kind, homogeneous=True)
        H, b = rng.integers(1, 4, 2).tolist(), rng.integers(1, 3, 2).tolist()
        work = Work(np.full(2, theta), H, b, heterogeneous_rule=False)
        cloud = start(scenario, rng, 0.0)
        round_ = play(scenario, work, cloud, fixed_rule(np.full(2, 0.5)))
        slope = scenario.gradients(cloud.anchors[0])[0]
        error = mean_slope(scenario, work, round_.displacements)[0] - slope
        truth = round_.chances[0] @ (error**2).sum(-1)
        system = work.system(scenario, cloud.radius)
        bound = homogeneous_slope_error(
            system, theta, cloud.gap(scenario), variant=variant
        )
        rooms.append(float(slack(bound, truth)))
    assert min(rooms) >= -ROUNDING
    assert min(rooms) < 0.7
