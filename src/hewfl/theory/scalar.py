"""Scalar lemmas: the flow T_a and the recursions every rate is read off from.

A trajectory is the largest sequence that obeys a recursion with "≤": where the map has
a maximum, everything beyond it is bounded by that maximum.
"""

import numpy as np

from hewfl.control.certificate import flow_decrease
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
    wholes,
)
from hewfl.theory.statement import Hypothesis, Rate, at_most, rate_to
from hewfl.theory.trajectories import Whole, one_whole

# ------------------ lem:gap


@broadcasting
def largest_gap(gradient_norm: ArrayLike, radius: ArrayLike) -> Reals:
    """Gap on the ball by its gradient: f ≤ R‖∇F‖, so ‖∇F‖² ≥ f²/R² (lem:gap)."""
    slope, R = nonnegatives("gradient_norm", gradient_norm), positives("radius", radius)
    return np.asarray(R * slope)


@broadcasting
def largest_sq_gradient(gap: ArrayLike, smoothness: ArrayLike) -> Reals:
    """Gradient by the gap: ‖∇F‖² ≤ 2L f (lem:gap); the cap f̄ is `System.cap`."""
    f, L = nonnegatives("gap", gap), positives("smoothness", smoothness)
    return np.asarray(2 * L * f)


# ------------------ T_a


@broadcasting
def flow(a: ArrayLike, u: ArrayLike) -> Reals:
    """The map T_a(u) = u/(1 + a u) for a, u ≥ 0, as 1/(a + 1/u) where a u > 1.

    T_b ∘ T_a = T_{a+b} (lem:Ta-comp). It increases and never expands (lem:Ta-Lip):
    0 < T_a' ≤ 1, so T_a(u + b) ≤ T_a(u) + b.
    """
    A, U = nonnegatives("a", a), nonnegatives("u", u)
    # each form serves where its quotient is at most one: u/(1 + au) would be 0 where au
    # overflows, although T_a(u) is near 1/a; the other one is 1/0 at a = 0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x = np.asarray(A * U)
        return np.where(x > 1, 1 / A / (1 + 1 / x), U / (1 + x))


@broadcasting
def flow_slope(a: ArrayLike, u: ArrayLike) -> Reals:
    """Slope T_a'(u) = 1/(1 + a u)² ∈ (0, 1] (lem:Ta-Lip)."""
    with np.errstate(over="ignore"):
        x = np.asarray(nonnegatives("a", a) * nonnegatives("u", u))
        return np.asarray(1 / (1 + x) / (1 + x))


@broadcasting
def flow_excess(a: ArrayLike, u: ArrayLike) -> Reals:
    """By how much T_a lies above quadratic descent (lem:Ta-majorizes).

    T_a(u) − (u − a u²) = a²u³/(1 + a u) = a u (u − T_a(u)) ≥ 0
    """
    A, U = nonnegatives("a", a), nonnegatives("u", u)
    return np.asarray(A * U * flow_decrease(A, U))


@broadcasting
def telescoped(
    start: ArrayLike, a: ArrayLike, b: ArrayLike
) -> Float64[Array, "steps ..."]:
    """Bound on z_1, ..., z_H if z_{ℓ+1} ≤ T_{a_ℓ}(z_ℓ) + b_ℓ (lem:telescope).

        z_ℓ ≤ T_{a_0 + ... + a_{ℓ−1}}(z_0) + b_0 + ... + b_{ℓ−1}

    Args:
        start: z_0 ≥ 0, shape (*c).
        a: a_ℓ ≥ 0, steps first.
        b: b_ℓ ≥ 0, steps first.
    """
    total_a, total_b = (
        np.cumsum(nonnegatives(name, x), axis=0) for name, x in (("a", a), ("b", b))
    )
    return np.asarray(flow(total_a, nonnegatives("start", start)) + total_b)


# ------------------ x − ax² + βx + δ


@broadcasting
def scalar_floor(a: ArrayLike, beta: ArrayLike, delta: ArrayLike) -> Reals:
    """The positive root m of a m² = β m + δ, where x − ax² + βx + δ stands still.

        m = (β + √(β² + 4aδ))/(2a) ≥ β/a

    At δ = 0 < β the printed lemma also admits m = 0, where it is false (E-07).
    """
    A, B, D = _quadratic(a, beta, delta)
    return np.asarray((B + _root(A, B, D)) / 2 / A)


@broadcasting
def scalar_trajectory(
    start: ArrayLike, a: ArrayLike, beta: ArrayLike, delta: ArrayLike, rounds: Whole
) -> Float64[Array, "rounds_1 ..."]:
    """Largest x_0, ..., x_T with x_{t+1} ≤ x_t − ax_t² + βx_t + δ (lem:scalar)."""
    A, B, D = _quadratic(a, beta, delta)
    top = (1 + B) / 2 / A
    x = [np.broadcast_arrays(nonnegatives("start", start), top, D)[0]]
    for _ in range(one_whole("rounds", rounds)):
        at = np.minimum(x[-1], top)
        x.append(np.asarray(at * (1 + B - A * at) + D))
    return np.stack(x)


@broadcasting
def scalar_rate(
    start: ArrayLike,
    a: ArrayLike,
    beta: ArrayLike,
    delta: ArrayLike,
    rounds: ArrayLike,
    *,
    level: ArrayLike | None = None,
) -> Rate:
    """Decay of x_{t+1} ≤ x_t − ax_t² + βx_t + δ to a floor m (lem:scalar).

    The distance y_t = (x_t − m)₊ obeys y_{t+1} ≤ y_t(q − a y_t), q = 1 + β − 2am. With
    u − au²/q ≤ T_{a/q}(u) that telescopes to (T7)

        x_T ≤ m + 1/(q⁻ᵀ/y_0 + (a/q)(q⁻ᵀ − 1)/(1 − q)).

    The paper drops q ≤ 1 and has 1/y_0 + aT below the bar, which is false for q > 1,
    that is for m = 0 < β (E-07); see `printed_scalar_rate`.

    Args:
        start: x_0 ≥ 0.
        a: positive.
        beta: β ≥ 0.
        delta: δ ≥ 0.
        rounds: T.
        level: m with am² ≥ βm + δ; by default the least positive one, that of
            `scalar_floor`, for which q = 1 − √(β² + 4aδ) ≤ 1.

    Returns:
        The bound; vacuous where the floor is not below the start.
    """
    x0, T = nonnegatives("start", start), wholes("rounds", rounds)
    A, B, D = _quadratic(a, beta, delta)
    if level is None:
        m, r = scalar_floor(A, B, D), _root(A, B, D)
        above: tuple[Hypothesis, ...] = ()
    else:
        m = nonnegatives("level", level)
        r = np.asarray(2 * A * m - B)
        above = (at_most("βm + δ ≤ am²", B * m + D, A * m * m),)
    y = _decayed(np.asarray(np.maximum(x0 - m, 0)), A, r, T)
    safe = at_most("2am ≤ 1 + β", r + B, 1 + B)
    # before the first round the bound is the start, though it lie below the floor
    value = np.where(T > 0, m + y, x0)
    return rate_to("lem:scalar", value, m, x0, (*above, safe))


@broadcasting
def printed_scalar_rate(
    start: ArrayLike,
    a: ArrayLike,
    beta: ArrayLike,
    delta: ArrayLike,
    rounds: ArrayLike,
    level: ArrayLike,
) -> Rate:
    """The lemma with its hypotheses and conclusion as printed: false for m = 0 < β.

    It is `closed_rate` at any level m with am² ≥ βm + δ and 2am ≤ 1 + β (lem:scalar,
    erratum E-07).
    """
    x0, (A, B, D) = nonnegatives("start", start), _quadratic(a, beta, delta)
    m = nonnegatives("level", level)
    value = closed_rate(x0, m, A, rounds)
    above = at_most("βm + δ ≤ am²", B * m + D, A * m * m)
    safe = at_most("2am ≤ 1 + β", 2 * A * m, 1 + B)
    return rate_to("lem:scalar", value, m, x0, (above, safe))


@broadcasting
def closed_rate(
    start: ArrayLike, level: ArrayLike, a: ArrayLike, rounds: ArrayLike
) -> Reals:
    """The paper's conclusion m + 1/(1/(x_0 − m)₊ + aT); true at m = `scalar_floor`.

    Args:
        start: x_0 ≥ 0.
        level: m ≥ 0.
        a: a > 0.
        rounds: T.
    """
    x0, m = nonnegatives("start", start), nonnegatives("level", level)
    A, T = positives("a", a), wholes("rounds", rounds)
    return np.asarray(m + flow(A * T, np.maximum(x0 - m, 0)))


def _decayed(y0: Array, a: Array, r: Array, T: Array) -> Array:
    """Bound on y_T if y_{t+1} ≤ y_t(1 − r − a y_t), written without growing powers."""
    q = np.maximum(1 - r, 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        age = np.abs(T * np.log1p(-np.minimum(r, 1)))
        small = np.exp(-age)  # qᵀ or q⁻ᵀ, whichever is below one
        mean_age = np.where(r == 0, T, -np.expm1(-age) / np.abs(r))
        top, low = np.where(r > 0, small, 1.0), np.where(r > 0, 1.0, small)
        y = top / (low / y0 + a / q * mean_age)
    return np.where(T > 0, y, y0)


# ------------------ (1 − a)x + δ


@broadcasting
def linear_trajectory(
    start: ArrayLike, a: ArrayLike, delta: ArrayLike, rounds: Whole
) -> Float64[Array, "rounds_1 ..."]:
    """Largest x_0, ..., x_T with x_{t+1} ≤ (1 − a)x_t + δ, a ≤ 1 (lem:lin-scalar)."""
    A, D = positives("a", a), nonnegatives("delta", delta)
    x = [np.broadcast_arrays(nonnegatives("start", start), A, D)[0]]
    for _ in range(one_whole("rounds", rounds)):
        x.append(np.asarray(np.maximum(1 - A, 0) * x[-1] + D))
    return np.stack(x)


@broadcasting
def linear_rate(
    start: ArrayLike, a: ArrayLike, delta: ArrayLike, rounds: ArrayLike
) -> Rate:
    """Geometric decay to m = δ/a (lem:lin-scalar).

    x_T ≤ m + (1 − a)ᵀ (x_0 − m)₊     if x_{t+1} ≤ (1 − a)x_t + δ, 0 < a ≤ 1

    A larger m serves too, to no advantage.

    Args:
        start: x_0 ≥ 0.
        a: between 0 and 1.
        delta: δ ≥ 0.
        rounds: T.

    Returns:
        The rate; vacuous where its floor is not below the start.
    """
    x0, T = nonnegatives("start", start), wholes("rounds", rounds)
    A, D = positives("a", a), nonnegatives("delta", delta)
    m = np.asarray(D / A)
    y = power(A, T) * np.maximum(x0 - m, 0)
    value = np.where(T > 0, m + y, x0)
    return rate_to("lem:lin-scalar", value, m, x0, (at_most("a ≤ 1", A, 1.0),))


def power(a: ArrayLike, rounds: ArrayLike) -> Reals:
    """The factor (1 − a)ᵀ with all its digits for small a; 0 for a ≥ 1 and T > 0."""
    r, T = as_float64("a", a), wholes("rounds", rounds)
    # 1 − a rounds to 1 for a below 1e-16, and no power of 1 decays; log1p sees a itself
    with np.errstate(divide="ignore", invalid="ignore"):
        decay = np.exp(T * np.log1p(-np.minimum(r, 1)))
    return np.where(T > 0, decay, 1.0)


# ------------------ lem:cum-gronwall


@broadcasting
def cumulative_gronwall(
    a: ArrayLike, beta: ArrayLike, *, exponential: bool = False
) -> Float64[Array, "steps ..."]:
    """Bound on x_ℓ if x_ℓ ≤ a_ℓ + β(x_0 + ... + x_{ℓ−1}) (lem:cum-gronwall).

        x_ℓ ≤ a_ℓ(1 + β)^ℓ ≤ a_ℓ e^{βℓ}

    Args:
        a: a_ℓ ≥ 0, steps first, nondecreasing in ℓ.
        beta: β ≥ 0.
        exponential: whether to give the second bound, which the radius lemmas use.
    """
    A, B = np.atleast_1d(nonnegatives("a", a)), nonnegatives("beta", beta)
    if (np.diff(A, axis=0) < 0).any():
        raise invalid("a", "nondecreasing along its first axis", repr(a)[:80])
    step = np.arange(len(A)).reshape(-1, *[1] * (A.ndim - 1))
    return np.asarray(A * np.exp(step * (B if exponential else np.log1p(B))))


# ------------------ shared parts


def _quadratic(
    a: ArrayLike, beta: ArrayLike, delta: ArrayLike
) -> tuple[Array, Array, Array]:
    B, D = nonnegatives("beta", beta), nonnegatives("delta", delta)
    return positives("a", a), B, D


def _root(a: Array, beta: Array, delta: Array) -> Array:
    """The root √(β² + 4aδ); neither square is formed, so neither overflows."""
    return np.asarray(np.hypot(beta, 2 * np.sqrt(a) * np.sqrt(delta)))
