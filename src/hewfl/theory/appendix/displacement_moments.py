"""Moments of displacements: how far a branch moves, its drift and its noise.

    Δ_i = −(θ/L)(∇F + δ_i) + r_i + noise                                (lem:endpoint)

with the mismatch δ_i of the control variates and the drift r_i. The radius lemmas of
appendices B, C and D bound max_ℓ E‖y_i^(ℓ) − x‖² in three forms: as stated, as their
proofs give them, and sharp. Amplitudes θ_i have the clients last; states are those of
`one_step_bound.situation`. The other lemmas bound what remains of drift and noise in
the mean of the clients.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np

from hewfl.control.certificate import Situation, Variant, horizon_factors
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.homogeneous import PostLocal, slope_error_factors
from hewfl.theory.noise import (
    mean_noise,
    noise_of_mean,
    simplex_weights,
    uniform_noise_of_mean,
)
from hewfl.theory.recursion import State, validate_state
from hewfl.theory.statement import Bound, at_most
from hewfl.theory.systems import System
from hewfl.theory.uniform_controller import UniformController

if TYPE_CHECKING:
    RadiusForm = Literal["sharp", "stated", "proved"]
else:  # run-time type checks pass a wrong name on to the error that lists the choices
    RadiusForm = str
Factors = tuple[int, int, int]
"""Of U/L, Q/L² and M/L²."""
_CORRECTED: dict[RadiusForm, Factors] = {"stated": (24, 48, 8), "sharp": (8, 16, 2)}
_PLAIN: dict[RadiusForm, Factors] = {"stated": (16, 0, 4), "sharp": (4, 0, 2)}


@broadcasting
def branch_sq_radius(
    amplitudes: ArrayLike, at: Situation, *, form: RadiusForm = "sharp"
) -> Bound:
    """Squared radius of a corrected branch: max_ℓ E‖y_i^(ℓ) − x‖² (lem:radius).

        θ²(8U/L + 16Q/L² + 2M/L²)              sharp, θ ≤ 2H (T1)
        θ²(24U/L + 48Q/L² + 8M/L²)             stated
        e^{2θ}θ²(8U/L + 16Q/L² + 2M/L²)        proved, any θ

    The proof gives the third form, which is within the second only for θ ≤ ln(3)/2; the
    second is true all the same, because the first is (E-03). The lemma is the same for
    (u, χ) (lem:sur-radius) and (g, q) (lem:direct-radius, the largest over clients).
    """
    label, k = "lem:radius", _CORRECTED
    return _radius(label, k, nonnegatives("amplitudes", amplitudes), at, form)


@broadcasting
def plain_sq_radius(
    amplitudes: ArrayLike, at: Situation, *, form: RadiusForm = "sharp"
) -> Bound:
    """Squared radius of a branch without control variates (lem:realized-hom-radius).

        θ²(4U/L + 2M/L²)            sharp, θ ≤ 2H (T1)
        θ²(16U/L + 4M/L²)           stated
        e^{2θ}θ²(4U/L + 2M/L²)      proved, any θ; within the second for θ ≤ ln(2)/2

    Q plays no part.
    """
    label, k = "lem:realized-hom-radius", _PLAIN
    return _radius(label, k, nonnegatives("amplitudes", amplitudes), at, form)


@broadcasting
def mismatch_sq_norm(tracking: ArrayLike, *, n: ArrayLike | None = None) -> Bound:
    """Squared error of a client's correction: ‖δ_i‖² ≤ 4Q (lem:delta).

        δ_i = ∇F_i − ∇F − (c_i − c) = (1/n)Σ_j e_j − e_i
        4Q                   stated
        4(1 − 1/n)² Q        where n is given: the triangle inequality keeps e_i's share

    The lemma is the same for E‖δ_i‖² and χ (lem:delta-sur).

    Q bounds ‖e_i‖² for all i, χ bounds E‖e_i‖².
    """
    Q = nonnegatives("tracking", tracking)
    share = 1.0 if n is None else 1 - 1 / wholes("n", n, least=1)
    return Bound("lem:delta", np.asarray(4 * share**2 * Q), ())


@broadcasting
def drift_sq_norm(
    amplitudes: ArrayLike, at: Situation, *, form: RadiusForm = "stated"
) -> Bound:
    """Squared drift of the local steps: E‖r_i‖² ≤ θ²R_i² (lem:rbar).

        r_i = −η Σ_ℓ (∇F_i(y_i^(ℓ)) − ∇F_i(x))
        θ⁴(24U/L + 48Q/L² + 8M/L²)              stated
        θ² times `branch_sq_radius`             the other forms

    It bounds the squared mean drift too, by Jensen. The lemma is the same for (u, χ)
    (lem:sur-rbar).
    """
    theta = nonnegatives("amplitudes", amplitudes)
    radius = branch_sq_radius(theta, at, form=form)
    return Bound("lem:rbar", np.asarray(theta**2 * radius.value), radius.hypotheses)


@broadcasting
def mean_drift_sq_norm(controller: UniformController, state: State) -> Bound:
    """Squared drift of the mean of all clients: E‖r̄‖² (lem:agg-r).

        24ϑ⁴g/L + 48ϑ⁴q/L² + 8ϑ⁴M/L²                     paper
        (ϑ⁴/L²)(2h₁(2Lg + q) + 2h₂M)                     the others (T5)

    r̄ is the mean over clients of the conditional means of their drifts.
    """
    k, (g, q) = controller, validate_state("state", state)
    L, M, fourth = k.system.L, k.noise, k.amplitude**4
    if k.variant == "paper":
        inner = 24 * L * g + 48 * q + 8 * M
    else:
        h1, h2 = (h.max(-1) for h in horizon_factors(np.asarray(k.system.horizon)))
        inner = 2 * h1 * (2 * L * g + q) + 2 * h2 * M
    value = np.asarray(fourth / L / L * inner)
    return Bound("lem:agg-r", value, k.recursion.hypotheses)


@broadcasting
def mean_noise_cost(controller: UniformController, state: State) -> Bound:
    """Cost of the noise of the mean: (L/2) E‖(1/n)Σ ζ_i‖² (lem:agg-noise).

        16ϑ²M/(Ln) + 32ϑ⁴g/n + 64ϑ⁴q/(Ln)                paper
        ϑ²M/(2Ln)                                        the others (T1)

    ζ_i is the displacement of a client less its conditional mean.
    """
    k, (g, q) = controller, validate_state("state", state)
    L, n, theta = k.system.L, k.system.n, k.amplitude
    value = theta**2 / (2 * L * n) * k.noise + 0 * (g + q)
    if k.variant == "paper":
        noisy = 16 * theta**2 / L * k.noise
        value = (noisy + 32 * theta**4 * g + 64 * theta**4 / L * q) / n
    return Bound("lem:agg-noise", np.asarray(value), k.recursion.hypotheses)


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


def _radius(
    label: str,
    factors: dict[RadiusForm, Factors],
    theta: Array,
    at: Situation,
    form: RadiusForm,
) -> Bound:
    if form not in ("sharp", "stated", "proved"):
        raise invalid("form", "one of sharp, stated, proved", repr(form))
    k = factors["stated" if form == "stated" else "sharp"]
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    growth = np.exp(2 * theta) if form == "proved" else 1.0
    value = growth * theta**2 * (k[0] / L * U + k[1] / L / L * Q + k[2] / L / L * M)
    short = at_most("θ ≤ 2H", theta, 2 * at.horizon)
    return Bound(label, np.asarray(value), () if form == "proved" else (short,))
