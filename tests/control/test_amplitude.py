"""Best amplitudes: the constants are the certificate's, and no answer is better."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from tests.control.printed import (
    RELATIVE,
    Printed,
    Setting,
    amplitude,
    close,
    records,
    settings,
    variants,
)

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.control.amplitude import (
    Coefficients,
    best_alone,
    best_at_threshold,
    best_at_weight,
    coefficients,
)
from hewfl.control.certificate import Variant

pytestmark = pytest.mark.usefixtures("digits")

LOW, HIGH = 1e-3, 1.0
GRID = np.geomspace(LOW, HIGH, 4001)


@variants
@given(setting=settings(), theta=amplitude)
def test_solver_constants_are_the_same_functions(
    variant: Variant, setting: Setting, theta: float
) -> None:
    """The fast twin, its slopes and its threshold curve."""
    c = coefficients(*records(setting), variant)
    exact, t, unit = Printed(setting, variant), mpf(theta), mpf(c.unit)
    at = np.array([theta])
    size = (t * exact.u + exact.rho(t)) / unit
    assert close(c.gain(at), exact.mu(t) / unit, size)
    assert close(c.risk(at), exact.L * exact.kappa(t) / unit)
    up, down = c.gain_slopes(at)
    assert min(up[0], down[0]) >= 0
    slope = t * mp.diff(exact.mu, t)
    at_kink = abs(exact.descent(t)) * exact.L * exact.R**2 < 1e-9
    assert at_kink or close(up - down, slope / unit, mpf(up[0] + down[0]))
    risk_slope = t / 2 * mp.diff(exact.kappa, t) * exact.L / unit
    assert close(c.risk_slope(at), risk_slope, risk_slope + mpf(10) ** -300)
    if slope > 0 and exact.kappa(t) > 0:
        ratio = 2 * exact.kappa(t) / mp.diff(exact.kappa, t) / t
        assert close(c.threshold(at), (exact.mu(t) - slope * ratio) / unit)


@variants
@given(setting=settings())
def test_facts_behind_the_gap(variant: Variant, setting: Setting) -> None:
    """√κ grows no faster than θ³ and ℓ no slower than √θ, up to the best θ alone."""
    theta, step = np.geomspace(1e-6, 0.999, 200), 1e-6
    c = coefficients(*records(setting), variant).take(np.zeros(200, dtype=np.intp))
    elasticity = c.risk_slope(theta) / np.maximum(c.risk(theta), 1e-300)
    risky = c.risk(theta) > 1e-290
    assert elasticity[risky].min(initial=1) >= 1 - RELATIVE
    assert elasticity[risky].max(initial=1) <= 3 + RELATIVE
    up, down = c.gain_slopes(theta)
    ahead = c.threshold(theta * (1 + step))[up > down]
    growth = np.log(ahead / c.threshold(theta)[up > down]) / np.log1p(step)
    assert growth.min(initial=1) >= 0.5 - 1e-6


# ------------------------------------------------------------------ the answers


def federation(seed: int, variant: Variant, n: int = 7) -> Coefficients:
    """Constants of n unlike clients of one round."""
    rng = np.random.default_rng(seed)
    clients = ClientProfile(
        rng.choice([1, 2, 4, 8], n), rng.choice([1, 32], n), 10 ** rng.uniform(-4, 1, n)
    )
    state = UpperState(float(rng.uniform(0.02, 0.5)), 10 ** float(rng.uniform(-6, -3)))
    return coefficients(clients, state, ProblemBounds(1.0, 1.0, LOW, HIGH), variant)


def ends(c: Coefficients) -> tuple[np.ndarray, np.ndarray]:
    low = np.full(c.k2.shape, LOW)
    return low, best_alone(c, low, np.full(c.k2.shape, HIGH))


def on_the_grid(c: Coefficients, i: int) -> Coefficients:
    return c.take(np.full(len(GRID), i))


@variants
@given(seed=st.integers(0, 1000))
def test_no_amplitude_of_a_grid_is_better_alone(variant: Variant, seed: int) -> None:
    c = federation(seed, variant)
    _, top = ends(c)
    result = c.gain(top)
    for i in range(len(top)):
        best = on_the_grid(c, i).gain(GRID).max()
        assert result[i] >= best - RELATIVE * (abs(best) + 1)


@variants
@given(seed=st.integers(0, 1000))
def test_no_amplitude_of_a_grid_is_better_at_its_weight(
    variant: Variant, seed: int
) -> None:
    c = federation(seed, variant)
    low, top = ends(c)
    w = np.random.default_rng(seed).dirichlet(np.ones(len(low)))
    theta = best_at_weight(c, w, low, top)
    assert ((theta >= low) & (theta <= top)).all()
    result = -w * c.gain(theta) + 0.5 * w**2 * c.risk(theta)
    for i, w_i in enumerate(w):
        grid = on_the_grid(c, i)
        best = (-w_i * grid.gain(GRID) + 0.5 * w_i**2 * grid.risk(GRID)).min()
        assert result[i] <= best + RELATIVE * (abs(best) + 1)


@variants
@given(seed=st.integers(0, 1000), share=st.floats(0.05, 0.95))
def test_no_amplitude_of_a_grid_is_better_at_the_threshold(
    variant: Variant, seed: int, share: float
) -> None:
    c = federation(seed, variant)
    low, top = ends(c)
    lam = share * float(c.gain(top).max())
    if lam <= 0:
        return
    theta = best_at_threshold(c, lam, low, top)
    result = (c.gain(theta) - lam) / np.sqrt(c.risk(theta))
    for i in range(len(low)):
        grid = on_the_grid(c, i)
        ratio = (grid.gain(GRID) - lam) / np.sqrt(grid.risk(GRID))
        if ratio.max() > 0:  # below the threshold a client takes no part
            assert result[i] >= ratio.max() * (1 - 1e-9)


@variants
def test_clients_do_not_disturb_each_other(variant: Variant) -> None:
    """All lanes of the root finder together, or one by one: the same bits."""
    c = federation(5, variant)
    low, top = ends(c)
    w = np.full(len(low), 0.2)
    together = best_at_weight(c, w, low, top)
    for i in range(len(low)):
        one = np.array([i])
        alone = best_at_weight(c.take(one), w[one], low[one], top[one])
        assert alone == together[one]


def test_a_ball_outside_the_number_range_is_named() -> None:
    bounds = ProblemBounds(1e200, 1e100, 0.1, 1.0)
    with pytest.raises(InvalidInputError, match=r"`radius` must be such that 0 < LR²"):
        coefficients(ClientProfile(1, 1, 1.0), UpperState(1.0, 0.0), bounds, "paper")
