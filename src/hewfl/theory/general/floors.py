"""Where the master recursion comes to rest, and how fast it contracts from above.

floor   m with R_a(m) + bm + d + ε ≤ m
factor  λ = L_a(m) + b,  so that  (S⁺ − m)₊ ≤ λ (S − m)₊
"""

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.core.checks import Array, ArrayLike, Mask, Reals, invalid, nonnegatives
from hewfl.core.shapes import broadcasting
from hewfl.theory.general.closed_forms import ExponentialGenerator, QuadraticGenerator
from hewfl.theory.general.drift import Terms
from hewfl.theory.general.generator import Generator, relative_decrease
from hewfl.theory.statement import Hypothesis, at_most
from hewfl.theory.trajectories import Whole, one_whole

_ROUNDING = 1e-12
"""Relative slack of g(m) ≤ m: at the smallest floor the two sides are equal."""


@broadcasting
def noisy_floor(generator: Generator, terms: Terms) -> Reals:
    """Smallest m that is a floor together with everything above it (ass:noisy_floor).

        bm + d + ε ≤ m − R_a(m)

    g(m) − m is concave, so above the positive root every m is a floor, and the largest
    root over t serves all rounds (erratum E-24). Closed forms:

        φ = κs²   (1 − b)κa m² − (b + κad)m − d = 0
        φ = ρs    m = d/(1 − e^{−ρa} − b)

    the others by bisection to the last bit. Without noise the floor is 0.

    Args:
        generator: φ.
        terms: any shape; the floor has the same.

    Raises:
        InvalidInputError: no floor exists: b ≥ 1, or the flow takes too little off.
    """
    shape = np.broadcast_shapes(terms.a.shape, generator.origin_slope.shape)
    a, b, d = (np.broadcast_to(x, shape) for x in (terms.a, terms.b, terms.d))
    if (b >= 1).any():
        raise invalid("growth", "below 1", b[b >= 1].flat[0])
    noisy = (b > 0) | (d > 0)
    if (noisy & (a == 0)).any():
        raise invalid("time", "positive where there is noise", 0.0)
    a = np.where(noisy, a, 1.0)
    if isinstance(generator, QuadraticGenerator):
        m = _quadratic_floor(np.asarray(generator.coefficient), a, b, d)
    elif isinstance(generator, ExponentialGenerator):
        m = _exponential_floor(relative_decrease(generator, a, 0.0), b, d)
    else:
        m = _floor_by_bisection(generator, a, b, d)
    return np.where(noisy, m, 0.0)


@broadcasting
def floor_hypothesis(
    generator: Generator, terms: Terms, floor: ArrayLike
) -> Hypothesis:
    """g(m) ≤ m, compared without cancellation and up to rounding (eq:floor)."""
    m = nonnegatives("floor", floor)
    gain = m * relative_decrease(generator, terms.a, m)
    cost = terms.b * m + terms.d
    return at_most("bm + d + ε ≤ m − R_a(m)", cost, gain * (1 + _ROUNDING))


@broadcasting
def noisy_contraction(generator: Generator, terms: Terms, floor: ArrayLike) -> Reals:
    """λ = L_a(m) + b (eq:lambda)."""
    m = nonnegatives("floor", floor)
    return np.asarray(np.exp(log_contraction(generator, terms, m)))


@broadcasting
def evolution(factors: ArrayLike, t: Whole, s: Whole = 0) -> Reals:
    """Λ_{t,s} = λ_s ⋯ λ_{t−1}, and 1 for t = s (def:evolution).

    Args:
        factors: λ, rounds first, shape (T, *c).
        t: end, at most T.
        s: beginning, at most t.
    """
    lambdas = nonnegatives("factors", factors)
    first, last = one_whole("s", s), one_whole("t", t)
    if lambdas.ndim == 0 or not first <= last <= len(lambdas):
        raise invalid("s, t", "whole numbers with 0 ≤ s ≤ t ≤ T", (s, t))
    return np.asarray(np.prod(lambdas[first:last], axis=0))


def _quadratic_floor(kappa: Reals, a: Reals, b: Reals, d: Reals) -> Reals:
    """The root (q + √(q² + 4(1 − b)d/(κa)))/(2(1 − b)) with q = b/(κa) + d."""
    r = np.sqrt(kappa) * np.sqrt(a)  # κa itself may leave the range of floats
    q = b / r / r + d
    root = np.hypot(q, 2 * np.sqrt(1 - b) * np.sqrt(d) / r)
    return np.asarray((q / 2 + root / 2) / (1 - b))


def _exponential_floor(decrease: Reals, b: Reals, d: Reals) -> Reals:
    net = np.asarray(decrease - b)
    noisy = (b > 0) | (d > 0)
    if (noisy & (net <= 0)).any():
        raise invalid("growth", "below 1 − e^{−ρa}", b[noisy & (net <= 0)].flat[0])
    return np.asarray(d / np.where(noisy, net, 1.0))


def _floor_by_bisection(
    generator: Generator,
    a: Float64[Array, "*c"],
    b: Float64[Array, "*c"],
    d: Float64[Array, "*c"],
) -> Float64[Array, "*c"]:
    """Bracket the root of b + d/m = 1 − R_a(m)/m by factors of four, then halve."""

    def holds(m: ArrayLike) -> Bool[Mask, "..."]:
        return np.asarray(b + d / np.asarray(m) <= relative_decrease(generator, a, m))

    free = (d == 0) & (b <= relative_decrease(generator, a, np.zeros_like(a)))
    low = np.where(d > 0, d / (1 - b), 1.0)  # the flow takes off m at most
    while (falling := holds(low) & ~free & (low > 1e-300)).any():
        low = np.where(falling, low / 4, low)
    high = low
    while (rising := ~holds(high) & ~free).any():
        if (high[rising] > 1e300).any():
            raise invalid("growth", "below 1 − R_a(m)/m for some m", b[rising].flat[0])
        high = np.where(rising, 4 * high, high)
    low = np.where(free, high, np.maximum(low, high / 4))
    for _ in range(56):
        middle = low + (high - low) / 2
        met = holds(middle)
        low, high = np.where(met, low, middle), np.where(met, middle, high)
    return np.where(free, 0.0, high)


def log_contraction(generator: Generator, terms: Terms, floor: ArrayLike) -> Reals:
    """The log of λ: from 1 − L where L is near 1, from L where it is small."""
    log_slope = generator.log_slope(terms.a, floor)
    L = np.exp(log_slope)
    near = np.log1p(np.maximum(np.expm1(log_slope) + terms.b, -0.75))
    safe = np.maximum(L + terms.b, np.finfo(np.float64).tiny)
    far = np.where(terms.b > 0, np.log(safe), log_slope)
    return np.where(L > 0.5, near, far)
