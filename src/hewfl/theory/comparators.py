"""Fixed controls, as a comparison for the optimised surrogate system (th:sur-cvx).

Fixed weights w and amplitudes θ turn the certificate into a recursion,

    u⁺ ≤ u − a u² + β u + γ χ + δ,     χ⁺ = A + B u + C χ,

which the optimised system cannot exceed (eq:cvx-rec-main). With χ below its cap χ̄ it
is scalar (eq:cvx-rec-closed-main), and u tends to the m with a m² = β m + γ χ̄ + δ.
"""

from dataclasses import replace

import numpy as np

from hewfl.control.certificate import (
    Situation,
    Variant,
    check_variant,
    descent_coefficient,
    mean_penalty,
    variance_bound,
)
from hewfl.control.tracking import predictable_tracking
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, invalid, nonnegatives
from hewfl.theory.noise import best_comparator, simplex_weights
from hewfl.theory.one_step_bound import situation
from hewfl.theory.recursion import Recursion
from hewfl.theory.statement import Hypothesis, at_most
from hewfl.theory.systems import System


@broadcasting
def comparator_coefficients(
    system: System,
    weights: ArrayLike,
    amplitudes: ArrayLike,
    *,
    box_end: ArrayLike | None = None,
    variant: Variant = "paper",
    printed: bool = False,
) -> Recursion:
    """The recursion of (u, χ) under fixed controls (def:cvx-comp, eq:cvx-rec-main).

        a = Σ w_i A_i/(1 + A_i f̄)
        β = Σ w_i ρ_i + (L/2) Σ w_i² κ_i   at (u, χ, M) = (1, 0, 0)
        γ, δ                               the same at (0, 1, 0) and (0, 0, M)

    with the ρ and κ in force. As printed, they are of an earlier ρ and κ (E-08):

        β = 96 Σ w_i θ_i² + 32 Σ w_i² θ_i⁴
        γ = (256/L) Σ w_i θ_i + (64/L) Σ w_i² θ_i⁴
        δ = (32/L) Σ w_i θ_i² M_i + (16/L) Σ w_i² θ_i² M_i

    which is far larger for small θ and false above θ = ln(4)/2. Where "absorbed" makes
    A_i negative, its growth 4f̄|A_i|u counts in β. The box of the optimised controller
    ends at θ̄, by default the largest θ_i.
    """
    w = simplex_weights("weights", weights)
    theta = np.atleast_1d(nonnegatives("amplitudes", amplitudes))
    if check_variant(variant) != "paper" and printed:
        raise invalid("variant", "paper where `printed`", repr(variant))
    A = descent_coefficient(theta, situation(system, 0, 0), variant)
    f = system.cap[..., None]
    fall, rise = np.maximum(A, 0), np.maximum(-A, 0)
    beta, gamma, delta = (
        _printed_cost(system, w, theta) if printed else _cost(system, w, theta, variant)
    )
    largest = theta.max(-1)
    top = np.asarray(largest if box_end is None else nonnegatives("box_end", box_end))
    return Recursion(
        "th:sur-cvx",
        system,
        descent=np.asarray((w * fall / (1 + fall * f)).sum(-1)),
        growth=np.asarray(beta + (w * 4 * f * rise).sum(-1)),
        staleness=gamma,
        noise=delta,
        tracking=predictable_tracking(
            top, system.noise, system.horizon, system.L, variant=variant
        ),
        comparator=w,
        hypotheses=(
            at_most("θ ≤ 1", largest, 1),
            at_most("θ ≤ θ̄", largest, top),
            tracking_hypothesis(top, variant, printed=printed),
            *((at_most("θ ≤ ln(4)/2", largest, np.log(4) / 2),) if printed else ()),
        ),
    )


def least_noise_weights(
    system: System, theta: Array, variant: Variant
) -> Float64[Array, "... n"]:
    """The weights with the least δ of th:sur-cvx at amplitudes θ."""
    at = situation(system, 0, 0)
    linear = mean_penalty(theta, at, variant)
    quadratic: Array = system.L[..., None] / 2 * variance_bound(theta, at, variant)
    return best_comparator(linear, quadratic / system.multiplicity)


def tracking_hypothesis(
    amplitude: Reals, variant: Variant, *, printed: bool
) -> Hypothesis:
    """Where the recursion of χ for fixed weights is proved (prop:sur-track, E-04)."""
    if variant != "paper":
        return at_most("θ̄ ≤ 1", amplitude, 1)
    if printed:
        return at_most("48θ̄² ≤ 1", 48 * amplitude**2, 1)
    return at_most("θ̄ ≤ 1/√3", amplitude, 1 / np.sqrt(3))


def _cost(
    system: System, w: Array, theta: Array, variant: Variant
) -> tuple[Array, Array, Array]:
    """β, γ, δ: Σ w_i ρ_i + (L/2) Σ w_i² κ_i is linear in (u, χ, M)."""

    def cost(at: Situation) -> Array:
        rho = mean_penalty(theta, at, variant)
        kappa = variance_bound(theta, at, variant)
        risk = at.smoothness / 2 * (w / at.count) * kappa
        return np.asarray((w * (rho + risk)).sum(-1))

    quiet = replace(system, variance=0.0)
    ends = (situation(quiet, 1, 0), situation(quiet, 0, 1), situation(system, 0, 0))
    return cost(ends[0]), cost(ends[1]), cost(ends[2])


def _printed_cost(system: System, w: Array, theta: Array) -> tuple[Array, Array, Array]:
    L, M, w2 = system.L, system.noise, w**2 / system.multiplicity
    beta = 96 * (w * theta**2).sum(-1) + 32 * (w2 * theta**4).sum(-1)
    gamma = (256 * (w * theta).sum(-1) + 64 * (w2 * theta**4).sum(-1)) / L
    delta = (32 * (w * theta**2 * M).sum(-1) + 16 * (w2 * theta**2 * M).sum(-1)) / L
    return np.asarray(beta), np.asarray(gamma), np.asarray(delta)
