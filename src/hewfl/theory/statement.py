"""Results of theorems: a number, and the conditions under which it is a bound.

A `Rate` over a thousand configurations holds arrays of a thousand entries, and each
hypothesis says for which of them it is met.
"""

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.core.array_types import Bool
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import ArrayLike, Mask, Reals

if TYPE_CHECKING:
    Constants = Literal["paper", "sharp", "absorbed", "joint"]
else:  # run-time type checks pass a wrong name on to the error that lists the choices
    Constants = str


@final
@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """One condition of a statement with the two numbers it compares.

    Attributes:
        name: the condition, such as "Λϑ ≤ L/2".
        left: the smaller side if the condition holds.
        right: the larger side if the condition holds.
        holds: whether it does.
    """

    name: str
    left: Reals
    right: Reals
    holds: Bool[Mask, "..."]


@broadcasting
def at_most(name: str, left: ArrayLike, right: ArrayLike) -> Hypothesis:
    """The hypothesis left ≤ right."""
    small, large = (np.asarray(x, dtype=np.float64) for x in (left, right))
    return Hypothesis(name, small, large, np.asarray(small <= large))


@broadcasting
def below(name: str, left: ArrayLike, right: ArrayLike) -> Hypothesis:
    """The hypothesis left < right."""
    small, large = (np.asarray(x, dtype=np.float64) for x in (left, right))
    return Hypothesis(name, small, large, np.asarray(small < large))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The bound of a lemma, with its LaTeX label and its conditions."""

    label: str
    value: Reals
    hypotheses: tuple[Hypothesis, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """A bound together with the conditions that make it true.

    Attributes:
        label: LaTeX label of the statement in the paper.
        value: the bound.
        floor: the level the bound tends to as rounds grow.
        vacuous: whether the floor is not below what is known without the theorem (the
            cap f̄ = LR²/2), so that the bound is trivial for any number of rounds.
        hypotheses: the conditions, each with its numbers.
    """

    label: str
    value: Reals
    floor: Reals
    vacuous: Bool[Mask, "..."]
    hypotheses: tuple[Hypothesis, ...]

    @property
    def holds(self) -> Bool[Mask, "..."]:
        """Whether all hypotheses are met, entry by entry."""
        return all_hold(self.hypotheses)


def rate_with_floor(
    label: str,
    value: ArrayLike,
    floor: ArrayLike,
    known: ArrayLike,
    hypotheses: tuple[Hypothesis, ...],
) -> Rate:
    """A rate, vacuous where its floor is not below what is known without it."""
    bound, level, top = np.broadcast_arrays(value, floor, known)
    return Rate(label, bound, level, np.asarray(level >= top), hypotheses)


def all_hold(hypotheses: tuple[Hypothesis, ...]) -> Bool[Mask, "..."]:
    """Entry by entry, whether every hypothesis is met."""
    met = (hypothesis.holds for hypothesis in hypotheses)
    return np.asarray(reduce(np.logical_and, met, np.asarray(True)))
