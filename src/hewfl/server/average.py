"""An average of the server's iterates, kept beside them for every method.

    a ← a + p_t (x_t − a)        after the t-th concluded round, t = 1, 2, …

EMA      p_t = 1 − min(β, (t − 1)/(t + 4))     exponential, with warm-up
tail     p_t = 1/max(1, t − r + 1)             the mean of x_r, x_{r+1}, …, x_t

The warm-up makes the first averages short: β alone would drag the start x_0 along for
1/(1 − β) rounds. In both forms x_0 itself never counts, and before its first round r
the tail average is the iterate. A round without a step (nobody took part, or the rule
could not decide) gives no new iterate and is not counted. Averages of iterates go back
to [Polyak1992].
"""

from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.server.outer import DECAY, Outer

WARM_UP = 5
"""Rounds: the average of the first t rounds is over about t/5 + 1 of them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Average:
    """The average of a run so far.

    Attributes:
        model: a, the averaged model; the start before the first round.
        rounds: t, how many iterates it has seen.
    """

    model: Float64[Array, " d"]
    rounds: int = 0


def average_weight(outer: Outer, rounds: int) -> float:
    """p_t, the weight of the newest iterate in the average.

    Args:
        outer: says which average; it must have one.
        rounds: t − 1, iterates seen before this one.
    """
    if outer.average == "tail":
        first = 1 if outer.average_from is None else outer.average_from
        return 1 / max(1, rounds + 2 - first)
    decay = DECAY if outer.average_decay is None else outer.average_decay
    return 1 - min(decay, rounds / (rounds + WARM_UP))


def averaged(weight: float, average: Any, iterate: Any) -> Any:
    """The next average on some entries, as a vector of its own.

    Vectors are of NumPy or torch, whole or in part: every entry goes by itself.

    Args:
        weight: p_t of `average_weight`.
        average: a before the round.
        iterate: x_t.
    """
    if weight == 1:  # a + (x − a) is not x after rounding
        return iterate + 0.0
    return average + weight * (iterate - average)


def continued(outer: Outer, before: Average, iterate: Float64[Array, " d"]) -> Average:
    """The average after one more iterate."""
    share = average_weight(outer, before.rounds)
    return Average(averaged(share, before.model, iterate), before.rounds + 1)
