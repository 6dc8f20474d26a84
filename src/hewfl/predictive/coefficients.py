"""The formulas of the one-step certificate, on arrays that broadcast.

    A descent, s decrease, ρ mean penalty, κ variance, μ = s − ρ     (eq:rho-main,
                                                                      eq:kappa-main)

Arrays come in checked. `hewfl.predictive.certificate` evaluates these formulas for one round,
`hewfl.theory.one_step_bound` for as many rounds as the arrays hold.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid

if TYPE_CHECKING:
    Variant = Literal["paper", "sharp", "absorbed"]
else:  # run-time type checks let a wrong name through to `check_variant` and its text
    Variant = str
VARIANTS: tuple[Variant, ...] = ("paper", "sharp", "absorbed")


def check_variant(variant: Variant) -> Variant:
    """Require the name of one of the three sets of constants."""
    if variant not in VARIANTS:
        raise invalid("variant", f"one of {', '.join(VARIANTS)}", repr(variant))
    return variant


@final
@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """Where clients stand before a round: all the coefficients depend on, θ aside.

    Fields broadcast against each other and against the amplitudes.

    Attributes:
        smoothness: L > 0.
        radius: R > 0.
        gap: U ≥ 0.
        tracking: Q ≥ 0.
        noise: M = v²/(Hb) ≥ 0.
        horizon: H ≥ 1.
    """

    smoothness: Float64[Array, "..."]
    radius: Float64[Array, "..."]
    gap: Float64[Array, "..."]
    tracking: Float64[Array, "..."]
    noise: Float64[Array, "..."]
    horizon: Float64[Array, "..."]

    @property
    def cap(self) -> Float64[Array, "..."]:
        """f̄ = LR²/2, the largest gap on the ball."""
        return np.asarray(self.smoothness * self.radius * self.radius / 2)


def horizon_factors(
    horizon: Float64[Array, "..."],
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """Drift of H local steps, zero for one step (T3).

    h₁ = (H − 1)(2H − 1)/(6H²) ≤ 1/3,     h₂ = (H − 1)/(2H) ≤ 1/2
    """
    H = horizon
    h1, h2 = (H - 1) * (2 * H - 1) / (6 * H**2), (H - 1) / (2 * H)
    return np.asarray(h1), np.asarray(h2)


def flow_decrease(
    a: Float64[Array, "..."], u: Float64[Array, "..."]
) -> Float64[Array, "..."]:
    """What the flow T_a(u) = u/(1 + a u) takes off u, for a, u ≥ 0.

        u − T_a(u) = u × x/(1 + x),     x = a u

    Nothing cancels (E-32), and neither u² nor a large x overflows.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x = np.asarray(a * u)
        return np.asarray(u * np.where(x > 1, 1 / (1 + 1 / x), x / (1 + x)))


def descent_coefficient(
    theta: Float64[Array, "..."], at: Situation, variant: Variant
) -> Float64[Array, "..."]:
    """Curvature A = θ/(2LR²); absorbed: θ(1 − 8h₁θ²)/(2LR²), negative for large θ."""
    L, R = at.smoothness, at.radius
    if variant == "absorbed":
        h1, _ = horizon_factors(at.horizon)
        return np.asarray(theta * (1 - 8 * h1 * theta**2) / (2 * L * R * R))
    return np.asarray(theta / (2 * L * R * R))


def certified_decrease(
    theta: Float64[Array, "..."], at: Situation, variant: Variant
) -> Float64[Array, "..."]:
    """Decrease s = u − T_A(u) of u = U♯ = min(U, f̄); 4f̄Au where A < 0 (absorbed)."""
    A, u = (
        descent_coefficient(theta, at, variant),
        np.asarray(np.minimum(at.gap, at.cap)),
    )
    descent = flow_decrease(np.asarray(np.maximum(A, 0)), u)
    return np.where(A < 0, 4 * at.cap * A * u, descent)


def mean_penalty(
    theta: Float64[Array, "..."], at: Situation, variant: Variant
) -> Float64[Array, "..."]:
    """What drift, stale control variates and noise may cost in the mean (eq:rho-main).

    ρ = 32e^{2θ}θ³ U + (16θ + 64e^{2θ}θ³) Q/L + 8e^{2θ}θ³ M/L     paper
    ρ = 8h₁θ³ U + (4θ + 16h₁θ³) Q/L + 2h₂θ³ M/L                   sharp
    ρ = (4θ + 16h₁θ³) Q/L + 2h₂θ³ M/L                             absorbed
    """
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    if variant == "paper":
        e = np.exp(2 * theta)
        stale = (16 * theta + 64 * e * theta**3) / L * Q
        return np.asarray(32 * e * theta**3 * U + stale + 8 * e * theta**3 / L * M)
    h1, h2 = horizon_factors(at.horizon)
    stale = (4 * theta + 16 * h1 * theta**3) / L * Q
    drift = 8 * h1 * theta**3 * U if variant == "sharp" else 0.0
    return np.asarray(drift + stale + 2 * h2 * theta**3 / L * M)


def variance_bound(
    theta: Float64[Array, "..."], at: Situation, variant: Variant
) -> Float64[Array, "..."]:
    """Bound on the variance of a client's displacement (eq:kappa-main).

    κ = 16e^{2θ}θ⁴ U/L + 32e^{2θ}θ⁴ Q/L² + (2θ² + 4e^{2θ}θ⁴) M/L²     paper
    κ = θ² M/L²                                                       the others
    """
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    if variant == "paper":
        e = np.exp(2 * theta)
        drift = 16 * e * theta**4 / L * U
        stale = 32 * e * theta**4 / L / L * Q
        noisy = (2 * theta**2 + 4 * e * theta**4) / L / L * M
        return np.asarray(drift + stale + noisy)
    return np.asarray(theta**2 / L / L * M)


def gain(
    theta: Float64[Array, "..."], at: Situation, variant: Variant
) -> Float64[Array, "..."]:
    """Gain μ = s − ρ."""
    s, rho = certified_decrease(theta, at, variant), mean_penalty(theta, at, variant)
    return np.asarray(s - rho)


def certified_change(
    w: Float64[Array, "..."],
    theta: Float64[Array, "..."],
    at: Situation,
    variant: Variant,
) -> Float64[Array, "..."]:
    """Change of the bound, J − U♯ = Σ_i (−w_i μ_i + (L/2) w_i² κ_i), clients last."""
    mu, kappa = gain(theta, at, variant), variance_bound(theta, at, variant)
    return np.asarray((w * (at.smoothness / 2 * w * kappa - mu)).sum(-1))
