import mpmath as mp
import numpy as np
import pytest
from tests.theory.appendix.generators import NUMERIC, agree, exact, inputs

from hewfl import InvalidInputError
from hewfl.theory.appendix import generators
from hewfl.theory.appendix.generators import (
    ConvexGenerator,
    PowerGenerator,
    QuadraticGenerator,
    slope_modulus,
)


@pytest.mark.parametrize("span", [1, 10, 50])
def test_quadrature_agrees_with_the_closed_forms(
    rng: np.random.Generator, span: int
) -> None:
    kappa, a, s, top = inputs(rng, span)
    any_, closed = (
        ConvexGenerator(lambda x: kappa * x**2, 0.0),
        QuadraticGenerator(kappa),
    )
    np.testing.assert_allclose(any_.flow(a, s), closed.flow(a, s), rtol=NUMERIC)
    np.testing.assert_allclose(
        slope_modulus(any_, a, s), slope_modulus(closed, a, s), rtol=NUMERIC
    )
    np.testing.assert_allclose(
        any_.coordinate(s, top), closed.coordinate(s, top), rtol=NUMERIC
    )


@pytest.mark.parametrize("p", [0.1, 1.0, 6.0, 40.0])
def test_quadrature_keeps_up_with_steep_generators(p: float) -> None:
    s = np.array([0.5, 1.0, 3.0, 20.0])[:, None]
    a = 10.0 ** np.arange(-8, 9, 4)
    any_, closed = (
        ConvexGenerator(lambda x: x ** (1 + p), 0.0),
        PowerGenerator(1.0, p),
    )
    np.testing.assert_allclose(any_.flow(a, s), closed.flow(a, s), rtol=NUMERIC)


def test_quadrature_in_high_precision() -> None:
    """φ = eˢ − 1 has the flow −log(1 − (1 − e^{−s})e^{−a})."""
    s = np.array([1e-9, 1e-3, 1.0, 30.0, 600.0])
    g = ConvexGenerator(np.expm1, 1.0)
    for a in (1e-12, 0.3, 5.0, 100.0):
        want = exact(lambda s, a=a: -mp.log1p(mp.expm1(-s) * mp.exp(-a)), s)
        agree(g.flow(a, s), want, NUMERIC)


def test_quadrature_crosses_a_kink() -> None:
    """φ = max(s, 2s − 1): slope 1 below 1, 2 above; not C², still convex."""
    g = ConvexGenerator(lambda s: np.maximum(s, 2 * s - 1), 1.0)
    reaches_one = np.log(3.0) / 2  # from s = 2: 2s − 1 = 3 e^{−2a}
    assert g.flow(reaches_one + 0.4, 2.0) == pytest.approx(np.exp(-0.4), rel=1e-11)


def test_quadrature_names_a_generator_it_cannot_follow() -> None:
    with pytest.raises(InvalidInputError, match="`phi` must be positive and finite"):
        ConvexGenerator(lambda s: s**2, 0.0).flow(1e200, 1.0)  # s² is 0 below 1e-162
    with pytest.raises(InvalidInputError, match="`phi` must be positive and finite"):
        ConvexGenerator(lambda s: np.maximum(s - 1, 0.0), 0.0).flow(1e3, 2.0)


def test_quadrature_gives_up_on_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "_MOST_PANELS", 100)
    with pytest.raises(InvalidInputError, match="`phi` must be smooth up to rounding"):
        ConvexGenerator(lambda s: s * (2 + np.sin(1e12 * s)), 2.0).flow(5.0, 1.0)


def test_a_falling_generator_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="`derivative_at_zero` must be nonneg"):
        ConvexGenerator(np.square, -1.0)
