"""Algorithms 2 and 3: weights chosen after the local steps.

Path by path (th:realized-het-one-step, th:realized-hom-one-step), for every Λ > L and
every step d = Σ w_i Δ_i,

    F(x + d) − F* ≤ f + Ψ(w) + ‖∇F − c‖²/(2(Λ − L)),     Ψ = ⟨c, d⟩ + (Λ/2)‖d‖².

In expectation, Algorithm 2 with any fixed weights a to compare with
(th:realized-het-global), and Algorithm 3, whose plain branches see ∇F itself
(`is_homogeneous`), so that the mean local gradient ḡ serves as c
(th:realized-hom-bellman), obey

    U⁺ = min{f̄, T_A(U) + β U + γ Q + δ(a)},     Q⁺ = A_χ + B_χ U + C_χ Q,
    g⁺ ≤ T_A(g) + β g + δ.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control.certificate import Variant, horizon_factors
from hewfl.control.tracking import realised_tracking
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
)
from hewfl.theory.noise import (
    best_comparator,
    noise_term,
    simplex_weights,
    uniform_mean_noise,
    uniform_noise_of_mean,
)
from hewfl.theory.recursion import (
    NO_TRACKING,
    Recursion,
    mask_undefined,
    validate_solver_gap,
)
from hewfl.theory.scalar import linear_rate, power
from hewfl.theory.statement import Constants, Hypothesis, Rate, at_most, below
from hewfl.theory.systems import System


@final
@dataclass(frozen=True, slots=True, eq=False)
class PostLocal:
    """ϑ > 0 and Λ > L of a round, shape (*c), or (rounds, *c) for a schedule."""

    amplitude: ArrayLike
    curvature: ArrayLike

    def validate(self, system: System) -> tuple[Reals, Reals]:
        """Validated ϑ and Λ."""
        theta = positives("amplitude", self.amplitude)
        return theta, above_smoothness(self.curvature, system.L)


@broadcasting
def post_local_hypotheses(
    theta: ArrayLike, Lambda: ArrayLike, L: ArrayLike
) -> tuple[Hypothesis, ...]:
    """Conditions of all post-local bounds in expectation; tuned runs break them (E-02).

    They imply ϑ < 1/2.
    """
    named = (("theta", theta), ("Lambda", Lambda), ("L", L))
    th, lam, smooth = (positives(name, value) for name, value in named)
    return (
        below("L < Λ", smooth, lam),
        at_most("Λ ≤ 2L", lam, 2 * smooth),
        at_most("Λϑ ≤ L/2", lam * th, smooth / 2),
    )


def above_smoothness(curvature: ArrayLike, L: Array) -> Reals:
    """Validated Λ > L."""
    Lambda = positives("curvature", curvature)
    low = np.broadcast_arrays(Lambda, L)[0][Lambda <= L]
    if low.size:
        raise invalid("curvature", "above the smoothness L", low.flat[0])
    return Lambda


@broadcasting
def pathwise_bound(
    gap: ArrayLike,
    model_value: ArrayLike,
    sq_mismatch: ArrayLike,
    curvature: ArrayLike,
    smoothness: ArrayLike,
) -> Reals:
    """Bound on the next gap along every path (th:realized-het-one-step).

        f + Ψ(w) + ‖∇F(x) − c‖²/(2(Λ − L))

    True for any step, any reference c and any Λ > L, whatever the amplitudes; with the
    mean local gradient ḡ for c it is th:realized-hom-one-step.

    Args:
        gap: f = F(x) − F*.
        model_value: Ψ(w) at the weights used; for an ε-minimiser that of the weights
            it returned, or the minimum plus ε (E-31).
        sq_mismatch: ‖∇F(x) − c‖².
        curvature: Λ.
        smoothness: L.

    Returns:
        The bound, shape (*c).
    """
    L = positives("smoothness", smoothness)
    spread = above_smoothness(curvature, L) - L
    error = nonnegatives("sq_mismatch", sq_mismatch) / 2 / spread
    f, psi = nonnegatives("gap", gap), as_float64("model_value", model_value)
    return np.asarray(f + psi + error)


@broadcasting
def heterogeneous_coefficients(
    system: System,
    controls: PostLocal,
    *,
    comparator: ArrayLike | None = None,
    box_end: ArrayLike | None = None,
    variant: Variant = "paper",
    printed: bool = False,
) -> Recursion:
    """Coefficients of Algorithm 2 (th:realized-het-global, cor:realized-het-rate).

        β = 192ϑ³ + 32(Λ/L)ϑ⁴                                               paper
        γ = 1/(2(Λ − L)) + 39ϑ/L + 64(Λ/L²)ϑ⁴
        δ(a) = (64ϑ³/L) V₁(a) + (16Λϑ²/L²) V₂(a)

        β = 52h₁ϑ³                                                          sharp
        γ = 1/(2(Λ − L)) + (29ϑ + 104h₁ϑ³)/L
        δ(a) = (13ϑ³/L) Σ a_i h₂ᵢ M_i + (Λϑ²/(2L²)) V₂(a)

    h₁ is the comparator's mean Σ a_i h₁ᵢ: the drifts enter through Σ a_i E‖r_i‖². The
    descent A is that of eq:realized-het-A; `realised_tracking` has A_χ, B_χ and C_χ
    (eq:realized-het-tracking-coeff), by default not as printed: that recursion of Q
    does not allow for weights that favour rare large moves (E-01). At the comparator a*
    the noise term is δ(a*) = (64nϑ³/L + 16Λϑ²/L²) α with α of `noise_optimal_level`
    (eq:realized-het-rate-astar); the default comparator has the least δ (E-15). The box
    ends at θ̄ in the recursion of Q, by default at ϑ (E-33).
    """
    theta, Lambda = controls.validate(system)
    L, n = system.L, system.n
    linear, quadratic = heterogeneous_noise(system, controls, variant=variant)
    if comparator is None:
        a = best_comparator(linear, quadratic)
    else:
        a = simplex_weights("comparator", comparator)
    h1 = (a * horizon_factors(np.asarray(system.horizon))[0]).sum(-1)
    if variant == "paper":
        beta = 192 * theta**3 + 32 * Lambda / L * theta**4
        stale = 39 * theta / L + 64 * Lambda / L / L * theta**4
    else:
        beta = 52 * h1 * theta**3
        stale = (29 * theta + 104 * h1 * theta**3) / L
    top = theta if box_end is None else nonnegatives("box_end", box_end)
    met = [*post_local_hypotheses(theta, Lambda, L), at_most("ϑ ≤ θ̄", theta, top)]
    if printed:  # where the printed coefficients are no smaller than the corrected ones
        met += [at_most("n ≤ 10", n, 10)]
        met += [at_most("ϑ² ≤ 1/(2n + 1)", theta**2, 1 / (2 * n + 1))]
    return Recursion(
        "cor:realized-het-rate",
        system,
        flows=True,
        descent=np.asarray(theta / 4 / system.cap),
        growth=np.asarray(beta),
        staleness=np.asarray(1 / 2 / (Lambda - L) + stale),
        noise=noise_term(a, linear, quadratic),
        comparator=a,
        tracking=realised_tracking(
            top, system.noise, system.horizon, L, count=system.count, printed=printed
        ),
        hypotheses=tuple(met),
    )


@broadcasting
def heterogeneous_noise(
    system: System, controls: PostLocal, *, variant: Variant = "paper"
) -> tuple[Float64[Array, "... n"], Float64[Array, "... n"]]:
    """The noise term δ(a) = Σ a_i l_i + a_i² q_i as (l, q), clients last."""
    theta, Lambda = (value[..., None] for value in controls.validate(system))
    L, M = system.L[..., None], system.noise
    if is_paper(variant):
        linear, quadratic = 64 * theta**3 / L * M, 16 * Lambda * theta**2 / L / L * M
    else:
        _, h2 = horizon_factors(np.asarray(system.horizon))
        linear = 13 * h2 * theta**3 / L * M
        quadratic = Lambda * theta**2 / 2 / L / L * M
    return np.asarray(linear), np.asarray(quadratic / system.multiplicity)


@broadcasting
def homogeneous_coefficients(
    system: System, controls: PostLocal, *, variant: Constants = "paper"
) -> Recursion:
    """Coefficients of Algorithm 3 (th:realized-hom-bellman, cor:realized-hom-rate).

        β = 16ϑ³ + 16Lϑ²/(Λ − L)                                          paper
        δ = (4ϑ³/L + 4ϑ²/(Λ − L)) V̄₁ + (ϑ/L + 1/(Λ − L)) V_u

        β = 4h₁(ϑ³ + Lϑ²/(Λ − L))                                         sharp
        δ = 2(ϑ³/L + ϑ²/(Λ − L)) (1/n)Σ h₂ᵢM_i + (ϑ/L + 1/(Λ − L)) V_u

    with h₁ the mean over clients. The tracking part is zero.

    "joint" is T9: with k = 1 − Λϑ/(2L), κ = √ϑ and h₂, N means of h₂ᵢ, √(h₂ᵢM_i),

        σ = (ϑ/L)(k(1 − κ) − h₂/4 − WLϑh₂²),   W = (ϑ/L)k(1/κ − 1) + 1/(2(Λ − L))
        δ = W(1 + 4WLϑh₂)(ϑN + √V_u)²

    and a = σ/R², or β = −2Lσ where σ < 0. Uniform weights have Ψ = −(ϑ/L)k‖ḡ‖² and
    ‖ḡ‖² ≥ (1 − κ)‖∇F‖² − (1/κ − 1)‖q‖², q = ḡ − ∇F. By Minkowski's inequality
    (E‖q‖²)^½ ≤ ϑ(h₂‖∇F‖ + N) + √V_u, and (x + y)² ≤ (1 + s)y² + (1 + 1/s)x² with
    s = 4WLϑh₂.
    """
    theta, Lambda = controls.validate(system)
    if variant == "joint":
        return _joint_homogeneous(system, theta, Lambda)
    L, V_u = system.L, uniform_noise_of_mean(system)
    # Uniform weights give Ψ ≤ −(ϑ/2L)‖ḡ‖² ≤ −(ϑ/4L)‖∇F‖² + (ϑ/2L)‖q‖², q = ḡ − ∇F.
    # With the mismatch term, E‖q‖² has the factor (ϑ/L + 1/(Λ − L))/2 whatever bounds
    # it: 2ϑ²(k L g + N) + 2V_u, in the paper with k = 16, N = 4V̄₁. In the sharp form
    # the mean drift of a branch obeys E‖b_i‖² ≤ ϑ²(2h₁ᵢ E‖∇F‖² + 2h₂ᵢM_i) (T3 without
    # mismatch), and E‖∇F‖² ≤ 2Lg: k = 4 mean h₁ᵢ, N = 2 mean h₂ᵢM_i.
    factor = theta / L + 1 / (Lambda - L)
    drift, noise = slope_error_factors(system, variant)
    return Recursion(
        "cor:realized-hom-rate",
        system,
        flows=True,
        descent=np.asarray(theta / 8 / system.cap),
        slope=np.asarray(theta / 4 / L),
        growth=np.asarray(drift * theta**2 * (theta + L / (Lambda - L))),
        noise=np.asarray(factor * (theta**2 * noise + V_u)),
        staleness=np.zeros(()),
        tracking=NO_TRACKING,
        hypotheses=post_local_hypotheses(theta, Lambda, L),
    )


def _joint_homogeneous(system: System, theta: Reals, Lambda: Reals) -> Recursion:
    L, share = system.L, system.multiplicity / system.n
    _, h2_i = horizon_factors(np.asarray(system.horizon))
    h2 = (share * h2_i).sum(-1)
    rough = (share * np.sqrt(h2_i * system.noise)).sum(-1)
    k, kappa = 1 - Lambda * theta / (2 * L), np.minimum(np.sqrt(theta), 1)
    W = theta / L * k * (1 / kappa - 1) + 1 / (2 * (Lambda - L))
    sigma = theta / L * (k * (1 - kappa) - h2 / 4 - W * L * theta * h2**2)
    noise = (theta * rough + np.sqrt(uniform_noise_of_mean(system))) ** 2
    return Recursion(
        "cor:realized-hom-rate",
        system,
        descent=np.asarray(np.maximum(sigma, 0) / system.R / system.R),
        slope=np.asarray(np.maximum(sigma, 0)),
        growth=np.asarray(2 * L * np.maximum(-sigma, 0)),
        noise=np.asarray(W * (1 + 4 * W * L * theta * h2) * noise),
        staleness=np.zeros(()),
        tracking=NO_TRACKING,
        hypotheses=post_local_hypotheses(theta, Lambda, L),
    )


def slope_error_factors(system: System, variant: Variant) -> tuple[Array, Array]:
    """The pair (k, N) of E‖ḡ − ∇F‖² ≤ 2ϑ²(k L g + N) + 2V_u (lem:realized-hom-q)."""
    if is_paper(variant):
        return np.asarray(16.0), np.asarray(4 * uniform_mean_noise(system))
    h1, h2 = horizon_factors(np.asarray(system.horizon))
    m, n = system.multiplicity, system.n
    h1, noise = (m * h1).sum(-1) / n, (m * (h2 * system.noise)).sum(-1) / n
    return np.asarray(4 * h1), np.asarray(2 * noise)


def is_paper(variant: Variant) -> bool:
    """Whether constants are the paper's; section T has no absorbed ones here."""
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    return variant == "paper"


@broadcasting
def homogeneous_pl_rate(
    coefficients: Recursion,
    pl_constant: ArrayLike,
    start: ArrayLike,
    rounds: ArrayLike,
    *,
    solver_gap: ArrayLike = 0.0,
    printed: bool = False,
) -> Rate:
    """The rate under the PL condition at constant ϑ and Λ (cor:realized-hom-PL).

        g⁺ ≤ (1 − ρ) g + δ + ε,     ρ = μϑ/(2L) − β,     m = (δ + ε)/ρ
        g_T ≤ m + (1 − ρ)ᵀ (g₀ − m)₊
        g_T ≤ m + (1 − ρ)ᵀ g₀                                printed

    with μ ≤ L on the ball. NaN where ρ ≤ 0: nothing contracts there
    (eq:realized-hom-rho).
    """
    k, g = coefficients, nonnegatives("start", start)
    mu = positives("pl_constant", pl_constant)
    rho = k.contraction(mu)
    falls = below("0 < ρ", 0.0, rho)
    rho = np.where(falls.holds, rho, 1.0)  # a stand-in: `mask_undefined` removes it
    rate = linear_rate(g, rho, k.noise + validate_solver_gap(solver_gap), rounds)
    if printed:
        rate = replace(rate, value=np.asarray(rate.floor + power(rho, rounds) * g))
    conditions = (*k.hypotheses, at_most("μ ≤ L", mu, k.system.L), falls)
    rate = replace(
        rate,
        label="cor:realized-hom-PL",
        vacuous=np.asarray(rate.floor >= k.cap),
        hypotheses=(*conditions, *rate.hypotheses),
    )
    return mask_undefined(falls.holds, rate)
