"""One round with controls fixed before it, against exact expectations.

(U, Q) are the true values and R the distance of the anchor: the strictest admissible
state, since every bound grows with all three.
"""

from dataclasses import dataclass
from functools import cache
from typing import final

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
from hewfl.control.tracking import predictable_tracking
from hewfl.core.validation import Array
from hewfl.theory import System, one_step, situation
from hewfl.theory.appendix import propagated_tracking
from hewfl.theory.appendix.lemmas import RadiusForm, branch_sq_radius, plain_sq_radius
from hewfl.theory.one_step_bound import OneStep
from hewfl.theory.statement import Constants, all_hold

pytestmark = pytest.mark.unchecked
SCENES = 200
EDGE = 1 / np.sqrt(3)
"""The largest amplitude of the printed tracking recursion (E-04)."""
EQUAL = 1e-8
"""Of a variance that is attained: displacements are differences of nearby points."""
Active = tuple[bool, bool]
kinds = pytest.mark.parametrize("kind", list(LINKS))
variants = pytest.mark.parametrize("variant", VARIANTS)


@final
@dataclass(frozen=True, slots=True)
class Scenes:
    """Rounds one after the other: what was given, and what came of it exactly.

    Attributes:
        system: L, R, H_i, b_i, v_i².
        weights: w.
        amplitudes: θ.
        gap: f.
        tracking: ‖e_i‖².
        next_gap: E f⁺.
        next_tracking: E‖e_i⁺‖².
        mean_model: ⟨∇F, m_i⟩ + (L/2)‖m_i‖² at the mean displacement m_i.
        variance: E‖Δ_i − m_i‖².
        sq_radius: max_ℓ E‖y_i^(ℓ) − x‖².
    """

    system: System
    weights: Array
    amplitudes: Array
    gap: Array
    tracking: Array
    next_gap: Array
    next_tracking: Array
    mean_model: Array
    variance: Array
    sq_radius: Array

    def certificate(self, variant: Constants) -> OneStep:
        at = situation(self.system, self.gap, self.tracking.max(-1))
        return one_step((self.weights, self.amplitudes), at, variant=variant)


@cache
def scenes(
    kind: str,
    *,
    active: Active = (True, True),
    longest: int = 3,
    largest: float = 1.0,
    corrected: bool = True,
) -> Scenes:
    """Random clients, work and weights; control variates exact or stale.

    Every fourth amplitude is the largest allowed.
    """
    rng = np.random.default_rng(11)
    rows = []
    for _ in range(SCENES):
        scenario = random_scenario(rng, kind, homogeneous=not corrected)
        theta = largest * 10 ** np.minimum(rng.uniform(-2, 2 / 3, 2), 0)
        H = rng.integers(1, longest + 1, 2).tolist()
        b = rng.integers(1, 3, 2).tolist()
        work = Work(theta, H, b, corrected, active)
        cloud = start(scenario, rng, float(rng.choice([0, 0.01, 0.3])))
        w = np.where(active, rng.dirichlet([1, 1]), 0)
        rows.append((scenario, work, cloud, w / w.sum()))
    given = [
        (
            scenario.smoothness,
            cloud.radius,
            work.horizons,
            work.batches,
            scenario.variance,
        )
        for scenario, work, cloud, _ in rows
    ]
    system = System(*(np.array(column) for column in zip(*given, strict=True)))
    played = [_scene(*row) for row in rows]
    return Scenes(system, *(np.array(column) for column in zip(*played, strict=True)))


def _scene(scenario: Scenario, work: Work, cloud: Cloud, w: Array) -> tuple[Array, ...]:
    round_ = play(scenario, work, cloud, fixed_rule(w))
    D, p = round_.displacements[0], round_.chances[0]
    m = np.einsum("j,jnd->nd", p, D)
    slope = scenario.gradients(cloud.anchors[0]).mean(0)
    moved = [
        (law @ ((y - y[:, :, :1]) ** 2).sum(-1)[0]).max()
        for y, law in zip(round_.branches, round_.laws, strict=True)
    ]
    return (
        w,
        work.amplitudes,
        np.asarray(cloud.gap(scenario)),
        cloud.tracking(scenario),
        np.asarray(round_.after.gap(scenario)),
        round_.after.tracking(scenario),
        np.asarray(m @ slope + scenario.smoothness / 2 * (m**2).sum(-1)),
        np.einsum("j,jnd->n", p, (D - m) ** 2),
        np.array(moved),
    )


# the certificate


@kinds
@pytest.mark.parametrize("variant", [*VARIANTS, "joint"])
@pytest.mark.parametrize("active", [(True, True), (False, True)])
@pytest.mark.parametrize("longest", [3, 5])
def test_the_certificate_bounds_the_expected_gap(
    kind: str, variant: Constants, active: Active, longest: int
) -> None:
    """th:predictive-majorant, with everybody and with one client of two; and T9."""
    s = scenes(kind, active=active, longest=longest)
    result = s.certificate(variant)
    assert all_hold(result.hypotheses).all()
    room = slack(result.value, s.next_gap)
    assert room.min() >= -ROUNDING
    assert room.min() < 0.01


@kinds
@pytest.mark.parametrize("longest", [1, 4])
def test_clients_together_cost_no_more_than_apart(kind: str, longest: int) -> None:
    """T9 is below T1 to T4, and nearer to what happens."""
    s = scenes(kind, longest=longest)
    joint, *apart = (s.certificate(v).value for v in ("joint", "sharp", "absorbed"))
    assert slack(np.minimum(*apart), joint).min() >= -ROUNDING
    share = (s.gap - joint) / (s.gap - s.next_gap)
    assert share.max() > 0.9


@kinds
@variants
def test_the_cap_may_stand_for_a_gap_unknown(kind: str, variant: Variant) -> None:
    """E-25: with U far above f̄, U♯ serves in ρ and κ too."""
    s = scenes(kind)
    at = situation(s.system, 9 * s.system.cap, s.tracking.max(-1), capped=True)
    result = one_step((s.weights, s.amplitudes), at, variant=variant)
    assert (result.value >= s.next_gap).all()


@kinds
@variants
def test_the_mean_of_a_branch_is_certified(kind: str, variant: Variant) -> None:
    """prop:mean: at most −A f² + ρ; where A < 0, ‖∇F‖² ≤ 2Lf takes over."""
    s = scenes(kind)
    result = s.certificate(variant)
    quadratic = result.descent * s.gap[:, None] ** 2
    fall = np.where(result.descent < 0, result.decrease, quadratic)
    assert (result.descent < 0).any() == (variant == "absorbed")
    room = slack(result.penalty - fall, s.mean_model)
    assert room.min() >= -ROUNDING
    assert room.min() < 0.8


@kinds
@variants
def test_the_variance_of_a_branch_is_certified(kind: str, variant: Variant) -> None:
    """lem:kappa; the sharp κ is attained by a branch of one step (T1)."""
    s = scenes(kind)
    room = slack(s.certificate(variant).risk, s.variance)
    assert room.min() >= -EQUAL
    if variant == "paper":
        assert room.min() < 0.4  # 2θ²M and more for θ²M
    else:
        one = np.asarray(s.system.horizon) == 1
        assert np.abs(room[one]).max() <= EQUAL


# how far branches go


@kinds
@pytest.mark.parametrize("form", ["sharp", "stated", "proved"])
def test_branches_stay_within_their_radius(kind: str, form: RadiusForm) -> None:
    """lem:radius and lem:realized-hom-radius (T1: whatever the amplitude up to 2H)."""
    for corrected, bound in ((True, branch_sq_radius), (False, plain_sq_radius)):
        s = scenes(kind, largest=2.0, corrected=corrected)
        at = situation(s.system, s.gap, s.tracking.max(-1))
        result = bound(s.amplitudes, at, form=form)
        assert all_hold(result.hypotheses).all()
        room = slack(result.value, s.sq_radius)
        assert room.min() >= -ROUNDING
        assert room.min() < 0.8


# control variates


@kinds
@variants
def test_control_variates_stay_as_close_as_promised(
    kind: str, variant: Variant
) -> None:
    """prop:sur-track with weights fixed before the round."""
    s = scenes(kind, largest=EDGE if variant == "paper" else 1.0)
    top, M, H = s.amplitudes.max(-1), s.system.noise, s.system.horizon
    law = predictable_tracking(top, M, H, s.system.L, variant=variant)
    room = slack(law.after(s.gap, s.tracking.max(-1))[:, None], s.next_tracking)
    assert room.min() >= -ROUNDING
    assert room.min() < 0.75


@kinds
@variants
def test_absent_clients_fall_behind_no_faster_than_promised(
    kind: str, variant: Variant
) -> None:
    """E-19: client 1 stays away, and its c_1 is in c all the same."""
    s = scenes(kind, active=(True, False), largest=EDGE if variant == "paper" else 1.0)
    active = np.broadcast_to([True, False], s.weights.shape)
    bound = propagated_tracking(
        s.system, s.amplitudes[:, 0], active, s.gap, s.tracking, variant=variant
    )
    room = slack(bound, s.next_tracking)
    assert room.min() >= -ROUNDING
    assert (room.min(0) < 0.8).all()
