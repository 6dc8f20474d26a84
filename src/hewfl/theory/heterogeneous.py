"""Algorithm 2: corrected branches, weights chosen afterwards.

In expectation (th:realized-het-global), with any fixed weights a to compare with,

    U⁺ = min{f̄, T_A(U) + β U + γ Q + δ(a)},     Q⁺ = A_χ + B_χ U + C_χ Q.

The printed recursion of Q does not allow for weights that favour rare large moves
(erratum E-01); the corrected one, our default, sums noise and mismatch over clients.
"""

import numpy as np

from hewfl.control.certificate import Variant, horizon_factors
from hewfl.control.tracking import realised_tracking
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, invalid, nonnegatives
from hewfl.theory.homogeneous import PostLocal, post_local_hypotheses
from hewfl.theory.noise import (
    best_comparator,
    noise_term,
    simplex_weights,
)
from hewfl.theory.recursion import Recursion
from hewfl.theory.statement import Hypothesis, at_most
from hewfl.theory.systems import System


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
    (eq:realized-het-tracking-coeff). At the comparator a* the noise term is
    δ(a*) = (64nϑ³/L + 16Λϑ²/L²) α with α of `noise_optimal_level`
    (eq:realized-het-rate-astar).

    Args:
        system: the constants.
        controls: ϑ and Λ.
        comparator: a, clients last; by default the weights of least δ (E-15).
        box_end: θ̄ in the recursion of Q, as the paper has it; by default ϑ (E-33).
        variant: "paper" or "sharp"; section T has no absorbed form here.
        printed: the paper's recursion of Q (E-01).

    Returns:
        The recursion of (U, Q).
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
        hypotheses=(
            *post_local_hypotheses(theta, Lambda, L),
            at_most("ϑ ≤ θ̄", theta, top),
            *(_printed_is_safe(theta, n) if printed else ()),
        ),
    )


@broadcasting
def heterogeneous_noise(
    system: System, controls: PostLocal, *, variant: Variant = "paper"
) -> tuple[Float64[Array, "... n"], Float64[Array, "... n"]]:
    """The noise term δ(a) = Σ a_i l_i + a_i² q_i as (l, q), clients last."""
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    theta, Lambda = (value[..., None] for value in controls.validate(system))
    L, M = system.L[..., None], system.noise
    if variant == "paper":
        linear, quadratic = 64 * theta**3 / L * M, 16 * Lambda * theta**2 / L / L * M
    else:
        _, h2 = horizon_factors(np.asarray(system.horizon))
        linear = 13 * h2 * theta**3 / L * M
        quadratic = Lambda * theta**2 / 2 / L / L * M
    return np.asarray(linear), np.asarray(quadratic / system.multiplicity)


def _printed_is_safe(theta: Array, n: int) -> tuple[Hypothesis, ...]:
    """Where the printed coefficients are no smaller than the corrected ones (E-01)."""
    return (
        at_most("n ≤ 10", n, 10),
        at_most("ϑ² ≤ 1/(2n + 1)", theta**2, 1 / (2 * n + 1)),
    )
