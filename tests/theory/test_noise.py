import mpmath as mp
import numpy as np
import pytest

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.core.certificate import round_bound
from hewfl.core.coefficients import Variant
from hewfl.theory.comparators import (
    comparator_coefficients,
)
from hewfl.theory.noise import (
    best_comparator,
    mean_noise,
    noise_of_mean,
    noise_optimal,
    noise_optimal_level,
    noise_term,
    uniform_mean_noise,
    uniform_noise_of_mean,
)
from hewfl.theory.statement import (
    all_hold,
)
from hewfl.theory.systems import (
    System,
)

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""


def draw(rng: np.random.Generator, n: int, decades: float = 3) -> System:
    H, b = rng.integers(1, 20, n), rng.integers(1, 64, n)
    L, R = 10 ** rng.uniform(-decades, decades, 2)
    return System(L, R, H, b, 10 ** rng.uniform(-decades, decades, n))


def simplex(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.dirichlet(np.ones(n))


def exact_noise(system: System) -> list[mp.mpf]:
    H, b, v2 = (
        np.asarray(x) for x in (system.horizon, system.batch_size, system.variance)
    )
    return [
        mp.mpf(v) / (mp.mpf(h) * mp.mpf(c)) for v, h, c in zip(v2, H, b, strict=True)
    ]


def test_noise_levels_agree_with_fifty_digits(rng: np.random.Generator) -> None:
    for n in (1, 3, 50):
        system, a = draw(rng, n, 100), simplex(rng, n)
        with mp.workdps(DIGITS):
            M = exact_noise(system)
            V1 = mp.fsum(mp.mpf(x) * m for x, m in zip(a, M, strict=True))
            V2 = mp.fsum(mp.mpf(x) ** 2 * m for x, m in zip(a, M, strict=True))
            alpha = 1 / mp.fsum(1 / m for m in M)
            expected = [V1, V2, mp.fsum(M) / n, mp.fsum(M) / n**2, alpha]
            star = [float(alpha / m) for m in M]
        ours = [
            mean_noise(system, a),
            noise_of_mean(system, a),
            uniform_mean_noise(system),
            uniform_noise_of_mean(system),
            noise_optimal_level(system),
        ]
        np.testing.assert_allclose(ours, [float(x) for x in expected], rtol=EXACT)
        np.testing.assert_allclose(noise_optimal(system), star, rtol=EXACT)


def test_the_noise_optimal_weights_have_the_stated_noise(
    rng: np.random.Generator,
) -> None:
    system = System(
        1.0, 1.0, rng.integers(1, 9, (20, 6)), 8, rng.uniform(0.1, 9, (20, 6))
    )
    a, alpha = noise_optimal(system), noise_optimal_level(system)
    np.testing.assert_allclose(noise_of_mean(system, a), alpha, rtol=EXACT)
    np.testing.assert_allclose(mean_noise(system, a), 6 * alpha, rtol=EXACT)
    for _ in range(20):
        assert (noise_of_mean(system, simplex(rng, 6)) >= alpha * (1 - EXACT)).all()


def test_clients_without_noise_take_all_the_weight() -> None:
    system = System(1.0, 1.0, 1, 1, [[0.0, 2.0, 0.0, 5e-324], [1.0, 2.0, 4.0, 4.0]])
    weights = [[0.5, 0, 0.5, 0], [0.5, 0.25, 0.125, 0.125]]
    np.testing.assert_array_equal(noise_optimal(system), weights)
    np.testing.assert_array_equal(noise_optimal_level(system), [0.0, 0.5])
    assert mean_noise(system, noise_optimal(system))[0] == 0
    M = system.noise
    np.testing.assert_array_equal(best_comparator(3 * M, 5 * M)[0], weights[0])


def test_the_threshold_law_is_never_worse_than_the_noise_optimal_weights(
    rng: np.random.Generator,
) -> None:
    gains = []
    for _ in range(200):
        system = draw(rng, int(rng.integers(1, 12)))
        theta, ratio = 10 ** rng.uniform(-3, 0), rng.uniform(1, 2)
        M, L = system.noise, system.L
        linear, quadratic = 64 * theta**3 / L * M, 16 * ratio * theta**2 / L * M
        ours = noise_term(best_comparator(linear, quadratic), linear, quadratic)
        star = noise_term(noise_optimal(system), linear, quadratic)
        p, q = 64 * theta**3 / L, 16 * ratio * theta**2 / L
        closed = (p * system.n + q) * noise_optimal_level(system)
        np.testing.assert_allclose(star, closed, rtol=EXACT)
        assert ours <= star * (1 + EXACT)
        for _ in range(5):
            other = noise_term(simplex(rng, system.n), linear, quadratic)
            assert ours <= other * (1 + EXACT)
        gains.append(float(star / ours))
    assert max(gains) > 1.5


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


def test_bad_arguments_are_named() -> None:
    system = System(1.0, 1.0, [1, 2], 1, 1.0)
    with pytest.raises(
        InvalidInputError, match="`weights` must be nonnegative and summ"
    ):
        mean_noise(system, [0.5, 0.6])
    with pytest.raises(
        InvalidInputError, match="`weights` must be nonnegative and summ"
    ):
        comparator_coefficients(system, [1.5, -0.5], 0.1)
    with pytest.raises(InvalidInputError, match="`amplitudes` must be nonnegative"):
        comparator_coefficients(system, [0.5, 0.5], [-0.1, 0.1])
    with pytest.raises(
        InvalidInputError, match="`variant` must be paper where `printed`"
    ):
        comparator_coefficients(
            system, [0.5, 0.5], [0.1, 0.1], variant="sharp", printed=True
        )
