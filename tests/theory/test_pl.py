import mpmath
import numpy as np
import pytest
from mpmath import mpf

from hewfl import InvalidInputError
from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.validation import Array
from hewfl.theory.appendix.lemmas import (
    pl_step,
    rho_lower,
    safe_amplitude,
    safe_floor,
    safe_rate,
)
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System
from hewfl.theory.uniform import (
    UniformController,
    pl_contraction,
    pl_rate,
    uniform_coefficients,
)

RELATIVE = 1e-12
DIGITS = 60
variants = pytest.mark.parametrize("variant", VARIANTS)


def random_system(
    rng: np.random.Generator, size: int, reach: float = 1.0, variant: Variant = "paper"
) -> tuple[UniformController, Array]:
    """Controllers with ϑ up to `reach` times the safe amplitude, and PL constants."""
    L, R = 10 ** rng.uniform(-4, 4, (2, size))
    mu = L * 10 ** rng.uniform(-5, 0, size)
    v2 = 10 ** rng.uniform(-4, 4, (size, 1)) * rng.integers(0, 2, (size, 1))
    H = rng.choice([1, 4, 100], (size, 1))
    many = System(L, R, np.broadcast_to(H, (size, 3)), 8, v2)
    theta = safe_amplitude(L, mu) * reach * 10 ** rng.uniform(-6, 0, size)
    return uniform_coefficients(many, theta, variant=variant), mu


# 60 digits


def test_the_contraction_has_all_its_digits(rng: np.random.Generator) -> None:
    """eq:aPL-main to eq:lambdaPL-main as displayed: 60 digits survive what cancels."""
    size = 300
    k, mu = random_system(rng, size)
    ours = pl_contraction(k, mu)
    start, t = (
        (k.system.cap * 0.5, 10 ** rng.uniform(-4, 4, size)),
        rng.integers(0, 10**6, size),
    )
    rate, printed = pl_rate(k, mu, start, t), pl_rate(k, mu, start, t, printed=True)
    assert rate.holds.all()
    with mpmath.workdps(DIGITS):
        for c in range(size):
            th, L, n = mpf(k.amplitude[c]), mpf(k.system.L[c]), 3
            per = mpf(k.noise[c])
            beta = 48 * th**3 + 32 * th**4 / n
            gamma = 96 * th**3 / L + 64 * th**4 / (L * n)
            delta = (16 * th**3 + 16 * th**2 / n) * per / L
            A, B, C = 6 * per, 144 * L * th**2, 288 * th**2
            a = mpf(mu[c]) * th / L - beta
            root = mpmath.sqrt((1 - C - a) ** 2 + 4 * B * gamma)
            rho = (a + 1 - C - root) / 2
            lam = 2 * gamma / (1 - C - a + root)
            m = (delta + lam * A) / rho
            s0 = mpf(start[0][c]) + lam * mpf(start[1][c])
            decay = (1 - rho) ** int(t[c])
            for value, exact in (
                (ours.a, a),
                (ours.rho, rho),
                (ours.lam, lam),
                (ours.floor, m),
                (rate.value, m + decay * max(s0 - m, 0)),
                (printed.value, m + decay * s0),
            ):
                slack = RELATIVE * exact + mpf(10) ** -300  # (1 − ρ)ᵗ may underflow
                assert abs(mpf(value[c]) - exact) <= slack


def test_identities_of_the_proof_hold(rng: np.random.Generator) -> None:
    """eq:lambda-rho-identities-app: a − Bλ = ρ = ν − γ/λ, also for a > ν (E-22)."""
    k, mu = random_system(rng, 300, reach=1.3)
    steep = uniform_coefficients(System(1.0, 1.0, [4, 4], 1, 1.0), [0.05, 0.055])
    for controller, constant in ((k, mu), (steep, np.array([12.0, 30.0]))):
        c, nu = (
            pl_contraction(controller, constant),
            1 - controller.recursion.tracking.tracking,
        )
        B, gamma = controller.recursion.tracking.gap, controller.recursion.staleness
        np.testing.assert_allclose(c.a - B * c.lam, c.rho, rtol=1e-9)
        np.testing.assert_allclose(nu - gamma / c.lam, c.rho, atol=1e-12)
    assert (c.a > nu).all()
    others = tuple(
        h for h in c.hypotheses if h.name != "μ ≤ L"
    )  # algebra needs no μ ≤ L
    assert all_hold(others).all()


# the theory


@variants
def test_the_rate_bounds_the_recursion(
    rng: np.random.Generator, variant: Variant
) -> None:
    g: Array
    q: Array
    k, mu = random_system(rng, 500, reach=1.2, variant=variant)
    g, q = k.system.cap * rng.uniform(0, 1, 500), 10 ** rng.uniform(-6, 2, 500)
    rate = pl_rate(k, mu, (g, q), np.arange(60)[:, None])
    loose = pl_rate(k, mu, (g, q), np.arange(60)[:, None], printed=True)
    assert rate.holds.mean() > 0.9
    for t in range(60):
        assert (g <= rate.value[t] * (1 + 1e-12))[rate.holds].all()
        g, q = pl_step(k, mu, (g, q)), k.recursion.tracking.after(g, q)
    assert (rate.value <= loose.value).all()
    np.testing.assert_array_equal(rate.floor >= k.system.cap, rate.vacuous)


def test_the_step_uses_the_pl_condition() -> None:
    """(1 − a)g + γq + δ by hand, and smaller than without PL once μ is large."""
    k = uniform_coefficients(System(2.0, 3.0, [4, 4], 1, 0.5), 0.01)
    a = 0.5 * 0.01 / 2 - (48e-6 + 16e-8)
    gamma = (96e-6 + 32e-8) / 2
    delta = (16e-6 + 8e-4) * 0.125 / 2
    expected = (1 - a) * 0.7 + gamma * 0.3 + delta
    assert float(pl_step(k, 0.5, (0.7, 0.3))) == pytest.approx(expected, rel=1e-13)
    assert pl_step(k, 0.5, (0.7, 0.3)) < k.recursion.step((0.7, 0.3))[0]


def test_a_quarter_of_the_contraction_survives_weak_coupling(
    rng: np.random.Generator,
) -> None:
    k, mu = random_system(rng, 3000, reach=3.0)
    bound, c = rho_lower(k, mu), pl_contraction(k, mu)
    met = all_hold(bound.hypotheses)
    assert 0.3 < met.mean() < 1
    assert (c.rho >= bound.value)[met].all()


def test_the_safe_regime_of_the_appendix_is_not_safe() -> None:
    """E-16: μ = L = 1, ϑ² = 0.9/288 meets ϑ² ≤ μ/98, yet ρ < 0."""
    k = uniform_coefficients(System(1.0, 1.0, [4] * 10, 1, 1.0), np.sqrt(0.9 / 288))
    printed, c = (
        safe_rate(k, 1.0, (0.5, 0.0), 100, printed=True),
        pl_contraction(k, 1.0),
    )
    assert printed.holds
    assert float(c.rho) == pytest.approx(-0.017, abs=5e-4)
    assert not all_hold(c.hypotheses)
    assert np.isinf(printed.value)
    assert printed.vacuous
    assert not safe_rate(k, 1.0, (0.5, 0.0), 100).holds


def test_the_safe_regime_is_safe(rng: np.random.Generator) -> None:
    """20000 draws of the constants 400 and 576, half of them at the edge."""
    size = 20000
    L = 10 ** rng.uniform(-4, 4, size)
    mu = L * 10 ** rng.uniform(-6, 0, size)
    n = int(rng.integers(1, 5))
    shrink = np.where(rng.uniform(size=size) < 0.5, 1, 10 ** rng.uniform(-6, 0, size))
    theta = safe_amplitude(L, mu) * shrink
    many = System(L, 1.0, 4, 8, 10 ** rng.uniform(-4, 4, (size, n)))
    k = uniform_coefficients(many, theta)
    start = (many.cap, np.ones(size))
    rate, c = safe_rate(k, mu, start, 50), pl_contraction(k, mu)
    assert rate.holds.all()
    assert all_hold(c.hypotheses).all()
    assert (c.rho >= 6 * mu * theta / (8 * L)).all()
    assert (c.lam <= 24 / 11 * k.recursion.staleness).all()
    assert (c.floor <= safe_floor(k, mu).value).all()
    assert (pl_rate(k, mu, start, 50).value <= rate.value).all()
    assert all_hold(rho_lower(k, mu).hypotheses).all()


def test_the_safe_amplitude_is_the_largest(rng: np.random.Generator) -> None:
    L, mu = np.ones(100), 10 ** rng.uniform(-4, 0, 100)
    many = System(L, 1.0, [2, 2], 1, 0.0)
    for factor, holds in ((1.0, True), (1 + 1e-9, False)):
        k = uniform_coefficients(many, safe_amplitude(L, mu) * factor)
        assert (safe_rate(k, mu, (0.5, 0.0), 1).holds == holds).all()


def test_the_safe_floor_has_its_digits() -> None:
    k = uniform_coefficients(System(1.0, 1.0, [4, 4], 2, [1.0, 3.0]), 0.01)
    with mpmath.workdps(DIGITS):
        t, per, mu = mpf(0.01), mpf(3) / 8, mpf(0.25)
        exact = 128 * (t / 2 + t**2) * per / mu
        exact += mpf(24) / 11 * 100 * 6 * 8 * t**2 * per / mu
        ours = safe_floor(k, 0.25).value.item()
        assert abs(mpf(ours) - exact) <= RELATIVE * exact


def test_no_contraction_is_no_bound_rather_than_an_error() -> None:
    """Grids may cross the edge: ρ ≤ 0 or C ≥ 1 give infinity and a false hypothesis."""
    k = uniform_coefficients(System(1.0, 1.0, [4, 4], 1, 1.0), [0.01, 0.04, 0.5])
    rate = pl_rate(k, 0.1, (0.5, 0.1), 10)
    assert np.isfinite(rate.value).tolist() == [True, False, False]
    assert rate.holds.tolist() == [True, False, False]
    assert rate.vacuous.tolist()[1:] == [True, True]


def test_bad_input_is_named() -> None:
    k = uniform_coefficients(System(1.0, 1.0, [4, 4], 1, 1.0), 0.01)
    with pytest.raises(InvalidInputError, match="`pl_constant` must be positive"):
        pl_contraction(k, 0.0)
    with pytest.raises(InvalidInputError, match="`rounds` must be a whole number"):
        pl_rate(k, 1.0, (0.5, 0.1), 1.5)


def test_a_pl_constant_above_the_smoothness_is_impossible() -> None:
    controller = uniform_coefficients(System(1.0, 1.0, [4, 4], 8, 1e-4), 0.01)
    assert not pl_rate(controller, 5.0, (0.5, 1e-4), 10).holds
    assert pl_rate(controller, 0.5, (0.5, 1e-4), 10).holds
