"""The uniform controller over the exact law of several rounds.

Every inequality is asked for from the true (g_t, q_t) of every round, and the rates
from the start. The PL constant is the largest that holds at the anchors reached.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import final

import numpy as np
import pytest
from tests.theory.reality.enumeration import (
    ROUNDING,
    Cloud,
    RoundWork,
    Work,
    fixed_rule,
    play,
    slack,
    start,
)
from tests.theory.reality.scenario import LINKS, Scenario, random_scenario

from hewfl.control.certificate import VARIANTS
from hewfl.control.tracking import tracking_cap
from hewfl.core.validation import Array
from hewfl.theory.appendix import safe_amplitude, safe_rate
from hewfl.theory.appendix.lemmas import (
    common_quadratic_rate,
    pl_step,
    safe_floor,
)
from hewfl.theory.statement import Constants, all_hold
from hewfl.theory.uniform import (
    UniformController,
    best_iterate_rate,
    higher_order,
    pl_contraction,
    pl_rate,
    uniform_coefficients,
)

EDGE = 0.99 / np.sqrt(288)
SHARPER: tuple[Constants, ...] = (*VARIANTS[1:], "joint")
kinds = pytest.mark.parametrize("kind", list(LINKS))
horizons = pytest.mark.parametrize(("H", "b", "T"), [(1, 1, 5), (2, 1, 3), (3, 2, 1)])
constants = pytest.mark.parametrize(
    ("variant", "theta"),
    [("paper", 0.01), ("paper", EDGE)]
    + [(v, theta) for v in SHARPER for theta in (0.01, EDGE, 0.4, 1.0)],
)


@final
@dataclass(frozen=True, slots=True)
class Run:
    """A run and its expectations.

    Attributes:
        scenario: the clients.
        work: what they do.
        clouds: the laws of all rounds, the start first.
        played: the rounds.
        gap: g_t.
        tracking: q_t.
        pl_constant: μ with ‖∇F‖² ≥ 2μ(F − F*) at every anchor reached.
    """

    scenario: Scenario
    work: Work
    clouds: list[Cloud]
    played: list[RoundWork]
    gap: Array
    tracking: Array
    pl_constant: float

    def controller(
        self, variant: Constants, radius: float | None = None
    ) -> UniformController:
        """By default R is the largest distance of an anchor."""
        R = max(cloud.radius for cloud in self.clouds) if radius is None else radius
        system = self.work.system(self.scenario, R)
        return uniform_coefficients(system, self.work.amplitudes[0], variant=variant)

    @property
    def first(self) -> tuple[float, float]:
        return self.gap[0], self.tracking[0]

    @property
    def before(self) -> tuple[Array, Array]:
        return self.gap[:-1], self.tracking[:-1]


def run_of(scenario: Scenario, work: Work, cloud: Cloud, T: int) -> Run:
    clouds, played = [cloud], []
    for _ in range(T):
        played.append(play(scenario, work, clouds[-1], fixed_rule(np.full(2, 0.5))))
        clouds.append(played[-1].after)
    x = np.concatenate([cloud.anchors for cloud in clouds])
    slopes: Array = scenario.gradients(x).mean(1)
    mu = ((slopes**2).sum(-1) / (2 * scenario.gap(x))).min()
    g = np.array([cloud.gap(scenario) for cloud in clouds])
    q = np.array([cloud.tracking(scenario).max() for cloud in clouds])
    return Run(scenario, work, clouds, played, g, q, float(mu))


@cache
def run(kind: str, theta: float, H: int, b: int, T: int) -> Run:
    rng = np.random.default_rng(8)
    scenario = random_scenario(rng, kind)
    work = Work(np.full(2, theta), (H, H), (b, b))
    return run_of(scenario, work, start(scenario, rng, 0.1), T)


# convex


@kinds
@constants
@horizons
def test_gap_and_tracking_obey_their_recursions(
    kind: str, variant: Constants, theta: float, H: int, b: int, T: int
) -> None:
    """th:direct-bellman and prop:direct-q, and the sharper sets up to ϑ = 1."""
    done = run(kind, theta, H, b, T)
    k = done.controller(variant)
    assert all_hold(k.recursion.hypotheses)
    g, q = k.recursion.step(done.before)
    assert slack(g, done.gap[1:]).min() >= -ROUNDING
    assert slack(q, done.tracking[1:]).min() >= -ROUNDING
    assert slack(g, done.gap[1:]).min() < (0.2 if theta < 0.1 else 0.9)
    path = k.recursion.trajectory(done.first, T)
    assert slack(path.gap, done.gap).min() >= -ROUNDING
    assert slack(path.tracking, done.tracking).min() >= -ROUNDING
    if k.recursion.tracking.tracking < 1:
        cap = tracking_cap(k.recursion.tracking, done.tracking[0], k.system.cap)
        assert slack(cap, done.tracking).min() >= -ROUNDING


@kinds
@pytest.mark.parametrize("theta", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("error", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("H", [(1, 4), (3, 2), (5, 1)])
def test_unequal_clients_obey_the_sharper_recursions(
    kind: str, theta: float, error: float, H: tuple[int, int]
) -> None:
    """T5 and T9 ask for no common H or b; the paper's own constants do."""
    rng = np.random.default_rng(12)
    room = []
    for noise in (0.0, 0.1, 1.0):
        scenario = random_scenario(rng, kind, noise=noise)
        work = Work(np.full(2, theta), H, (1, 2))
        done = run_of(scenario, work, start(scenario, rng, error), 1)
        for variant in SHARPER:
            k = done.controller(variant)
            assert all_hold(k.recursion.hypotheses)
            g, q = k.recursion.step(done.before)
            assert slack(q, done.tracking[1:]).min() >= -ROUNDING
            room.append(slack(g, done.gap[1:]).min())
        assert not all_hold(done.controller("paper").recursion.hypotheses)
    assert min(room) >= -ROUNDING


# PL


@kinds
@constants
@horizons
def test_the_pl_condition_makes_it_contract(
    kind: str, variant: Constants, theta: float, H: int, b: int, T: int
) -> None:
    """cor:direct-pl and th:pl-global: g + λq shrinks by 1 − ρ in every round."""
    done = run(kind, theta, H, b, T)
    k, mu = done.controller(variant), done.pl_constant
    room = slack(pl_step(k, mu, done.before), done.gap[1:])
    assert room.min() >= -ROUNDING
    assert room.min() < (0.2 if theta < 0.1 else 0.9)
    c = pl_contraction(k, mu)
    s = done.gap + c.lam * done.tracking
    bound = (
        (1 - c.rho) * s[:-1] + k.recursion.noise + c.lam * k.recursion.tracking.noise
    )
    assert slack(bound, s[1:]).min() >= -ROUNDING
    for printed in (False, True):
        rate = pl_rate(k, mu, done.first, np.arange(T + 1), printed=printed)
        assert (rate.value >= done.gap * (1 - ROUNDING)).all()


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_the_safe_regime_contracts_as_it_says(noise: float) -> None:
    """cor:pl-safe with the constants of its proof (E-16)."""
    rng = np.random.default_rng(9)
    for _ in range(10):
        scenario = random_scenario(rng, "quadratic", noise=noise)
        mu = float(np.linalg.eigvalsh(scenario.hessians.mean(0)).min())
        theta = float(safe_amplitude(scenario.smoothness, mu))
        work = Work(np.full(2, theta), (1, 1), (1, 1))
        done = run_of(scenario, work, start(scenario, rng, 0.1), 5)
        k = done.controller("paper")
        rate = safe_rate(k, mu, done.first, np.arange(6))
        assert rate.holds.all()
        assert slack(rate.value, done.gap).min() >= -ROUNDING
        assert slack(safe_floor(k, mu).value, rate.floor).min() >= -ROUNDING


# higher order


@cache
def similar_run(kind: str, theta: float, common: bool) -> Run:
    """Two rounds of two steps; with common rows quadratics have one Hessian."""
    rng = np.random.default_rng(10)
    scenario = random_scenario(rng, kind)
    if common:
        scenario = replace(scenario, rows=scenario.rows[[0, 0]])
    work = Work(np.full(2, theta), (2, 2), (1, 1))
    return run_of(scenario, work, start(scenario, rng, 0.1), 2)


def similarity(done: Run) -> tuple[float, float, float]:
    """R over all points of all branches, and S and M on that ball (ass:ho).

    ‖∇²F_i(x) − ∇²F_i(y)‖ ≤ M‖x − y‖ with M = c Σ_k ‖a_ik‖³ if ℓ'' is c-Lipschitz, so
    Hessians that differ by S_0 at x* differ by at most S_0 + 2MR on the ball.
    """
    scenario, points = done.scenario, [y for r in done.played for y in r.branches]
    R = max(float(np.sqrt((y**2).sum(-1).max())) for y in points)
    sizes = np.linalg.norm(scenario.rows, axis=-1) ** 3
    M = scenario.link.bend_lipschitz * float(sizes.sum(-1).max())
    away = scenario.hessians - scenario.hessians.mean(0)
    return R, float(np.linalg.norm(away, 2, (-2, -1)).max()) + 2 * M * R, M


def disagreements(done: Run) -> Array:
    """max_ℓ E (1/n) Σ_i ‖y_i^(ℓ) − ȳ^(ℓ)‖² of every round."""
    result = []
    for cloud, round_ in zip(done.clouds, done.played, strict=False):
        one, two = round_.branches
        half = (one[:, :, None] - two[:, None]) / 2  # s p p ℓ d
        law = np.einsum("s,p,q->spq", cloud.chances, *round_.laws)
        result.append(np.einsum("spq,spqld->l", law, half**2).max())
    return np.array(result)


@pytest.mark.parametrize("kind", ["quadratic", "softplus"])
@pytest.mark.parametrize("common", [False, True])
@constants
def test_similar_hessians_keep_branches_together(
    kind: str, common: bool, variant: Constants, theta: float
) -> None:
    """th:ho-main, with Δ² a quarter of the printed one (E-23)."""
    done = similar_run(kind, theta, common)
    R, S, M = similarity(done)
    k = done.controller(variant, R)
    ho = higher_order(k, S, M)
    assert all_hold(ho.recursion.hypotheses)
    g, _ = ho.recursion.step(done.before)
    assert slack(g, done.gap[1:]).min() >= -ROUNDING
    apart = disagreements(done)
    assert slack(ho.disagreement.after(*done.before), apart).min() >= -ROUNDING
    least = np.minimum.accumulate(done.gap[:-1])
    T = np.arange(1, len(least) + 1)
    if k.recursion.tracking.tracking < 1:
        for printed in (False, True):
            rate = best_iterate_rate(ho, done.first, T, printed=printed)
            assert slack(rate.value, least).min() >= -ROUNDING
    if kind == "quadratic" and common:
        assert float(ho.mismatch) <= 1e-20
        assert slack(g, done.gap[1:]).min() < 0.9
        closed = common_quadratic_rate(k, done.gap[0], T)
        assert slack(closed.value, least).min() >= -ROUNDING
