"""Algorithm 2 over many rounds: corrected branches, weights chosen afterwards.

In expectation (th:realized-het-global), with any fixed weights a to compare with,

    U⁺ = min{f̄, T_A(U) + β U + γ Q + δ(a)},     Q⁺ = A_χ + B_χ U + C_χ Q.

The printed recursion of Q does not allow for weights that favour rare large moves
(erratum E-01); the corrected one, our default, sums noise and mismatch over clients.
"""

from dataclasses import replace

import numpy as np

from hewfl.control.certificate import Variant, horizon_factors
from hewfl.control.tracking import realised_tracking
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, invalid, nonnegatives, positives
from hewfl.theory.homogeneous import PostLocal, post_local_hypotheses
from hewfl.theory.noise import (
    best_comparator,
    mean_noise,
    noise_of_mean,
    noise_term,
    simplex_weights,
)
from hewfl.theory.recursion import Recursion
from hewfl.theory.statement import Bound, Hypothesis, Rate, at_most
from hewfl.theory.systems import System
from hewfl.theory.trajectories import State, Trajectory, Whole, checked_state


@broadcasting
def corrected_coefficients(
    system: System,
    controls: PostLocal,
    *,
    comparator: ArrayLike | None = None,
    box_end: ArrayLike | None = None,
    variant: Variant = "paper",
    printed: bool = False,
) -> Recursion:
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

    Returns:
        The recursion of (U, Q).

    Raises:
        InvalidInputError: ϑ ≤ 0, Λ ≤ L, a comparator off the simplex, or a variant that
            does not exist here.
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
    return Recursion(
        system,
        flows=True,
        descent=np.asarray(theta / 4 / system.cap),
        capped_descent=np.asarray(theta / 4 / (1 + theta / 4) / system.cap),
        growth=np.asarray(beta),
        staleness=np.asarray(1 / 2 / (Lambda - L) + stale),
        noise=noise_term(a, linear, quadratic),
        comparator=a,
        tracking=realised_tracking(
            top, system.noise, system.horizon, L, count=system.count, printed=printed
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
    return np.asarray(linear), np.asarray(quadratic / system.multiplicity)


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

    Args:
        system: the constants.
        controls: ϑ; Λ plays no part.
        comparator: a, fixed before the draws, clients last.
        state: (U, Q).
        variant: "paper" or "sharp".

    Raises:
        InvalidInputError: a comparator off the simplex, a negative state, or a variant
            that does not exist here.
    """
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    theta, L = positives("amplitude", controls.amplitude), system.L
    a = simplex_weights("comparator", comparator)
    U, Q = checked_state("state", state)
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
def corrected_recursion(
    coefficients: Recursion,
    start: State,
    rounds: Whole | None = None,
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

    Returns:
        The bounds of rounds 0 to T.
    """
    return coefficients.trajectory(start, rounds, solver_gap=solver_gap)


@broadcasting
def corrected_rate(
    coefficients: Recursion,
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

    Returns:
        The rate; vacuous where its floor is at f̄ or above.

    Raises:
        InvalidInputError: C_χ ≥ 1, so that Q has no cap (erratum E-04).
    """
    k = coefficients
    rate = k.rate(start, rounds, solver_gap=solver_gap, printed=printed)
    return replace(rate, label="cor:realized-het-rate")


def _printed_is_safe(theta: Array, n: int) -> tuple[Hypothesis, ...]:
    """Where the printed coefficients are no smaller than the corrected ones (E-01)."""
    return (
        at_most("n ≤ 10", n, 10),
        at_most("ϑ² ≤ 1/(2n + 1)", theta**2, 1 / (2 * n + 1)),
    )
