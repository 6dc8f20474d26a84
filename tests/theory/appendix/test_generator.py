from collections.abc import Callable

import numpy as np
import pytest
from tests.theory.appendix.generators import GENERATORS, every_generator

from hewfl import InvalidInputError
from hewfl.theory.appendix.generators import (
    ConvexGenerator,
    ExponentialGenerator,
    Generator,
    PowerGenerator,
    QuadraticGenerator,
    generator_hypotheses,
    slope_modulus,
)
from hewfl.theory.statement import all_hold


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


# the assumption


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
