"""The one-step certificate: what a round is guaranteed to gain, client by client.

    J(w, θ) = U♯ − Σ_i w_i μ_i(θ_i) + (L/2) Σ_i w_i² κ_i(θ_i)  (th:predictive-majorant)

bounds the expected objective gap after the round for θ ≤ 1 (erratum E-03). Three sets
of constants share this form; at any (w, θ) each gives a smaller J than the one before:

* "paper": as printed.
* "sharp": no exponentials, horizon factors, a quarter of Young's constant (T1 to T3).
* "absorbed": as "sharp", but the drift 8h₁θ³U, which bounds (4h₁θ³/L)‖∇F‖², is set off
  against the descent −(θ/2L)‖∇F‖² before either is bounded.

All functions broadcast the amplitudes against the fields of the profile.
"""

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, as_float64, invalid
from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.predictive import coefficients
from hewfl.predictive.coefficients import VARIANTS, Situation, Variant, check_variant

__all__ = [
    "VARIANTS",
    "Variant",
    "certified_decrease",
    "check_variant",
    "clipped_gap",
    "descent_coefficient",
    "gain",
    "horizon_factors",
    "mean_penalty",
    "noise",
    "round_bound",
    "variance_bound",
]


def clipped_gap(state: UpperState, bounds: ProblemBounds) -> float:
    """U♯ = min(U, f̄) with f̄ = LR²/2, the largest gap on the ball.

    Only s uses U♯ as printed. To have it in ρ and κ too, which is valid and tighter
    (E-25), pass `UpperState(clipped_gap(state, bounds), state.tracking)` as the state.
    """
    return min(state.gap, bounds.smoothness * bounds.radius * bounds.radius / 2)


def horizon_factors(
    profiles: ClientProfile,
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """Drift of H local steps, zero for one step (T3).

    h₁ = (H − 1)(2H − 1)/(6H²) ≤ 1/3,     h₂ = (H − 1)/(2H) ≤ 1/2
    """
    return coefficients.horizon_factors(as_float64("horizon", profiles.horizon))


def descent_coefficient(
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "..."]:
    """Curvature of the certified descent u − A u².

        A = θ / (2LR²)                     paper, sharp
        A = θ(1 − 8h₁θ²) / (2LR²)          absorbed; negative for θ² > 1/(8h₁)

    Args:
        amplitudes: θ in [0, 1].
        profiles: H_i, b_i, v_i² of the clients.
        bounds: L and R.
        variant: which constants.
    """
    anywhere = UpperState(0.0, 0.0)  # A does not depend on the state
    theta, at = _amplitudes(amplitudes), _situation(profiles, anywhere, bounds)
    return coefficients.descent_coefficient(theta, at, check_variant(variant))


def certified_decrease(
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "..."]:
    """What the descent takes off the gap u = U♯.

        s = u − T_A(u) = A u² / (1 + A u)     A ≥ 0; this form cancels nothing (E-32)
        s = 4 f̄ A u                           A < 0, absorbed only

    Where A < 0 drift outweighs descent. Then f − A R²‖∇F‖² has to be bounded with
    ‖∇F‖² ≤ 2L f, not with ‖∇F‖² ≥ f²/R²: u − T_A(u) would be no bound. As a function of
    A, s increases and is concave (at A = 0 its slope falls from 4f̄u to u²), and A is
    concave in θ ≥ 0; so s is concave in θ for every variant.
    """
    theta, at = _amplitudes(amplitudes), _situation(profiles, state, bounds)
    return coefficients.certified_decrease(theta, at, check_variant(variant))


def mean_penalty(
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "..."]:
    """What drift, stale control variates and noise may cost in the mean (eq:rho-main).

    ρ = 32e^{2θ}θ³ U + (16θ + 64e^{2θ}θ³) Q/L + 8e^{2θ}θ³ v²/(LHb)     paper
    ρ = 8h₁θ³ U + (4θ + 16h₁θ³) Q/L + 2h₂θ³ v²/(LHb)                   sharp
    ρ = (4θ + 16h₁θ³) Q/L + 2h₂θ³ v²/(LHb)                             absorbed
    """
    theta, at = _amplitudes(amplitudes), _situation(profiles, state, bounds)
    return coefficients.mean_penalty(theta, at, check_variant(variant))


def variance_bound(
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "..."]:
    """Bound on the variance of a client's displacement (eq:kappa-main).

    κ = 16e^{2θ}θ⁴ U/L + 32e^{2θ}θ⁴ Q/L² + (2θ² + 4e^{2θ}θ⁴) v²/(L²Hb)     paper
    κ = θ² v²/(L²Hb)                                                       the others
    """
    theta, at = _amplitudes(amplitudes), _situation(profiles, state, bounds)
    return coefficients.variance_bound(theta, at, check_variant(variant))


def gain(
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "..."]:
    """Certified gain of one client with all the weight, noise aside: μ = s − ρ."""
    theta, at = _amplitudes(amplitudes), _situation(profiles, state, bounds)
    return coefficients.gain(theta, at, check_variant(variant))


def round_bound(
    weights: ArrayLike,
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Float64[Array, "..."]:
    """The certificate of a round; clients are the last axis, and the one summed over.

        J(w, θ) = U♯ − Σ_i w_i μ_i(θ_i) + (L/2) Σ_i w_i² κ_i(θ_i)

    Args:
        weights: w, nonnegative and summing to one over the last axis.
        amplitudes: θ in [0, 1].
        profiles: H_i, b_i, v_i² of the clients.
        state: (U, Q).
        bounds: L and R.
        variant: which constants.
    """
    w, theta = _weights(weights), _amplitudes(amplitudes)
    at = _situation(profiles, state, bounds)
    change = coefficients.certified_change(w, theta, at, check_variant(variant))
    return np.asarray(clipped_gap(state, bounds) + change)


def noise(profiles: ClientProfile) -> Float64[Array, "..."]:
    """M = v²/(Hb)."""
    H, b = profiles.horizon, profiles.batch_size
    samples = as_float64("horizon", H) * as_float64("batch_size", b)
    return np.asarray(as_float64("variance", profiles.variance) / samples)


def _amplitudes(amplitudes: ArrayLike) -> Float64[Array, "..."]:
    theta = as_float64("amplitudes", amplitudes)
    outside = (theta < 0) | (theta > 1)
    if outside.any():
        raise invalid("amplitudes", "in [0, 1] (erratum E-03)", theta[outside].flat[0])
    return theta


def _weights(weights: ArrayLike) -> Float64[Array, "... n"]:
    w = as_float64("weights", weights)
    if w.ndim == 0 or (w < 0).any() or not np.allclose(w.sum(-1), 1, rtol=0, atol=1e-9):
        raise invalid("weights", "nonnegative and summing to one", repr(weights)[:80])
    return w


def _situation(
    profiles: ClientProfile, state: UpperState, bounds: ProblemBounds
) -> Situation:
    numbers = (bounds.smoothness, bounds.radius, state.gap, state.tracking)
    L, R, U, Q = (np.asarray(x, dtype=np.float64) for x in numbers)
    H = as_float64("horizon", profiles.horizon)
    return Situation(L, R, U, Q, noise(profiles), H)
