"""The master recursion S ← R_a(S) + bS + d + ε: one step, floors, closed bounds.

    floor    m with R_a(m) + bm + d + ε ≤ m
    factor   λ = L_a(m) + b,  so that  (S⁺ − m)₊ ≤ λ (S − m)₊

Each bound has two forms: `*_rate` for terms constant in time and any number of rounds,
`*_bounds` for terms that change, which returns the whole trajectory. The generator
decides which corollary it is (quadratic, power, exponential), or the theorem itself.
`objective` is C_obj of eq:obj_dom, for the bound on the objective gap.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.array_types import Bool, Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Converted,
    Mask,
    Nonnegatives,
    Reals,
    broadcast,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.appendix.closed_forms import ExponentialGenerator, QuadraticGenerator
from hewfl.theory.appendix.generator import Generator, relative_decrease
from hewfl.theory.recursion import Whole, one_whole
from hewfl.theory.statement import Hypothesis, Rate, at_most, below

_ROUNDING = 1e-12
"""Relative slack of g(m) ≤ m: at the smallest floor the two sides are equal."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Terms(Converted):
    """Terms of S ← R_a(S) + bS + d + ε, nonnegative and broadcast together.

    Those of a comparator, rounds first, or those of all controls, the control last.

    Attributes:
        time: a_t, how long the flow runs.
        growth: b_t.
        offset: d_t.
        slack: ε_t, what the controls miss the infimum by.
    """

    time: Nonnegatives
    growth: Nonnegatives = 0.0
    offset: Nonnegatives = 0.0
    slack: Nonnegatives = 0.0

    def __post_init__(self) -> None:
        """Refuse negative numbers and no terms at all; store arrays of one shape."""
        Converted.__post_init__(self)
        names = ("time", "growth", "offset", "slack")
        values = {name: np.asarray(getattr(self, name)) for name in names}
        for name, value in broadcast(values).items():
            if not value.size:
                raise invalid(", ".join(names), "nonempty", f"shape {value.shape}")
            object.__setattr__(self, name, value)

    @property
    def a(self) -> Reals:
        """a_t."""
        return np.asarray(self.time)

    @property
    def b(self) -> Reals:
        """b_t."""
        return np.asarray(self.growth)

    @property
    def d(self) -> Reals:
        """d_t + ε_t, which enter the recursion only as a sum."""
        return np.asarray(np.asarray(self.offset) + np.asarray(self.slack))


@broadcasting
def noisy_drift(generator: Generator, terms: Terms, state: ArrayLike) -> Reals:
    """One step of the recursion (def:noisy_drift).

    g(s) = R_a(s) + bs + d + ε
    """
    s = nonnegatives("state", state)
    return np.asarray(generator.flow(terms.a, s) + terms.b * s + terms.d)


@broadcasting
def master_trajectory(generator: Generator, start: ArrayLike, terms: Terms) -> Reals:
    """The recursion itself, iterated to the end (thm:master, eq:master_rec).

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
    states = [_start_state(start, terms.a[0], generator)]
    for a, b, d in zip(terms.a, terms.b, terms.d, strict=True):
        s = states[-1]
        states.append(np.asarray(generator.flow(a, s) + b * s + d))
    return np.stack(states)


@broadcasting
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
        terms: constant in time; the theorem needs b = d = ε = 0 (eq:noiseless_ass).
        rounds: T.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.

    Returns:
        The rate, whose floor is zero.
    """
    elapsed = wholes("rounds", rounds) * terms.a
    value, conditions = _noiseless_value(generator, start, terms, elapsed, objective)
    return _rate_to_zero(generator, start, value, value.shape, conditions)


@broadcasting
def noiseless_bounds(
    generator: Generator, start: ArrayLike, terms: Terms, *, objective: ArrayLike = 1.0
) -> Rate:
    """S_t ≤ R_{a_0 + ... + a_{t−1}}(S_0) for terms that change over rounds.

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: rounds first, shape (T, *c); the theorem needs b = d = ε = 0.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.

    Returns:
        The rate; its `value` has one entry per t = 0, ..., T.
    """
    _require_rounds(terms)
    elapsed = np.concatenate([0 * terms.a[:1], np.cumsum(terms.a, axis=0)])
    worst = Terms(*(np.max(x, axis=0) for x in (terms.a, terms.b, terms.d)))
    value, conditions = _noiseless_value(generator, start, worst, elapsed, objective)
    return _rate_to_zero(generator, start, value, value.shape[1:], conditions)


@broadcasting
def noiseless_coordinate(
    generator: Generator, start: ArrayLike, elapsed: ArrayLike, reference: ArrayLike
) -> Reals:
    """Least time coordinate after time A_T (eq:noiseless_chi).

        χ(S_T) ≥ χ(S_0) + A_T

    It needs S_0 and S_T positive; that R_{A_T}(S_0) is, as the paper asks, leaves
    χ(S_T) undefined when the run arrives at zero early (erratum E-24).
    """
    S0, time = positives("start", start), nonnegatives("elapsed", elapsed)
    return np.asarray(generator.coordinate(S0, reference) + time)


def _noiseless_value(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    elapsed: ArrayLike,
    objective: ArrayLike,
) -> tuple[Reals, tuple[Hypothesis, ...]]:
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    quiet = (at_most("b ≤ 0", terms.b, 0.0), at_most("d + ε ≤ 0", terms.d, 0.0))
    return np.asarray(C * generator.flow(elapsed, S0)), quiet


def _rate_to_zero(
    generator: Generator,
    start: ArrayLike,
    value: Reals,
    shape: tuple[int, ...],
    conditions: tuple[Hypothesis, ...],
) -> Rate:
    """A rate whose floor is zero: vacuous where the run starts there."""
    vacuous = np.broadcast_to(np.asarray(start) <= 0, shape)
    return Rate(generator.noiseless, value, np.zeros(shape), vacuous, conditions)


@broadcasting
def noisy_floor(generator: Generator, terms: Terms) -> Reals:
    """Smallest m that is a floor together with everything above it (ass:noisy_floor).

        bm + d + ε ≤ m − R_a(m)

    g(m) − m is concave, so above the positive root every m is a floor, and the largest
    root over t serves all rounds (erratum E-24). Closed forms:

        φ = κs²   (1 − b)κa m² − (b + κad)m − d = 0
        φ = ρs    m = d/(1 − e^{−ρa} − b)

    the others by bisection to the last bit. Without noise the floor is 0.

    The floor has the shape of the terms.

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

    λ has the rounds first, shape (T, *c), and s ≤ t ≤ T.
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


@broadcasting
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

    Returns:
        The rate with its floor C_obj m.

    Raises:
        InvalidInputError: no floor exists, or an argument is out of range.
    """
    m = noisy_floor(generator, terms) if floor is None else nonnegatives("floor", floor)
    log = log_contraction(generator, terms, m)
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    with np.errstate(over="ignore"):  # λ > 1: a vacuous bound
        value = np.asarray(C * (m + _scaled_power(log, rounds, S0 - m)))
    conditions = [floor_hypothesis(generator, terms, m)]
    conditions += [below("λ < 1", np.exp(log), 1.0)] if printed else []
    vacuous = np.broadcast_to((m >= S0) | (log >= 0), value.shape)
    level = np.broadcast_to(C * m, value.shape)
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


@broadcasting
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

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: rounds first, shape (T, *c).
        floor: m, one for all rounds; the largest of their own by default.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.
        printed: also ask for λ < 1, which the bound does not need (E-24).

    Returns:
        The rate; its `value` has one entry per t = 0, ..., T.

    Raises:
        InvalidInputError: no floor exists, or an argument is out of range.
    """
    _require_rounds(terms)
    if floor is None:
        m = noisy_floor(generator, terms).max(axis=0)
    else:
        m = nonnegatives("floor", floor)
    log = log_contraction(generator, terms, m)
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    sums = np.concatenate([0 * log[:1], np.cumsum(log, axis=0)])
    with np.errstate(over="ignore"):  # λ > 1: a vacuous bound
        value = np.asarray(C * (m + _scaled_power(sums, 1, S0 - m)))
    conditions = [_tightest(floor_hypothesis(generator, terms, m))]
    conditions += [below("λ < 1", np.exp(log).max(axis=0), 1.0)] if printed else []
    vacuous = np.asarray((value >= C * S0).all(axis=0))
    level = np.broadcast_to(C * m, value.shape[1:])
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


def _scaled_power(log: Reals, rounds: ArrayLike, distance: ArrayLike) -> Reals:
    """λ^T (S_0 − m)₊, zero where the run starts below the floor."""
    r = np.maximum(distance, 0.0)
    power = np.where(r > 0, wholes("rounds", rounds) * log, 0.0)
    return np.asarray(np.exp(power) * r)


def _tightest(condition: Hypothesis) -> Hypothesis:
    left, right = np.broadcast_arrays(condition.left, condition.right)
    at = np.argmax(left - right, axis=0, keepdims=True)
    pick = (np.take_along_axis(side, at, axis=0)[0] for side in (left, right))
    return at_most(condition.name, *pick)


def _require_rounds(terms: Terms) -> None:
    if terms.a.ndim == 0 or len(terms.a) == 0:
        rule = "of shape (T, *c) with T ≥ 1 rounds"
        raise invalid("terms", rule, f"shape {terms.a.shape}")


def _start_state(start: ArrayLike, like: ArrayLike, generator: Generator) -> Reals:
    """S_0 in the shape of the trajectory."""
    S0 = nonnegatives("start", start)
    return np.asarray(S0 + np.zeros_like(like) + np.zeros_like(generator.origin_slope))
