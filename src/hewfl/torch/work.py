"""What each rank did since the last round: exchanged, never assumed."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import final

import numpy as np
from jaxtyping import Bool, Float64, Int64

from hewfl.core.checks import Array, Ints, Mask
from hewfl.torch.faults import RankError, ranks_named


@final
class Meeting(IntEnum):
    """What ranks meet for; all rows are of one length, so that any two can be told."""

    CONSTRUCTION = 0
    FIRST_STEP = 1
    ROUND = 2
    AVERAGE = 3

    @property
    def place(self) -> str:
        """In words."""
        places = ("at construction", "at the first step", "at a round")
        return (*places, "at the averaged model")[self]


@final
@dataclass(frozen=True, slots=True)
class Work:
    """One rank's local work.

    Attributes:
        steps: H_i, steps of the local optimiser.
        tokens: samples or tokens seen, where the loop counts them.
        travelled: η_iH_i, the sum of the learning rates of those steps, each the mean
            over parameters where groups differ.
        leaving: whether the rank's loop has ended.
        finite: whether the gradients of its first step are, where ranks meet for them.
    """

    steps: int = 0
    tokens: int = 0
    travelled: float = 0.0
    leaving: bool = False
    finite: bool = True

    def after_step(self, learning_rate: float) -> "Work":
        """The work with one step more."""
        far = self.travelled + learning_rate
        return replace(self, steps=self.steps + 1, travelled=far)


@final
@dataclass(frozen=True, slots=True)
class Arrivals:
    """The work of all ranks in the order of ranks."""

    steps: Int64[Ints, " n"]
    tokens: Int64[Ints, " n"]
    travelled: Float64[Array, " n"]
    finite: Bool[Mask, " n"]

    @property
    def active(self) -> Int64[Ints, " s"]:
        """Ranks that did a step, at a learning rate that is not zero."""
        return np.flatnonzero((self.steps > 0) & (self.travelled > 0))


def to_row(
    meeting: Meeting, instance: int, round_: int, work: Work, same: tuple[int, ...]
) -> Float64[Array, " k"]:
    """Numbers for the wire; all but the work must agree on all ranks."""
    done = (work.leaving, work.finite, work.steps, work.tokens, work.travelled)
    return np.array((meeting, instance, round_, *done, *same), dtype=np.float64)


def from_table(table: Float64[Array, "n k"], same: tuple[str, ...]) -> Arrivals:
    """The work of all ranks, once they agree on everything else.

    Raises:
        RankError: on every rank alike, if they do not.
    """
    meetings = [_place(*row[[0, 3]]) for row in table]
    _require_one(table[:, 0], "all ranks must come to the same meeting", meetings)
    numbers = [f"number {number:.0f}" for number in table[:, 1]]
    rule = "all ranks must meet over the same HewLocalSGD or HewAverager of the group"
    _require_one(table[:, 1], rule, numbers)
    rounds = [f"in round {round_:.0f}" for round_ in table[:, 2]]
    _require_one(table[:, 2], "all ranks must be in the same round", rounds)
    leaving = np.flatnonzero(table[:, 3] != 0)
    if 0 < len(leaving) < len(table):
        text = (
            f"{ranks_named(list(leaving))} left the loop after {table[0, 2]:.0f} "
            "rounds while others go on: all ranks must do the same number of rounds"
        )
        raise RankError(text)
    for k, what in enumerate(same):
        column = table[:, 8 + k]
        kinds = np.unique(column, return_inverse=True)[1]
        values = [f"variant {kind + 1}" for kind in kinds]  # a digest says nothing
        if what.startswith("number"):
            values = [f"{value:.0f}" for value in column]
        _require_one(column, f"all ranks must have the same {what}", values)
    steps, tokens = table[:, 5:7].T.astype(np.int64)
    return Arrivals(steps, tokens, table[:, 7].copy(), table[:, 4] != 0)


def _place(meeting: float, leaving: float) -> str:
    """Where a rank is, in words."""
    return "leaving the loop" if leaving else Meeting(int(meeting)).place


def _require_one(column: Float64[Array, " n"], rule: str, values: list[str]) -> None:
    if (column != column[0]).any():
        sets = [np.flatnonzero(column == value) for value in np.unique(column)]
        got = "; ".join(f"{ranks_named(list(s))}: {values[s[0]]}" for s in sets)
        raise RankError(f"{rule}; got {got}")
