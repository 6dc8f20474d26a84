"""The uniform controller when Hessians are similar and Lipschitz (th:ho-main).

Branches that see nearly the same Hessian drift apart without bending their mean, so the
drift costs K = (S + MR)² times the squared disagreement of the branches instead of L²
times it; common quadratics have K = 0 and no drift cost at all. Here S is the paper's
script H, M the Lipschitz constant of the Hessians, and v²/(Hb) is written out.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control.tracking import Tracking
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, invalid, nonnegatives, wholes
from hewfl.theory.recursion import (
    NO_TRACKING,
    Recursion,
    State,
    mask_undefined,
    validate_state,
)
from hewfl.theory.scalar import scalar_floor
from hewfl.theory.statement import Rate, at_most, rate_with_floor
from hewfl.theory.uniform_controller import UniformController


@final
@dataclass(frozen=True, slots=True, eq=False)
class HigherOrder:
    """The recursion g⁺ ≤ T_a(g) + ω Δ² + ν of (g, q), and what it is made of.

    Attributes:
        controller: the uniform controller underneath.
        mismatch: K_ho.
        disagreement: Δ² = k_v + k_g g + k_q q, the mean squared distance of the
            branches from their mean (eq:Delta-t-main).
        recursion: with β = ω k_g, γ = ω k_q and δ = ω k_v + ν.
    """

    controller: UniformController
    mismatch: Reals
    disagreement: Tracking
    recursion: Recursion


@broadcasting
def curvature_mismatch(
    similarity: ArrayLike, hessian_lipschitz: ArrayLike, radius: ArrayLike
) -> Reals:
    """The constant K_ho = (S + MR)² (th:ho-main)."""
    S, R = nonnegatives("similarity", similarity), nonnegatives("radius", radius)
    M = nonnegatives("hessian_lipschitz", hessian_lipschitz)
    return np.asarray((S + M * R) ** 2)


@broadcasting
def higher_order(
    controller: UniformController,
    similarity: ArrayLike,
    hessian_lipschitz: ArrayLike,
    *,
    printed: bool = False,
) -> HigherOrder:
    """Coefficients of the higher-order recursion (th:ho-main, eq:Delta-t-main).

        g⁺ ≤ T_a(g) + (2ϑ/L)K Δ² + ϑ²v²/(2LnHb),     a = ϑ/(2LR²)
        Δ² = 24ϑ²g/L + 48ϑ²q/L² + 8ϑ²v²/(L²Hb)

    As printed Δ² is four times that, although a mean square about the mean does not
    exceed one about the anchor (E-23). With the controller's variant "sharp" or
    "absorbed" the radius has 8, 16, 2 (T1) and ϑ/(2L) stands for 2ϑ/L (T6): the mean of
    the branches steps by −η(u + b + noise) with u the gradient of F there and
    ‖b‖² ≤ K mean‖d_i‖², and without Young's inequality

        −η⟨u, u + b⟩ + (Lη²/2)‖u + b‖² ≤ (η/2)(‖b‖² − ‖u‖²),     Lη ≤ 1,

    because 2⟨u, u + b⟩ = ‖u‖² + ‖u + b‖² − ‖b‖². H such steps, ηH = ϑ/L, telescope.

    The rate of the recursion bounds the last iterate g_T: eq:ho-rec-main is the
    recursion of lem:scalar, so g_T itself decays to the floor of the best iterate, like
    1/T and not like 1/√T. The paper leaves that to the reader.

    Args:
        controller: from `uniform_coefficients`.
        similarity: S ≥ 0, bound on ‖∇²F_i − ∇²F‖, shape (*c).
        hessian_lipschitz: M ≥ 0.
        printed: the paper's Δ²; only with variant "paper".

    Returns:
        The recursion, and the factors that say what each costs.
    """
    k, L, R = controller, controller.system.L, controller.system.R
    theta, paper = k.amplitude, k.variant == "paper"
    if printed and not paper:
        raise invalid("variant", "paper where `printed`", repr(k.variant))
    K = curvature_mismatch(similarity, hessian_lipschitz, R)
    per_gap, per_tracking, per_noise = (24, 48, 8) if paper else (8, 16, 2)
    scale = (4 if printed else 1) * theta**2
    omega = (2 if paper else 0.5) * theta / L * K
    nu = theta**2 / (2 * L * k.system.n) * k.noise
    H = np.asarray(k.system.horizon).min(-1)
    short = (
        at_most("ϑ/H ≤ 1/4", theta / H, 0.25) if paper else at_most("ϑ ≤ H", theta, H)
    )
    disagreement = Tracking(
        noise=np.asarray(per_noise * scale / L / L * k.noise),
        gap=np.asarray(per_gap * scale / L),
        tracking=np.asarray(per_tracking * scale / L / L),
    )
    a = np.asarray(theta / (2 * L * R * R))
    recursion = Recursion(
        "th:ho-main",
        k.system,
        flows=True,
        descent=a,
        growth=np.asarray(omega * disagreement.gap),
        staleness=np.asarray(omega * disagreement.tracking),
        noise=np.asarray(omega * disagreement.noise + nu),
        tracking=k.recursion.tracking,
        hypotheses=(*k.recursion.hypotheses, short),
    )
    return HigherOrder(k, K, disagreement, recursion)


@broadcasting
def closed_higher_order(bound: HigherOrder, tracking: ArrayLike) -> Recursion:
    """The recursion with the tracking error at its cap (eq:ho-rec-main).

        g⁺ ≤ g − a̲_ho g² + β_ho g + δ_ho                     (eq:ho-coeff-main)
        a̲_ho = ϑ/(2LR²(1 + ϑ/4)),   β_ho = ω k_g,   δ_ho = ω(k_v + k_q q̄) + ν

    Where K_ho = 0 the tracking error costs nothing and needs no cap; elsewhere δ_ho is
    NaN where C_q ≥ 1.
    """
    full, q0 = bound.recursion, nonnegatives("tracking", tracking)
    a, _, delta = full.scalar_form(q0)
    return replace(
        full,
        flows=False,
        descent=a,
        staleness=np.zeros(()),
        noise=delta,
        tracking=NO_TRACKING,
    )


@broadcasting
def best_iterate_rate(
    bound: HigherOrder, start: State, rounds: ArrayLike, *, printed: bool = False
) -> Rate:
    """Bound on the least g_t of T rounds (th:ho-main, eq:ho-explicit-main).

        (β + √(β² + 4a(δ + g_0/T)))/(2a)         the root in the proof
        β/a + √(δ/a) + √(g_0/(aT))               printed

    Args:
        bound: from `higher_order`.
        start: (g_0, q_0).
        rounds: T ≥ 1.
        printed: the paper's form.

    Returns:
        The rate; vacuous where its floor is at f̄ or above, NaN where C_q ≥ 1 and
        K_ho > 0.
    """
    T, (g, q) = wholes("rounds", rounds, least=1), validate_state("start", start)
    k = closed_higher_order(bound, q)
    met = np.asarray(~np.isnan(k.noise))
    a, beta, delta = k.descent, k.growth, np.where(met, k.noise, 0.0)
    level: Array
    value: Array
    if printed:
        level = np.asarray(beta / a + np.sqrt(delta / a))
        value = np.asarray(level + np.sqrt(g / T / a))
    else:
        level = scalar_floor(a, beta, delta)
        value = scalar_floor(a, beta, delta + g / T)
    hypotheses = (*k.hypotheses, bound.recursion.tracking_contracts)
    return mask_undefined(
        met, rate_with_floor("th:ho-main", value, level, k.cap, hypotheses)
    )
