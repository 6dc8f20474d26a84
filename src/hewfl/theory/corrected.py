"""Corrected branches with weights chosen afterwards: Algorithm 2's guarantees.

Path by path (th:realized-het-one-step), for every Λ > L and every step d = Σ w_i Δ_i,

    F(x + d) − F* ≤ f + Ψ(w) + ‖∇F − c‖²/(2(Λ − L)),     Ψ = ⟨c, d⟩ + (Λ/2)‖d‖².

In expectation (th:realized-het-global), with any fixed weights a to compare with,

    U⁺ = min{f̄, T_A(U) + β U + γ Q + δ(a)},     Q⁺ = A_χ + B_χ U + C_χ Q.

The printed recursion of Q does not allow for weights that favour rare large moves
(erratum E-01); the corrected one, our default, sums noise and mismatch over clients.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import (
    Array,
    ArrayLike,
    as_float64,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.core.shapes import broadcasting
from hewfl.predictive.certificate import Variant, horizon_factors
from hewfl.predictive.tracking import Tracking, realised_tracking
from hewfl.theory.comparators import best_comparator, noise_term, simplex_weights
from hewfl.theory.recursion import (
    State,
    Trajectory,
    coupled_rate,
    trajectory,
    unrolled,
    upper_state,
)
from hewfl.theory.scalar import flow
from hewfl.theory.statement import Hypothesis, Rate, at_most, below
from hewfl.theory.systems import System


@final
@dataclass(frozen=True, slots=True, eq=False)
class PostLocal:
    """What a post-local controller fixes before a round, or for every round.

    Attributes:
        amplitude: ϑ > 0, shape (*c), or (rounds, *c) for a schedule.
        curvature: Λ > L, likewise.
    """

    amplitude: ArrayLike
    curvature: ArrayLike

    def against(
        self, system: System
    ) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
        """Checked ϑ and Λ.

        Raises:
            InvalidInputError: ϑ ≤ 0 or Λ ≤ L.
        """
        theta = positives("amplitude", self.amplitude)
        return theta, above_smoothness(self.curvature, system.L)


@broadcasting
def pathwise_bound(
    gap: ArrayLike,
    model_value: ArrayLike,
    sq_mismatch: ArrayLike,
    curvature: ArrayLike,
    smoothness: ArrayLike,
) -> Float64[Array, "..."]:
    """Bound on the next gap along every path (th:realized-het-one-step).

        f + Ψ(w) + ‖∇F(x) − c‖²/(2(Λ − L))

    True for any step, any reference c and any Λ > L, whatever the amplitudes; with the
    mean local gradient ḡ for c it is th:realized-hom-one-step.

    Args:
        gap: f = F(x) − F*.
        model_value: Ψ(w) at the weights played; for an ε-minimiser that of the weights
            it returned, or the minimum plus ε (E-31).
        sq_mismatch: ‖∇F(x) − c‖².
        curvature: Λ.
        smoothness: L.

    Raises:
        InvalidInputError: Λ ≤ L.
    """
    L = positives("smoothness", smoothness)
    spread = above_smoothness(curvature, L) - L
    error = nonnegatives("sq_mismatch", sq_mismatch) / 2 / spread
    f, psi = nonnegatives("gap", gap), as_float64("model_value", model_value)
    return np.asarray(f + psi + error)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CorrectedCoefficients:
    """U⁺ = T_A(U) + β U + γ Q + δ(a) and the recursion of Q (eq:realized-het-A).

    Attributes:
        descent: A = ϑ/(2LR²).
        capped_descent: A/(1 + A f̄).
        growth: β.
        staleness: γ.
        noise: δ(a).
        comparator: a, clients last.
        cap: f̄.
        tracking: A_χ, B_χ, C_χ.
        hypotheses: what must hold for both recursions to be true.
    """

    descent: Float64[Array, "..."]
    capped_descent: Float64[Array, "..."]
    growth: Float64[Array, "..."]
    staleness: Float64[Array, "..."]
    noise: Float64[Array, "..."]
    comparator: Float64[Array, "... n"]
    cap: Float64[Array, "..."]
    tracking: Tracking
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def corrected_coefficients(
    system: System,
    controls: PostLocal,
    *,
    comparator: ArrayLike | None = None,
    box_end: ArrayLike | None = None,
    variant: Variant = "paper",
    printed: bool = False,
) -> CorrectedCoefficients:
    """Coefficients of the two recursions (eq:realized-het-A, -tracking-coeff).

        β = 192ϑ³ + 32(Λ/L)ϑ⁴                                               paper
        γ = 1/(2(Λ − L)) + 39ϑ/L + 64(Λ/L²)ϑ⁴
        δ(a) = (64ϑ³/L) V₁(a) + (16Λϑ²/L²) V₂(a)

        β = 52h₁ϑ³                                                          sharp
        γ = 1/(2(Λ − L)) + (29ϑ + 104h₁ϑ³)/L
        δ(a) = (13ϑ³/L) Σ a_i h₂ᵢ M_i + (Λϑ²/(2L²)) V₂(a)

    h₁ is the comparator's mean Σ a_i h₁ᵢ: the drifts enter through Σ a_i E‖r_i‖².

    Args:
        system: the constants.
        controls: ϑ and Λ.
        comparator: a, clients last; by default the weights of least δ (E-15).
        box_end: θ̄ in the recursion of Q, as the paper has it; by default ϑ (E-33).
        variant: "paper" or "sharp"; section T has no absorbed form here.
        printed: the paper's recursion of Q (E-01).
    """
    theta, Lambda = controls.against(system)
    L, n = system.L, system.n
    linear, quadratic = corrected_noise(system, controls, variant=variant)
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
    return CorrectedCoefficients(
        descent=np.asarray(theta / 4 / system.cap),
        capped_descent=np.asarray(theta / 4 / (1 + theta / 4) / system.cap),
        growth=np.asarray(beta),
        staleness=np.asarray(1 / 2 / (Lambda - L) + stale),
        noise=noise_term(a, linear, quadratic),
        comparator=a,
        cap=system.cap,
        tracking=realised_tracking(
            top, system.noise, system.horizon, L, printed=printed
        ),
        hypotheses=(
            *post_local_hypotheses(theta, Lambda, L),
            at_most("ϑ ≤ θ̄", theta, top),
            *(_printed_is_safe(theta, n) if printed else ()),
        ),
    )


@broadcasting
def corrected_noise(
    system: System, controls: PostLocal, *, variant: Variant = "paper"
) -> tuple[Float64[Array, "... n"], Float64[Array, "... n"]]:
    """The noise term δ(a) = Σ a_i l_i + a_i² q_i as (l, q), clients last."""
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    theta, Lambda = (value[..., None] for value in controls.against(system))
    L, M = system.L[..., None], system.noise
    if variant == "paper":
        linear, quadratic = 64 * theta**3 / L * M, 16 * Lambda * theta**2 / L / L * M
    else:
        _, h2 = horizon_factors(np.asarray(system.horizon))
        linear = 13 * h2 * theta**3 / L * M
        quadratic = Lambda * theta**2 / 2 / L / L * M
    return np.asarray(linear), np.asarray(quadratic)


@broadcasting
def corrected_recursion(
    coefficients: CorrectedCoefficients,
    start: State,
    rounds: int | None = None,
    *,
    solver_gap: ArrayLike = 0.0,
) -> Trajectory:
    """Bounds (U_t, Q_t) of all rounds (th:realized-het-global).

        U⁺ = min{f̄, T_A(U) + β U + γ Q + δ(a) + ε},     Q⁺ = A_χ + B_χ U + C_χ Q

    Args:
        coefficients: constant, or of a schedule with rounds first.
        start: (U₀, Q₀).
        rounds: T for constant coefficients, None for a schedule.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
    """
    k, eps = coefficients, nonnegatives("solver_gap", solver_gap)
    U, Q, begins = upper_state(start, k.cap)
    law = (k.descent, k.growth, k.staleness, k.noise, k.cap)
    chi = (k.tracking.noise, k.tracking.gap, k.tracking.tracking)
    rows = unrolled(rounds, *law, *chi)
    states = [(U, Q)]
    for A, beta, gamma, delta, f, *abc in zip(*rows, strict=True):
        with np.errstate(over="ignore"):  # Q may grow without limit
            after = flow(A, U) + beta * U + gamma * Q + delta + eps
            next_Q = abc[0] + abc[1] * U + abc[2] * Q
        U, Q = np.asarray(np.minimum(f, after)), np.asarray(next_Q)
        states.append((U, Q))
    return trajectory(states, (*k.hypotheses, begins))


@broadcasting
def corrected_rate(
    coefficients: CorrectedCoefficients,
    start: State,
    rounds: ArrayLike,
    *,
    solver_gap: ArrayLike = 0.0,
    printed: bool = False,
) -> Rate:
    """The closed rate at constant ϑ and Λ (cor:realized-het-rate).

        a = A/(1 + A f̄),  d = γ Q̄ + δ(a) + ε,  m = (β + √(β² + 4ad))/(2a)
        U_T ≤ m + 1/(1/(U₀ − m)₊ + aT)                                     printed

    Ours is `scalar_rate`, which also counts that the decay to m is geometric. At the
    comparator a* the noise term is δ(a*) = (64nϑ³/L + 16Λϑ²/L²) α with α of
    `noise_optimal_level` (eq:realized-het-rate-astar).

    Args:
        coefficients: constant ones.
        start: (U₀, Q₀).
        rounds: T.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
        printed: the paper's closed form.

    Raises:
        InvalidInputError: C_χ ≥ 1, so that Q has no cap (erratum E-04).
    """
    k, a, eps = coefficients, coefficients.capped_descent, solver_gap
    rate = coupled_rate(k, a, start, rounds, solver_gap=eps, printed=printed)
    return replace(rate, label="cor:realized-het-rate")


@broadcasting
def post_local_hypotheses(
    theta: Float64[Array, "..."],
    Lambda: Float64[Array, "..."],
    L: Float64[Array, "..."],
) -> tuple[Hypothesis, ...]:
    """Conditions of all post-local bounds in expectation; tuned runs break them (E-02).

    They imply ϑ < 1/2.
    """
    for name, value in (("theta", theta), ("Lambda", Lambda), ("L", L)):
        positives(name, value)
    return (
        below("L < Λ", L, Lambda),
        at_most("Λ ≤ 2L", Lambda, 2 * L),
        at_most("Λϑ ≤ L/2", Lambda * theta, L / 2),
    )


def above_smoothness(curvature: ArrayLike, L: Array) -> Float64[Array, "..."]:
    """Checked Λ > L."""
    Lambda = positives("curvature", curvature)
    low = np.broadcast_arrays(Lambda, L)[0][Lambda <= L]
    if low.size:
        raise invalid("curvature", "above the smoothness L", low.flat[0])
    return Lambda


def _printed_is_safe(theta: Array, n: int) -> tuple[Hypothesis, ...]:
    """Where the printed coefficients are no smaller than the corrected ones (E-01)."""
    return (
        at_most("n ≤ 10", n, 10),
        at_most("ϑ² ≤ 1/(2n + 1)", theta**2, 1 / (2 * n + 1)),
    )
