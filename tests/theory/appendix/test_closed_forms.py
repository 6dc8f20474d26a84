import mpmath as mp
import numpy as np
import pytest
from tests.theory.appendix.generators import agree, exact, inputs

from hewfl.theory.appendix.generators import (
    ExponentialGenerator,
    PowerGenerator,
    QuadraticGenerator,
    relative_decrease,
    slope_modulus,
)


@pytest.mark.parametrize("span", [3, 80, 300])
def test_quadratic_flow_in_high_precision(rng: np.random.Generator, span: int) -> None:
    kappa, a, s, top = inputs(rng, span)
    g = QuadraticGenerator(kappa)
    agree(g.flow(a, s), exact(lambda k, a, s: s / (1 + k * a * s), kappa, a, s))
    agree(
        relative_decrease(g, a, s),
        exact(lambda k, a, s: k * a * s / (1 + k * a * s), kappa, a, s),
    )
    agree(
        slope_modulus(g, a, s),
        exact(lambda k, a, s: (1 + k * a * s) ** -2, kappa, a, s),
    )
    agree(
        g.coordinate(s, top),
        exact(lambda k, s, t: (1 / s - 1 / t) / k, kappa, s, top),
    )
    agree(g.value(s), exact(lambda k, s: k * s**2, kappa, s))


@pytest.mark.parametrize("span", [3, 80, 300])
def test_power_flow_in_high_precision(rng: np.random.Generator, span: int) -> None:
    kappa, a, s, top = inputs(rng, span)
    p = 10 ** rng.uniform(-0.5, 1.5, len(a))
    g = PowerGenerator(kappa, p)
    agree(
        g.flow(a, s),
        exact(lambda k, p, a, s: (s**-p + k * p * a) ** (-1 / p), kappa, p, a, s),
    )
    agree(
        slope_modulus(g, a, s),
        exact(
            lambda k, p, a, s: (1 + k * p * a * s**p) ** (-1 - 1 / p), kappa, p, a, s
        ),
    )
    agree(
        g.coordinate(s, top),
        exact(lambda k, p, s, t: (s**-p - t**-p) / (k * p), kappa, p, s, top),
    )
    agree(g.value(s), exact(lambda k, p, s: k * s ** (1 + p), kappa, p, s))


@pytest.mark.parametrize("span", [1, 3, 300])
def test_exponential_flow_in_high_precision(
    rng: np.random.Generator, span: int
) -> None:
    rho, a, s, top = inputs(rng, span)
    g = ExponentialGenerator(rho)
    agree(g.flow(a, s), exact(lambda r, a, s: mp.exp(-r * a) * s, rho, a, s))
    agree(slope_modulus(g, a, s), exact(lambda r, a: mp.exp(-r * a), rho, a))
    agree(relative_decrease(g, a, s), exact(lambda r, a: -mp.expm1(-r * a), rho, a))
    agree(g.coordinate(s, top), exact(lambda r, s, t: mp.log(t / s) / r, rho, s, top))


def test_nothing_overflows_where_the_flow_is_finite() -> None:
    """Erratum E-32: s^p, κas and e^{−ρa} may leave the range, R_a(s) does not."""
    big = 1e300
    assert QuadraticGenerator(1.0).flow(big, big) == pytest.approx(1e-300, rel=1e-15)
    assert QuadraticGenerator(big).flow(big, 1e-300) == pytest.approx(1e-600, abs=0)
    power = PowerGenerator(1.0, 5.0)
    assert power.flow(1.0, big) == pytest.approx(5.0**-0.2, rel=1e-14)
    assert power.flow(1.0, 1e-300) == 1e-300
    assert ExponentialGenerator(1.0).flow(750.0, big) == pytest.approx(
        float(mp.exp(-750) * mp.mpf(10) ** 300), rel=1e-12
    )


def test_near_states_keep_their_digits() -> None:
    """χ of neighbours, and a fall of one part in 10²⁰."""
    s = 1.0 - 2**-50
    for g, want in (
        (QuadraticGenerator(2.0), (1 / mp.mpf(s) - 1) / 2),
        (PowerGenerator(2.0, 3.0), (mp.mpf(s) ** -3 - 1) / 6),
        (ExponentialGenerator(2.0), -mp.log(mp.mpf(s)) / 2),
    ):
        agree(g.coordinate(s, 1.0), [want])
    assert relative_decrease(PowerGenerator(1.0, 2.0), 1e-20, 1.0) == pytest.approx(
        1e-20, rel=1e-14
    )
