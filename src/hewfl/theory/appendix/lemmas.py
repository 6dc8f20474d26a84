"""Lemmas of Appendices A to D that no command needs.

    A   gaps, the flow T_a, sums, scalar recursions
    B   how far a branch moves from its anchor, and its drift
    C   the uniform controller: means, the PL condition, common quadratics
    D   Algorithms 2 and 3: moments, slope errors, model values

A trajectory is the largest sequence that obeys a recursion with "≤": where the map has
a maximum, everything beyond it is bounded by that maximum. The radius lemmas are about

    Δ_i = −(θ/L)(∇F + δ_i) + r_i + noise                                (lem:endpoint)

with the mismatch δ_i of the control variates and the drift r_i. They bound
max_ℓ E‖y_i^(ℓ) − x‖² in three forms: as stated, as their proofs give them, and sharp.
Amplitudes θ_i have the clients last; states are those of `situation`.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np

from hewfl.control.certificate import (
    Situation,
    Variant,
    flow_decrease,
    horizon_factors,
)
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    as_float64,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.noise import (
    mean_noise,
    noise_of_mean,
    simplex_weights,
    uniform_noise_of_mean,
)
from hewfl.theory.post_local import (
    PostLocal,
    above_smoothness,
    is_paper,
    slope_error_factors,
)
from hewfl.theory.recursion import State, Whole, one_whole, validate_state
from hewfl.theory.scalar import flow, power, quadratic_coefficients
from hewfl.theory.statement import (
    Bound,
    Hypothesis,
    Rate,
    at_most,
    below,
    rate_with_floor,
)
from hewfl.theory.systems import System
from hewfl.theory.uniform import UniformController, pl_contraction

if TYPE_CHECKING:
    RadiusForm = Literal["sharp", "stated", "proved"]
else:  # run-time type checks pass a wrong name on to the error that lists the choices
    RadiusForm = str


@broadcasting
def largest_gap(gradient_norm: ArrayLike, radius: ArrayLike) -> Reals:
    """Gap on the ball by its gradient: f ≤ R‖∇F‖, so ‖∇F‖² ≥ f²/R² (lem:gap)."""
    slope, R = nonnegatives("gradient_norm", gradient_norm), positives("radius", radius)
    return np.asarray(R * slope)


@broadcasting
def largest_sq_gradient(gap: ArrayLike, smoothness: ArrayLike) -> Reals:
    """Gradient by the gap: ‖∇F‖² ≤ 2L f (lem:gap); the cap f̄ is `System.cap`."""
    f, L = nonnegatives("gap", gap), positives("smoothness", smoothness)
    return np.asarray(2 * L * f)


@broadcasting
def flow_slope(a: ArrayLike, u: ArrayLike) -> Reals:
    """Slope T_a'(u) = 1/(1 + a u)² ∈ (0, 1] (lem:Ta-Lip)."""
    with np.errstate(over="ignore"):
        x = np.asarray(nonnegatives("a", a) * nonnegatives("u", u))
        return np.asarray(1 / (1 + x) / (1 + x))


@broadcasting
def flow_excess(a: ArrayLike, u: ArrayLike) -> Reals:
    """By how much T_a lies above quadratic descent (lem:Ta-majorizes).

    T_a(u) − (u − a u²) = a²u³/(1 + a u) = a u (u − T_a(u)) ≥ 0
    """
    A, U = nonnegatives("a", a), nonnegatives("u", u)
    return np.asarray(A * U * flow_decrease(A, U))


@broadcasting
def telescoping_bound(
    start: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Float64[Array, "steps ..."]:
    """Bound on z_1, ..., z_H if z_{ℓ+1} ≤ T_{a_ℓ}(z_ℓ) + b_ℓ (lem:telescope).

        z_ℓ ≤ T_{a_0 + ... + a_{ℓ−1}}(z_0) + b_0 + ... + b_{ℓ−1}

    a_ℓ ≥ 0 and b_ℓ ≥ 0 have the steps first.
    """
    total_a, total_b = (
        np.cumsum(nonnegatives(name, x), axis=0) for name, x in (("a", a), ("b", b))
    )
    return np.asarray(flow(total_a, nonnegatives("start", start)) + total_b)


@broadcasting
def scalar_trajectory(
    start: ArrayLike, a: ArrayLike, beta: ArrayLike, delta: ArrayLike, rounds: Whole
) -> Float64[Array, "rounds_1 ..."]:
    """Largest x_0, ..., x_T with x_{t+1} ≤ x_t − ax_t² + βx_t + δ (lem:scalar)."""
    A, B, D = quadratic_coefficients(a, beta, delta)
    top = (1 + B) / 2 / A
    x = [np.broadcast_arrays(nonnegatives("start", start), top, D)[0]]
    for _ in range(one_whole("rounds", rounds)):
        at = np.minimum(x[-1], top)
        x.append(np.asarray(at * (1 + B - A * at) + D))
    return np.stack(x)


@broadcasting
def linear_trajectory(
    start: ArrayLike, a: ArrayLike, delta: ArrayLike, rounds: Whole
) -> Float64[Array, "rounds_1 ..."]:
    """Largest x_0, ..., x_T with x_{t+1} ≤ (1 − a)x_t + δ, a ≤ 1 (lem:lin-scalar)."""
    A, D = positives("a", a), nonnegatives("delta", delta)
    x = [np.broadcast_arrays(nonnegatives("start", start), A, D)[0]]
    for _ in range(one_whole("rounds", rounds)):
        x.append(np.asarray(np.maximum(1 - A, 0) * x[-1] + D))
    return np.stack(x)


@broadcasting
def cumulative_gronwall(
    a: ArrayLike, beta: ArrayLike, *, exponential: bool = False
) -> Float64[Array, "steps ..."]:
    """Bound on x_ℓ if x_ℓ ≤ a_ℓ + β(x_0 + ... + x_{ℓ−1}) (lem:cum-gronwall).

        x_ℓ ≤ a_ℓ(1 + β)^ℓ ≤ a_ℓ e^{βℓ}

    a_ℓ ≥ 0 has the steps first and does not fall. `exponential` gives the second bound,
    which the radius lemmas use.
    """
    A, B = np.atleast_1d(nonnegatives("a", a)), nonnegatives("beta", beta)
    if (np.diff(A, axis=0) < 0).any():
        raise invalid("a", "nondecreasing along its first axis", repr(a)[:80])
    step = np.arange(len(A)).reshape(-1, *[1] * (A.ndim - 1))
    return np.asarray(A * np.exp(step * (B if exponential else np.log1p(B))))


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
    factors = (24, 48, 8) if form == "stated" else (8, 16, 2)
    return _radius("lem:radius", factors, amplitudes, at, form)


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
    factors = (16, 0, 4) if form == "stated" else (4, 0, 2)
    return _radius("lem:realized-hom-radius", factors, amplitudes, at, form)


def _radius(
    label: str,
    factors: tuple[int, int, int],
    amplitudes: ArrayLike,
    at: Situation,
    form: RadiusForm,
) -> Bound:
    """θ² times factors of U/L, Q/L² and M/L²."""
    if form not in ("sharp", "stated", "proved"):
        raise invalid("form", "one of sharp, stated, proved", repr(form))
    k, theta = factors, nonnegatives("amplitudes", amplitudes)
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    growth = np.exp(2 * theta) if form == "proved" else 1.0
    value = growth * theta**2 * (k[0] / L * U + k[1] / L / L * Q + k[2] / L / L * M)
    short = at_most("θ ≤ 2H", theta, 2 * at.horizon)
    return Bound(label, np.asarray(value), () if form == "proved" else (short,))


@broadcasting
def mismatch_sq_norm(tracking: ArrayLike, *, n: ArrayLike | None = None) -> Bound:
    """Squared error of a client's correction: ‖δ_i‖² ≤ 4Q (lem:delta).

        δ_i = ∇F_i − ∇F − (c_i − c) = (1/n)Σ_j e_j − e_i
        4Q                   stated
        4(1 − 1/n)² Q        where n is given: the triangle inequality keeps e_i's share

    Q bounds ‖e_i‖² for all i. The lemma is the same for E‖δ_i‖² and χ (lem:delta-sur).
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
def pl_step(
    controller: UniformController, pl_constant: ArrayLike, state: State
) -> Reals:
    """Bound (1 − a_PL)g + γ q + δ on the next g (cor:direct-pl); q is as without PL."""
    k, (g, q) = controller.recursion, validate_state("state", state)
    return np.asarray((1 - k.contraction(pl_constant)) * g + k.staleness * q + k.noise)


@broadcasting
def pl_coefficient_bounds(controller: UniformController) -> tuple[Bound, Bound, Bound]:
    """Simple bounds on the coefficients of the printed recursion (lem:pl-coeff-bounds).

        β ≤ 50ϑ³,     γ ≤ 100ϑ³/L,     C_q ≤ 288ϑ² < 1

    They are true for the sharp coefficients too, which are smaller, for ϑ ≤ 1.
    """
    theta, L = controller.amplitude, controller.system.L
    label, met = "lem:pl-coeff-bounds", controller.recursion.hypotheses
    numbers = (50 * theta**3, 100 * theta**3 / L, 288 * theta**2)
    beta, gamma, C = (Bound(label, np.asarray(x), met) for x in numbers)
    return beta, gamma, C


@broadcasting
def rho_lower(controller: UniformController, pl_constant: ArrayLike) -> Bound:
    """Lower bound ρ_PL ≥ a_PL/4 if B_qγ ≤ a_PL(1 − C_q)/4 (lem:rho-lower)."""
    c, k = pl_contraction(controller, pl_constant), controller.recursion
    B, nu = k.tracking.gap, 1 - k.tracking.tracking
    weak = at_most("B_q γ ≤ a_PL(1 − C_q)/4", B * k.staleness, c.a * nu / 4)
    slow = below("a_PL < 1 − C_q", c.a, nu)
    return Bound("lem:rho-lower", np.asarray(c.a / 4), (*c.hypotheses, slow, weak))


@broadcasting
def safe_amplitude(smoothness: ArrayLike, pl_constant: ArrayLike) -> Reals:
    """Largest ϑ of the safe regime, min{√(μ/(400L)), 1/24, L/(2μ)} (cor:pl-safe).

    It is rounded down, so that it passes its own hypotheses.

    Args:
        smoothness: L > 0.
        pl_constant: μ > 0 of ‖∇F‖² ≥ 2μ(F − F*).

    Returns:
        ϑ, shape (*c).
    """
    L, mu = positives("smoothness", smoothness), positives("pl_constant", pl_constant)
    small = np.minimum(np.sqrt(mu / L) / 20, 1 / 24)
    return np.asarray(np.minimum(small, L / mu / 2) * (1 - 2.0**-50))


@broadcasting
def safe_rate(
    controller: UniformController,
    pl_constant: ArrayLike,
    start: State,
    rounds: ArrayLike,
    *,
    printed: bool = False,
) -> Rate:
    """The rate in the regime where no condition needs solving (cor:pl-safe).

        ϑ² ≤ min{μ/(400L), 1/576},   2μϑ ≤ L
        g_t ≤ (1 − μϑ/(8L))ᵗ(g_0 + λq_0) + (δ + λA_q)/ρ

    In it ρ ≥ μϑ/(8L) and λ ≤ γ/(1 − C_q − a_PL) ≤ (24/11)γ. The main text and the proof
    have 400 and 576, the appendix states ϑ² ≤ μ/(98L): then ρ may be negative (E-16).

    Args:
        controller: from `uniform_coefficients`.
        pl_constant: μ, at most L.
        start: (g_0, q_0).
        rounds: t.
        printed: the hypotheses of the appendix.

    Returns:
        The rate; vacuous where its floor is at f̄ or above.
    """
    k, mu = controller, positives("pl_constant", pl_constant)
    c = pl_contraction(k, mu)
    hypotheses = (*k.recursion.hypotheses, *_safe_hypotheses(k, mu, printed=printed))
    slow = mu * k.amplitude / k.system.L / 8
    g, q = validate_state("start", start)
    value = power(slow, rounds) * (g + c.lam * q) + c.floor
    return rate_with_floor("cor:pl-safe", value, c.floor, k.system.cap, hypotheses)


@broadcasting
def safe_floor(controller: UniformController, pl_constant: ArrayLike) -> Bound:
    """The noise floor of the safe regime in closed form (cor:pl-safe, E-16).

        (δ + λA_q)/ρ ≤ 128(ϑ/n + ϑ²) M/μ + (115200/11)ϑ² M/μ,     M = v²/(Hb)

    which makes the O(ϑv²/(μnHb) + ϑ²v²/(μHb)) of eq:pl-floor-main explicit.
    """
    k, mu = controller, positives("pl_constant", pl_constant)
    theta, M, n = k.amplitude, k.noise, k.system.n
    value = (128 * (theta / n + theta**2) + 115200 / 11 * theta**2) * (M / mu)
    hypotheses = (*k.recursion.hypotheses, *_safe_hypotheses(k, mu, printed=False))
    return Bound("cor:pl-safe", np.asarray(value), hypotheses)


def _safe_hypotheses(
    controller: UniformController, mu: Array, *, printed: bool
) -> tuple[Hypothesis, ...]:
    theta, L = controller.amplitude, controller.system.L
    slow = at_most("2μϑ ≤ L", 2 * mu * theta, L)
    if printed:
        return slow, at_most("ϑ² ≤ μ/(98L)", theta**2, mu / (98 * L))
    return (
        slow,
        at_most("μ ≤ L", mu, L),
        at_most("ϑ² ≤ μ/(400L)", theta**2, mu / (400 * L)),
        at_most("ϑ² ≤ 1/576", theta**2, 1 / 576),
    )


@broadcasting
def common_quadratic_rate(
    controller: UniformController, gap: ArrayLike, rounds: ArrayLike
) -> Bound:
    """Bound on the least g_t for quadratics with one Hessian (th:ho-main, E-23).

    Then S = M = 0 and

    min_t g_t ≤ C₁√(LR²g_0/(ϑT)) + C₂Rv√(ϑ/(nHb)),
    C₁ = √(2(1 + ϑ/4)),     C₂ = √(1 + ϑ/4)
    """
    T, g, k = wholes("rounds", rounds, least=1), nonnegatives("gap", gap), controller
    theta, L, R, n = k.amplitude, k.system.L, k.system.R, k.system.n
    C1, C2 = np.sqrt(2 * (1 + theta / 4)), np.sqrt(1 + theta / 4)
    decays = C1 * R * np.sqrt(L * g / theta / T)
    stays = C2 * R * np.sqrt(theta / n * k.noise)
    return Bound("th:ho-main", np.asarray(decays + stays), k.recursion.hypotheses)


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
    theta, L = positives("amplitude", controls.amplitude), system.L
    a = simplex_weights("comparator", comparator)
    U, Q = validate_state("state", state)
    V2 = noise_of_mean(system, a)
    if is_paper(variant):
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
