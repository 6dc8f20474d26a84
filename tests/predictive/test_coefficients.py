"""The formulas on arrays: many rounds at once, as one by one, and at the extremes."""

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.core.checks import Array
from hewfl.predictive import certificate, coefficients
from hewfl.predictive.coefficients import VARIANTS, Situation, Variant, flow_decrease

variants = pytest.mark.parametrize("variant", VARIANTS)


def draws(rng: np.random.Generator, size: int) -> tuple[Array, Situation]:
    L, R, U, Q, M = 10 ** rng.uniform(-3, 3, (5, size))
    H = rng.choice([1.0, 2.0, 7.0, 100.0], size)
    return rng.uniform(0, 1, size), Situation(L, R, U, Q, M, H)


@variants
def test_arrays_agree_with_the_certificate_round_by_round(
    rng: np.random.Generator, variant: Variant
) -> None:
    theta, at = draws(rng, 40)
    names = ("certified_decrease", "mean_penalty", "variance_bound", "gain")
    for name in names:
        together = getattr(coefficients, name)(theta, at, variant)
        for i, value in enumerate(together):
            H, M = float(at.horizon[i]), float(at.noise[i])
            alone = getattr(certificate, name)(
                float(theta[i]),
                ClientProfile(H, 1, M * H),
                UpperState(float(at.gap[i]), float(at.tracking[i])),
                ProblemBounds(float(at.smoothness[i]), float(at.radius[i]), 0.1, 1.0),
                variant=variant,
            )
            assert value == pytest.approx(float(alone), rel=1e-13)


@variants
def test_a_million_rounds_have_the_shape_of_their_arrays(variant: Variant) -> None:
    theta = np.linspace(0, 1, 1_000_000).reshape(1000, 1000, 1)
    at = Situation(*(np.full((1000, 1, 2), x) for x in (1.0, 1.0, 0.5, 0.1, 0.1, 4.0)))
    w = np.array([0.25, 0.75])
    change = coefficients.certified_change(w, theta, at, variant)
    assert change.shape == (1000, 1000)
    assert change[0, 0] == 0
    assert np.isfinite(change).all()


EXTREME = [0.0, 5e-324, 1e-300, 1e-160, 1e-20, 0.3, 1.0, 7.0, 1e20, 1e160, 1e300]


def test_the_decrease_keeps_its_digits_at_the_extremes() -> None:
    with mpmath.workdps(1400):
        for a in EXTREME:
            for u in EXTREME:
                exact = mpf(u) - mpf(u) / (1 + mpf(a) * mpf(u))
                ours = float(flow_decrease(np.asarray(a), np.asarray(u)))
                miss = abs(mpf(ours) - exact)
                assert miss <= 4e-16 * exact + mpf(5e-324), (a, u)


def test_an_unknown_variant_is_named() -> None:
    text = "`variant` must be one of paper, sharp, absorbed; got 'x'"
    with pytest.raises(InvalidInputError, match=text):
        coefficients.check_variant("x")  # type: ignore[arg-type]  # the point
