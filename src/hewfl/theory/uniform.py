"""The uniform controller: all clients take part, with one ϑ and weights 1/n.

    g⁺ ≤ g − a g² + β g + γ q + δ,     q⁺ ≤ A + B g + C q          (th:direct-bellman)

for the expected gap g and the worst expected squared tracking error q. Averaging
cancels the mismatch of the control variates, so q costs ϑ³ here and ϑ in general.
Under the PL condition ‖∇F‖² ≥ 2μ(F − F*) one combination g + λq contracts by 1 − ρ
(th:pl-global).

Where Hessians are similar and Lipschitz (th:ho-main), branches that see nearly the same
Hessian drift apart without bending their mean, so the drift costs K = (S + MR)² times
the squared disagreement of the branches instead of L² times it; common quadratics have
K = 0. Here S is the paper's script H, M the Lipschitz constant of the Hessians.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control.certificate import Variant, check_variant, horizon_factors
from hewfl.control.tracking import Tracking, predictable_tracking
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.noise import uniform_noise_of_mean
from hewfl.theory.recursion import (
    NO_TRACKING,
    Recursion,
    State,
    mask_undefined,
    validate_state,
)
from hewfl.theory.scalar import power, scalar_floor
from hewfl.theory.statement import (
    Constants,
    Hypothesis,
    Rate,
    at_most,
    below,
    rate_with_floor,
)
from hewfl.theory.systems import System


@final
@dataclass(frozen=True, slots=True, eq=False)
class UniformController:
    """The uniform controller on a system: ϑ, constants, M = max v_i²/(Hb), recursion.

    With the paper's constants its hypotheses are those of ass:uniform-special.
    """

    amplitude: Reals
    variant: Constants
    noise: Reals
    recursion: Recursion

    @property
    def system(self) -> System:
        """The constants."""
        return self.recursion.system


@broadcasting
def uniform_coefficients(
    system: System, amplitude: ArrayLike, *, variant: Constants = "paper"
) -> UniformController:
    """Coefficients of the uniform controller (th:direct-bellman, prop:direct-q).

        a = ϑ/(2LR²),   β = 48ϑ³ + 32ϑ⁴/n,   γ = 96ϑ³/L + 64ϑ⁴/(Ln),
        δ = (16ϑ³ + 16ϑ²/n) M/L,   A_q = 6M,   B_q = 144Lϑ²,   C_q = 288ϑ²      paper

        β = 2h₁ϑ³,   γ = h₁ϑ³/L,   δ = (ϑ³ mean h₂ᵢM_i + ϑ²V_u/2)/L             sharp
        the same with β = 0 and a = ϑ(1 − 2h₁ϑ²)/(2LR²)                      absorbed

    and tracking by `predictable_tracking`. Only the first set asks for one H and b; the
    others hold for any, with the largest h₁ and h₂, and for ϑ ≤ 1. The middle two are
    T5: T1 to T3 joined with lem:cancellation. The mean move is −(ϑ/L)∇F + r̄, so by T2
    it gains −(ϑ/2L)‖∇F‖² + (L/2ϑ)‖r̄‖². By T3

        E‖r̄‖² ≤ mean E‖r_i‖² ≤ (ϑ⁴/L²) mean(2h₁ᵢ‖∇F + δ_i‖² + 2h₂ᵢM_i),
        mean‖∇F + δ_i‖² = ‖∇F‖² + mean‖δ_i‖² ≤ ‖∇F‖² + mean‖e_i‖²,

    since Σδ_i = 0 and δ_i is the mean of all e less e_i. Independent noises of variance
    at most ϑ²M_i/L² average to the term with V_u. What is left of ‖∇F‖², (h₁ϑ³/L) of
    it, is bounded by 2Lg ("sharp") or set off against the descent ("absorbed").

    "joint" is T9: r̄ stays in one square with ∇F. With x = ϑ(1 − h₂ϑ), W = (1 − x + h₂ϑ)

        a = (ϑ/(LR²)) ((1 − h₂ϑ)(1 − x/2) − (1 − x)h₂/2),   β = 0,
        γ = Wh₂ϑ³/L,   δ = (Wϑ³(mean √(h₂ᵢM_i))²/h₂ + ϑ²V_u/2)/L,

    for small ϑ up to twice the descent. Let N = mean √(h₂ᵢM_i) and q the mean of
    ‖e_i‖². Minkowski's inequality instead of T3 gives (L/ϑ)‖r̄‖ ≤ h₂ϑ‖∇F‖ + c with
    c = ϑ(h₂√q + N), and the mean move gains at least (ϑ/L) times

        (1 − h₂ϑ)(1 − x/2)‖∇F‖² − (1 − x)c‖∇F‖ − ϑc²/2,

    where c‖∇F‖ ≤ h₂‖∇F‖²/2 + c²/(2h₂) and c² ≤ 2ϑ²(h₂²q + N²). A renewed c_i misses
    the gradient at the new anchor by its noise, its drift and the server's move, in
    root mean square by at most P + G‖∇F‖ + K√q, whence

        A = 3P²,   B = 6LG²,   C = 3K²,   P = √M(1 + ϑ√h₂) + ϑ²N + ϑ√V_u,
        G = ϑ(1 + h₂ + h₂ϑ),   K = h₂ϑ(2(1 − 1/n) + ϑ).
    """
    theta, L, R = positives("amplitude", amplitude), system.L, system.R
    H, b = np.asarray(system.horizon), np.asarray(system.batch_size)
    share, (h1_i, h2_i) = system.multiplicity / system.n, horizon_factors(H)
    h1, h2, M, n = h1_i.max(-1), h2_i.max(-1), system.noise, system.n
    V_u = uniform_noise_of_mean(system)
    risk = theta**2 / (2 * L) * V_u
    proved: Variant = "paper" if variant == "paper" else "sharp"
    track = predictable_tracking(theta, M, H, L, variant=proved)
    sigma, beta = theta / (2 * L), 0 * theta
    if variant == "joint":
        x = theta * (1 - h2 * theta)
        W = 1 - x + h2 * theta
        sigma = theta / L * ((1 - h2 * theta) * (1 - x / 2) - (1 - x) * h2 / 2)
        gamma = W * h2 * theta**3 / L
        rough = (share * np.sqrt(h2_i * M)).sum(-1)
        drift = np.divide(rough**2, h2, out=np.zeros_like(rough), where=h2 > 0)
        delta = W * theta**3 / L * drift + risk
        P = np.sqrt(M.max(-1)) * (1 + theta * np.sqrt(h2))
        P = P + theta**2 * rough + theta * np.sqrt(V_u)
        G = theta * (1 + h2 + h2 * theta)
        K = h2 * theta * (2 * (1 - 1 / n) + theta)
        parts = (3 * P**2, 6 * L * G**2, 3 * K**2)
        track = Tracking(*(np.asarray(part) for part in parts))
    elif check_variant(variant) == "paper":
        beta = 48 * theta**3 + 32 * theta**4 / n
        gamma = (96 * theta**3 + 64 * theta**4 / n) / L
        delta = (16 * theta**3 + 16 * theta**2 / n) / L * M.max(-1)
    else:
        gamma = h1 * theta**3 / L
        delta = theta**3 / L * (share * h2_i * M).sum(-1) + risk
        if variant == "sharp":
            beta = 2 * h1 * theta**3
        else:
            sigma = sigma * (1 - 2 * h1 * theta**2)
    met = [at_most("ϑ ≤ 1", theta, 1.0)]
    if variant == "paper":
        met = [
            below("288ϑ² < 1", track.tracking, 1.0),
            at_most("H_i = H", H.max(-1), H.min(-1)),
            at_most("b_i = b", b.max(-1), b.min(-1)),
        ]
    numbers = (sigma / R / R, beta, gamma, delta)
    a, beta, gamma, delta = (np.asarray(x) for x in numbers)
    recursion = Recursion(
        "th:direct-bellman",
        system,
        descent=a,
        growth=beta,
        staleness=gamma,
        noise=delta,
        tracking=track,
        hypotheses=tuple(met),
        slope=np.asarray(sigma),
    )
    return UniformController(theta, variant, np.asarray(M.max(-1)), recursion)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """How g + λq contracts: a_PL, ρ_PL, λ_PL and the floor (δ + λA_q)/ρ.

    Where the coupling is too strong ρ is not positive and the floor infinite. The
    hypotheses are those of th:pl-global, but not a_PL < 1 − C_q, which it does not
    need (E-22).
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
    """
    c, (g, q) = pl_contraction(controller, pl_constant), validate_state("start", start)
    s0 = g + c.lam * q
    left = s0 if printed else np.maximum(s0 - c.floor, 0)
    value = power(np.maximum(c.rho, 0), rounds) * left + c.floor
    value = np.where(np.asarray(rounds) > 0, value, g) if not printed else value
    cap = controller.system.cap
    return rate_with_floor("th:pl-global", value, c.floor, cap, c.hypotheses)


@final
@dataclass(frozen=True, slots=True, eq=False)
class HigherOrder:
    """The recursion g⁺ ≤ T_a(g) + ω Δ² + ν of (g, q), and what it is made of.

    The mismatch is K_ho; the disagreement Δ² = k_v + k_g g + k_q q is the mean squared
    distance of the branches from their mean (eq:Delta-t-main), so that the recursion
    has β = ω k_g, γ = ω k_q and δ = ω k_v + ν.
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
    H, b = np.asarray(k.system.horizon), np.asarray(k.system.batch_size)
    short = at_most("ϑ ≤ H", theta, H.min(-1))
    if paper:
        short = at_most("ϑ/H ≤ 1/4", theta / H.min(-1), 0.25)
    alike = (
        at_most("H_i = H", H.max(-1), H.min(-1)),
        at_most("b_i = b", b.max(-1), b.min(-1)),
    )
    disagreement = Tracking(
        noise=np.asarray(per_noise * scale / L / L * k.noise),
        gap=np.asarray(per_gap * scale / L),
        tracking=np.asarray(per_tracking * scale / L / L),
    )
    recursion = Recursion(
        "th:ho-main",
        k.system,
        flows=True,
        descent=np.asarray(theta / (2 * L * R * R)),
        growth=np.asarray(omega * disagreement.gap),
        staleness=np.asarray(omega * disagreement.tracking),
        noise=np.asarray(omega * disagreement.noise + nu),
        tracking=k.recursion.tracking,
        hypotheses=(*k.recursion.hypotheses, *(() if paper else alike), short),
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
    """Bound on the least g_t of T ≥ 1 rounds (th:ho-main, eq:ho-explicit-main).

        (β + √(β² + 4a(δ + g_0/T)))/(2a)         the root in the proof
        β/a + √(δ/a) + √(g_0/(aT))               printed

    NaN where C_q ≥ 1 and K_ho > 0.
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
