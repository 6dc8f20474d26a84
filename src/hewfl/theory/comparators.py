"""Fixed controls to compare with: the noise they leave, the recursion they give.

With M_i = v_i²/(H_i b_i), weights a cost a round's bound p V₁(a) + q V₂(a):

    V₁(a) = Σ a_i M_i,     V₂(a) = Σ a_i² M_i,     V̄₁ = V₁(1/n),     V_u = V₂(1/n).

V₁ is the mean noise of the branches, V₂ the noise of their mean.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import (
    Array,
    ArrayLike,
    as_float64,
    broadcast,
    invalid,
    nonnegatives,
)
from hewfl.core.shapes import broadcasting
from hewfl.predictive.certificate import (
    Situation,
    Variant,
    check_variant,
    descent_coefficient,
    mean_penalty,
    variance_bound,
)
from hewfl.predictive.tracking import Tracking, predictable_tracking
from hewfl.solver.threshold import threshold_weights
from hewfl.theory.one_step_bound import situation
from hewfl.theory.statement import Hypothesis, at_most
from hewfl.theory.systems import System


@broadcasting
def mean_noise(system: System, weights: ArrayLike) -> Float64[Array, "..."]:
    """V₁(a) = Σ a_i M_i, for weights a with clients last."""
    a = simplex_weights("weights", weights)
    return np.asarray((a * system.noise).sum(-1))


@broadcasting
def noise_of_mean(system: System, weights: ArrayLike) -> Float64[Array, "..."]:
    """V₂(a) = Σ a_i² M_i, for weights a with clients last."""
    a = simplex_weights("weights", weights)
    return np.asarray((a * (a * system.noise)).sum(-1))


def uniform_mean_noise(system: System) -> Float64[Array, "..."]:
    """V̄₁ = (1/n) Σ M_i."""
    return np.asarray((system.noise / system.n).sum(-1))


def uniform_noise_of_mean(system: System) -> Float64[Array, "..."]:
    """V_u = (1/n²) Σ M_i."""
    return np.asarray((system.noise / system.n**2).sum(-1))


def noise_optimal(system: System) -> Float64[Array, "... n"]:
    """The weights of least V₂ (eq:realized-het-positive-v).

        a*_i = α / M_i ∝ H_i b_i / v_i²

    Clients without noise, where there are any, share all the weight equally: V₁ and V₂
    are then zero, as they are for any other split among them (erratum E-15).
    """
    ratio = _quietness(system)
    return np.asarray(ratio / ratio.sum(-1, keepdims=True))


def noise_optimal_level(system: System) -> Float64[Array, "..."]:
    """α = (Σ H_i b_i / v_i²)⁻¹, so that V₂(a*) = α and V₁(a*) = nα.

    Zero where a client has no noise. With it the noise term at a* reads
    (pn + q) α (eq:realized-het-rate-astar).
    """
    return np.asarray(system.noise.min(-1) / _quietness(system).sum(-1))


@broadcasting
def best_comparator(linear: ArrayLike, quadratic: ArrayLike) -> Float64[Array, "... n"]:
    """The weights of least noise term, by the threshold law (erratum E-15).

        a = argmin over a ∈ Δ_n of  Σ a_i l_i + a_i² q_i

    For δ^het(a) = p V₁(a) + q V₂(a) take l_i = p M_i and q_i = q M_i: never worse than
    a*, which is best for V₂ alone.

    Args:
        linear: l, clients last.
        quadratic: q ≥ 0, clients last.
    """
    first, second = as_float64("linear", linear), nonnegatives("quadratic", quadratic)
    both = broadcast({"linear": first, "quadratic": second})
    return threshold_weights(-both["linear"], 2 * both["quadratic"]).weights


@broadcasting
def noise_term(
    weights: ArrayLike, linear: ArrayLike, quadratic: ArrayLike
) -> Float64[Array, "..."]:
    """Σ a_i l_i + a_i² q_i, the value that `best_comparator` makes least."""
    a = simplex_weights("weights", weights)
    first, second = as_float64("linear", linear), as_float64("quadratic", quadratic)
    return np.asarray((a * (first + a * second)).sum(-1))


def simplex_weights(name: str, weights: ArrayLike) -> Float64[Array, "... n"]:
    """Require weights on the simplex, clients last."""
    w = as_float64(name, weights)
    if w.ndim == 0 or (w < 0).any() or not np.allclose(w.sum(-1), 1, rtol=0, atol=1e-9):
        raise invalid(name, "nonnegative and summing to one", repr(weights)[:80])
    return w


@final
@dataclass(frozen=True, slots=True, eq=False)
class ComparatorCoefficients:
    """u⁺ ≤ u − a u² + β u + γ χ + δ for fixed controls (def:cvx-comp).

    Attributes:
        descent: a.
        growth: β.
        staleness: γ.
        noise: δ.
        cap: f̄.
        tracking: A, B, C of the recursion of χ.
        hypotheses: what must hold for both recursions to be true.
    """

    descent: Float64[Array, "..."]
    growth: Float64[Array, "..."]
    staleness: Float64[Array, "..."]
    noise: Float64[Array, "..."]
    cap: Float64[Array, "..."]
    tracking: Tracking
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def comparator_coefficients(
    system: System,
    weights: ArrayLike,
    amplitudes: ArrayLike,
    *,
    box_end: ArrayLike | None = None,
    variant: Variant = "paper",
    printed: bool = False,
) -> ComparatorCoefficients:
    """The coefficients of a comparator (def:cvx-comp, erratum E-08).

        a = Σ w_i A_i/(1 + A_i f̄)
        β = Σ w_i ρ_i + (L/2) Σ w_i² κ_i   at (u, χ, M) = (1, 0, 0)
        γ, δ                               the same at (0, 1, 0) and (0, 0, M)

    with the ρ and κ in force. As printed, they are taken from an earlier ρ and κ:

        β = 96 Σ w_i θ_i² + 32 Σ w_i² θ_i⁴
        γ = (256/L) Σ w_i θ_i + (64/L) Σ w_i² θ_i⁴
        δ = (32/L) Σ w_i θ_i² M_i + (16/L) Σ w_i² θ_i² M_i

    which is far larger for small θ and false above θ = ln(4)/2. Where "absorbed" makes
    A_i negative, its growth 4f̄|A_i|u counts in β.

    Args:
        system: the constants.
        weights: w, clients last.
        amplitudes: θ_i ≥ 0, clients last, or one for all.
        box_end: θ̄, the largest amplitude the optimised controller may play; by default
            the comparator's largest.
        variant: which constants.
        printed: the paper's coefficients; only with variant "paper".
    """
    w = simplex_weights("weights", weights)
    theta = np.atleast_1d(nonnegatives("amplitudes", amplitudes))
    if check_variant(variant) != "paper" and printed:
        raise invalid("variant", "paper where `printed`", repr(variant))
    A = descent_coefficient(theta, situation(system, 0, 0), variant)
    f = system.cap[..., None]
    fall, rise = np.maximum(A, 0), np.maximum(-A, 0)
    cost = _printed(system, w, theta) if printed else _cost(system, w, theta, variant)
    played = theta.max(-1)
    top = np.asarray(played if box_end is None else nonnegatives("box_end", box_end))
    return ComparatorCoefficients(
        descent=np.asarray((w * fall / (1 + fall * f)).sum(-1)),
        growth=np.asarray(cost[0] + (w * 4 * f * rise).sum(-1)),
        staleness=np.asarray(cost[1]),
        noise=np.asarray(cost[2]),
        cap=system.cap,
        tracking=predictable_tracking(
            top, system.noise, system.horizon, system.L, variant=variant
        ),
        hypotheses=(
            at_most("θ ≤ 1", played, 1),
            at_most("θ ≤ θ̄", played, top),
            tracking_hypothesis(top, variant, printed=printed),
            *((at_most("θ ≤ ln(4)/2", played, np.log(4) / 2),) if printed else ()),
        ),
    )


def tracking_hypothesis(
    amplitude: Float64[Array, "..."], variant: Variant, *, printed: bool
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
        rho, kappa = (
            mean_penalty(theta, at, variant),
            variance_bound(theta, at, variant),
        )
        return np.asarray((w * (rho + at.smoothness / 2 * w * kappa)).sum(-1))

    quiet = replace(system, variance=0.0)
    return (
        cost(situation(quiet, 1, 0)),
        cost(situation(quiet, 0, 1)),
        cost(situation(system, 0, 0)),
    )


def _printed(system: System, w: Array, theta: Array) -> tuple[Array, Array, Array]:
    L, M = system.L, system.noise
    beta = 96 * (w * theta**2).sum(-1) + 32 * (w**2 * theta**4).sum(-1)
    gamma = (256 * (w * theta).sum(-1) + 64 * (w**2 * theta**4).sum(-1)) / L
    delta = (32 * (w * theta**2 * M).sum(-1) + 16 * (w**2 * theta**2 * M).sum(-1)) / L
    return np.asarray(beta), np.asarray(gamma), np.asarray(delta)


def _quietness(system: System) -> Float64[Array, "... n"]:
    """min_j M_j / M_i ∈ [0, 1]: in this unit no inverse overflows, and 0/0 is 1."""
    M = system.noise
    least = M.min(-1, keepdims=True)
    ratio: Array = np.divide(least, M, out=np.ones(M.shape), where=least < M)
    return ratio
