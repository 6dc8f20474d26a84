"""What Algorithms 2 and 3 share: their controls, and bounds along every path.

Weights are chosen after the local steps. Path by path (th:realized-het-one-step,
th:realized-hom-one-step), for every Λ > L and every step d = Σ w_i Δ_i,

    F(x + d) − F* ≤ f + Ψ(w) + ‖∇F − c‖²/(2(Λ − L)),     Ψ = ⟨c, d⟩ + (Λ/2)‖d‖².
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.control.certificate import Variant, horizon_factors
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
from hewfl.theory.noise import uniform_mean_noise, uniform_noise_of_mean
from hewfl.theory.recursion import NO_TRACKING, Recursion, convex_rate, only_where
from hewfl.theory.scalar import flow, linear_rate, power
from hewfl.theory.statement import Hypothesis, Rate, at_most, below
from hewfl.theory.systems import System
from hewfl.theory.trajectories import Whole, solver_gaps

if TYPE_CHECKING:
    Sampling = Literal["one objective", "fresh draws", "fixed shards"]
else:  # run-time type checks let a wrong name through to a text with the choices
    Sampling = str
_SAMPLINGS = {"one objective": True, "fresh draws": True, "fixed shards": False}


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

    def against(self, system: System) -> tuple[Reals, Reals]:
        """Validated ϑ and Λ.

        Raises:
            InvalidInputError: ϑ ≤ 0 or Λ ≤ L.
        """
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
        model_value: Ψ(w) at the weights played; for an ε-minimiser that of the weights
            it returned, or the minimum plus ε (E-31).
        sq_mismatch: ‖∇F(x) − c‖².
        curvature: Λ.
        smoothness: L.

    Returns:
        The bound, shape (*c).

    Raises:
        InvalidInputError: Λ ≤ L.
    """
    L = positives("smoothness", smoothness)
    spread = above_smoothness(curvature, L) - L
    error = nonnegatives("sq_mismatch", sq_mismatch) / 2 / spread
    f, psi = nonnegatives("gap", gap), as_float64("model_value", model_value)
    return np.asarray(f + psi + error)


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
def plain_advantage(uniform_value: ArrayLike, model_value: ArrayLike) -> Reals:
    """Γ = Ψ(1/n) − Ψ(w), what exact weights gain over uniform ones; ≥ 0 for them."""
    uniform = as_float64("uniform_value", uniform_value)
    return np.asarray(uniform - as_float64("model_value", model_value))


def is_homogeneous(sampling: Sampling, *, printed: bool = False) -> bool:
    """Whether plain branches see ∇F itself (lem:postlocal-hom-sufficient).

    "one objective": F_i = F for all clients. "fresh draws": every batch is drawn anew
    from the pool that F averages. "fixed shards": the pool is shuffled and dealt once;
    given its shard a client sees ∇F_i ≠ ∇F, and no number of rounds averages that out
    (erratum E-14). The printed lemma counts shards as sufficient.

    Args:
        sampling: where batches come from.
        printed: the paper's lemma, which is false for shards.

    Returns:
        True where E[batch gradient] = ∇F for every client in every round.

    Raises:
        InvalidInputError: an unknown sampling.
    """
    if sampling not in _SAMPLINGS:
        raise invalid("sampling", f"one of {', '.join(_SAMPLINGS)}", repr(sampling))
    return printed or _SAMPLINGS[sampling]


# ------------------ Algorithm 3 over many rounds: plain branches of one common

# Every branch sees ∇F itself, so the mean local gradient ḡ serves as the slope and no
# control variate is needed. Path by path `post_local.pathwise_bound` holds with ḡ for c;
# in expectation, if batches have the mean gradient ∇F (see `post_local.is_homogeneous`),
#
#     g⁺ ≤ T_A(g) + β g + δ                                     (th:realized-hom-bellman)


@broadcasting
def plain_slope_error(
    system: System, amplitude: ArrayLike, gap: ArrayLike, *, variant: Variant = "paper"
) -> Reals:
    """Bound on E‖ḡ − ∇F‖² (lem:realized-hom-q).

    32Lϑ²g + 8ϑ²V̄₁ + 2V_u                             paper
    8h₁Lϑ²g + 4ϑ² (1/n)Σ h₂ᵢM_i + 2V_u,  h₁ the mean  sharp
    """
    theta, g = positives("amplitude", amplitude), nonnegatives("gap", gap)
    drift, noise = _drift(system, variant)
    L, V_u = system.L, uniform_noise_of_mean(system)
    return np.asarray(2 * theta**2 * (drift * L * g + noise) + 2 * V_u)


@broadcasting
def plain_coefficients(
    system: System, controls: PostLocal, *, variant: Variant = "paper"
) -> Recursion:
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

    Returns:
        The recursion of g; its tracking part is zero.

    Raises:
        InvalidInputError: ϑ ≤ 0, Λ ≤ L, or a variant that does not exist here.
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
    return Recursion(
        system,
        flows=True,
        descent=np.asarray(theta / 8 / system.cap),
        capped_descent=np.asarray(theta / 8 / (1 + theta / 8) / system.cap),
        slope=np.asarray(theta / 4 / L),
        growth=np.asarray(drift * theta**2 * (theta + L / (Lambda - L))),
        noise=np.asarray(factor * (theta**2 * noise + V_u)),
        staleness=np.zeros(()),
        tracking=NO_TRACKING,
        hypotheses=post_local_hypotheses(theta, Lambda, L),
    )


@broadcasting
def plain_step(
    coefficients: Recursion, gap: ArrayLike, *, solver_gap: ArrayLike = 0.0
) -> Reals:
    """Bound on the next expected gap, T_A(g) + β g + δ + ε (th:realized-hom-bellman).

    Args:
        coefficients: of the round.
        gap: g, or a bound on it; the right side grows with g.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
    """
    k, g = coefficients, nonnegatives("gap", gap)
    eps = solver_gaps(solver_gap)
    return np.asarray(flow(k.descent, g) + k.growth * g + k.noise + eps)


@broadcasting
def plain_recursion(
    coefficients: Recursion,
    start: ArrayLike,
    rounds: Whole | None = None,
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

    Returns:
        g_t for t = 0, ..., T, rounds first.
    """
    k, eps = coefficients, solver_gap
    return k.trajectory((start, 0.0), rounds, solver_gap=eps).gap


@broadcasting
def plain_rate(
    coefficients: Recursion,
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

    Args:
        coefficients: constant ones.
        start: g₀ ≥ 0.
        rounds: T.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
        printed: the paper's form.

    Returns:
        The rate; vacuous where its floor is at f̄ or above.
    """
    k, g = coefficients, nonnegatives("start", start)
    law = k.at_cap(0.0, solver_gap)
    rate = convex_rate(law, k.cap, g, rounds, printed=printed)
    hypotheses = (*k.hypotheses, at_most("g₀ ≤ f̄", g, k.cap), *rate.hypotheses)
    return replace(rate, label="cor:realized-hom-rate", hypotheses=hypotheses)


@broadcasting
def plain_pl_rate(
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

    Args:
        coefficients: constant ones.
        pl_constant: μ with ‖∇F‖² ≥ 2μ(F − F*) on the ball; at most L.
        start: g₀.
        rounds: T.
        solver_gap: ε, how far Ψ at the weights played may be from its minimum (E-31).
        printed: the paper's closed form.

    Returns:
        The rate; vacuous where its floor is at f̄ or above. Among several
        configurations it is NaN where ρ ≤ 0.

    Raises:
        InvalidInputError: ρ ≤ 0 in the only configuration, so that nothing contracts
            (eq:realized-hom-rho).
    """
    k, g = coefficients, nonnegatives("start", start)
    mu = positives("pl_constant", pl_constant)
    rho = k.contraction(mu)
    falls = below("0 < ρ", 0.0, rho)
    if not rho.ndim and rho <= 0:
        rule = "large enough for ρ = μϑ/(2L) − β > 0, or ϑ small enough"
        raise invalid("pl_constant", rule, f"ρ = {rho}")
    rho = np.where(falls.holds, rho, 1.0)  # a stand-in: `only_where` takes it out
    delta = k.noise + solver_gaps(solver_gap)
    rate = linear_rate(g, rho, delta, rounds)
    if printed:
        rate = replace(rate, value=np.asarray(rate.floor + power(rho, rounds) * g))
    known = (*k.hypotheses, at_most("μ ≤ L", mu, k.system.L), falls)
    rate = replace(
        rate,
        label="cor:realized-hom-PL",
        vacuous=np.asarray(rate.floor >= k.cap),
        hypotheses=(*known, *rate.hypotheses),
    )
    return only_where(falls.holds, rate)


def _drift(system: System, variant: Variant) -> tuple[Array, Array]:
    """The pair (k, N) of E‖ḡ − ∇F‖² ≤ 2ϑ²(k L g + N) + 2V_u."""
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    if variant == "paper":
        return np.asarray(16.0), np.asarray(4 * uniform_mean_noise(system))
    h1, h2 = horizon_factors(np.asarray(system.horizon))
    m, n = system.multiplicity, system.n
    h1, noise = (m * h1).sum(-1) / n, (m * (h2 * system.noise)).sum(-1) / n
    return np.asarray(4 * h1), np.asarray(2 * noise)
