from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests.theory.appendix.generators import close, every_generator, schedule

from hewfl import InvalidInputError
from hewfl.theory.appendix.generators import (
    ExponentialGenerator,
    Generator,
    PowerGenerator,
    QuadraticGenerator,
    relative_decrease,
    slope_modulus,
)
from hewfl.theory.appendix.master import (
    Terms,
    evolution,
    master_trajectory,
    noiseless_coordinate,
    noiseless_rate,
    noisy_contraction,
    noisy_drift,
    noisy_floor,
    noisy_rate,
)

# the recursion


@every_generator
def test_the_trajectory_plays_the_drift(g: Generator, rng: np.random.Generator) -> None:
    terms = schedule(rng)
    S = master_trajectory(g, 2.0, terms)
    assert S.shape == (31, 4)
    np.testing.assert_array_equal(S[0], 2.0)
    for t in (0, 7, 29):
        now = Terms(terms.a[t], terms.b[t], terms.d[t])
        np.testing.assert_array_equal(S[t + 1], noisy_drift(g, now, S[t]))
        by_hand = g.flow(terms.a[t], S[t]) + terms.b[t] * S[t] + terms.d[t]
        np.testing.assert_allclose(S[t + 1], by_hand, rtol=1e-15)


def test_the_recursion_bounds_the_mean_of_a_random_run(
    rng: np.random.Generator,
) -> None:
    """thm:master: concavity lets the mean of s obey the recursion of the mean."""
    g, terms = QuadraticGenerator(0.7), Terms(np.full(20, 0.5), 0.01, 0.02)
    s = rng.exponential(2.0, 4000)
    bound = master_trajectory(g, s.mean(), terms)
    for t in range(20):
        mean_next = g.flow(0.5, s) + 0.01 * s + 0.02
        s = mean_next * rng.exponential(1.0, len(s))
        s *= mean_next.mean() / s.mean()  # the sample mean is the mean
        assert s.mean() <= bound[t + 1] * (1 + 1e-14)


# without noise


def test_noiseless_rates_in_high_precision(rng: np.random.Generator) -> None:
    for _ in range(100):
        k, a, s, p = (float(10 ** rng.uniform(-3, 3)) for _ in range(4))
        p, T = float(np.clip(p, 0.3, 30)), int(rng.integers(0, 1000))
        C = float(rng.uniform(0.5, 2))
        K, A, S, P = mp.mpf(k), mp.mpf(a) * T, mp.mpf(s), mp.mpf(p)
        cases: list[tuple[Generator, Any]] = [
            (QuadraticGenerator(k), 1 / (1 / S + K * A)),
            (PowerGenerator(k, p), (S**-P + K * P * A) ** (-1 / P)),
        ]
        if k * a * T < 100:
            cases.append((ExponentialGenerator(k), mp.exp(-K * A) * S))
        for g, want in cases:
            rate = noiseless_rate(g, s, Terms(a), T, objective=C)
            close(rate.value, C * want)
            assert rate.holds
            assert rate.floor == 0
            assert not rate.vacuous


@every_generator
def test_noiseless_bounds_are_the_recursion(
    g: Generator, rng: np.random.Generator
) -> None:
    """The flow composes, so without noise the closed bound is no worse than steps."""
    terms = Terms(rng.uniform(0.0, 1.0, (30, 4)))
    rate = noiseless_rate(g, 2.0, terms, objective=3.0)
    np.testing.assert_allclose(
        rate.value, 3 * master_trajectory(g, 2.0, terms), rtol=1e-13
    )
    assert rate.holds.all()
    assert rate.floor.shape == rate.vacuous.shape == (4,)
    assert rate.label == g.noiseless


def test_noise_breaks_the_noiseless_hypotheses() -> None:
    g = QuadraticGenerator(1.0)
    rate = noiseless_rate(g, 1.0, Terms(1.0, [0.0, 0.1, 0.0], [0.0, 0.0, 0.1]), 5)
    np.testing.assert_array_equal(rate.holds, [True, False, False])
    rate = noiseless_rate(g, 1.0, Terms([1.0, 1.0], [0.0, 0.0], 0.0, [0.0, 0.1]))
    assert not rate.holds
    assert noiseless_rate(g, 0.0, Terms(1.0), 5).vacuous


@every_generator
def test_time_coordinate_grows_by_the_time(g: Generator) -> None:
    """eq:noiseless_chi, and its domain: S_T = 0 has no coordinate (E-24)."""
    reached = 0.8 * g.flow(1.7, 2.0)
    least = noiseless_coordinate(g, 2.0, 1.7, 1.0)
    assert g.coordinate(reached, 1.0) >= least
    assert g.coordinate(g.flow(1.7, 2.0), 1.0) == pytest.approx(float(least), rel=1e-13)
    with pytest.raises(InvalidInputError, match="`state` must be positive"):
        g.coordinate(0.0, 1.0)
    with pytest.raises(InvalidInputError, match="`start` must be positive"):
        noiseless_coordinate(g, 0.0, 1.7, 1.0)


# with noise


@every_generator
def test_noisy_bounds_hold_and_shrink_step_by_step(
    g: Generator, rng: np.random.Generator
) -> None:
    terms = schedule(rng)
    rate = noisy_rate(g, 2.0, terms)
    S = master_trajectory(g, 2.0, terms)
    m = noisy_floor(g, terms).max(axis=0)
    lambdas = noisy_contraction(g, terms, m)
    r = np.maximum(S - m, 0)
    assert (r[1:] <= lambdas * r[:-1] + 1e-15).all()  # eq:noisy_onestep
    assert (rate.value * (1 + 1e-13) >= S).all()
    for t in (0, 1, 30):
        want = m + evolution(lambdas, t) * np.maximum(2.0 - m, 0)
        np.testing.assert_allclose(rate.value[t], want, rtol=1e-12)
    assert rate.holds.all()
    assert not rate.vacuous.any()
    np.testing.assert_array_equal(rate.floor, m)
    assert rate.label == g.noisy


@every_generator
def test_constant_terms_agree_with_a_constant_schedule(g: Generator) -> None:
    terms, T = Terms(0.5, 0.01, 0.02), np.arange(41)
    rate = noisy_rate(g, 2.0, terms, T, objective=2.0)
    many = noisy_rate(g, 2.0, Terms(np.full(40, 0.5), 0.01, 0.02), objective=2.0)
    np.testing.assert_allclose(rate.value, many.value, rtol=1e-12)
    assert rate.value[0] == pytest.approx(4.0)
    assert rate.value[-1] >= rate.floor[0]


def test_noisy_rates_in_high_precision(rng: np.random.Generator) -> None:
    """A long run keeps its digits: λ is near one, the rounds are many."""
    for _ in range(100):
        k, a, m, s = (float(10 ** rng.uniform(-2, 1)) for _ in range(4))
        a, s, p = a * 1e-6, m + s, float(rng.choice([0.5, 1.0, 2.0]))
        T = int(10 ** rng.uniform(0, 7))
        K, A, M, S, P = map(mp.mpf, (k, a, m, s, p))
        b = 0.1 * float(1 - slope_modulus(PowerGenerator(k, p), a, m))
        cases: list[tuple[Generator, Any]] = [
            (PowerGenerator(k, p), (1 + K * P * A * M**P) ** (-1 - 1 / P)),
            (QuadraticGenerator(k), (1 + K * A * M) ** -2),
            (ExponentialGenerator(k), mp.exp(-K * A)),
        ]
        for g, slope in cases:
            want = M + (slope + mp.mpf(b)) ** T * (S - M)
            got = noisy_rate(g, s, Terms(a, b), T, floor=m).value
            close(got, want)


def test_a_floor_given_by_hand_is_judged() -> None:
    g, terms = QuadraticGenerator(1.0), Terms([0.5, 0.5], 0.01, 0.02)
    m = float(noisy_floor(g, terms)[0])
    assert noisy_rate(g, 1.0, terms, floor=2 * m).holds
    low = noisy_rate(g, 1.0, terms, floor=0.5 * m)
    assert not low.holds
    assert low.hypotheses[0].left > low.hypotheses[0].right
    assert noisy_rate(g, 0.5 * m, Terms(0.5, 0.01, 0.02), 9).vacuous
    assert noisy_rate(g, 0.5 * m, Terms(0.5, 0.01, 0.02), 9).value == pytest.approx(m)


def test_contraction_is_asked_for_only_in_print() -> None:
    """E-24: the bound holds with λ ≥ 1, it merely says nothing."""
    g, terms = QuadraticGenerator(1.0), Terms(0.5, 0.1)
    rate = noisy_rate(g, 1.0, terms, 10, floor=0.0)
    assert rate.holds
    assert rate.vacuous
    S = master_trajectory(g, 1.0, Terms(np.full(10, 0.5), 0.1))
    assert S[-1] <= rate.value
    assert not noisy_rate(g, 1.0, terms, 10, floor=0.0, printed=True).holds
    many = Terms(np.full(10, 0.5), 0.1)
    assert not noisy_rate(g, 1.0, many, floor=0.0, printed=True).holds
    assert noisy_rate(g, 1.0, many, floor=0.0).vacuous
    assert np.isinf(noisy_rate(g, 1.0, terms, 10**6, floor=0.0).value)


def test_configurations_broadcast(rng: np.random.Generator) -> None:
    g = QuadraticGenerator(np.array([0.5, 1.0, 2.0]))
    rate = noisy_rate(g, 1.0, Terms(0.5, 0.01, 0.02), np.array([[1], [10]]))
    assert rate.value.shape == (2, 3)
    alone = noisy_rate(QuadraticGenerator(2.0), 1.0, Terms(0.5, 0.01, 0.02), 10)
    assert rate.value[1, 2] == alone.value
    assert master_trajectory(g, 1.0, Terms(rng.uniform(0, 1, 5))).shape == (6, 3)


def test_the_kernel_of_the_convex_rates_is_the_quadratic_flow() -> None:
    """φ = s² gives T_a(s) = s/(1 + as), and a decrease A s²/(1 + As)."""
    g = QuadraticGenerator(1.0)
    assert g.flow(0.3, 2.0) == pytest.approx(2 / 1.6, rel=1e-15)
    assert 2.0 * relative_decrease(g, 0.3, 2.0) == pytest.approx(1.2 / 1.6, rel=1e-15)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Terms(1.0, -0.1), "`growth` must be nonnegative; got -0.1"),
        (lambda: Terms([1.0, 2.0], [1, 2, 3]), "must be arrays that broadcast"),
        (
            lambda: master_trajectory(QuadraticGenerator(1.0), 1.0, Terms(1.0)),
            "`terms` must be of shape",
        ),
        (
            lambda: noisy_rate(QuadraticGenerator(1.0), 1.0, Terms(1.0), 2.5),
            "`rounds` must be a whole number of at least 0; got 2.5",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()
