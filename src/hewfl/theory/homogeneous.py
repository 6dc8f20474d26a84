"""Algorithm 3: plain branches of one common objective, weights chosen afterwards.

Weights are chosen after the local steps, as in Algorithm 2. Path by path
(th:realized-het-one-step, th:realized-hom-one-step), for every Λ > L and every step
d = Σ w_i Δ_i,

    F(x + d) − F* ≤ f + Ψ(w) + ‖∇F − c‖²/(2(Λ − L)),     Ψ = ⟨c, d⟩ + (Λ/2)‖d‖².

Every branch sees ∇F itself, so the mean local gradient ḡ serves as c and no control
variate is needed. In expectation, if batches have the mean gradient ∇F
(`is_homogeneous`),

    g⁺ ≤ T_A(g) + β g + δ                                     (th:realized-hom-bellman)
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control.certificate import Variant, horizon_factors
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
from hewfl.theory.recursion import (
    NO_TRACKING,
    Recursion,
    mask_undefined,
    validate_solver_gap,
)
from hewfl.theory.scalar import linear_rate, power
from hewfl.theory.statement import Hypothesis, Rate, at_most, below
from hewfl.theory.systems import System


@final
@dataclass(frozen=True, slots=True, eq=False)
class PostLocal:
    """What Algorithms 2 and 3 fix for one round, or for every round.

    Attributes:
        amplitude: ϑ > 0, shape (*c), or (rounds, *c) for a schedule.
        curvature: Λ > L, likewise.
    """

    amplitude: ArrayLike
    curvature: ArrayLike

    def validate(self, system: System) -> tuple[Reals, Reals]:
        """Validated ϑ and Λ.

        Args:
            system: the constants, of which L bounds Λ.

        Returns:
            ϑ and Λ as arrays.
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
def homogeneous_coefficients(
    system: System, controls: PostLocal, *, variant: Variant = "paper"
) -> Recursion:
    """Coefficients of Algorithm 3 (th:realized-hom-bellman, cor:realized-hom-rate).

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
    """
    theta, Lambda = controls.validate(system)
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


def slope_error_factors(system: System, variant: Variant) -> tuple[Array, Array]:
    """The pair (k, N) of E‖ḡ − ∇F‖² ≤ 2ϑ²(k L g + N) + 2V_u (lem:realized-hom-q)."""
    if variant not in ("paper", "sharp"):
        raise invalid("variant", "one of paper, sharp", repr(variant))
    if variant == "paper":
        return np.asarray(16.0), np.asarray(4 * uniform_mean_noise(system))
    h1, h2 = horizon_factors(np.asarray(system.horizon))
    m, n = system.multiplicity, system.n
    h1, noise = (m * h1).sum(-1) / n, (m * (h2 * system.noise)).sum(-1) / n
    return np.asarray(4 * h1), np.asarray(2 * noise)


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

    Args:
        coefficients: constant ones.
        pl_constant: μ on the ball; at most L.
        start: g₀.
        rounds: T.
        solver_gap: ε.
        printed: the paper's closed form.

    Returns:
        The rate; vacuous where its floor is at f̄ or above, NaN where ρ ≤ 0: nothing
        contracts there (eq:realized-hom-rho).
    """
    k, g = coefficients, nonnegatives("start", start)
    mu = positives("pl_constant", pl_constant)
    rho = k.contraction(mu)
    falls = below("0 < ρ", 0.0, rho)
    rho = np.where(falls.holds, rho, 1.0)  # a stand-in: `mask_undefined` removes it
    delta = k.noise + validate_solver_gap(solver_gap)
    rate = linear_rate(g, rho, delta, rounds)
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
