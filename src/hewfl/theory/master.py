"""The master recursion S ← R_a(S) + bS + d + ε, its floors and its closed bounds.

Two forms of each bound: `*_rate` for terms constant in time and any number of rounds,
`*_bounds` for terms that change, which returns the whole trajectory. The generator
decides which corollary it is (quadratic, power, exponential), or the theorem itself.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.core.checks import Array, ArrayLike, Mask, as_float64, invalid
from hewfl.theory.flow import (
    ExponentialGenerator,
    Generator,
    QuadraticGenerator,
    nonnegatives,
    positives,
    relative_decrease,
)
from hewfl.theory.statement import Hypothesis, Rate, at_most, below

_ROUNDING = 1e-12
"""Relative slack of g(m) ≤ m: at the smallest floor the two sides are equal."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The comparator's terms of the recursion, nonnegative and broadcast together.

    Attributes:
        time: a_t, how long the flow runs.
        growth: b_t.
        offset: d_t.
        slack: ε_t, what the controls miss the infimum by.
    """

    time: ArrayLike
    growth: ArrayLike = 0.0
    offset: ArrayLike = 0.0
    slack: ArrayLike = 0.0

    def __post_init__(self) -> None:
        """Check ranges; store arrays of one shape."""
        names = ("time", "growth", "offset", "slack")
        values = [nonnegatives(name, getattr(self, name)) for name in names]
        try:
            values = list(np.broadcast_arrays(*values))
        except ValueError as error:
            shapes = [value.shape for value in values]
            rule = "arrays that broadcast"
            raise invalid(", ".join(names), rule, shapes) from error
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def a(self) -> Float64[Array, "..."]:
        """a_t."""
        return np.asarray(self.time)

    @property
    def b(self) -> Float64[Array, "..."]:
        """b_t."""
        return np.asarray(self.growth)

    @property
    def d(self) -> Float64[Array, "..."]:
        """d_t + ε_t, which the recursion never tells apart."""
        return np.asarray(np.asarray(self.offset) + np.asarray(self.slack))


def noisy_drift(
    generator: Generator, terms: Terms, state: ArrayLike
) -> Float64[Array, "..."]:
    """One step of the recursion (def:noisy_drift).

    g(s) = R_a(s) + bs + d + ε
    """
    s = nonnegatives("state", state)
    return np.asarray(generator.flow(terms.a, s) + terms.b * s + terms.d)


def master_trajectory(
    generator: Generator, start: ArrayLike, terms: Terms
) -> Float64[Array, "..."]:
    """The recursion itself, played to the end (thm:master, eq:master_rec).

        S_{t+1} = R_{a_t}(S_t) + b_t S_t + d_t + ε_t

    The theorem bounds E[s_t] by it for any comparator controls, since R_a is concave
    and increasing.

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: rounds first, shape (T, *c).

    Returns:
        S_0, ..., S_T.
    """
    _require_rounds(terms)
    states = [_start(start, terms.a[0], generator)]
    for a, b, d in zip(terms.a, terms.b, terms.d, strict=True):
        s = states[-1]
        states.append(np.asarray(generator.flow(a, s) + b * s + d))
    return np.stack(states)


# ------------------------------------------------------------------ without noise


def noiseless_rate(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    rounds: ArrayLike,
    *,
    objective: ArrayLike = 1.0,
) -> Rate:
    """S_T ≤ R_{Ta}(S_0) for constant terms (thm:noiseless, cor:quadratic, ...).

        φ = κs²        S_T ≤ 1/(1/S_0 + κA_T)                       cor:quadratic
        φ = κs^{1+p}   S_T ≤ (S_0^{−p} + κpA_T)^{−1/p}              cor:power
        φ = ρs         S_T ≤ e^{−ρA_T} S_0                          cor:exp

    with A_T = Σ a_t (eq:noiseless_bound).

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: constant in time; the theorem wants b = d = ε = 0 (eq:noiseless_ass).
        rounds: T.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.
    """
    elapsed = _rounds(rounds) * terms.a
    value, conditions = _noiseless(generator, start, terms, elapsed, objective)
    return _to_zero(generator, start, value, value.shape, conditions)


def noiseless_bounds(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    *,
    objective: ArrayLike = 1.0,
) -> Rate:
    """The same for terms of shape (T, *c); `value` has one entry per t = 0, ..., T."""
    _require_rounds(terms)
    elapsed = np.concatenate([0 * terms.a[:1], np.cumsum(terms.a, axis=0)])
    worst = Terms(*(np.max(x, axis=0) for x in (terms.a, terms.b, terms.d)))
    value, conditions = _noiseless(generator, start, worst, elapsed, objective)
    return _to_zero(generator, start, value, value.shape[1:], conditions)


def noiseless_coordinate(
    generator: Generator, start: ArrayLike, elapsed: ArrayLike, reference: ArrayLike
) -> Float64[Array, "..."]:
    """Least time coordinate after time A_T (eq:noiseless_chi).

        χ(S_T) ≥ χ(S_0) + A_T

    It needs S_0 and S_T positive; that R_{A_T}(S_0) is, as the paper asks, leaves
    χ(S_T) undefined when the run arrives at zero early (erratum E-24).
    """
    time = nonnegatives("elapsed", elapsed)
    return np.asarray(generator.coordinate(start, reference) + time)


def _noiseless(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    elapsed: ArrayLike,
    objective: ArrayLike,
) -> tuple[Float64[Array, "..."], tuple[Hypothesis, ...]]:
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    quiet = (at_most("b ≤ 0", terms.b, 0.0), at_most("d + ε ≤ 0", terms.d, 0.0))
    return np.asarray(C * generator.flow(elapsed, S0)), quiet


def _to_zero(
    generator: Generator,
    start: ArrayLike,
    value: Float64[Array, "..."],
    shape: tuple[int, ...],
    conditions: tuple[Hypothesis, ...],
) -> Rate:
    """A rate whose floor is zero: it says something unless the run starts there."""
    vacuous = np.broadcast_to(np.asarray(start) <= 0, shape)
    return Rate(generator.noiseless, value, np.zeros(shape), vacuous, conditions)


# ------------------------------------------------------------------ floors


def noisy_floor(generator: Generator, terms: Terms) -> Float64[Array, "..."]:
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


def floor_hypothesis(
    generator: Generator, terms: Terms, floor: ArrayLike
) -> Hypothesis:
    """g(m) ≤ m, compared without cancellation and up to rounding (eq:floor)."""
    m = nonnegatives("floor", floor)
    gain = m * relative_decrease(generator, terms.a, m)
    cost = terms.b * m + terms.d
    return at_most("bm + d + ε ≤ m − R_a(m)", cost, gain * (1 + _ROUNDING))


def contraction(
    generator: Generator, terms: Terms, floor: ArrayLike
) -> Float64[Array, "..."]:
    """λ = L_a(m) + b (eq:lambda)."""
    return np.asarray(np.exp(_log_contraction(generator, terms, floor)))


def evolution(factors: ArrayLike, t: int, s: int = 0) -> Float64[Array, "..."]:
    """Λ_{t,s} = λ_s ⋯ λ_{t−1}, and 1 for t = s (def:evolution).

    Args:
        factors: λ, rounds first, shape (T, *c).
        t: end, at most T.
        s: beginning, at most t.
    """
    lambdas = nonnegatives("factors", factors)
    if lambdas.ndim == 0 or not 0 <= s <= t <= len(lambdas):
        raise invalid("s, t", "whole numbers with 0 ≤ s ≤ t ≤ T", (s, t))
    return np.asarray(np.prod(lambdas[s:t], axis=0))


def _quadratic_floor(
    kappa: Float64[Array, "..."],
    a: Float64[Array, "..."],
    b: Float64[Array, "..."],
    d: Float64[Array, "..."],
) -> Float64[Array, "..."]:
    """The root (q + √(q² + 4(1 − b)d/(κa)))/(2(1 − b)) with q = b/(κa) + d."""
    r = np.sqrt(kappa) * np.sqrt(a)  # κa itself may leave the range of floats
    q = b / r / r + d
    root = np.hypot(q, 2 * np.sqrt(1 - b) * np.sqrt(d) / r)
    return np.asarray((q / 2 + root / 2) / (1 - b))


def _exponential_floor(
    decrease: Float64[Array, "..."],
    b: Float64[Array, "..."],
    d: Float64[Array, "..."],
) -> Float64[Array, "..."]:
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


def _log_contraction(
    generator: Generator, terms: Terms, floor: ArrayLike
) -> Float64[Array, "..."]:
    """The log of λ: from 1 − L where L is near 1, from L where it is small."""
    log_slope = generator.log_slope(terms.a, floor)
    L = np.exp(log_slope)
    near = np.log1p(np.maximum(np.expm1(log_slope) + terms.b, -0.75))
    safe = np.maximum(L + terms.b, np.finfo(np.float64).tiny)
    far = np.where(terms.b > 0, np.log(safe), log_slope)
    return np.where(L > 0.5, near, far)


# ------------------------------------------------------------------ with noise


def noisy_rate(  # noqa: PLR0913 - the statement has as many letters
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    rounds: ArrayLike,
    *,
    floor: ArrayLike | None = None,
    objective: ArrayLike = 1.0,
    printed: bool = False,
) -> Rate:
    """S_T ≤ m + λ^T (S_0 − m)₊ for constant terms (thm:noisy, corollaries).

        φ = κs²        λ = 1/(1 + κam)² + b                    cor:quadratic_noisy
        φ = κs^{1+p}   λ = (1 + κpa m^p)^{−1−1/p} + b          cor:power_noisy
        φ = ρs         λ = e^{−ρa} + b                         cor:exp_noisy

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: constant in time.
        rounds: T.
        floor: m; the smallest by default.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.
        printed: also ask for λ < 1, which the bound does not need (erratum E-24).
    """
    m = noisy_floor(generator, terms) if floor is None else nonnegatives("floor", floor)
    log = _log_contraction(generator, terms, m)
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    with np.errstate(over="ignore"):  # λ > 1: a bound that says nothing
        value = np.asarray(C * (m + _scaled_power(log, rounds, S0 - m)))
    conditions = [floor_hypothesis(generator, terms, m)]
    conditions += [below("λ < 1", np.exp(log), 1.0)] if printed else []
    vacuous = np.broadcast_to((m >= S0) | (log >= 0), value.shape)
    level = np.broadcast_to(C * m, value.shape)
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


def noisy_bounds(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    *,
    floor: ArrayLike | None = None,
    objective: ArrayLike = 1.0,
    printed: bool = False,
) -> Rate:
    """S_t ≤ m + Λ_{t,0} (S_0 − m)₊ for terms of shape (T, *c)  (eq:noisy_bound).

    One m serves all rounds: by default the largest of the rounds' own. `value` has one
    entry per t = 0, ..., T; each step obeys r_{t+1} ≤ λ_t r_t (eq:noisy_onestep). The
    hypotheses show the round that comes closest to breaking them.
    """
    _require_rounds(terms)
    if floor is None:
        m = noisy_floor(generator, terms).max(axis=0)
    else:
        m = nonnegatives("floor", floor)
    log = _log_contraction(generator, terms, m)
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    sums = np.concatenate([0 * log[:1], np.cumsum(log, axis=0)])
    with np.errstate(over="ignore"):  # λ > 1: a bound that says nothing
        value = np.asarray(C * (m + _scaled_power(sums, 1, S0 - m)))
    conditions = [_tightest(floor_hypothesis(generator, terms, m))]
    conditions += [below("λ < 1", np.exp(log).max(axis=0), 1.0)] if printed else []
    vacuous = np.asarray((value >= C * S0).all(axis=0))
    level = np.broadcast_to(C * m, value.shape[1:])
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


def _scaled_power(
    log: Float64[Array, "..."], rounds: ArrayLike, distance: ArrayLike
) -> Float64[Array, "..."]:
    """λ^T (S_0 − m)₊, zero where the run starts below the floor."""
    r = np.maximum(distance, 0.0)
    power = np.where(r > 0, _rounds(rounds) * log, 0.0)
    return np.asarray(np.exp(power) * r)


def _tightest(condition: Hypothesis) -> Hypothesis:
    left, right = np.broadcast_arrays(condition.left, condition.right)
    at = np.argmax(left - right, axis=0, keepdims=True)
    pick = (np.take_along_axis(side, at, axis=0)[0] for side in (left, right))
    return at_most(condition.name, *pick)


def _rounds(rounds: ArrayLike) -> Float64[Array, "..."]:
    T = as_float64("rounds", rounds)
    bad = (T < 0) | (np.floor(T) != T)
    if bad.any():
        raise invalid("rounds", "a whole number of at least 0", T[bad].flat[0])
    return T


def _require_rounds(terms: Terms) -> None:
    if terms.a.ndim == 0 or len(terms.a) == 0:
        rule = "of shape (T, *c) with T ≥ 1 rounds"
        raise invalid("terms", rule, f"shape {terms.a.shape}")


def _start(
    start: ArrayLike, like: ArrayLike, generator: Generator
) -> Float64[Array, "..."]:
    """S_0 in the shape of the trajectory."""
    S0 = nonnegatives("start", start)
    return np.asarray(S0 + np.zeros_like(like) + np.zeros_like(generator.origin_slope))
