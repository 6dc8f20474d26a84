"""Rounds to a target: a closed bound inverted, a recursion iterated or bounded.

The closed rates leave the tracking error q at the cap it has for the largest gap. The
recursion itself lets q fall with the gap, and arrives earlier, often many times. It is
iterated (`first_round_at`), or bounded in stages where it takes too long
(`rounds_in_stages`). All answers are rounds after which g ≤ ε for certain; infinite is
never.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import final

import numpy as np

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Reals, positives, wholes
from hewfl.theory.recursion import Recursion, State, one_whole, validate_start
from hewfl.theory.statement import Rate
from hewfl.theory.theorem_table import Curve

MOST_ROUNDS = 2.0**48
"""More rounds than this count as infinitely many."""
MOST_STEPS = 100_000
"""Recursions are iterated one by one so far; what takes longer is bounded by stages."""
_DIP = 2000
"""Rounds iterated where the stages certify nothing."""
_REST = 256
"""A bound that is the same so many rounds later counts as at rest."""
_LEVELS = 48
"""Stages on each of two scales: ratios of the gap, and distances to the target."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class RoundsNeeded:
    """Rounds to a target by the closed bound, by the recursion, and the fewest."""

    fewest: Reals
    closed: Reals
    iterated: Reals  # as far as `MOST_STEPS`, in stages beyond; ∞ without a recursion


@broadcasting
def rounds_needed(curve: Curve, target: ArrayLike, *, least: int = 0) -> RoundsNeeded:
    """The fewest rounds to a target that the curve of a theorem certifies.

    `least` is the fewest rounds the closed bound is defined for. Answers are whole
    numbers: 0 where the start meets the target, infinite where a hypothesis fails.
    """
    goal, holds = positives("target", target), curve.rate(least).holds
    # a start at the target needs no round, whatever the bound says
    met = np.asarray(curve.start[0]) <= goal
    closed = np.where(met, 0.0, rounds_to(curve.rate, goal, least=least))
    closed = np.where(holds, closed, np.inf)
    iterated = np.full(closed.shape, np.inf)
    if curve.recursion is not None:
        staged = rounds_in_stages(curve.recursion, curve.start, goal)[1]
        # no more rounds than the stages certify; a transient dip may lie below a
        # floor, where they certify nothing
        most = np.where(np.isfinite(staged), np.minimum(staged, MOST_STEPS), _DIP)
        exact = first_round_at(curve.recursion, curve.start, goal, most=holds * most)
        iterated = np.where(holds, np.minimum(staged, exact), np.inf)
    return RoundsNeeded(np.asarray(np.minimum(closed, iterated)), closed, iterated)


@broadcasting
def rounds_to(
    rate: Callable[[ArrayLike], Rate], target: ArrayLike, *, least: int = 0
) -> Reals:
    """The fewest rounds after which a bound that does not rise is at most a target.

    The last number of rounds with the bound still above the target is computed digit by
    digit, to the base 16, so that the answer was itself evaluated.

    Examples:
        >>> from hewfl.theory.scalar import linear_rate
        >>> float(rounds_to(lambda T: linear_rate(1.0, 0.5, 0.0, T), 0.1))
        4.0
    """
    goal, least = positives("target", target), one_whole("least", least)
    first = rate(least).value
    shape = np.broadcast_shapes(first.shape, goal.shape)
    column = (-1, *[1] * len(shape))
    powers, digits = 16.0 ** np.arange(12, -1, -1), np.arange(1.0, 16.0).reshape(column)
    reached = rate(least + powers.reshape(column)).value <= goal
    late = np.full(shape, float(least))
    for power, soon in zip(powers, reached, strict=True):
        if (reached[0] & ~soon).any():  # else this digit is zero, or does not matter
            late = late + power * (rate(late + power * digits).value > goal).sum(0)
    rounds = np.where(reached[0], late + 1, np.inf)
    return np.where(first <= goal, float(least), rounds)


def real_rounds_to(rate: Callable[[ArrayLike], Rate], goal: Array, least: int) -> Reals:
    """`rounds_to` as a real number, on a line between two rounds, for a search."""
    whole = rounds_to(rate, goal, least=least)
    last = np.where(np.isfinite(whole), whole, least + 1.0)
    before, after = rate(np.maximum(last - 1, least)).value, rate(last).value
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (goal - after) / (before - after)
    inside = np.where((whole > least) & (share > 0) & (share < 1), share, 0.0)
    return np.asarray(whole - inside)


@broadcasting
def first_round_at(
    recursion: Recursion,
    start: State,
    target: ArrayLike,
    *,
    most: ArrayLike = MOST_STEPS,
) -> Reals:
    """The first round whose bound is at most a target, by iterating the recursion.

    Whole numbers; infinite where `most` rounds, shape (*c), do not reach the target.
    """
    goal = positives("target", target)
    u, q, _ = validate_start(start, recursion.cap)
    *columns, limit = np.broadcast_arrays(
        *recursion.coefficients, u, q, goal, wholes("most", most)
    )
    rounds = np.full(limit.shape, np.inf)
    for c in np.ndindex(rounds.shape):
        *numbers, eps = (float(x[c]) for x in columns)
        last = np.inf
        gaps = islice(_gaps(numbers, recursion.flows), int(limit[c]) + 1)
        for t, gap in enumerate(gaps):
            if gap <= eps:
                rounds[c] = t
                break
            if t % _REST == 0:
                if gap == last:  # at rest above the target
                    break
                last = gap
    return rounds


def single_trajectory(recursion: Recursion, start: State, rounds: int) -> list[float]:
    """Bounds of rounds 0 to T of one configuration, faster than its `trajectory`."""
    u, q, _ = validate_start(start, recursion.cap)
    numbers = [float(x) for x in (*recursion.coefficients, u, q)]
    return list(islice(_gaps(numbers, recursion.flows), rounds + 1))


def _gaps(numbers: list[float], flows: bool) -> Iterator[float]:
    """The bounds of all rounds, on Python's numbers: several times as fast as NumPy."""
    a, beta, gamma, delta, cap, A, B, C, u, q = numbers
    while True:
        yield u
        u = min(u, cap)
        x, stale = a * u, gamma * q if gamma else 0.0
        if not flows:
            moved = u + (beta * u - a * u * u)
        else:
            moved = (1 / a / (1 + 1 / x) if x > 1 else u / (1 + x)) + beta * u
        u, q = min(cap, moved + stale + delta), A + B * u + C * q


@broadcasting
def rounds_in_stages(
    recursion: Recursion, start: State, target: ArrayLike
) -> tuple[Reals, Reals]:
    """Rounds to a target in stages: from one level of the gap to the next.

    At level G > G' with q ≤ Q, every gap between them falls in a round by at least
    φ(g) = g − D(g) − βg − γQ − δ, and φ grows with g. So N ≥ ∫ dg/φ(g) over [G', G]
    rounds lead to G', and meanwhile

        q ≤ q* + C^N (Q − q*)₊,     q* = (A + BG)/(1 − C).

    1/φ is convex, so that the trapezoid rule errs upwards. A gap that has reached G'
    stays below it, since φ(G') ≥ 0. Where the first stage does not fall because q₀ is
    too large, q is given time to fall to q* with the gap at its cap.

    Returned are the sum of all N as real numbers, smooth in the coefficients, which a
    search can compare, and the sum of all N rounded up, which is certified. Both are 0
    where the start meets the target, infinite where a stage does not fall.
    """
    goal = positives("target", target)
    u, q, _ = validate_start(start, recursion.cap)
    parts = np.broadcast_arrays(*recursion.coefficients, u, q, goal, recursion.cap)
    u, q, goal, cap = parts[-4:]
    u = np.asarray(np.minimum(u, cap))
    real, whole = _stages(recursion, u, q, goal)
    stuck = np.isinf(real) & (q > _rest(recursion, u))
    if stuck.any():
        rest = _rest(recursion, cap)
        with np.errstate(all="ignore"):  # until the excess is a thousandth of the rest
            wait = np.log(0.001 * rest / (q - rest)) / np.log(recursion.C)
        wait = np.where(q > 1.001 * rest, np.where(wait > 0, wait, np.inf), 0.0)
        lowered = np.asarray(np.minimum(1.001 * rest, np.maximum(q, rest)))
        late, late_whole = _stages(recursion, cap, lowered, goal)
        real = np.where(stuck, wait + late, real)
        whole = np.where(stuck, np.ceil(wait) + late_whole, whole)
    met = u <= goal
    return np.where(met, 0.0, real), np.where(met, 0.0, whole)


def _stages(
    recursion: Recursion, u: Array, q: Array, goal: Array
) -> tuple[Array, Array]:
    real, whole = np.zeros(u.shape), np.zeros(u.shape)
    gamma = recursion.staleness
    C = np.where(gamma > 0, recursion.C, 0.0)
    levels = _levels(np.asarray(np.maximum(u, goal)), goal)
    wide, rests = np.asarray(levels[:-1] - levels[1:]), _rest(recursion, levels)
    with np.errstate(all="ignore"):  # a stage that does not fall takes for ever
        falls = recursion.decrease(levels, np.zeros(()))  # the cost of Q comes below
        for k, rest in enumerate(rests[:-1]):
            cost = gamma * np.maximum(q, rest)
            last = falls[k + 1] - cost
            N = wide[k] / 2 * (1 / (falls[k] - cost) + 1 / last)
            N = np.where(wide[k] > 0, np.where((last > 0) & (C < 1), N, np.inf), 0.0)
            real, whole = real + N, whole + np.ceil(N)
            q = rest + np.where(np.isinf(N), 1.0, C**N) * np.maximum(q - rest, 0)
    return np.asarray(real), np.asarray(whole)


def _levels(high: Array, goal: Array) -> Array:
    """Falling levels from the start to the target: even in log g, and ever closer.

    Ratios alone would end in a stage of some percent, too coarse for a target just
    above the floor; distances alone would be too coarse far above the target.
    """
    share = np.linspace(0, 1, _LEVELS).reshape(-1, *[1] * high.ndim)
    even = high * (goal / high) ** share
    close = goal + (high - goal) * 1e-6**share
    levels = np.sort(np.concatenate([even, close, goal[None]]), axis=0)[::-1]
    return np.asarray(np.clip(levels, goal, high))


def _rest(recursion: Recursion, gap: Array) -> Array:
    """q* = (A + B g)/(1 − C), where the tracking error rests at a gap g."""
    k = recursion
    with np.errstate(all="ignore"):
        level = (k.A + k.B * gap) / (1 - k.C)
    return np.where((k.staleness > 0) & (k.C < 1), level, 0.0)
