from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from tests.theory.test_noise import draw, exact_noise, simplex

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.control.certificate import Variant, round_bound
from hewfl.theory.appendix.surrogate_controls import surrogate
from hewfl.theory.comparators import comparator_coefficients
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""
ONE = System(1.0, 1.0, 1, 1, 0.0)


def test_the_printed_recursion_is_false_at_amplitude_one() -> None:
    u0 = 1e-9
    printed = comparator_coefficients(ONE, [1.0], [1.0], printed=True)
    claimed = printed.trajectory((u0, 0.0), 1)
    bounds, client = ProblemBounds(1.0, 1.0, 1.0, 1.0), ClientProfile(1, 1, 0.0)
    played = round_bound([1.0], [1.0], client, UpperState(u0, 0.0), bounds)
    assert claimed.gap[1] / u0 == pytest.approx(129, rel=1e-6)
    assert played / u0 == pytest.approx(296.6, abs=0.05)
    failed = [h.name for h in claimed.hypotheses if not h.holds]
    assert "θ ≤ ln(4)/2" in failed
    ours = comparator_coefficients(ONE, [1.0], [1.0]).trajectory((u0, 0.0), 1)
    assert ours.gap[1] >= played * (1 - EXACT)


def test_the_printed_rate_is_vacuous_from_an_amplitude_on() -> None:
    theta = np.array([0.00160, 0.00162])[:, None]
    k = comparator_coefficients(ONE, [1.0], theta, printed=True)
    rate = k.rate((0.5, 0.0), 1000)
    np.testing.assert_array_equal(rate.vacuous, [False, True])
    assert rate.holds.all()
    # with coefficients expanded from ρ and κ in force it says something much longer
    ours = comparator_coefficients(ONE, [1.0], theta).rate((0.5, 0.0), 1000)
    assert not ours.vacuous.any()
    assert (ours.floor < rate.floor).all()


def test_the_rate_agrees_with_fifty_digits(rng: np.random.Generator) -> None:
    for _ in range(30):
        n = int(rng.integers(1, 6))
        L, R = 10 ** rng.uniform(-20, 20, 2)
        theta, w = 10 ** rng.uniform(-5, -1.4, n), rng.dirichlet(np.ones(n))
        M = 10 ** rng.uniform(-9, 0, n) * L * L * R * R
        system, T = System(L, R, 1, 1, M), int(10 ** rng.uniform(0, 12))
        chi0 = float(10 ** rng.uniform(-9, 0)) * L * L * R * R
        with mp.workdps(DIGITS):
            S, r = mp.mpf(float(L)), mp.mpf(float(R))
            rows = [tuple(map(mp.mpf, x)) for x in zip(w, theta, M, strict=True)]
            f, top = S * r**2 / 2, max(map(mp.mpf, theta))
            a = mp.fsum(x * t / (2 * S * r**2 * (1 + t / 4)) for x, t, _ in rows)
            beta = mp.fsum(96 * x * t**2 + 32 * x**2 * t**4 for x, t, _ in rows)
            gamma = mp.fsum(256 * x * t + 64 * x**2 * t**4 for x, t, _ in rows) / S
            delta = mp.fsum((32 * x + 16 * x**2) * t**2 * m for x, t, m in rows) / S
            level = (6 * max(m for _, _, m in rows) + 144 * S * top**2 * f) / (
                1 - 288 * top**2
            )
            d = gamma * max(mp.mpf(chi0), level) + delta
            m = (beta + mp.sqrt(beta**2 + 4 * a * d)) / (2 * a)
            start = 2 * m
            value = m + 1 / (1 / (start - m) + a * T)
        k = comparator_coefficients(system, w, theta, printed=True)
        rate = k.rate((float(start), chi0), T, printed=True)
        np.testing.assert_allclose(rate.floor, float(m), rtol=EXACT)
        np.testing.assert_allclose(rate.value, float(value), rtol=EXACT)
        ours = k.rate((float(start), chi0), T)
        assert ours.floor == rate.floor
        assert ours.value <= rate.value * (1 + EXACT)


@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed"])
def test_the_optimised_system_stays_below_its_comparators(
    rng: np.random.Generator, variant: Variant
) -> None:
    n, T = 3, 6
    system = System(1.0, 1.0, [1, 2, 4], 8, [1e-6, 2e-6, 5e-6])
    low, high = 1e-4, 4e-3
    best = surrogate(system, (low, high), (0.5, 0.0), T, variant=variant, printed=True)
    for _ in range(5):
        w, theta = rng.dirichlet(np.ones(n)), rng.uniform(low, high, n)
        k = comparator_coefficients(system, w, theta, box_end=high, variant=variant)
        gap = float(best.solver_gap.max())
        bound = k.trajectory((0.5, 0.0), T, solver_gap=gap)
        assert (best.gap <= bound.gap * (1 + EXACT)).all()
        assert (best.tracking <= bound.tracking * (1 + EXACT)).all()
        rate = k.rate((0.5, 0.0), np.arange(T + 1), solver_gap=gap)
        assert (bound.gap <= np.minimum(rate.value, 0.5) * (1 + 1e-9)).all()


def test_solver_gap_noise_and_state_enter_the_floor() -> None:
    k = comparator_coefficients(ONE, [1.0], [1e-4], variant="sharp")
    quiet = k.rate((0.5, 0.0), 10)
    gap = k.rate((0.5, 0.0), 10, solver_gap=1e-9)
    extra = replace(k, noise=np.asarray(k.noise + 1e-9))
    assert gap.floor == extra.rate((0.5, 0.0), 10).floor > quiet.floor
    a, beta = float(k.descent), float(k.growth)
    chi_bar = 24 * 1e-8 * 0.5 / (1 - 48 * 1e-8)  # A = 0, h₁ = 0
    d = 4e-4 * chi_bar
    floor = (beta + np.sqrt(beta**2 + 4 * a * d)) / (2 * a)
    np.testing.assert_allclose(quiet.floor, floor, rtol=1e-10)


def test_configurations_broadcast() -> None:
    system = System([1.0, 2.0], 1.0, [1, 2, 4], 8, 0.1)
    k = comparator_coefficients(system, np.full(3, 1 / 3), np.full((5, 1, 1), 0.01))
    path = k.trajectory((0.3, [0.0, 1.0]), 4)
    assert path.gap.shape == path.tracking.shape == (5, 5, 2)
    rate = k.rate((0.3, [0.0, 1.0]), 4)
    assert rate.value.shape == rate.floor.shape == rate.vacuous.shape == (5, 2)
    assert rate.holds.shape == (5, 2)


def test_the_start_must_be_below_the_cap() -> None:
    k = comparator_coefficients(ONE, [1.0], [0.001])
    assert k.rate((0.5, 0.0), 10).holds
    assert not k.rate((0.51, 0.0), 10).holds


def test_undefined_rates_are_refused() -> None:
    wide = comparator_coefficients(ONE, [1.0], [0.06])
    rate = wide.rate((0.5, 0.0), 10)
    assert np.isnan(rate.value)
    assert "C < 1" in [h.name for h in rate.hypotheses if not h.holds]
    assert np.isfinite(wide.trajectory((0.5, 0.0), 10).tracking).all()
    still = comparator_coefficients(ONE, [1.0], [0.0])
    rate = still.rate((0.5, 0.0), 10)
    assert np.isnan(rate.value)
    assert "0 < a" in [h.name for h in rate.hypotheses if not h.holds]
    with pytest.raises(
        InvalidInputError, match=r"`start` must be nonnegative; got -0.1"
    ):
        wide.rate((0.5, -0.1), 10)
    with pytest.raises(InvalidInputError, match="`rounds` must be a whole number"):
        still.rate((0.5, 0.0), -1)


@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed"])
def test_expanded_coefficients_rebuild_the_certificate(
    rng: np.random.Generator, variant: Variant
) -> None:
    for _ in range(50):
        n = int(rng.integers(1, 6))
        H, b, v2 = rng.integers(1, 9, n), rng.integers(1, 9, n), rng.uniform(0, 3, n)
        L, R = (float(x) for x in rng.uniform(0.2, 5, 2))
        w, theta = simplex(rng, n), rng.uniform(0.01, 1, n)
        u, chi = float(rng.uniform(0, L * R * R / 2)), float(rng.uniform(0, 3))
        k = comparator_coefficients(System(L, R, H, b, v2), w, theta, variant=variant)
        bounds, state = ProblemBounds(L, R, 0.01, 1.0), UpperState(u, chi)
        J = round_bound(
            w, theta, ClientProfile(H, b, v2), state, bounds, variant=variant
        )
        linear = u + k.growth * u + k.staleness * chi + k.noise
        assert linear - k.descent * u * u + EXACT * linear >= J
        # at u = f̄ both forms of the descent meet
        top = UpperState(float(k.cap), chi)
        J = round_bound(w, theta, ClientProfile(H, b, v2), top, bounds, variant=variant)
        f = k.cap
        met = f - k.descent * f * f + k.growth * f + k.staleness * chi + k.noise
        np.testing.assert_allclose(J, met, rtol=EXACT)


def test_coefficients_agree_with_fifty_digits(rng: np.random.Generator) -> None:
    for n in (1, 2, 9):
        system, w = draw(rng, n, 50), simplex(rng, n)
        theta = 10 ** rng.uniform(-6, 0, n)
        with mp.workdps(DIGITS):
            W, T, M = (
                list(map(mp.mpf, w)),
                list(map(mp.mpf, theta)),
                exact_noise(system),
            )
            L, R = mp.mpf(float(system.L)), mp.mpf(float(system.R))
            rows = list(zip(W, T, M, strict=True))
            E = [mp.exp(2 * t) for t in T]
            a = mp.fsum(x * t / (2 * L * R**2 * (1 + t / 4)) for x, t, _ in rows)
            tight = [
                a,
                mp.fsum(
                    x * 32 * e * t**3 + x**2 * 8 * e * t**4
                    for (x, t, _), e in zip(rows, E, strict=True)
                ),
                mp.fsum(
                    x * (16 * t + 64 * e * t**3) / L + x**2 * 16 * e * t**4 / L
                    for (x, t, _), e in zip(rows, E, strict=True)
                ),
                mp.fsum(
                    x * 8 * e * t**3 * m / L + x**2 * (t**2 + 2 * e * t**4) * m / L
                    for (x, t, m), e in zip(rows, E, strict=True)
                ),
            ]
            printed = [
                a,
                mp.fsum(96 * x * t**2 + 32 * x**2 * t**4 for x, t, _ in rows),
                mp.fsum(256 * x * t + 64 * x**2 * t**4 for x, t, _ in rows) / L,
                mp.fsum((32 * x + 16 * x**2) * t**2 * m for x, t, m in rows) / L,
            ]
        for exact, flag in ((tight, False), (printed, True)):
            k = comparator_coefficients(system, w, theta, printed=flag)
            ours = [k.descent, k.growth, k.staleness, k.noise]
            np.testing.assert_allclose(ours, [float(x) for x in exact], rtol=EXACT)


def test_printed_coefficients_dominate_up_to_half_the_logarithm_of_four() -> None:
    system, limit = System(1.0, 1.0, 4, 1, 1.0), np.log(4) / 2
    for theta in (0.001, 0.1, 0.5, limit * (1 - 1e-9), limit * (1 + 1e-9), 1.0):
        printed = comparator_coefficients(system, [1.0], [theta], printed=True)
        ours = comparator_coefficients(system, [1.0], [theta])
        # κ's share at vanishing ρ is what decides: compare the w² parts alone
        risk_printed, risk_ours = 32 * theta**4, 8 * np.exp(2 * theta) * theta**4
        assert (risk_printed >= risk_ours) == (theta <= limit)
        names = [h.name for h in printed.hypotheses if not h.holds]
        assert ("θ ≤ ln(4)/2" in names) == (theta > limit)
        if theta <= limit:
            assert printed.growth >= ours.growth
            assert printed.staleness >= ours.staleness
            assert printed.noise >= ours.noise


def test_hypotheses_follow_the_constants_in_force() -> None:
    system = System(1.0, 1.0, 4, 1, 1.0)
    w = [1.0]
    assert all_hold(comparator_coefficients(system, w, [0.57]).hypotheses)
    assert not all_hold(comparator_coefficients(system, w, [0.58]).hypotheses)
    assert not all_hold(
        comparator_coefficients(system, w, [0.5], box_end=0.6).hypotheses
    )
    assert not all_hold(
        comparator_coefficients(system, w, [0.5], box_end=0.4).hypotheses
    )
    sharp = comparator_coefficients(system, w, [0.9], variant="sharp")
    assert all_hold(sharp.hypotheses)
    beyond = comparator_coefficients(system, w, [[0.9], [1.1]], variant="sharp")
    np.testing.assert_array_equal(all_hold(beyond.hypotheses), [True, False])
    printed = comparator_coefficients(system, w, [[0.14], [0.15]], printed=True)
    np.testing.assert_array_equal(all_hold(printed.hypotheses), [True, False])
