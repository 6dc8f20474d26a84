"""The one-step certificate, for many rounds and systems at once.

    E[F(x_{t+1}) − F*] ≤ J = U♯ − Σ_i w_i μ_i(θ_i) + (L/2) Σ_i w_i² κ_i(θ_i)

Formulas and constants are those of `hewfl.control.certificate`. They are evaluated
beyond their hypotheses too; the hypotheses say where they are bounds.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control import certificate
from hewfl.control.certificate import Situation, Variant, check_variant
from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Mask,
    Reals,
    as_float64,
    invalid,
    nonnegatives,
)
from hewfl.theory.statement import Constants, Hypothesis, at_most
from hewfl.theory.systems import System

Controls = tuple[ArrayLike, ArrayLike]
"""Weights w and amplitudes θ of a round, clients last."""

LEAST = 2.0**-200
"""Amplitudes below this one are not searched for descent."""
_HALVINGS = 64
_SIMPLEX = 1e-9
"""How far from one the weights may sum, as in `hewfl.control.certificate`."""


@broadcasting
def situation(
    system: System, gap: ArrayLike, tracking: ArrayLike, *, capped: bool = False
) -> Situation:
    """The state (U, Q) of each configuration, laid out for its clients.

    Args:
        system: the constants.
        gap: U ≥ 0, shape (*c).
        tracking: Q ≥ 0, shape (*c).
        capped: put U♯ = min(U, f̄) for U in ρ and κ too, which is valid and tighter; as
            printed only s has it (E-25).

    Returns:
        The state as the formulas of `hewfl.control.certificate` take it.
    """
    U, Q = nonnegatives("gap", gap), nonnegatives("tracking", tracking)
    np.broadcast_shapes(system.cap.shape, U.shape, Q.shape)  # or say so now
    U = np.minimum(U, system.cap) if capped else U
    L, R, U, Q = (np.asarray(x)[..., None] for x in (system.L, system.R, U, Q))
    H, m = np.asarray(system.horizon), system.multiplicity
    return Situation(L, R, U, Q, system.noise, H, m)


@broadcasting
def executable_system(system: System, proxies: ArrayLike) -> System:
    """The system with proxies v̂_i² ≥ v_i²: J of it is J^ex, and J^id ≤ J^ex."""
    v2, proxy = np.asarray(system.variance), as_float64("proxies", proxies)
    if (proxy < v2).any():
        rule = "no smaller than the variances"
        raise invalid("proxies", rule, f"a miss of {(v2 - proxy).max()}")
    return replace(system, variance=proxy)


@final
@dataclass(frozen=True, slots=True, eq=False)
class OneStep:
    """The certificate of a round and what it is made of.

    The joint bound has no shares of single clients: its parts are NaN.
    """

    value: Float64[Array, "*c"]  # J
    change: Float64[Array, "*c"]  # J − U♯, negative where descent is certified
    descent: Float64[Array, "*c n"]  # A_i
    decrease: Float64[Array, "*c n"]  # s_i
    penalty: Float64[Array, "*c n"]  # ρ_i
    risk: Float64[Array, "*c n"]  # κ_i
    gain: Float64[Array, "*c n"]  # μ_i = s_i − ρ_i
    hypotheses: tuple[Hypothesis, ...]  # with the worst client's numbers


@broadcasting
def one_step(
    controls: Controls, at: Situation, *, variant: Constants = "paper"
) -> OneStep:
    """Bound J on the next expected gap (th:predictive-majorant, eq:main-one-step).

        J = U♯ − Σ_i w_i μ_i + (L/2) Σ_i w_i² κ_i,     μ = s − ρ

    with ρ of eq:rho-main and κ of eq:kappa-main, or the sharper ones of the errata. It
    is J^id at the true variances and J^ex at proxies (`executable_system`), proved for
    θ ≤ 1 (E-03), w on the simplex and an upper state that holds almost surely (E-18).

    Args:
        controls: w and θ, shapes that broadcast with (*c, n).
        at: from `situation`.
        variant: the set of constants, or "joint" for `joint_change`.

    Returns:
        J, its parts, and the conditions under which it is a bound.
    """
    w, theta = _controls(controls, at)
    start = np.minimum(at.gap, at.cap)[..., 0]
    hypotheses = (
        at_most("θ ≤ 1", theta.max(-1), 1.0),
        at_most("0 ≤ w", 0.0, w.min(-1)),
        at_most("|Σw − 1| ≤ 1e-9", np.abs(w.sum(-1) - 1), _SIMPLEX),
    )
    if variant == "joint":
        change = joint_change(w, theta, at)
        none = np.full(w.shape, np.nan)
        J = np.asarray(start + change)
        return OneStep(J, change, none, none, none, none, none, hypotheses)
    check_variant(variant)
    change = certificate.certified_change(w, theta, at, variant)
    parts = (
        certificate.descent_coefficient,
        certificate.certified_decrease,
        certificate.mean_penalty,
        certificate.variance_bound,
    )
    A, s, rho, kappa = (
        np.broadcast_to(part(theta, at, variant), w.shape) for part in parts
    )
    J = np.asarray(start + change)
    return OneStep(J, change, A, s, rho, kappa, s - rho, hypotheses)


@broadcasting
def joint_change(w: Array, theta: Array, at: Situation) -> Float64[Array, "*c"]:
    """J − U♯ with the clients taken together (T9), clients last and all n of them.

        ϑ = Σ w_iθ_i,   p_i = w_iθ_i/ϑ,   a = Σ p_iθ_ih₂ᵢ,   x = ϑ(1 − a)
        c = (Σ|1/n − p_i| + 2(1 − 1/n)a)√Q + Σ p_iθ_i√(h₂ᵢM_i)
        φ(y) = −(1 − a)(1 − x/2)y² + (1 − x)cy + ϑc²/2
        J = max over y of  min{U♯, Ry − y²/(2L)} + (ϑ/L)φ(y) + (1/2L)Σ w_i²θ_i²M_i

    Here y is ‖∇F(x)‖ ≤ √(2LU♯). The mean move is −(ϑ/L)(∇F + s), where s holds the
    mismatch Σ(1/n − p_i)e_i, which is zero at equal weights, and the mean drift. Both
    are kept in one vector of length at most ay + c, so that the mismatch costs its sum
    and not its parts, and descent is not halved to pay for it. A convex F has
    f ≤ R‖∇F‖ − ‖∇F‖²/(2L). J is concave in y: the maximum is in closed form. It has no
    shares of single clients, so that Algorithm 1 cannot minimise it by its threshold
    law. NaN for θ > 1. docs/theory.md has the proof, and the exact worst case beside
    it.
    """
    proved, theta = theta.max(-1) <= 1, np.minimum(theta, 1)
    L, R, Q = (x[..., 0] for x in (at.smoothness, at.radius, at.tracking))
    U = np.minimum(at.gap, at.cap)[..., 0]
    cap = L * R * R / 2
    m = np.broadcast_to(at.count, w.shape)
    n = m.sum(-1)
    total = (w * theta).sum(-1)
    moves = total > 0
    p = np.where(moves[..., None], w * theta, w)
    p = p / np.where(moves, total, w.sum(-1))[..., None]
    _, h2 = certificate.horizon_factors(at.horizon)
    a = (p * theta * h2).sum(-1)
    away = np.abs(m / n[..., None] - p).sum(-1) + 2 * (1 - 1 / n) * a
    c = away * np.sqrt(Q) + (p * theta * np.sqrt(h2 * at.noise)).sum(-1)
    x = total * (1 - a)
    bent, slope = (1 - a) * (1 - x / 2), (1 - x) * c
    # φ is largest at `flat`; where min{} still rises at U♯ the maximum is at or below
    least = 2 * U / R / (1 + np.sqrt(np.maximum(1 - U / cap, 0)))
    flat = slope / (2 * bent)
    steep = (L * R + total * slope) / (1 + 2 * total * bent)
    y = np.minimum(np.clip(least, flat, steep), np.sqrt(2 * L * U))
    below_start = np.where(y < least, np.minimum(R * y - y * y / L / 2 - U, 0), 0.0)
    phi = -bent * y * y + slope * y + total / 2 * c * c
    risk = (w * (w / m) * theta**2 * at.noise).sum(-1) / (2 * L)
    return np.where(proved, below_start + total / L * phi + risk, np.nan)


@broadcasting
def advantage(
    controls: Controls,
    benchmark: Controls,
    at: Situation,
    *,
    variant: Variant = "paper",
) -> Reals:
    """What controls certify beyond a benchmark pair (th:one-step-hetero).

        Γ = J(w̄, θ̄) − J(w, θ)

    U♯ drops out before anything is subtracted. Γ ≥ 0 for every benchmark if the
    controls minimise J, as those of `hewfl.predictive_control` do.
    """
    check_variant(variant)
    ours, theirs = (
        certificate.certified_change(*_controls(pair, at), at, variant)
        for pair in (controls, benchmark)
    )
    return np.asarray(theirs - ours)


@broadcasting
def largest_descent_amplitude(
    weights: ArrayLike, at: Situation, *, variant: Constants = "paper"
) -> Reals:
    """Largest common θ ≤ 1 with J ≤ U♯ for given weights; 0 where there is none.

    U♯ − J is concave in θ (μ is concave, κ convex) and zero at θ = 0, so the answer
    ends an interval of descent; it is bisected on log θ. For "joint" it does since φ
    grows with θ.

    Args:
        weights: w on the simplex, clients last.
        at: from `situation`.
        variant: the set of constants.

    Returns:
        θ, shape (*c).
    """
    w, ones = _controls((weights, 1.0), at)

    def descends(theta: Array) -> Mask:
        wide = theta[..., None] * ones
        return np.asarray(one_step((w, wide), at, variant=variant).change <= 0)

    top = np.asarray(ones[..., 0])
    low, high = LEAST * top, top
    for _ in range(_HALVINGS):
        # the middle on log θ: halving θ itself would need 200 steps to reach LEAST, and
        # √(low·high) could underflow
        middle = np.asarray(np.sqrt(low) * np.sqrt(high))
        met = descends(middle)
        low, high = np.where(met, middle, low), np.where(met, high, middle)
    inside = np.where(low > LEAST, low, 0.0)
    return np.where(descends(top), top, inside)


def _controls(controls: Controls, at: Situation) -> tuple[Array, Array]:
    """Validated w and θ, one entry per client of each configuration."""
    w = np.atleast_1d(as_float64("weights", controls[0]))
    theta = nonnegatives("amplitudes", controls[1])
    clients = np.broadcast_shapes(theta.shape, at.noise.shape, at.gap.shape)
    if w.shape[-1] != clients[-1]:
        raise invalid("weights", f"one for each of {clients[-1]} clients", w.shape[-1])
    shape = np.broadcast_shapes(w.shape, clients)
    return np.broadcast_to(w, shape), np.broadcast_to(theta, shape)
