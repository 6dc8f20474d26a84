import mpmath as mp
import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.theory.comparators import comparator_coefficients
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
from hewfl.theory.systems import System

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
