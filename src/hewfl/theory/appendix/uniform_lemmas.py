"""Lemmas about the uniform controller: drift and noise of the mean, PL, quadratics.

Its recursion is `hewfl.theory.uniform_controller.uniform_coefficients`, its PL rate
`hewfl.theory.pl.pl_rate`.
"""

import numpy as np

from hewfl.control.certificate import horizon_factors
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.pl import pl_contraction
from hewfl.theory.recursion import State, validate_state
from hewfl.theory.scalar import power
from hewfl.theory.statement import (
    Bound,
    Hypothesis,
    Rate,
    at_most,
    below,
    rate_with_floor,
)
from hewfl.theory.uniform_controller import UniformController


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
