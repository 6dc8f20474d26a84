"""The coefficients of the certificate, against 40 digits and against the theory."""

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.predictive.amplitude import coefficients
from hewfl.predictive.certificate import (
    VARIANTS,
    Variant,
    certified_decrease,
    clipped_gap,
    descent_coefficient,
    gain,
    horizon_factors,
    mean_penalty,
    round_bound,
    variance_bound,
)

RELATIVE = 1e-12
"""Error of a coefficient against 40 digits, over the sum of its terms."""

variants = pytest.mark.parametrize("variant", VARIANTS)


class Printed:
    """The formulas of the paper and of the errata in 40 digits, one client."""

    def __init__(self, setting: "Setting", variant: Variant) -> None:
        H, b, v2, U, Q, L, R = (mpf(x) for x in setting)
        self.variant, self.H, self.U, self.Q, self.L, self.R = variant, H, U, Q, L, R
        self.M = v2 / (H * b)
        self.u = min(U, L * R**2 / 2)
        self.h1 = (H - 1) * (2 * H - 1) / (6 * H**2)
        self.h2 = (H - 1) / (2 * H)

    def descent(self, t: Any) -> Any:
        lost = 8 * self.h1 * t**2 if self.variant == "absorbed" else 0
        return t * (1 - lost) / (2 * self.L * self.R**2)

    def s(self, t: Any) -> Any:
        A, u = self.descent(t), self.u
        return u - u / (1 + A * u) if A >= 0 else 2 * self.L * self.R**2 * A * u

    def rho(self, t: Any) -> Any:
        U, Q, L, M, h1, h2 = self.U, self.Q, self.L, self.M, self.h1, self.h2
        if self.variant == "paper":
            e = mp.exp(2 * t)
            stale = (16 * t + 64 * e * t**3) / L * Q
            return 32 * e * t**3 * U + stale + 8 * e * t**3 * M / L
        drift = 8 * h1 * t**3 * U if self.variant == "sharp" else 0
        return drift + (4 * t + 16 * h1 * t**3) * Q / L + 2 * h2 * t**3 * M / L

    def kappa(self, t: Any) -> Any:
        U, Q, L, M = self.U, self.Q, self.L, self.M
        if self.variant != "paper":
            return t**2 * M / L**2
        e = mp.exp(2 * t)
        drift = 16 * e * t**4 * U / L + 32 * e * t**4 * Q / L**2
        return drift + (2 * t**2 + 4 * e * t**4) * M / L**2

    def mu(self, t: Any) -> Any:
        return self.s(t) - self.rho(t)


Setting = tuple[float, float, float, float, float, float, float]


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    """40 digits are left after u − T_A(u) has cancelled up to 80."""
    with mpmath.workdps(120):
        yield


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    """H, b, v², U, Q, L, R over many decades."""
    decade = st.floats(-12, 12)
    H = draw(st.sampled_from([1.0, 2.0, 3.0, 8.0, 1000.0]))
    b = draw(st.sampled_from([1.0, 32.0]))
    v2, U, Q, L, R = (10.0 ** draw(decade) for _ in range(5))
    return H, b, v2 * draw(st.sampled_from([0.0, 1.0])), U, Q, L, R


amplitude = st.one_of(
    st.sampled_from([1.0, 0.5, 1e-3]), st.floats(-8, 0).map(lambda x: 10**x)
)


def records(setting: Setting) -> tuple[ClientProfile, UpperState, ProblemBounds]:
    H, b, v2, U, Q, L, R = setting
    return ClientProfile(H, b, v2), UpperState(U, Q), ProblemBounds(L, R, 1e-9, 1.0)


def close(value: Any, exact: Any, size: Any = None) -> bool:
    scale = abs(exact if size is None else size)
    return bool(abs(mpf(float(np.asarray(value).item())) - exact) <= RELATIVE * scale)


# ------------------------------------------------------------------ 40 digits


@variants
@given(setting=settings(), theta=amplitude)
def test_coefficients_have_all_their_digits(
    variant: Variant, setting: Setting, theta: float
) -> None:
    profiles, state, bounds = records(setting)
    exact, t = Printed(setting, variant), mpf(theta)
    A = descent_coefficient(theta, profiles, bounds, variant=variant)
    lost = t / (2 * exact.L * exact.R**2)
    assert close(A, exact.descent(t), lost)
    s = certified_decrease(theta, profiles, state, bounds, variant=variant)
    assert close(
        s, exact.s(t), lost * exact.u**2 if exact.descent(t) >= 0 else t * exact.u
    )
    rho = mean_penalty(theta, profiles, state, bounds, variant=variant)
    assert close(rho, exact.rho(t))
    kappa = variance_bound(theta, profiles, state, bounds, variant=variant)
    assert close(kappa, exact.kappa(t))
    mu = gain(theta, profiles, state, bounds, variant=variant)
    assert close(mu, exact.mu(t), t * exact.u + exact.rho(t))


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


# ------------------------------------------------------------------ the theory


def test_one_step_certificate_by_hand() -> None:
    """H = 2, L = R = 1, U = f̄ = ½, Q = ⅛, M = v²/(Hb) = 1, θ = ½, worked on paper."""
    setting = (2.0, 1.0, 2.0, 0.5, 0.125, 1.0, 1.0)
    e = np.e
    expected: dict[Variant, tuple[float, float, float]] = {
        "paper": (1 / 18, 2 * e + 1 + e + e, 0.5 * e + 0.25 * e + 0.5 + 0.25 * e),
        "sharp": (1 / 18, 0.0625 + 0.28125 + 0.0625, 0.25),
        "absorbed": (0.046875 / 1.09375, 0.28125 + 0.0625, 0.25),
    }
    for variant, (s, rho, kappa) in expected.items():
        bound = round_bound([1.0], [0.5], *records(setting), variant=variant)
        assert float(bound) == pytest.approx(0.5 - s + rho + kappa / 2, rel=1e-14)


@given(settings(), st.lists(amplitude, min_size=3, max_size=3), st.floats(0, 1))
def test_variants_are_ordered(setting: Setting, theta: list[float], x: float) -> None:
    """absorbed ≤ sharp ≤ paper at every (w, θ), θ ≤ 1, any horizons."""
    _, state, bounds = records(setting)
    profiles = ClientProfile([1, 3, 64], 1, [0.0, setting[2], 2 * setting[2]])
    w = np.array([x, (1 - x) / 3, 2 * (1 - x) / 3])
    paper, sharp, absorbed = (
        float(round_bound(w, theta, profiles, state, bounds, variant=variant))
        for variant in VARIANTS
    )
    slack = RELATIVE * abs(paper)
    assert absorbed <= sharp + slack
    assert sharp <= paper + slack


@variants
@given(setting=settings())
def test_gain_is_concave_and_root_risk_convex(
    variant: Variant, setting: Setting
) -> None:
    """What hidden convexity rests on (section R), across the kink of `absorbed` too."""
    _, state, bounds = records(setting)
    theta = np.linspace(1e-3, 1, 400)
    for H in (1, 3, 64):
        profiles = ClientProfile(H, 1, setting[2])
        mu = gain(theta, profiles, state, bounds, variant=variant)
        size = RELATIVE * np.abs(mu).max() + clipped_gap(state, bounds) * RELATIVE
        assert np.diff(mu, 2).max() <= size
        root = np.sqrt(variance_bound(theta, profiles, state, bounds, variant=variant))
        assert np.diff(root, 2).min() >= -RELATIVE * root.max()


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


def test_descent_turns_into_growth_when_drift_wins() -> None:
    """H = 100, θ = 1: 1 − 8h₁ < 0, and s must use ‖∇F‖² ≤ 2Lf (certified_decrease)."""
    profiles, bounds = ClientProfile(100, 1, 0.0), ProblemBounds(2.0, 3.0, 0.1, 1.0)
    state = UpperState(4.0, 0.0)
    A = descent_coefficient(1.0, profiles, bounds, variant="absorbed")
    s = certified_decrease(1.0, profiles, state, bounds, variant="absorbed")
    assert A < 0
    assert float(s) == pytest.approx(float(4 * 9.0 * A * 4.0), rel=1e-15)
    assert s < A * 4.0**2 / (1 + A * 4.0)
    edge = 1 / np.sqrt(8 * horizon_factors(profiles)[0])
    near = certified_decrease(
        edge * np.array([1 - 1e-9, 1 + 1e-9]),
        profiles,
        state,
        bounds,
        variant="absorbed",
    )
    assert near == pytest.approx([0.0, 0.0], abs=1e-7)


def test_one_local_step_has_no_drift() -> None:
    profiles, bounds = ClientProfile(1, 4, 3.0), ProblemBounds(1.0, 1.0, 0.1, 1.0)
    for variant in ("sharp", "absorbed"):
        rho = mean_penalty(1.0, profiles, UpperState(0.5, 0.0), bounds, variant=variant)
        assert float(rho) == 0.0


@variants
def test_a_variance_proxy_dominates(variant: Variant) -> None:
    """J^id ≤ J^ex when v̂² ≥ v² (th:predictive-majorant)."""
    state, bounds = UpperState(0.4, 0.01), ProblemBounds(1.0, 1.0, 0.1, 1.0)
    w, theta = [0.5, 0.5], [0.3, 0.6]
    ideal, executable = (
        round_bound(
            w, theta, ClientProfile([2, 4], 8, v), state, bounds, variant=variant
        )
        for v in ([1.0, 2.0], [1.0, 2.5])
    )
    assert ideal < executable


def test_the_ball_caps_the_gap() -> None:
    """U♯ = min(U, f̄); using it in ρ and κ too is tighter (E-25)."""
    bounds, profiles = ProblemBounds(2.0, 3.0, 0.1, 1.0), ClientProfile([2, 4], 8, 1.0)
    state = UpperState(100.0, 0.01)
    assert clipped_gap(state, bounds) == 9.0
    clipped = UpperState(clipped_gap(state, bounds), state.tracking)
    w, theta = [0.5, 0.5], [0.3, 0.6]
    tight = round_bound(w, theta, profiles, clipped, bounds)
    assert tight < round_bound(w, theta, profiles, state, bounds)


# ------------------------------------------------------------------ shapes and errors


@variants
def test_every_function_broadcasts(variant: Variant) -> None:
    profiles = ClientProfile([1, 2, 4], 8, [1.0, 2.0, 3.0])
    state, bounds = UpperState(0.4, 0.01), ProblemBounds(1.0, 1.0, 0.1, 1.0)
    theta = np.linspace(0.1, 1, 5).reshape(5, 1)
    table = gain(theta, profiles, state, bounds, variant=variant)
    assert table.shape == (5, 3)
    one = ClientProfile(4, 8, 3.0)
    row = gain(0.1, one, state, bounds, variant=variant)
    assert row.shape == ()
    assert float(row) == pytest.approx(table[0, 2], rel=1e-15)
    weights = np.full((2, 1, 3), 1 / 3)
    assert round_bound(
        weights, theta, profiles, state, bounds, variant=variant
    ).shape == (2, 5)


@pytest.mark.parametrize(
    ("weights", "amplitudes", "variant", "text"),
    [
        ([1.0], [1.5], "paper", r"`amplitudes` must be in \[0, 1\] .*; got 1\.5"),
        ([1.0], [-0.1], "sharp", r"`amplitudes` must be in \[0, 1\] .*; got -0\.1"),
        ([1.0], [np.nan], "paper", r"`amplitudes` must be finite; got nan"),
        (
            [0.4],
            [0.5],
            "paper",
            r"`weights` must be nonnegative and summing to one; got",
        ),
        ([-1.0, 2.0], [0.5], "paper", r"`weights` must be nonnegative and summing"),
        (
            [1.0],
            [0.5],
            "best",
            r"`variant` must be one of paper, sharp, absorbed; got 'best'",
        ),
    ],
)
def test_bad_input_is_named(
    weights: Any, amplitudes: Any, variant: Any, text: str
) -> None:
    profiles, bounds = ClientProfile(1, 1, 1.0), ProblemBounds(1.0, 1.0, 0.1, 1.0)
    with pytest.raises(InvalidInputError, match=text):
        round_bound(
            weights, amplitudes, profiles, UpperState(1.0, 0.0), bounds, variant=variant
        )
