from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from tests.theory.general.generators import (
    GENERATORS,
    agree,
    every_generator,
    exact,
    inputs,
)

from hewfl import InvalidInputError
from hewfl.theory.general.closed_forms import (
    ExponentialGenerator,
    PowerGenerator,
    QuadraticGenerator,
)
from hewfl.theory.general.convex_flow import (
    ConvexGenerator,
)
from hewfl.theory.general.generator import (
    Generator,
    generator_hypotheses,
    relative_decrease,
    slope_modulus,
)
from hewfl.theory.statement import (
    all_hold,
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


@every_generator
def test_the_flow_is_a_semigroup_that_contracts(g: Generator) -> None:
    """Every line of prop:flow, and prop:chi."""
    s, a, b = np.linspace(0.0, 4.0, 41), 0.6, 1.7
    np.testing.assert_array_equal(g.flow(0.0, s), s)
    np.testing.assert_allclose(
        g.flow(a + b, s), g.flow(a, g.flow(b, s)), rtol=4e-14, atol=0
    )
    assert g.flow(a, 0.0) == 0.0
    moved = g.flow(a, s)
    assert (moved[1:] < s[1:]).all()
    assert (moved >= 0).all()
    assert (np.diff(moved) > 0).all()
    assert (np.diff(moved, 2) <= 1e-14).all()
    np.testing.assert_allclose(
        g.coordinate(moved[1:], 1.5), g.coordinate(s[1:], 1.5) + a, rtol=1e-13
    )


@every_generator
def test_the_slope_is_the_derivative_and_the_supremum(g: Generator) -> None:
    """lem:L with erratum E-24: L = φ(R)/φ, and its own limit at zero."""
    a, m = 0.6, np.array([1e-3, 0.3, 1.0, 5.0])
    L = slope_modulus(g, a, m)
    assert ((L >= 0) & (L <= 1)).all()
    np.testing.assert_allclose(L, g.value(g.flow(a, m)) / g.value(m), rtol=1e-13)
    h = 1e-6 * m
    numeric = (g.flow(a, m + h) - g.flow(a, m - h)) / (2 * h)
    np.testing.assert_allclose(L, numeric, rtol=1e-7)
    r = 10.0 ** np.arange(-12, 2)
    for floor in (0.0, 0.3):
        quotients = (g.flow(a, floor + r) - g.flow(a, floor)) / r
        at = slope_modulus(g, a, floor)
        assert (quotients <= at + 2e-16 * (1 + floor) / r).all()
    assert (g.flow(a, r) / r).max() == pytest.approx(
        float(slope_modulus(g, a, 0.0)), rel=2e-5
    )
    assert slope_modulus(g, a, 0.0) == pytest.approx(np.exp(-a * g.origin_slope))


def test_falling_below_the_identity_does_not_bound_the_slope() -> None:
    """Erratum E-24: the paper's reason for L ≤ 1 proves nothing.

    This map satisfies 0 ≤ R(s) ≤ s and increases, as the cited property asks, yet its
    difference quotient is 2: convexity of φ is what lem:L rests on.
    """

    def steep(s: float) -> float:
        return max(0.5 * s, 2 * s - 1.5) if s <= 1.5 else s

    grid = np.linspace(0, 3, 301)
    values = np.array([steep(s) for s in grid])
    assert (values <= grid).all()
    assert (np.diff(values) >= 0).all()
    assert (steep(1.5) - steep(1.25)) / 0.25 == 2.0


# ------------------------------------------------------------------ the assumption


def test_the_assumption_is_checked_per_configuration() -> None:
    grid = np.geomspace(1e-6, 1e3, 200)
    for g in GENERATORS[:-1]:
        assert all_hold(generator_hypotheses(g, grid))
    many = ConvexGenerator(lambda s: s ** np.array([2.0, 0.5]), [0.0, 0.0])
    np.testing.assert_array_equal(
        all_hold(generator_hypotheses(many, grid)), [True, False]
    )
    shifted = ConvexGenerator(lambda s: s**2 + 1, 0.0)
    zero, positive, convex = generator_hypotheses(shifted, grid)
    assert not zero.holds
    assert positive.holds
    assert convex.holds
    flat = ConvexGenerator(lambda s: np.maximum(s - 1, 0.0), 0.0)
    assert [bool(h.holds) for h in generator_hypotheses(flat, grid)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: QuadraticGenerator(0.0), "`coefficient` must be positive; got 0.0"),
        (lambda: PowerGenerator(1.0, -1.0), "`power` must be positive; got -1.0"),
        (lambda: ExponentialGenerator([1.0, 0.0]), "`rate` must be positive; got 0.0"),
        (
            lambda: QuadraticGenerator(1.0).flow(-1.0, 1.0),
            "`time` must be nonnegative; got -1.0",
        ),
        (
            lambda: PowerGenerator(1.0, 1.0).flow(1.0, -1.0),
            "`state` must be nonnegative; got -1.0",
        ),
        (
            lambda: ExponentialGenerator(1.0).coordinate(0.0, 1.0),
            "`state` must be positive; got 0.0",
        ),
        (
            lambda: generator_hypotheses(QuadraticGenerator(1.0), [1.0, 1.0]),
            "`grid` must be two or more increasing positive numbers",
        ),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text.replace("(", r"\(")):
        make()
