"""The coefficients of the certificate, against 40 digits and against the theory."""

from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf
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
from hewfl.control.certificate import (
    VARIANTS,
    Situation,
    Variant,
    certified_change,
    certified_decrease,
    clipped_gap,
    descent_coefficient,
    flow_decrease,
    gain,
    horizon_factors,
    mean_penalty,
    round_bound,
    situation_of,
    variance_bound,
)

pytestmark = pytest.mark.usefixtures("digits")


# ------------------------------------------------------------------ 40 digits


@variants
@given(setting=settings(), theta=amplitude)
def test_coefficients_have_all_their_digits(
    variant: Variant, setting: Setting, theta: float
) -> None:
    given_ = (np.asarray(theta), situation_of(*records(setting)), variant)
    exact, t = Printed(setting, variant), mpf(theta)
    A = descent_coefficient(*given_)
    lost = t / (2 * exact.L * exact.R**2)
    assert close(A, exact.descent(t), lost)
    s = certified_decrease(*given_)
    assert close(
        s, exact.s(t), lost * exact.u**2 if exact.descent(t) >= 0 else t * exact.u
    )
    rho = mean_penalty(*given_)
    assert close(rho, exact.rho(t))
    kappa = variance_bound(*given_)
    assert close(kappa, exact.kappa(t))
    mu = gain(*given_)
    assert close(mu, exact.mu(t), t * exact.u + exact.rho(t))


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
        at = situation_of(ClientProfile(H, 1, setting[2]), state, bounds)
        mu = gain(theta, at, variant)
        size = RELATIVE * np.abs(mu).max() + clipped_gap(state, bounds) * RELATIVE
        assert np.diff(mu, 2).max() <= size
        root = np.sqrt(variance_bound(theta, at, variant))
        assert np.diff(root, 2).min() >= -RELATIVE * root.max()


def test_descent_turns_into_growth_when_drift_wins() -> None:
    """H = 100, θ = 1: 1 − 8h₁ < 0, and s must use ‖∇F‖² ≤ 2Lf (certified_decrease)."""
    profiles, bounds = ClientProfile(100, 1, 0.0), ProblemBounds(2.0, 3.0, 0.1, 1.0)
    at = situation_of(profiles, UpperState(4.0, 0.0), bounds)
    A = descent_coefficient(np.ones(1), at, "absorbed")
    s = certified_decrease(np.ones(1), at, "absorbed")
    assert A < 0
    assert float(s[0]) == pytest.approx(float(4 * 9.0 * A[0] * 4.0), rel=1e-15)
    assert s < A * 4.0**2 / (1 + A * 4.0)
    edge = 1 / np.sqrt(8 * horizon_factors(at.horizon)[0])
    near = certified_decrease(edge * np.array([1 - 1e-9, 1 + 1e-9]), at, "absorbed")
    assert near == pytest.approx([0.0, 0.0], abs=1e-7)


def test_one_local_step_has_no_drift() -> None:
    profiles, bounds = ClientProfile(1, 4, 3.0), ProblemBounds(1.0, 1.0, 0.1, 1.0)
    at = situation_of(profiles, UpperState(0.5, 0.0), bounds)
    for variant in ("sharp", "absorbed"):
        assert float(mean_penalty(np.asarray(1.0), at, variant)) == 0.0


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


# ------------------------------------------------------------------ many rounds at once


@variants
def test_arrays_of_rounds_agree_with_the_rounds_one_by_one(
    rng: np.random.Generator, variant: Variant
) -> None:
    rounds, n = 40, 3
    L, R, U, Q = 10 ** rng.uniform(-3, 3, (4, rounds, 1))
    M = 10 ** rng.uniform(-3, 3, (rounds, n))
    H = rng.choice([1.0, 2.0, 7.0, 100.0], (rounds, n))
    theta, w = rng.uniform(0, 1, (rounds, n)), rng.dirichlet(np.ones(n), rounds)
    at = Situation(L, R, U, Q, M, H)
    J = np.minimum(U, at.cap)[:, 0] + certified_change(w, theta, at, variant)
    for t in range(rounds):
        clients = ClientProfile(H[t], 1, M[t] * H[t])
        state = UpperState(float(U[t, 0]), float(Q[t, 0]))
        bounds = ProblemBounds(float(L[t, 0]), float(R[t, 0]), 0.1, 1.0)
        alone = round_bound(w[t], theta[t], clients, state, bounds, variant=variant)
        assert J[t] == pytest.approx(float(alone), rel=1e-12)


@variants
def test_a_million_rounds_have_the_shape_of_their_arrays(variant: Variant) -> None:
    theta = np.linspace(0, 1, 1_000_000).reshape(1000, 1000, 1)
    at = Situation(*(np.full((1000, 1, 2), x) for x in (1.0, 1.0, 0.5, 0.1, 0.1, 4.0)))
    change = certified_change(np.array([0.25, 0.75]), theta, at, variant)
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


# ------------------------------------------------------------------ shapes and errors


@variants
def test_every_function_broadcasts(variant: Variant) -> None:
    profiles = ClientProfile([1, 2, 4], 8, [1.0, 2.0, 3.0])
    state, bounds = UpperState(0.4, 0.01), ProblemBounds(1.0, 1.0, 0.1, 1.0)
    theta = np.linspace(0.1, 1, 5).reshape(5, 1)
    table = gain(theta, situation_of(profiles, state, bounds), variant)
    assert table.shape == (5, 3)
    one = situation_of(ClientProfile(4, 8, 3.0), state, bounds)
    row = gain(np.asarray(0.1), one, variant)
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


def test_no_formula_takes_an_unknown_variant_for_another() -> None:
    at = Situation(*(np.ones(1) for _ in range(6)))
    text = "`variant` must be one of paper, sharp, absorbed; got 'x'"
    for formula in (
        descent_coefficient,
        certified_decrease,
        mean_penalty,
        variance_bound,
    ):
        with pytest.raises(InvalidInputError, match=text):
            formula(np.ones(1), at, "x")  # type: ignore[arg-type]  # the point
