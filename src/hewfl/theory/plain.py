"""Plain branches of one common objective: Algorithm 3's guarantees.

Every branch sees ∇F itself, so the mean local gradient ḡ serves as the slope and no
control variate is needed. Path by path `pathwise_bound` holds with ḡ for c,

    F(x + d) − F* ≤ f + Ψ(1/n) − Γ + ‖∇F − ḡ‖²/(2(Λ − L))    (th:realized-hom-one-step)

and in expectation, if batches have the mean gradient ∇F (see `is_homogeneous`),

    g⁺ ≤ T_A(g) + β g + δ                                     (th:realized-hom-bellman)
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

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
from hewfl.theory.comparators import uniform_mean_noise, uniform_noise_of_mean
from hewfl.theory.corrected import (
    PostLocal,
    above_smoothness,
    post_local_hypotheses,
)
from hewfl.theory.recursion import convex_rate, unrolled
from hewfl.theory.scalar import flow, linear_rate, power
from hewfl.theory.statement import Hypothesis, Rate, at_most
from hewfl.theory.systems import System

if TYPE_CHECKING:
    Sampling = Literal["one objective", "fresh draws", "fixed shards"]
else:  # run-time type checks let a wrong name through to a text with the choices
    Sampling = str
_SAMPLINGS = {"one objective": True, "fresh draws": True, "fixed shards": False}


def is_homogeneous(sampling: Sampling, *, printed: bool = False) -> bool:
    """Whether plain branches see ∇F itself (lem:postlocal-hom-sufficient).

    "one objective": F_i = F for all clients. "fresh draws": every batch is drawn anew
    from the pool that F averages. "fixed shards": the pool is shuffled and dealt once;
    given its shard a client sees ∇F_i ≠ ∇F, and no number of rounds averages that out
    (erratum E-14). The printed lemma counts shards as sufficient.
    """
    if sampling not in _SAMPLINGS:
        raise invalid("sampling", f"one of {', '.join(_SAMPLINGS)}", repr(sampling))
    return printed or _SAMPLINGS[sampling]


@broadcasting
def uniform_model_value(
    amplitude: ArrayLike,
    curvature: ArrayLike,
    smoothness: ArrayLike,
    sq_slope: ArrayLike,
) -> Float64[Array, "..."]:
    """Ψ at uniform weights, where d = −(ϑ/L)ḡ (eq:realized-hom-id).

    Ψ(1/n) = −(ϑ/L)(1 − Λϑ/(2L)) ‖ḡ‖²
    """
    L = positives("smoothness", smoothness)
    theta = positives("amplitude", amplitude)
    Lambda = above_smoothness(curvature, L)
    decrease = theta / L * (1 - Lambda * theta / 2 / L)
    return np.asarray(-decrease * nonnegatives("sq_slope", sq_slope))


@broadcasting
def plain_advantage(
    uniform_value: ArrayLike, model_value: ArrayLike
) -> Float64[Array, "..."]:
    """Γ = Ψ(1/n) − Ψ(w), what exact weights gain over uniform ones; ≥ 0 for them."""
    uniform = as_float64("uniform_value", uniform_value)
    return np.asarray(uniform - as_float64("model_value", model_value))


@broadcasting
def plain_slope_error(
    system: System, amplitude: ArrayLike, gap: ArrayLike, *, variant: Variant = "paper"
) -> Float64[Array, "..."]:
    """Bound on E‖ḡ − ∇F‖² (lem:realized-hom-q).

    32Lϑ²g + 8ϑ²V̄₁ + 2V_u                             paper
    8h₁Lϑ²g + 4ϑ² (1/n)Σ h₂ᵢM_i + 2V_u,  h₁ the mean  sharp
    """
    theta, g = positives("amplitude", amplitude), nonnegatives("gap", gap)
    drift, noise = _drift(system, variant)
    L, V_u = system.L, uniform_noise_of_mean(system)
    return np.asarray(2 * theta**2 * (drift * L * g + noise) + 2 * V_u)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlainCoefficients:
    """g⁺ ≤ T_A(g) + β g + δ.

    Attributes:
        descent: A = ϑ/(4LR²).
        capped_descent: A/(1 + A f̄).
        gradient_descent: ϑ/(4L), what a unit of ‖∇F‖² takes off the gap.
        growth: β.
        noise: δ.
        cap: f̄.
        smoothness: L.
        hypotheses: what must hold for the inequality to be true.
    """

    descent: Float64[Array, "..."]
    capped_descent: Float64[Array, "..."]
    gradient_descent: Float64[Array, "..."]
    growth: Float64[Array, "..."]
    noise: Float64[Array, "..."]
    cap: Float64[Array, "..."]
    smoothness: Float64[Array, "..."]
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def plain_coefficients(
    system: System, controls: PostLocal, *, variant: Variant = "paper"
) -> PlainCoefficients:
    """Coefficients of the Bellman inequality.

        β = 16ϑ³ + 16Lϑ²/(Λ − L)                                          paper
        δ = (4ϑ³/L + 4ϑ²/(Λ − L)) V̄₁ + (ϑ/L + 1/(Λ − L)) V_u

        β = 4h₁(ϑ³ + Lϑ²/(Λ − L))                                         sharp
        δ = 2(ϑ³/L + ϑ²/(Λ − L)) (1/n)Σ h₂ᵢM_i + (ϑ/L + 1/(Λ − L)) V_u

    with h₁ the mean over clients.

    Args:
        system: the constants.
        controls: ϑ and Λ.
        variant: "paper" or "sharp"; section T has no absorbed form here.
    """
    theta, Lambda = controls.against(system)
    L, V_u = system.L, uniform_noise_of_mean(system)
    # Uniform weights give Ψ ≤ −(ϑ/2L)‖ḡ‖² ≤ −(ϑ/4L)‖∇F‖² + (ϑ/2L)‖q‖², q = ḡ − ∇F.
    # With the mismatch term, E‖q‖² has the factor (ϑ/L + 1/(Λ − L))/2 whatever bounds
    # it: 2ϑ²(k L g + N) + 2V_u, in the paper with k = 16, N = 4V̄₁. In the sharp form
    # the mean drift of a branch obeys E‖b_i‖² ≤ ϑ²(2h₁ᵢ E‖∇F‖² + 2h₂ᵢM_i) (T3 without
    # mismatch), and E‖∇F‖² ≤ 2Lg: k = 4 mean h₁ᵢ, N = 2 mean h₂ᵢM_i.
    factor = theta / L + 1 / (Lambda - L)
    drift, noise = _drift(system, variant)
    return PlainCoefficients(
        descent=np.asarray(theta / 8 / system.cap),
        capped_descent=np.asarray(theta / 8 / (1 + theta / 8) / system.cap),
        gradient_descent=np.asarray(theta / 4 / L),
        growth=np.asarray(drift * theta**2 * (theta + L / (Lambda - L))),
        noise=np.asarray(factor * (theta**2 * noise + V_u)),
        cap=system.cap,
        smoothness=L,
        hypotheses=post_local_hypotheses(theta, Lambda, L),
    )


@broadcasting
def plain_step(
    coefficients: PlainCoefficients, gap: ArrayLike, *, solver_gap: ArrayLike = 0.0
) -> Float64[Array, "..."]:
    """Bound on the next expected gap, T_A(g) + β g + δ + ε (th:realized-hom-bellman).

    Args:
        coefficients: of the round.
        gap: g, or a bound on it; the right side grows with g.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
    """
    k, g = coefficients, nonnegatives("gap", gap)
    eps = nonnegatives("solver_gap", solver_gap)
    return np.asarray(flow(k.descent, g) + k.growth * g + k.noise + eps)


@broadcasting
def plain_recursion(
    coefficients: PlainCoefficients,
    start: ArrayLike,
    rounds: int | None = None,
    *,
    solver_gap: ArrayLike = 0.0,
) -> Float64[Array, "rounds ..."]:
    """Bounds min{f̄, T_A(g) + β g + δ + ε} on the expected gap, rounds 0 to T.

    Args:
        coefficients: constant, or of a schedule with rounds first; their hypotheses are
            those of the bounds.
        start: g₀.
        rounds: T for constant coefficients, None for a schedule.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
    """
    k, eps = coefficients, nonnegatives("solver_gap", solver_gap)
    g = [nonnegatives("start", start)]
    law = unrolled(rounds, k.descent, k.growth, k.noise, k.cap)
    for A, beta, delta, f in zip(*law, strict=True):
        after = flow(A, g[-1]) + beta * g[-1] + delta + eps
        g.append(np.asarray(np.minimum(f, after)))
    return np.stack(np.broadcast_arrays(*g))


@broadcasting
def plain_rate(
    coefficients: PlainCoefficients,
    start: ArrayLike,
    rounds: ArrayLike,
    *,
    solver_gap: ArrayLike = 0.0,
    printed: bool = False,
) -> Rate:
    """The closed convex rate at constant ϑ and Λ (cor:realized-hom-rate).

        a = A/(1 + A f̄),  d = δ + ε,  m = (β + √(β² + 4ad))/(2a)
        g_T ≤ m + 1/(1/(g₀ − m)₊ + aT)                             printed

    Ours is `scalar_rate`, which also counts that the decay to m is geometric. Both keep
    to the positive root: without noise the paper also admits m = 0 (erratum E-07).
    """
    k, g = coefficients, nonnegatives("start", start)
    d = k.noise + nonnegatives("solver_gap", solver_gap)
    law = (k.capped_descent, k.growth, np.asarray(d))
    rate = convex_rate(law, k.cap, g, rounds, printed=printed)
    hypotheses = (*k.hypotheses, at_most("g₀ ≤ f̄", g, k.cap), *rate.hypotheses)
    return replace(rate, label="cor:realized-hom-rate", hypotheses=hypotheses)


@broadcasting
def plain_pl_rate(
    coefficients: PlainCoefficients,
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

    Args:
        coefficients: constant ones.
        pl_constant: μ with ‖∇F‖² ≥ 2μ(F − F*) on the ball; at most L.
        start: g₀.
        rounds: T.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
        printed: the paper's closed form.

    Raises:
        InvalidInputError: ρ ≤ 0, so that nothing contracts (eq:realized-hom-rho).
    """
    k, g = coefficients, nonnegatives("start", start)
    mu = positives("pl_constant", pl_constant)
    rho = plain_contraction(k, mu)
    if (rho <= 0).any():
        rule = "large enough for ρ = μϑ/(2L) − β > 0, or ϑ small enough"
        raise invalid("pl_constant", rule, f"ρ = {rho[rho <= 0].flat[0]}")
    delta = k.noise + nonnegatives("solver_gap", solver_gap)
    rate = linear_rate(g, rho, delta, rounds)
    if printed:
        rate = replace(rate, value=np.asarray(rate.floor + power(rho, rounds) * g))
    return replace(
        rate,
        label="cor:realized-hom-PL",
        vacuous=np.asarray(rate.floor >= k.cap),
        hypotheses=(
            *k.hypotheses,
            at_most("μ ≤ L", mu, k.smoothness),
            *rate.hypotheses,
        ),
    )


@broadcasting
def plain_contraction(
    coefficients: PlainCoefficients, pl_constant: ArrayLike
) -> Float64[Array, "..."]:
    """ρ = μϑ/(2L) − β of g⁺ ≤ (1 − ρ) g + δ (eq:realized-hom-PL-rec)."""
    k, mu = coefficients, positives("pl_constant", pl_constant)
    return np.asarray(2 * mu * k.gradient_descent - k.growth)


def _drift(system: System, variant: Variant) -> tuple[Array, Array]:
    """The pair (k, N) of E‖ḡ − ∇F‖² ≤ 2ϑ²(k L g + N) + 2V_u."""
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    if variant == "paper":
        return np.asarray(16.0), np.asarray(4 * uniform_mean_noise(system))
    h1, h2 = horizon_factors(np.asarray(system.horizon))
    return np.asarray(4 * h1.mean(-1)), np.asarray(2 * (h2 * system.noise).mean(-1))
