import mpmath
import numpy as np
import pytest
from mpmath import mpf

from hewfl import InvalidInputError
from hewfl.control.certificate import VARIANTS, Variant
from hewfl.control.tracking import tracking_cap
from hewfl.core.validation import Array
from hewfl.theory.appendix.lemmas import common_quadratic_rate
from hewfl.theory.scalar import scalar_rate
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System
from hewfl.theory.uniform import (
    UniformController,
    best_iterate_rate,
    closed_higher_order,
    curvature_mismatch,
    higher_order,
    uniform_coefficients,
)

RELATIVE = 1e-12
DIGITS = 50
EDGE = 1 / np.sqrt(288)
variants = pytest.mark.parametrize("variant", VARIANTS)


def random_system(
    rng: np.random.Generator, size: int, variant: Variant = "paper"
) -> tuple[UniformController, Array, Array]:
    """Controllers with similarity and Lipschitz constants of the Hessians."""
    L, R = 10 ** rng.uniform(-4, 4, (2, size))
    v2 = 10 ** rng.uniform(-4, 4, (size, 3)) * rng.integers(0, 2, (size, 1))
    H = rng.choice([1, 4, 100], (size, 1))
    many = System(L, R, np.broadcast_to(H, (size, 3)), 8, v2)
    theta = EDGE * 10 ** rng.uniform(-5, -0.01, size)
    S, M = L * 10 ** rng.uniform(-4, 0, (2, size)) * rng.integers(0, 2, (2, size))
    return uniform_coefficients(many, theta, variant=variant), S, M / R


@pytest.mark.parametrize("printed", [False, True])
def test_the_theorem_has_all_its_digits(
    rng: np.random.Generator, printed: bool
) -> None:
    """eq:Delta-t-main to eq:ho-explicit-main, transcribed; E-23 divides Δ² by four."""
    size = 100
    k, S, M = random_system(rng, size)
    ho = higher_order(k, S, M, printed=printed)
    g, q = k.system.cap * 10 ** rng.uniform(-6, 0, size), 10 ** rng.uniform(-4, 4, size)
    T = rng.integers(1, 10**6, size)
    after, tracked = ho.recursion.step((g, q))
    coefficients, delta_sq = closed_higher_order(ho, q), ho.disagreement.after(g, q)
    rate = best_iterate_rate(ho, (g, q), T, printed=printed)
    assert rate.holds.all()
    with mpmath.workdps(DIGITS):
        for c in range(size):
            t, L, R, n = mpf(k.amplitude[c]), mpf(k.system.L[c]), mpf(k.system.R[c]), 3
            G, Q, per = mpf(g[c]), mpf(q[c]), mpf(k.noise[c])
            K = (mpf(S[c]) + mpf(M[c]) * R) ** 2
            part = 1 if printed else mpf(1) / 4
            on_g, on_q = part * 96 * t**2 / L, part * 192 * t**2 / L**2
            on_v = part * 32 * t**2 * per / L**2
            square = on_g * G + on_v + on_q * Q
            noise = t**2 / (2 * L * n) * per
            f, a = L * R**2 / 2, t / (2 * L * R**2)
            step = G / (1 + a * G) + 2 * t / L * K * square + noise
            cap = max(Q, (6 * per + 144 * L * t**2 * f) / (1 - 288 * t**2))
            low = t / (2 * L * R**2 * (1 + t / 4))
            beta = 2 * t / L * K * on_g
            delta = 2 * t / L * K * (on_v + on_q * cap) + noise
            if printed:
                floor = beta / low + mpmath.sqrt(delta / low)
                value = floor + mpmath.sqrt(G / (low * int(T[c])))
            else:
                root = mpmath.sqrt(beta**2 + 4 * low * delta)
                floor = (beta + root) / (2 * low)
                root = mpmath.sqrt(beta**2 + 4 * low * (delta + G / int(T[c])))
                value = (beta + root) / (2 * low)
            for result, exact in (
                (ho.mismatch, K),
                (delta_sq, square),
                (after, min(f, step)),
                (coefficients.descent, low),
                (coefficients.growth, beta),
                (coefficients.noise, delta),
                (tracking_cap(k.recursion.tracking, q, k.system.cap), cap),
                (rate.floor, floor),
                (rate.value, value),
            ):
                assert abs(mpf(result[c]) - exact) <= RELATIVE * exact
    np.testing.assert_array_equal(tracked, k.recursion.tracking.after(g, q))


def test_the_printed_disagreement_is_four_times_ours(rng: np.random.Generator) -> None:
    k, S, M = random_system(rng, 20)
    state = (k.system.cap, np.ones(20))
    ours = higher_order(k, S, M).disagreement.after(*state)
    printed = higher_order(k, S, M, printed=True).disagreement.after(*state)
    np.testing.assert_allclose(printed, 4 * ours, rtol=1e-14)


# the theory


@variants
def test_the_step_bounds_exact_expectations(
    rng: np.random.Generator, variant: Variant
) -> None:
    """One round on scalar quadratics with additive noise; S = max|λ_i − λ|, M = 0."""
    n = 4
    for _ in range(300):
        H, top = int(rng.integers(1, 7)), EDGE if variant == "paper" else 1.0
        theta, sd = rng.uniform(0.01, 1) * top, rng.uniform(0, 1)
        curvature, z = rng.uniform(0, 1, n) ** 0.3, rng.normal(size=n)
        if rng.uniform() < 0.3:
            curvature = np.ones(n)
        best = (curvature * z).sum() / curvature.sum()
        x, e = best + rng.normal(), rng.normal(size=n) * rng.choice([0, 0.1, 1])
        slope = curvature * (x - z)
        force = slope - (slope + e) + (slope + e).mean()
        eta = theta / H
        powers = (1 - eta * curvature) ** np.arange(H)[:, None]
        mean = -eta * powers.sum(0) * force
        spread = (sd * eta / n) ** 2 * (powers**2).sum()
        flat = curvature.mean()
        g = flat * (x - best) ** 2 / 2
        g_next = flat * ((x - best + mean.mean()) ** 2 + spread) / 2
        R = abs(x - best) + abs(mean).max() + 1
        k = uniform_coefficients(
            System(1.0, R, np.full(n, H), 1, sd**2), theta, variant=variant
        )
        ho = higher_order(k, np.abs(curvature - flat).max(), 0.0)
        assert all_hold(ho.recursion.hypotheses)
        bound, _ = ho.recursion.step((g, (e**2).max()))
        assert g_next <= bound * (1 + 1e-12)


@variants
def test_the_best_iterate_is_bounded(
    rng: np.random.Generator, variant: Variant
) -> None:
    k, S, M = random_system(rng, 300, variant)
    ho = higher_order(k, S, M)
    start = (k.system.cap * rng.uniform(0, 1, 300), 10 ** rng.uniform(-4, 0, 300))
    path = ho.recursion.trajectory(start, 40)
    assert path.gap.shape == (41, 300)
    assert (
        path.tracking
        <= tracking_cap(k.recursion.tracking, start[1], k.system.cap) * (1 + 1e-12)
    ).all()
    for T in (1, 7, 40):
        rate = best_iterate_rate(ho, start, T)
        least = path.gap[:T].min(0)
        assert (least <= rate.value * (1 + 1e-12)).all()
        printed = best_iterate_rate(ho, start, T, printed=True)
        assert (rate.value <= printed.value * (1 + 1e-12)).all()
        assert (rate.floor <= printed.floor * (1 + 1e-12)).all()
    np.testing.assert_array_equal(rate.vacuous, rate.floor >= k.system.cap)
    assert rate.vacuous.any()
    assert not rate.vacuous.all()


def test_the_closed_recursion_is_above_the_open_one(rng: np.random.Generator) -> None:
    """eq:ho-rec-main: T_a(g) ≤ g − a̲g² on [0, f̄] and q ≤ q̄."""
    k, S, M = random_system(rng, 300)
    ho = higher_order(k, S, M)
    g, q0 = k.system.cap * rng.uniform(0, 1, 300), 10 ** rng.uniform(-4, 0, 300)
    c = closed_higher_order(ho, q0)
    after, _ = ho.recursion.step((g, q0))
    assert (after <= (g + (c.growth - c.descent * g) * g + c.noise) * (1 + 1e-12)).all()


def test_common_quadratics_have_explicit_constants(rng: np.random.Generator) -> None:
    """E-23: C₁ = √(2(1 + ϑ/4)), C₂ = √(1 + ϑ/4) is the printed rate at K = 0."""
    k, _, _ = random_system(rng, 50)
    T = rng.integers(1, 1000, 50)
    general = best_iterate_rate(
        higher_order(k, 0.0, 0.0), (k.system.cap, 1.0), T, printed=True
    )
    explicit = common_quadratic_rate(k, k.system.cap, T)
    np.testing.assert_allclose(explicit.value, general.value, rtol=1e-13)
    with mpmath.workdps(DIGITS):
        t, L, R = mpf(k.amplitude[0]), mpf(k.system.L[0]), mpf(k.system.R[0])
        g, per = mpf(k.system.cap[0]), mpf(k.noise[0])
        exact = mpmath.sqrt(2 * (1 + t / 4)) * mpmath.sqrt(
            L * R**2 * g / (t * int(T[0]))
        )
        exact += mpmath.sqrt(1 + t / 4) * R * mpmath.sqrt(per * t / 3)
        assert abs(mpf(explicit.value[0]) - exact) <= RELATIVE * exact


def test_mismatch_by_hand() -> None:
    assert float(curvature_mismatch(2.0, 3.0, 0.5)) == 12.25


def test_sharper_constants_give_less(rng: np.random.Generator) -> None:
    seed = int(rng.integers(1000))
    values = []
    for variant in ("paper", "sharp"):
        k, S, M = random_system(np.random.default_rng(seed), 100, variant)
        values.append(
            best_iterate_rate(higher_order(k, S, M), (k.system.cap, 0.1), 100)
        )
    assert (values[1].value <= values[0].value).all()
    assert (values[1].value < 0.9 * values[0].value).any()


def test_bad_input_is_named() -> None:
    one = System(1.0, 1.0, [2, 2], 1, 1.0)
    with pytest.raises(InvalidInputError, match="`similarity` must be nonnegative"):
        higher_order(uniform_coefficients(one, 0.01), -1.0, 0.0)
    with pytest.raises(
        InvalidInputError, match="`rounds` must be a whole number of at"
    ):
        best_iterate_rate(
            higher_order(uniform_coefficients(one, 0.01), 1.0, 0.0), (0.1, 0.1), 0
        )
    wide = higher_order(uniform_coefficients(one, 0.06), 1.0, 0.0)
    assert np.isnan(closed_higher_order(wide, 0.1).noise)
    rate = best_iterate_rate(wide, (0.1, 0.1), 5)
    assert np.isnan(rate.value)
    assert "C < 1" in [h.name for h in rate.hypotheses if not h.holds]
    sharp = uniform_coefficients(one, 0.01, variant="sharp")
    with pytest.raises(InvalidInputError, match="`variant` must be paper where"):
        higher_order(sharp, 1.0, 0.0, printed=True)


def test_the_last_iterate_obeys_lem_scalar() -> None:
    """g_T itself: never above the best-iterate bound, never below the recursion."""
    system = System(1.0, 1.0, [4] * 10, 8, 1e-4)
    k = uniform_coefficients(system, [0.01, 0.05, 0.1], variant="sharp")
    bound, start = higher_order(k, 0.1, 0.01), (0.5, 1e-5)
    path = bound.recursion.trajectory(start, 1000).gap
    for T in (1, 30, 1000):
        last = bound.recursion.rate(start, T)
        assert (path[T] <= last.value * (1 + 1e-12)).all()
        assert (last.value <= best_iterate_rate(bound, start, T).value).all()
    assert last.label == "th:ho-main"
    np.testing.assert_allclose(
        bound.recursion.trajectory(start, 1000).gap, path, rtol=1e-12
    )
    law = closed_higher_order(bound, 1e-5)
    exact = scalar_rate(0.5, law.descent, law.growth, law.noise, 1000)
    np.testing.assert_allclose(last.value, exact.value, rtol=1e-12)


def test_common_quadratics_need_no_tracking_cap() -> None:
    system = System(1.0, 1.0, [4] * 10, 8, 0.0)
    k = uniform_coefficients(system, [0.9, 0.9], variant="sharp")
    rate = higher_order(k, [0.0, 0.1], 0.0).recursion.rate((0.5, 0.0), 50)
    assert rate.holds.tolist() == [True, False]
    assert rate.value[0] < 0.05
    assert np.isnan(rate.value[1])
