import numpy as np
import pytest
from tests.theory.test_one_step_bound import random_system

from hewfl.theory.appendix.lemmas import branch_sq_radius, plain_sq_radius
from hewfl.theory.one_step_bound import situation
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System


def test_radii_have_the_constants_of_the_errata(rng: np.random.Generator) -> None:
    many, U, Q = random_system(rng, 40, 2)
    at, theta = situation(many, U, Q), rng.uniform(0, 1, (40, 2))
    L, M = many.L[:, None], many.noise
    u, q = U[:, None], Q[:, None]
    growth = np.exp(2 * theta)
    corrected = {
        "sharp": 8 * u / L + 16 * q / L**2 + 2 * M / L**2,
        "stated": 24 * u / L + 48 * q / L**2 + 8 * M / L**2,
        "proved": growth * (8 * u / L + 16 * q / L**2 + 2 * M / L**2),
    }
    plain = {
        "sharp": 4 * u / L + 2 * M / L**2,
        "stated": 16 * u / L + 4 * M / L**2,
        "proved": growth * (4 * u / L + 2 * M / L**2),
    }
    for function, forms in ((branch_sq_radius, corrected), (plain_sq_radius, plain)):
        for form, exact in forms.items():
            bound = function(theta, at, form=form)  # type: ignore[arg-type]  # a key
            np.testing.assert_allclose(bound.value, theta**2 * exact, rtol=1e-14)
            assert all_hold(bound.hypotheses).all()


@pytest.mark.parametrize(
    ("function", "edge", "noise"),
    [(branch_sq_radius, np.log(3) / 2, 0.0), (plain_sq_radius, np.log(2) / 2, 1.0)],
)
def test_the_proof_reaches_the_stated_radius_up_to_an_edge(
    function: object, edge: float, noise: float
) -> None:
    """E-03: 0.549 for corrected branches, 0.347 for plain ones."""
    assert callable(function)
    gap = 1.0 - noise  # the term whose constants meet first
    at = situation(System(1.0, 1.0, 4, 1, 4 * noise), gap, 0.0)
    below, above = (
        [function(edge + side, at, form=form).value for form in ("proved", "stated")]
        for side in (-1e-9, 1e-9)
    )
    assert below[0] <= below[1]
    assert above[0] > above[1]


def exact_sq_radius(
    theta: float, H: int, gradient: float, deviation: float, curvature: float
) -> float:
    """max_ℓ E(y_ℓ − x)² of H steps on a quadratic, gradient and noise given at x."""
    eta, mean, square, top = theta / H, 0.0, 0.0, 0.0
    for _ in range(H):
        shrink = 1 - eta * curvature
        square = shrink**2 * square + eta**2 * (gradient**2 + deviation**2)
        square -= 2 * shrink * eta * gradient * mean
        mean = shrink * mean - eta * gradient
        top = max(top, square)
    return top


@pytest.mark.parametrize("H", [1, 2, 5, 30])
def test_radii_bound_exact_second_moments(H: int, rng: np.random.Generator) -> None:
    """Quadratics with L = 1 up to θ = 2H; sharp is the smallest of the three forms."""
    for _ in range(200):
        theta, curvature = rng.uniform(0, 2 * H), rng.uniform(0, 1)
        slope, mismatch, deviation = rng.uniform(0, 1, 3) ** 2
        U, Q = slope**2 / 2, mismatch**2 / 4
        at = situation(System(1.0, 1.0, H, 1, deviation**2), U, Q)
        sharp = branch_sq_radius(theta, at).value.item()
        exact = exact_sq_radius(theta, H, slope + mismatch, deviation, curvature)
        assert exact <= sharp * (1 + 1e-12)
        for form in ("stated", "proved"):
            other = branch_sq_radius(theta, at, form=form)
            assert sharp <= other.value.item()
        bare = exact_sq_radius(theta, H, slope, deviation, curvature)
        assert bare <= plain_sq_radius(theta, at).value.item() * (1 + 1e-12)
    too_far = branch_sq_radius(2.1 * H, situation(System(1, 1, H, 1, 0), 1.0, 0.0))
    assert not all_hold(too_far.hypotheses).any()
