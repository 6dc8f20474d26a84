"""Rounds to a target: a closed bound inverted exactly, a recursion iterated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.checks import Array, ArrayLike, Reals, positives
from hewfl.core.shapes import broadcasting
from hewfl.theory.arrival import MOST_STEPS, first_round_at, staged_arrival
from hewfl.theory.curves import Curve
from hewfl.theory.statement import Rate
from hewfl.theory.trajectories import one_whole

MOST_ROUNDS = 2.0**48
"""More rounds than this count as infinitely many."""
_DIP = 2000
"""Rounds iterated where the stages certify nothing."""


@broadcasting
def rounds_to(
    rate: Callable[[ArrayLike], Rate], target: ArrayLike, *, least: int = 0
) -> Reals:
    """The fewest rounds after which a bound is at most a target.

    The bound must not rise with the rounds. The last number of rounds with the bound
    still above the target is found digit by digit, to the base 16, so that the answer
    was itself evaluated.

    Args:
        rate: the bound; hypotheses are not looked at.
        target: ε > 0, shape (*c).
        least: the fewest rounds the bound is defined for.

    Returns:
        Whole numbers; infinite where the floor is not below the target, or where
        `MOST_ROUNDS` do not suffice.

    Examples:
        >>> from hewfl.theory import linear_rate
        >>> float(rounds_to(lambda T: linear_rate(1.0, 0.5, 0.0, T), 0.1))
        4.0

    Raises:
        InvalidInputError: ε ≤ 0, or what the bound itself refuses.
    """
    goal, least = positives("target", target), one_whole("least", least)
    first = rate(least).value
    shape = np.broadcast_shapes(first.shape, goal.shape)
    powers, digits = 16.0 ** np.arange(12, -1, -1), tail(np.arange(1.0, 16.0), shape)
    reached = rate(least + tail(powers, shape)).value <= goal
    late = np.full(shape, float(least))
    for power, soon in zip(powers, reached, strict=True):
        if (reached[0] & ~soon).any():  # else this digit is zero, or does not matter
            late = late + power * (rate(late + power * digits).value > goal).sum(0)
    found = np.where(reached[0], late + 1, np.inf)
    return np.where(first <= goal, float(least), found)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """Rounds to a target by the two roads, and by the better one.

    Attributes:
        fewest: the least of all that follow.
        closed: by the closed rate.
        iterated: by the recursion, iterated as far as `arrival.MOST_STEPS` and bounded
            in stages beyond; infinite where there is no recursion.
    """

    fewest: Reals
    closed: Reals
    iterated: Reals


@broadcasting
def rounds_needed(curve: Curve, target: ArrayLike, *, least: int = 0) -> Needed:
    """The fewest rounds to a target that a theorem certifies, by whichever road.

    Args:
        curve: of one theorem.
        target: ε > 0, shape (*c).
        least: the fewest rounds the closed bound is defined for.

    Returns:
        Whole numbers; 0 where the start meets the target, infinite for never, and where
        a hypothesis fails.

    Raises:
        InvalidInputError: ε ≤ 0.
    """
    goal, holds = positives("target", target), curve.rate(least).holds
    closed = rounds_to(curve.rate, goal, least=least)
    met = (
        np.asarray(curve.start[0]) <= goal
    )  # no round is needed, whatever the bound says
    closed = np.where(holds, np.where(met, 0.0, closed), np.inf)
    iterated = np.full(closed.shape, np.inf)
    if curve.law is not None:
        staged = staged_arrival(curve.law, curve.start, goal)[1]
        # no more rounds than the stages certify; a transient dip may be found below a
        # floor, where they certify nothing
        most = np.where(np.isfinite(staged), np.minimum(staged, MOST_STEPS), _DIP)
        exact = first_round_at(curve.law, curve.start, goal, most=holds * most)
        iterated = np.where(holds, np.minimum(staged, exact), np.inf)
    return Needed(np.asarray(np.minimum(closed, iterated)), closed, iterated)


def real_rounds_to(rate: Callable[[ArrayLike], Rate], goal: Array, least: int) -> Reals:
    """`rounds_to` as a real number, on a line between two rounds, for a search."""
    whole = rounds_to(rate, goal, least=least)
    last = np.where(np.isfinite(whole), whole, least + 1.0)
    before, after = rate(np.maximum(last - 1, least)).value, rate(last).value
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (goal - after) / (before - after)
    inside = np.where((whole > least) & (share > 0) & (share < 1), share, 0.0)
    return np.asarray(whole - inside)


def tail(values: Array, shape: tuple[int, ...]) -> Array:
    """The values with an axis of length one for each of the configurations'."""
    return values.reshape(*values.shape, *[1] * len(shape))
