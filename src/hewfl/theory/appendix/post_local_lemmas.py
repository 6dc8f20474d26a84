"""Lemmas about Algorithms 2 and 3: moments of the move, slope errors, model values."""

import numpy as np

from hewfl.control.certificate import Variant, horizon_factors
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    ArrayLike,
    Reals,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.theory.homogeneous import PostLocal, above_smoothness, slope_error_factors
from hewfl.theory.noise import (
    mean_noise,
    noise_of_mean,
    simplex_weights,
    uniform_noise_of_mean,
)
from hewfl.theory.recursion import State, validate_state
from hewfl.theory.statement import Bound, at_most
from hewfl.theory.systems import System


@broadcasting
def comparator_moments(
    system: System,
    controls: PostLocal,
    comparator: ArrayLike,
    state: State,
    *,
    variant: Variant = "paper",
) -> tuple[Bound, Bound]:
    """Second moments of the comparator's move (lem:realized-het-moments).

    Σ a_i Δ_i = −(ϑ/L)∇F + ν(a) + ζ̄(a): ν holds mismatch and mean drift, ζ̄ the noise.

        E‖ν‖² ≤ 48ϑ⁴U/L + 9ϑ²Q/L² + 16ϑ⁴V₁(a)/L²                              paper
        E‖ζ̄‖² ≤ 64ϑ⁴U/L + 128ϑ⁴Q/L² + 32ϑ²V₂(a)/L²

        E‖ν‖² ≤ 8ϑ²Q/L² + (2ϑ⁴/L²)(8h₁(LU + 2Q) + 2Σ a_i h₂ᵢM_i)              sharp
        E‖ζ̄‖² ≤ ϑ²V₂(a)/L²

    with h₁ the comparator's mean (T1, T3). The printed step 8ϑ² + 96ϑ⁴ ≤ 9ϑ² needs
    96ϑ² ≤ 1, less than the 288θ̄² < 1 that the paper assumes.

    The comparator a is fixed before the draws; Λ plays no part.
    """
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    theta, L = positives("amplitude", controls.amplitude), system.L
    a = simplex_weights("comparator", comparator)
    U, Q = validate_state("state", state)
    V2 = noise_of_mean(system, a)
    if variant == "paper":
        V1, fourth = mean_noise(system, a), theta**4
        nu = (48 * fourth * L * U + 9 * theta**2 * Q + 16 * fourth * V1) / L / L
        zeta = (64 * fourth * L * U + 128 * fourth * Q + 32 * theta**2 * V2) / L / L
        met = at_most("96ϑ² ≤ 1", 96 * theta**2, 1.0)
    else:
        h1, h2 = horizon_factors(np.asarray(system.horizon))
        bent, noisy = (a * h1).sum(-1), (a * h2 * system.noise).sum(-1)
        drift = 8 * bent * (L * U + 2 * Q) + 2 * noisy
        nu = (8 * theta**2 * Q + 2 * theta**4 * drift) / L / L
        zeta = theta**2 / L / L * V2 + 0 * (U + Q)
        met = at_most("ϑ ≤ 1", theta, 1.0)
    label = "lem:realized-het-moments"
    return Bound(label, np.asarray(nu), (met,)), Bound(label, np.asarray(zeta), (met,))


@broadcasting
def homogeneous_slope_error(
    system: System, amplitude: ArrayLike, gap: ArrayLike, *, variant: Variant = "paper"
) -> Reals:
    """Bound on E‖ḡ − ∇F‖² for plain branches (lem:realized-hom-q).

    32Lϑ²g + 8ϑ²V̄₁ + 2V_u                             paper
    8h₁Lϑ²g + 4ϑ² (1/n)Σ h₂ᵢM_i + 2V_u,  h₁ the mean  sharp
    """
    theta, g = positives("amplitude", amplitude), nonnegatives("gap", gap)
    drift, noise = slope_error_factors(system, variant)
    L, V_u = system.L, uniform_noise_of_mean(system)
    return np.asarray(2 * theta**2 * (drift * L * g + noise) + 2 * V_u)


@broadcasting
def uniform_model_value(
    amplitude: ArrayLike,
    curvature: ArrayLike,
    smoothness: ArrayLike,
    sq_slope: ArrayLike,
) -> Reals:
    """Ψ at uniform weights, where d = −(ϑ/L)ḡ (eq:realized-hom-id).

    Ψ(1/n) = −(ϑ/L)(1 − Λϑ/(2L)) ‖ḡ‖²
    """
    L = positives("smoothness", smoothness)
    theta = positives("amplitude", amplitude)
    Lambda = above_smoothness(curvature, L)
    decrease = theta / L * (1 - Lambda * theta / 2 / L)
    return np.asarray(-decrease * nonnegatives("sq_slope", sq_slope))


@broadcasting
def homogeneous_advantage(uniform_value: ArrayLike, model_value: ArrayLike) -> Reals:
    """Γ = Ψ(1/n) − Ψ(w), the gain of exact weights over uniform ones; Γ ≥ 0."""
    uniform = as_float64("uniform_value", uniform_value)
    return np.asarray(uniform - as_float64("model_value", model_value))
