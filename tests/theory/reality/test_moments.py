"""Mismatch, drift and noise of a round, against exact expectations over all draws.

(U, Q) are the true values at a known anchor; expectations are over all paths.
"""

from dataclasses import dataclass
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

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.validation import Array
from hewfl.theory import situation
from hewfl.theory.appendix.lemmas import (
    RadiusForm,
    comparator_moments,
    drift_sq_norm,
    mean_drift_sq_norm,
    mean_noise_cost,
    mismatch_sq_norm,
    pl_coefficient_bounds,
)
from hewfl.theory.post_local import PostLocal
from hewfl.theory.statement import Bound, all_hold
from hewfl.theory.systems import System
from hewfl.theory.uniform import uniform_coefficients

pytestmark = pytest.mark.unchecked
SCENES = 60
EDGE = 0.99 / np.sqrt(288)
kinds = pytest.mark.parametrize("kind", list(LINKS))
variants = pytest.mark.parametrize("variant", VARIANTS)


@final
@dataclass(frozen=True, slots=True)
class Scene:
    """A round: clients, work, and its parts along every path.

    Attributes:
        scenario: the clients.
        work: what they do.
        cloud: where they stand; one anchor.
        weights: a.
        mismatches: δ_i, shape (n, d).
        drifts: r_i along joint paths, shape (j, n, d).
        noises: Δ_i less its mean, likewise.
        chances: of the joint paths.
    """

    scenario: Scenario
    work: Work
    cloud: Cloud
    weights: Array
    mismatches: Array
    drifts: Array
    noises: Array
    chances: Array

    @property
    def state(self) -> tuple[float, float]:
        return self.cloud.gap(self.scenario), float(
            self.cloud.tracking(self.scenario).max()
        )

    @property
    def system(self) -> System:
        return self.work.system(self.scenario, self.cloud.radius)

    def mean(self, values: Array) -> Array:
        """Expectation over the joint paths, which come first."""
        return np.asarray(np.tensordot(self.chances, values, 1))


@cache
def scenes(kind: str, largest: float, *, common: bool) -> list[Scene]:
    """Random rounds; with one H, b and ϑ for both clients if common."""
    rng, result = np.random.default_rng(5), []
    for _ in range(SCENES):
        scenario = random_scenario(rng, kind)
        theta = largest * 10 ** np.minimum(rng.uniform(-1, 0.5, 2), 0)
        H, b = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
        if common:
            theta, H, b = theta[[0, 0]], H[[0, 0]], b[[0, 0]]
        work = Work(theta, H.tolist(), b.tolist())
        cloud = start(scenario, rng, float(rng.choice([0, 0.3, 2.0])))
        a = rng.dirichlet([1, 1])
        result.append(scene(scenario, work, cloud, a))
    return result


def scene(scenario: Scenario, work: Work, cloud: Cloud, a: Array) -> Scene:
    played = play(scenario, work, cloud, fixed_rule(a))
    moved, chances = played.displacements[0], played.chances[0]
    slopes = scenario.gradients(cloud.anchors[0])
    off = slopes - slopes.mean(0) - (cloud.variates[0] - cloud.variates[0].mean(0))
    bent = drifts(scenario, work, played, slopes)
    noises = moved - np.tensordot(chances, moved, 1)
    return Scene(scenario, work, cloud, a, off, bent, noises, chances)


def drifts(scenario: Scenario, work: Work, played: RoundWork, slopes: Array) -> Array:
    """r_i = −η Σ_ℓ (∇F_i(y_ℓ) − ∇F_i(x)) along joint paths, shape (j, n, d)."""
    joint = np.indices([len(law) for law in played.laws]).reshape(scenario.n, -1)
    result = []
    for i, (y, path) in enumerate(zip(played.branches, joint, strict=True)):
        eta = work.amplitudes[i] / scenario.smoothness / work.horizons[i]
        along = scenario.gradients(y[0, :, :-1])[..., i, :] - slopes[i]
        result.append((-eta * along.sum(1))[path])
    return np.stack(result, axis=1)


def check(result: list[tuple[Bound, Array]], tight: float) -> None:
    """Every bound holds, and some is not much above the truth."""
    room = []
    for bound, truth in result:
        assert all_hold(bound.hypotheses).all()
        room.append(slack(bound.value, truth).min())
    assert min(room) >= -ROUNDING
    assert min(room) < tight


def sq(values: Array) -> Array:
    return np.asarray((values**2).sum(-1))


@kinds
def test_mismatches_are_as_small_as_tracking_errors(kind: str) -> None:
    """lem:delta and lem:delta-sur; with n = 2 the sharp form is Q, and attained."""
    result, sharp = [], []
    for s in scenes(kind, 1.0, common=False):
        truth, Q = sq(s.mismatches), s.state[1]
        result.append((mismatch_sq_norm(Q), truth))
        sharp.append((mismatch_sq_norm(Q, n=2), truth))
    check(result, 0.65)
    check(sharp, 0.1)


@kinds
@pytest.mark.parametrize("form", ["stated", "sharp", "proved"])
def test_drifts_are_bounded_by_the_radius(kind: str, form: RadiusForm) -> None:
    """lem:rbar and lem:sur-rbar: E‖r_i‖², and the squared mean below it."""
    result = []
    for s in scenes(kind, 1.0, common=False):
        at = situation(s.system, *s.state)
        bound = drift_sq_norm(s.work.amplitudes, at, form=form)
        square, mean = s.mean(sq(s.drifts)), sq(s.mean(s.drifts))
        assert (mean <= square * (1 + 1e-9) + 1e-300).all()
        result.append((bound, square))
    check(result, 0.999)


@kinds
@variants
def test_drift_and_noise_of_the_mean(kind: str, variant: Variant) -> None:
    """lem:agg-r and lem:agg-noise; averaged noise is attained by one step (T1)."""
    drift, noise = [], []
    largest = EDGE if variant == "paper" else 1.0
    for s in scenes(kind, largest, common=True):
        k = uniform_coefficients(s.system, s.work.amplitudes[0], variant=variant)
        mean = s.mean(s.drifts).mean(0)
        drift.append((mean_drift_sq_norm(k, s.state), sq(mean)))
        spread = s.mean(sq(s.noises.mean(1)))
        noise.append((mean_noise_cost(k, s.state), s.scenario.smoothness / 2 * spread))
    check(drift, 1.0)
    check(noise, 0.95 if variant == "paper" else 0.5)


@kinds
@pytest.mark.parametrize("variant", ["paper", "sharp"])
def test_moments_of_a_comparator(kind: str, variant: Variant) -> None:
    """lem:realized-het-moments, for weights fixed before the draws."""
    mean, noise = [], []
    largest = EDGE if variant == "paper" else 1.0
    for s in scenes(kind, largest, common=True):
        theta, L = s.work.amplitudes[0], s.scenario.smoothness
        nu = s.weights @ (s.mean(s.drifts) - theta / L * s.mismatches)
        zeta = s.mean(sq(np.einsum("n,jnd->jd", s.weights, s.noises)))
        bounds = comparator_moments(
            s.system, PostLocal(theta, 2 * L), s.weights, s.state, variant=variant
        )
        mean.append((bounds[0], sq(nu)))
        noise.append((bounds[1], zeta))
    check(mean, 0.95)
    check(noise, 0.98 if variant == "paper" else 1e-6)


def test_the_simple_bounds_on_coefficients() -> None:
    """lem:pl-coeff-bounds: 50ϑ³ and 100ϑ³/L are near at the edge with one client."""
    for n in (1, 2, 50):
        system, theta = (
            System([0.5, 3.0], 1.0, [2] * n, 1, 1.0),
            EDGE / 0.99 * 0.9999999,
        )
        for variant in VARIANTS:
            k = uniform_coefficients(system, theta, variant=variant)
            beta, gamma, C = pl_coefficient_bounds(k)
            assert all_hold(beta.hypotheses).all()
            assert (k.recursion.growth <= beta.value).all()
            assert (k.recursion.staleness <= gamma.value).all()
            assert (k.recursion.tracking.tracking <= C.value).all()
            assert (C.value < 1).all()
            if variant == "paper" and n == 1:
                assert (k.recursion.growth > 0.99 * beta.value).all()
                assert (k.recursion.staleness > 0.99 * gamma.value).all()
    steep = pl_coefficient_bounds(uniform_coefficients(system, 0.1))[0]
    assert not all_hold(steep.hypotheses).any()
