"""The flow T_a, and the closed rates of scalar recursions.

    x⁺ ≤ x − ax² + βx + δ     `scalar_rate`   (lem:scalar)
    x⁺ ≤ (1 − a)x + δ         `linear_rate`   (lem:lin-scalar)

The other scalar lemmas of Appendix A are in `hewfl.theory.appendix.lemmas`.
"""

import numpy as np

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    as_float64,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.statement import Hypothesis, Rate, at_most, rate_with_floor


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
def scalar_floor(a: ArrayLike, beta: ArrayLike, delta: ArrayLike) -> Reals:
    """The positive root m of a m² = β m + δ, the fixed point of x − ax² + βx + δ.

        m = (β + √(β² + 4aδ))/(2a) ≥ β/a

    At δ = 0 < β the printed lemma also admits m = 0, where it is false (E-07).
    """
    A, B, D = quadratic_coefficients(a, beta, delta)
    return np.asarray((B + _root(A, B, D)) / 2 / A)


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
    that is for m = 0 < β (E-07); see `printed_scalar_rate`. The `level` is any m with
    am² ≥ βm + δ; by default the least positive one, that of `scalar_floor`, for which
    q = 1 − √(β² + 4aδ) ≤ 1.
    """
    x0, T = nonnegatives("start", start), wholes("rounds", rounds)
    A, B, D = quadratic_coefficients(a, beta, delta)
    above: tuple[Hypothesis, ...] = ()
    if level is None:
        m, r = scalar_floor(A, B, D), _root(A, B, D)
    else:
        m = nonnegatives("level", level)
        r = np.asarray(2 * A * m - B)
        above = (at_most("βm + δ ≤ am²", B * m + D, A * m * m),)
    y = _decay(np.asarray(np.maximum(x0 - m, 0)), A, r, T)
    safe = at_most("2am ≤ 1 + β", r + B, 1 + B)
    # for T = 0 the bound is the start, even below the floor
    value = np.where(T > 0, m + y, x0)
    return rate_with_floor("lem:scalar", value, m, x0, (*above, safe))


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
    x0, (A, B, D) = nonnegatives("start", start), quadratic_coefficients(a, beta, delta)
    m = nonnegatives("level", level)
    value = closed_rate(x0, m, A, rounds)
    above = at_most("βm + δ ≤ am²", B * m + D, A * m * m)
    safe = at_most("2am ≤ 1 + β", 2 * A * m, 1 + B)
    return rate_with_floor("lem:scalar", value, m, x0, (above, safe))


@broadcasting
def closed_rate(
    start: ArrayLike, level: ArrayLike, a: ArrayLike, rounds: ArrayLike
) -> Reals:
    """The paper's conclusion m + 1/(1/(x_0 − m)₊ + aT); true at m = `scalar_floor`."""
    x0, m = nonnegatives("start", start), nonnegatives("level", level)
    A, T = positives("a", a), wholes("rounds", rounds)
    return np.asarray(m + flow(A * T, np.maximum(x0 - m, 0)))


@broadcasting
def linear_rate(
    start: ArrayLike, a: ArrayLike, delta: ArrayLike, rounds: ArrayLike
) -> Rate:
    """Geometric decay to m = δ/a (lem:lin-scalar); a larger m serves, to no advantage.

    x_T ≤ m + (1 − a)ᵀ (x_0 − m)₊     if x_{t+1} ≤ (1 − a)x_t + δ, 0 < a ≤ 1
    """
    x0, T = nonnegatives("start", start), wholes("rounds", rounds)
    A, D = positives("a", a), nonnegatives("delta", delta)
    m = np.asarray(D / A)
    value = np.where(T > 0, m + power(A, T) * np.maximum(x0 - m, 0), x0)
    return rate_with_floor("lem:lin-scalar", value, m, x0, (at_most("a ≤ 1", A, 1.0),))


def power(a: ArrayLike, rounds: ArrayLike) -> Reals:
    """The factor (1 − a)ᵀ with all its digits for small a; 0 for a ≥ 1 and T > 0."""
    r, T = as_float64("a", a), wholes("rounds", rounds)
    # 1 − a rounds to 1 for a below 1e-16, and no power of 1 decays; log1p sees a itself
    with np.errstate(divide="ignore", invalid="ignore"):
        decay = np.exp(T * np.log1p(-np.minimum(r, 1)))
    return np.where(T > 0, decay, 1.0)


def quadratic_coefficients(
    a: ArrayLike, beta: ArrayLike, delta: ArrayLike
) -> tuple[Array, Array, Array]:
    """Validated a > 0, β ≥ 0 and δ ≥ 0."""
    B, D = nonnegatives("beta", beta), nonnegatives("delta", delta)
    return positives("a", a), B, D


def _decay(y0: Array, a: Array, r: Array, T: Array) -> Array:
    """Bound on y_T if y_{t+1} ≤ y_t(1 − r − a y_t), written without growing powers."""
    q = np.maximum(1 - r, 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        age = np.abs(T * np.log1p(-np.minimum(r, 1)))
        small = np.exp(-age)  # qᵀ or q⁻ᵀ, whichever is below one
        mean_age = np.where(r == 0, T, -np.expm1(-age) / np.abs(r))
        top, low = np.where(r > 0, small, 1.0), np.where(r > 0, 1.0, small)
        y = top / (low / y0 + a / q * mean_age)
    return np.where(T > 0, y, y0)


def _root(a: Array, beta: Array, delta: Array) -> Array:
    """The root √(β² + 4aδ); neither square is formed, so neither overflows."""
    return np.asarray(np.hypot(beta, 2 * np.sqrt(a) * np.sqrt(delta)))
