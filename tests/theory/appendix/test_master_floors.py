from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests.theory.appendix.generators import close, every_generator, schedule

from hewfl import InvalidInputError
from hewfl.theory.appendix.generators import (
    ConvexGenerator,
    ExponentialGenerator,
    Generator,
    PowerGenerator,
    QuadraticGenerator,
)
from hewfl.theory.appendix.master import (
    Terms,
    evolution,
    floor_hypothesis,
    noisy_contraction,
    noisy_floor,
    noisy_rate,
)


def test_quadratic_floor_in_high_precision(rng: np.random.Generator) -> None:
    for span in (2, 140):
        for _ in range(200):
            k, a, d = (float(10 ** rng.uniform(-span, span)) for _ in range(3))
            b = float(rng.choice([0.0, rng.uniform(0, 1), 10 ** rng.uniform(-30, 0)]))
            K, A, D, B = map(mp.mpf, (k, a, d, b))
            lead, middle = (1 - B) * K * A, B + K * A * D
            root = (middle + mp.sqrt(middle**2 + 4 * lead * D)) / (2 * lead)
            g, terms = QuadraticGenerator(k), Terms(a, b, d)
            m = noisy_floor(g, terms)
            close(m, root)
            assert floor_hypothesis(g, terms, m).holds
            assert not floor_hypothesis(g, terms, m * (1 - 1e-9)).holds
            if span == 2:  # λ at the floor, E-24
                lam = (1 - B - D / root) ** 2 + B
                close(noisy_contraction(g, terms, m), lam, 1e-11)
                assert lam < 1


def test_exponential_floor_in_high_precision(rng: np.random.Generator) -> None:
    for _ in range(200):
        rho, a, d = (float(10 ** rng.uniform(-2, 1)) for _ in range(3))
        b = float(rng.uniform(0, 0.9) * -np.expm1(-rho * a))
        want = mp.mpf(d) / (1 - mp.exp(-mp.mpf(rho) * mp.mpf(a)) - mp.mpf(b))
        close(noisy_floor(ExponentialGenerator(rho), Terms(a, b, d)), want)


def test_power_floor_in_high_precision(rng: np.random.Generator) -> None:
    """The residual changes sign within 1e-12 of the answer."""
    for _ in range(60):
        k, a, d = (float(10 ** rng.uniform(-3, 3)) for _ in range(3))
        b, p = float(rng.choice([0.0, 0.3, 0.9])), float(10 ** rng.uniform(-0.5, 0.8))
        d = float(rng.choice([0.0, d])) if b > 0 else d
        m = mp.mpf(float(noisy_floor(PowerGenerator(k, p), Terms(a, b, d))))

        def excess(
            x: Any, k: Any = k, p: Any = p, a: Any = a, rest: Any = (b, d)
        ) -> Any:
            K, P, A, B, D = map(mp.mpf, (k, p, a, *rest))
            return (x**-P + K * P * A) ** (-1 / P) + B * x + D - x

        assert excess(m * (1 + mp.mpf("1e-12"))) < 0 < excess(m * (1 - mp.mpf("1e-12")))


def test_numeric_floors_agree_with_closed_ones(rng: np.random.Generator) -> None:
    a, b, d = rng.uniform(0.1, 3, 9), rng.uniform(0, 0.5, 9), rng.uniform(0, 2, 9)
    b[0], d[1], b[2], d[2] = 0.0, 0.0, 0.0, 0.0
    terms = Terms(a, b, d)
    closed = noisy_floor(QuadraticGenerator(0.7), terms)
    assert closed[2] == 0
    for g in (PowerGenerator(0.7, 1.0), ConvexGenerator(lambda s: 0.7 * s**2, 0.0)):
        np.testing.assert_allclose(noisy_floor(g, terms), closed, rtol=1e-12)
    linear = ConvexGenerator(lambda s: 2 * s, 2.0)
    np.testing.assert_allclose(
        noisy_floor(linear, Terms(a, 0.05, d)),
        noisy_floor(ExponentialGenerator(2.0), Terms(a, 0.05, d)),
        rtol=1e-11,
    )


@every_generator
def test_everything_above_the_floor_is_a_floor(
    g: Generator, rng: np.random.Generator
) -> None:
    """One m serves all rounds: the largest of the rounds' own (E-24)."""
    terms = schedule(rng)
    own = noisy_floor(g, terms)
    m = own.max(axis=0)
    for factor in (1.0, 1.5, 10.0):
        assert floor_hypothesis(g, terms, factor * m).holds.all()
    assert not floor_hypothesis(g, terms, own.min(axis=0) * 0.9).holds.all()
    assert (noisy_contraction(g, terms, m) < 1).all()


def test_zero_is_a_floor_of_no_use() -> None:
    """cor:quadratic_noisy, m = 0: λ = 1 + b; the positive root contracts."""
    g, terms = QuadraticGenerator(1.0), Terms(0.5, 0.1, 0.0)
    assert floor_hypothesis(g, terms, 0.0).holds
    assert noisy_contraction(g, terms, 0.0) == pytest.approx(1.1, rel=1e-15)
    m = noisy_floor(g, terms)
    assert m == pytest.approx(0.1 / (0.9 * 0.5), rel=1e-15)
    assert noisy_contraction(g, terms, m) == pytest.approx(0.9**2 + 0.1, rel=1e-14)
    assert noisy_contraction(PowerGenerator(1.0, 3.0), terms, 0.0) == pytest.approx(1.1)
    exponential = ExponentialGenerator(1.0)
    assert noisy_contraction(exponential, terms, 0.0) == pytest.approx(
        np.exp(-0.5) + 0.1
    )


@pytest.mark.parametrize(
    ("generator", "terms"),
    [
        (QuadraticGenerator(1.0), (1.0, 1.0, 0.0)),
        (QuadraticGenerator(1.0), (0.0, 0.0, 1.0)),
        (ExponentialGenerator(1.0), (0.1, 0.2, 0.0)),
        (ConvexGenerator(lambda s: s, 1.0), (0.1, 0.2, 1e250)),
    ],
)
def test_no_floor_is_a_value_for_one_as_for_many(
    generator: Generator, terms: tuple[float, float, float]
) -> None:
    """b ≥ 1, no time, or a flow that takes too little off."""
    one, good = Terms(*terms), (0.5, 0.01, 0.1)
    many = Terms(*map(list, zip(terms, good, strict=True)))
    alone = float(noisy_floor(generator, Terms(*good)))
    assert noisy_floor(generator, one) == np.inf
    floors = noisy_floor(generator, many).tolist()
    assert floors == [np.inf, pytest.approx(alone, rel=1e-12)]
    rate = noisy_rate(generator, 2.0, many, 5)
    assert rate.value[0] == rate.floor[0] == np.inf
    assert rate.holds.tolist() == [False, True]
    assert rate.vacuous[0]
    assert np.isfinite(rate.value[1])
    assert not noisy_rate(generator, 2.0, one, 5).holds


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: evolution([0.5, 0.5], 3), "`s, t` must be whole numbers"),
        (lambda: evolution([0.5, 0.5], 0, 1), "`s, t` must be whole numbers"),
    ],
)
def test_what_is_undefined_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()


def test_products_compose(rng: np.random.Generator) -> None:
    lambdas = rng.uniform(0.5, 1.2, (9, 3))
    np.testing.assert_array_equal(evolution(lambdas, 4, 4), 1.0)
    np.testing.assert_allclose(evolution(lambdas, 5), np.prod(lambdas[:5], axis=0))
    np.testing.assert_allclose(
        evolution(lambdas, 9, 6) * evolution(lambdas, 6, 2), evolution(lambdas, 9, 2)
    )
