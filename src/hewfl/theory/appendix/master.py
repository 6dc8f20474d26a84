"""The master recursion S ← R_a(S) + bS + d + ε: one step, floors, closed bounds.

    floor    m with R_a(m) + bm + d + ε ≤ m
    factor   λ = L_a(m) + b,  so that  (S⁺ − m)₊ ≤ λ (S − m)₊

A bound is for terms constant in time and any number of rounds, or, without `rounds`,
for terms that change, with one entry for each round. The generator decides which
corollary it is (quadratic, power, exponential), or the theorem itself. `objective` is
C_obj of eq:obj_dom, for the bound on the objective gap.

The Bellman kernel is the step under each of many controls u, G(s, u) = R_{α(u)}(s) +
β(u)s + δ(u). A finite set is searched outright; a box is cut into cells, on which
isotone coefficients bound the infimum from below, so that the answer comes with its own
ε. There states have shape (*c), controls α, β and δ shape (*c, k) after broadcasting,
and parameters of φ, if arrays, shape (*c, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Bool, Float64, Int64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Converted,
    Ints,
    Mask,
    Nonnegatives,
    Reals,
    as_float64,
    broadcast,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.appendix.generators import (
    ExponentialGenerator,
    Generator,
    QuadraticGenerator,
    relative_decrease,
)
from hewfl.theory.recursion import Whole, one_whole
from hewfl.theory.statement import Hypothesis, Rate, at_most, below

_MOST_CELLS = 2**20
"""Cells of a box of controls."""
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
    """One step g(s) = R_a(s) + bs + d + ε of the recursion (def:noisy_drift)."""
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
    s = nonnegatives("start", start)
    states = [np.asarray(s + 0 * terms.a[0] + np.zeros_like(generator.origin_slope))]
    for a, b, d in zip(terms.a, terms.b, terms.d, strict=True):
        s = states[-1]
        states.append(np.asarray(generator.flow(a, s) + b * s + d))
    return np.stack(states)


@broadcasting
def noiseless_rate(
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    rounds: ArrayLike | None = None,
    *,
    objective: ArrayLike = 1.0,
) -> Rate:
    """S_T ≤ R_{A_T}(S_0) with A_T = Σ a_t (thm:noiseless, eq:noiseless_bound).

        φ = κs²        S_T ≤ 1/(1/S_0 + κA_T)                       cor:quadratic
        φ = κs^{1+p}   S_T ≤ (S_0^{−p} + κpA_T)^{−1/p}              cor:power
        φ = ρs         S_T ≤ e^{−ρA_T} S_0                          cor:exp

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: constant in time, or rounds first; the theorem needs b = d = ε = 0
            (eq:noiseless_ass).
        rounds: T; None for terms with rounds first, and then `value` has one entry per
            t = 0, ..., T.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.

    Returns:
        The rate, whose floor is zero; vacuous where the run starts there.
    """
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    a, b, d = terms.a, terms.b, terms.d
    if rounds is None:
        _require_rounds(terms)
        elapsed = np.concatenate([0 * a[:1], np.cumsum(a, axis=0)])
        b, d = b.max(axis=0), d.max(axis=0)
    else:
        elapsed = wholes("rounds", rounds) * a
    value = np.asarray(C * generator.flow(elapsed, S0))
    shape = value.shape[1:] if rounds is None else value.shape
    vacuous = np.broadcast_to(S0 <= 0, shape)
    quiet = (at_most("b ≤ 0", b, 0.0), at_most("d + ε ≤ 0", d, 0.0))
    return Rate(generator.noiseless, value, np.zeros(shape), vacuous, quiet)


@broadcasting
def noiseless_coordinate(
    generator: Generator, start: ArrayLike, elapsed: ArrayLike, reference: ArrayLike
) -> Reals:
    """Least time coordinate χ(S_T) ≥ χ(S_0) + A_T after time A_T (eq:noiseless_chi).

    It needs S_0 and S_T positive; that R_{A_T}(S_0) is, as the paper asks, leaves
    χ(S_T) undefined when the run arrives at zero early (erratum E-24).
    """
    S0, time = positives("start", start), nonnegatives("elapsed", elapsed)
    return np.asarray(generator.coordinate(S0, reference) + time)


@broadcasting
def noisy_floor(generator: Generator, terms: Terms) -> Reals:
    """Smallest m that is a floor together with everything above it (ass:noisy_floor).

        bm + d + ε ≤ m − R_a(m)

    g(m) − m is concave, so above the positive root every m is a floor, and the largest
    root over t serves all rounds (erratum E-24). Closed forms:

        φ = κs²   (1 − b)κa m² − (b + κad)m − d = 0
        φ = ρs    m = d/(1 − e^{−ρa} − b)

    the others by bisection to the last bit. Without noise the floor is 0. It is
    infinite where none exists: for b ≥ 1, or a flow that takes too little off.
    """
    shape = np.broadcast_shapes(terms.a.shape, generator.origin_slope.shape)
    a, b, d = (np.broadcast_to(x, shape) for x in (terms.a, terms.b, terms.d))
    noisy = (b > 0) | (d > 0)
    none = noisy & ((b >= 1) | (a == 0))
    # stand-ins where there is nothing to solve
    a, b = np.where(noisy & ~none, a, 1.0), np.where(none, 0.0, b)
    if isinstance(generator, QuadraticGenerator):
        r = np.sqrt(generator.coefficient) * np.sqrt(a)  # κa may leave the range
        q = b / r / r + d
        root = np.hypot(q, 2 * np.sqrt(1 - b) * np.sqrt(d) / r)
        m = np.asarray((q / 2 + root / 2) / (1 - b))
    elif isinstance(generator, ExponentialGenerator):
        net = np.asarray(relative_decrease(generator, a, 0.0) - b)
        none = none | (noisy & (net <= 0))
        m = np.asarray(d / np.where(noisy & ~none, net, 1.0))
    else:
        m = _floor_by_bisection(generator, a, b, d)
    return np.where(none, np.inf, np.where(noisy, m, 0.0))


def _floor_by_bisection(generator: Generator, a: Array, b: Array, d: Array) -> Array:
    """Bracket the root of b + d/m = 1 − R_a(m)/m by factors of four, then halve.

    Infinite where it is not below 1e300.
    """

    def holds(m: ArrayLike) -> Bool[Mask, "..."]:
        return np.asarray(b + d / np.asarray(m) <= relative_decrease(generator, a, m))

    free = (d == 0) & (b <= relative_decrease(generator, a, np.zeros_like(a)))
    low = np.where(d > 0, d / (1 - b), 1.0)  # the flow takes off m at most
    while (falling := holds(low) & ~free & (low > 1e-300)).any():
        low = np.where(falling, low / 4, low)
    high = low
    while (rising := ~holds(high) & ~free & (high < 1e300)).any():
        high = np.where(rising, 4 * high, high)
    none = high >= 1e300
    low = np.where(free, high, np.maximum(low, high / 4))
    for _ in range(56):
        middle = low + (high - low) / 2
        met = holds(middle)
        low, high = np.where(met, low, middle), np.where(met, middle, high)
    return np.where(free, 0.0, np.where(none, np.inf, high))


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


def log_contraction(generator: Generator, terms: Terms, floor: ArrayLike) -> Reals:
    """The log of λ: from 1 − L where L is near 1, from L where it is small."""
    log_slope = generator.log_slope(terms.a, floor)
    L = np.exp(log_slope)
    near = np.log1p(np.maximum(np.expm1(log_slope) + terms.b, -0.75))
    safe = np.maximum(L + terms.b, np.finfo(np.float64).tiny)
    far = np.where(terms.b > 0, np.log(safe), log_slope)
    return np.where(L > 0.5, near, far)


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


@broadcasting
def noisy_rate(  # noqa: PLR0913 - the statement has as many letters
    generator: Generator,
    start: ArrayLike,
    terms: Terms,
    rounds: ArrayLike | None = None,
    *,
    floor: ArrayLike | None = None,
    objective: ArrayLike = 1.0,
    printed: bool = False,
) -> Rate:
    """S_T ≤ m + Λ_{T,0} (S_0 − m)₊ (thm:noisy, eq:noisy_bound).

        φ = κs²        λ = 1/(1 + κam)² + b                    cor:quadratic_noisy
        φ = κs^{1+p}   λ = (1 + κpa m^p)^{−1−1/p} + b          cor:power_noisy
        φ = ρs         λ = e^{−ρa} + b                         cor:exp_noisy

    One m serves all rounds; each step obeys r_{t+1} ≤ λ_t r_t (eq:noisy_onestep). For
    terms that change, hypotheses show the round that comes closest to breaking them.

    Args:
        generator: φ.
        start: S_0 ≥ 0.
        terms: constant in time, Λ_{T,0} = λ^T, or rounds first.
        rounds: T; None for terms with rounds first, and then `value` has one entry per
            t = 0, ..., T.
        floor: m; by default the smallest, of all rounds' own the largest.
        objective: C_obj of eq:obj_dom, for the bound on the objective gap.
        printed: also ask for λ < 1, which the bound does not need (erratum E-24).

    Returns:
        The rate with its floor C_obj m, infinite where there is none.
    """
    schedule = rounds is None
    if schedule:
        _require_rounds(terms)
    if floor is None:
        m = noisy_floor(generator, terms)
        m = m.max(axis=0) if schedule else m
    else:
        m = nonnegatives("floor", floor)
    exists = np.isfinite(m)
    log = log_contraction(generator, terms, np.where(exists, m, 0.0))
    C, S0 = positives("objective", objective), nonnegatives("start", start)
    if rounds is None:
        total = np.concatenate([0 * log[:1], np.cumsum(log, axis=0)])
    else:
        total = wholes("rounds", rounds) * log
    r = np.maximum(S0 - m, 0.0)  # zero where the run starts below the floor
    with np.errstate(over="ignore"):  # λ > 1: a vacuous bound
        value = np.asarray(C * (m + np.exp(np.where(r > 0, total, 0.0)) * r))
    holds = floor_hypothesis(generator, terms, np.where(exists, m, 0.0))
    sides = (np.where(exists, side, np.nan) for side in (holds.left, holds.right))
    conditions = [at_most(holds.name, *sides)]  # it fails where there is no floor
    conditions += [below("λ < 1", np.exp(log), 1.0)] if printed else []
    if schedule:
        conditions = [_tightest(condition) for condition in conditions]
        vacuous, shape = np.asarray((value >= C * S0).all(axis=0)), value.shape[1:]
    else:
        shape = value.shape
        vacuous = np.broadcast_to((m >= S0) | (log >= 0), shape)
    level = np.broadcast_to(C * m, shape)
    return Rate(generator.noisy, value, level, vacuous, tuple(conditions))


def _tightest(condition: Hypothesis) -> Hypothesis:
    left, right = np.broadcast_arrays(condition.left, condition.right)
    at = np.argmax(left - right, axis=0, keepdims=True)
    pick = (np.take_along_axis(side, at, axis=0)[0] for side in (left, right))
    test = below if "<" in condition.name else at_most
    return test(condition.name, *pick)


def _require_rounds(terms: Terms) -> None:
    if terms.a.ndim == 0 or len(terms.a) == 0:
        rule = "of shape (T, *c) with T ≥ 1 rounds"
        raise invalid("terms", rule, f"shape {terms.a.shape}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A control for each state, and how good it is known to be.

    B(s) + ε bounds E[s_{t+1} | past] under it (thm:adaptive).
    """

    index: Int64[Ints, "*c"]  # which control
    value: Float64[Array, "*c"]  # G(s, u) at it
    infimum: Float64[Array, "*c"]  # B(s)
    bound: Float64[Array, "*c"]  # B(s) + ε


@broadcasting
def bellman_kernel(
    generator: Generator, state: ArrayLike, controls: Terms
) -> Float64[Array, "*c k"]:
    """G(s, u) = R_{α(u)}(s) + β(u)s + δ(u) for every control (def:Bellman)."""
    s = nonnegatives("state", state)[..., None]
    return noisy_drift(generator, controls, s)


@broadcasting
def bellman_operator(
    generator: Generator, state: ArrayLike, controls: Terms
) -> Float64[Array, "*c"]:
    """B(s) = min over u of G(s, u)  (def:Bellman)."""
    return np.asarray(bellman_kernel(generator, state, controls).min(axis=-1))


@broadcasting
def epsilon_selection(
    generator: Generator, state: ArrayLike, controls: Terms, epsilon: ArrayLike
) -> Selection:
    """First control in order within ε of the infimum (prop:eps, thm:adaptive).

        π(s) = u_N,     N = min{k : G(s, u_k) ≤ B(s) + ε}

    ε = 0 gives the first minimiser.
    """
    G = bellman_kernel(generator, state, controls)
    least = G.min(axis=-1)
    bound = np.asarray(least + nonnegatives("epsilon", epsilon))
    G = np.broadcast_to(G, (*bound.shape, G.shape[-1]))
    index = np.argmax(bound[..., None] >= G, axis=-1)
    value = np.take_along_axis(G, index[..., None], axis=-1)[..., 0]
    infimum = np.broadcast_to(least, bound.shape)
    return Selection(np.asarray(index), np.asarray(value), infimum, bound)


@final
@dataclass(frozen=True, slots=True, eq=False)
class BoxSelection:
    """A control out of a box for each state.

    The lower bound rests on α, β, δ being isotone: the hypotheses say that they do not
    fall from a cell's low corner to its high one.
    """

    control: Float64[Array, "*c k"]  # u
    value: Float64[Array, "*c"]  # G(s, u) at it
    infimum: Float64[Array, "*c"]  # lower bound of B(s); value − infimum is the ε
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def box_selection(
    generator: Generator,
    state: ArrayLike,
    law: Callable[..., Any],
    box: tuple[ArrayLike, ArrayLike],
    *,
    cells: int = 256,
) -> BoxSelection:
    """Best corner of a box cut into cells, with a lower bound on the infimum.

    On a cell from l to h, isotone α, β, δ give

        G(s, u) ≥ R_{α(h)}(s) + β(l)s + δ(l).

    `law` maps controls of shape (N, k) to their N `Terms`; `box` has low and high ends
    of k entries each. The attained ε shrinks in proportion to 1/cells, which counts
    per axis.
    """
    s = nonnegatives("state", state)
    corners, low, high = _cells(box, cells)
    at: Terms = law(corners)
    G = bellman_kernel(generator, s, at)
    best = np.argmin(G, axis=-1)
    alpha, beta, delta = at.a, at.b, at.d
    optimist = Terms(alpha[..., high], beta[..., low], delta[..., low])
    falls = (np.max(x[..., low] - x[..., high], axis=-1) for x in (alpha, beta, delta))
    names = ("α(l) − α(h) ≤ 0", "β(l) − β(h) ≤ 0", "δ(l) − δ(h) ≤ 0")
    return BoxSelection(
        corners[best],
        np.asarray(G.min(axis=-1)),
        bellman_operator(generator, s, optimist),
        tuple(at_most(name, x, 0.0) for name, x in zip(names, falls, strict=True)),
    )


def _cells(
    box: tuple[ArrayLike, ArrayLike], cells: int
) -> tuple[Float64[Array, "N k"], Int64[Ints, " M"], Int64[Ints, " M"]]:
    """All corners, and the places of each cell's low and high corner among them."""
    low, high = (np.atleast_1d(as_float64("box", end)) for end in box)
    if low.ndim != 1 or low.shape != high.shape or not (low <= high).all():
        raise invalid("box", "two vectors of one length, low ≤ high", box)
    k = len(low)
    if cells < 1 or (cells + 1) ** k > _MOST_CELLS:
        rule = f"at least 1, and (cells + 1)^{k} at most {_MOST_CELLS}"
        raise invalid("cells", rule, cells)
    axes = [np.linspace(lo, hi, cells + 1) for lo, hi in zip(low, high, strict=True)]
    corners = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, k)
    places = np.arange(len(corners)).reshape((cells + 1,) * k)
    first = places[(slice(None, -1),) * k].ravel()
    last = places[(slice(1, None),) * k].ravel()
    return corners, first, last
