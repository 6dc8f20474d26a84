"""The uniform controller under the PL condition ‖∇F‖² ≥ 2μ(F − F*).

    g⁺ ≤ (1 − a)g + γ q + δ,     q⁺ ≤ A + B g + C q,     a = 2μσ − β

has one combination g + λq that contracts by 1 − ρ (th:pl-global). μ here is the PL
constant, not the gain of the one-step certificate.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import ArrayLike, Reals, positives
from hewfl.theory.recursion import State, validate_state
from hewfl.theory.scalar import power
from hewfl.theory.statement import (
    Hypothesis,
    Rate,
    at_most,
    below,
    rate_with_floor,
)
from hewfl.theory.uniform_controller import UniformController


@final
@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """How g + λq contracts.

    Attributes:
        a: a_PL, the contraction of g alone.
        rho: ρ_PL; not positive where the coupling is too strong.
        lam: λ_PL.
        floor: (δ + λA_q)/ρ, infinite where ρ ≤ 0.
        hypotheses: of th:pl-global, those of the uniform controller included; but not
            a_PL < 1 − C_q, which it does not need (E-22).
    """

    a: Reals
    rho: Reals
    lam: Reals
    floor: Reals
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def pl_contraction(
    controller: UniformController, pl_constant: ArrayLike
) -> Contraction:
    """The contracting combination of g and q (th:pl-global).

        a = μϑ/L − β,   ν = 1 − C_q,   D = √((ν − a)² + 4B_qγ)
        ρ = (a + ν − D)/2 = 2(aν − B_qγ)/(a + ν + D),   λ = 2γ/(ν − a + D)

    The displayed ρ loses its digits for small ϑ (E-22); the second form has them. For
    ν < a the same is done to λ = (a − ν + D)/(2B_q). Where γ = 0 nothing couples g to
    q: then ρ = a and λ = 0 for every C_q.
    """
    k, mu = controller.recursion, positives("pl_constant", pl_constant)
    B, gamma, nu = k.tracking.gap, k.staleness, 1 - k.tracking.tracking
    a = k.contraction(mu)
    # hypot of roots forms neither square nor the product Bγ ~ ϑ⁵, which underflow first
    D = np.hypot(nu - a, 2 * np.sqrt(B) * np.sqrt(gamma))
    with np.errstate(divide="ignore", invalid="ignore"):
        slow = 2 * (a * nu - B * gamma) / (a + nu + D)
        rho = np.where(a + nu > 0, slow, (a + nu - D) / 2)
        lam = np.where(nu > a, 2 * gamma / (nu - a + D), (a - nu + D) / (2 * B))
        # without coupling g contracts alone, however q behaves
        alone = np.asarray(gamma == 0)
        rho, lam = np.where(alone, a, rho), np.where(alone, 0.0, lam)
        level = np.where(rho > 0, (k.noise + lam * k.tracking.noise) / rho, np.inf)
    hypotheses = (
        *k.hypotheses,
        at_most("μ ≤ L", mu, k.system.L),
        below("0 < a_PL", 0.0, a),
        below("B_q γ < a_PL(1 − C_q)", B * gamma, a * np.where(alone, 1.0, nu)),
    )
    return Contraction(a, rho, lam, level, hypotheses)


@broadcasting
def pl_rate(
    controller: UniformController,
    pl_constant: ArrayLike,
    start: State,
    rounds: ArrayLike,
    *,
    printed: bool = False,
) -> Rate:
    """Geometric decay of the expected gap to its noise floor (th:pl-global).

        g_t ≤ m + (1 − ρ)ᵗ(g_0 + λq_0 − m)₊,     m = (δ + λA_q)/ρ

    As printed, the last −m is missing. The bound is infinite where ρ ≤ 0.

    Args:
        controller: from `uniform_coefficients`.
        pl_constant: μ > 0.
        start: (g_0, q_0).
        rounds: t.
        printed: the paper's form.

    Returns:
        The rate; vacuous where its floor is at f̄ or above.
    """
    c, (g, q) = pl_contraction(controller, pl_constant), validate_state("start", start)
    s0 = g + c.lam * q
    left = s0 if printed else np.maximum(s0 - c.floor, 0)
    value = power(np.maximum(c.rho, 0), rounds) * left + c.floor
    value = np.where(np.asarray(rounds) > 0, value, g) if not printed else value
    cap = controller.system.cap
    return rate_with_floor("th:pl-global", value, c.floor, cap, c.hypotheses)
