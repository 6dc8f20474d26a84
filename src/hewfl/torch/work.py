"""What each rank did since the last round: exchanged, never assumed."""

from collections.abc import Sequence
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

    @property
    def place(self) -> str:
        """In words."""
        return ("at construction", "at the first step", "at a round")[self]


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
    """The work of all ranks in the order of ranks.

    Attributes:
        meeting: what those that are still in their loops came for.
        job: a number of rank 0's that stands for this start of the job.
        steps: H_i.
        tokens: as counted.
        travelled: η_iH_i.
        finite: whether first gradients are.
        leaving: whose loops have ended.
        products: ⟨d, Δ_i⟩ of the step d and the displacements of the last round.
    """

    meeting: Meeting
    job: int
    steps: Int64[Ints, " n"]
    tokens: Int64[Ints, " n"]
    travelled: Float64[Array, " n"]
    finite: Bool[Mask, " n"]
    leaving: Bool[Mask, " n"]
    products: Float64[Array, " n"]

    @property
    def active(self) -> Int64[Ints, " s"]:
        """Ranks that did a step, at a learning rate that is not zero."""
        return np.flatnonzero((self.steps > 0) & (self.travelled > 0))


def to_row(
    meeting: Meeting,
    counts: tuple[int, int, int],
    work: Work,
    product: float,
    same: tuple[int, ...],
) -> Float64[Array, " k"]:
    """Numbers for the wire.

    Args:
        meeting: what this rank has come for.
        counts: number of the instance on the group, of the job, and of rounds done.
        work: since the last round.
        product: ⟨d, Δ⟩ of this rank in the last round.
        same: what must agree on all ranks besides, as numbers.
    """
    done = (work.leaving, work.finite, work.steps, work.tokens, work.travelled)
    return np.array((meeting, *counts, *done, product, *same), dtype=np.float64)


def from_table(table: Float64[Array, "n k"]) -> Arrivals:
    """The work of all ranks, once they have come for the same thing.

    A rank that has left its loop comes along to whatever the others meet for.

    Raises:
        RankError: on every rank alike, if they have not.
    """
    leaving = table[:, 4] != 0
    places = [_place(*row[[0, 4]]) for row in table]
    staying = table[~leaving, 0] if not leaving.all() else table[:, 0]
    goal = Meeting(int(staying[0]))
    came = np.where(leaving & (table[:, 0] == Meeting.ROUND), goal, table[:, 0])
    _require_one(came, "all ranks must come to the same meeting", places)
    numbers = [f"number {number:.0f}" for number in table[:, 1]]
    rule = "all ranks must meet over the same HewLocalSGD or HewAverager of the group"
    _require_one(table[:, 1], rule, numbers)
    rounds = [f"in round {round_:.0f}" for round_ in table[:, 3]]
    _require_one(table[:, 3], "all ranks must be in the same round", rounds)
    steps, tokens = table[:, 6:8].T.astype(np.int64)
    finite, far, products = table[:, 5] != 0, table[:, 8].copy(), table[:, 9].copy()
    done = steps, tokens, far, finite, leaving, products
    return Arrivals(goal, int(table[0, 2]), *done)


def differing(table: Float64[Array, "n k"]) -> int | None:
    """Which of the things that must agree does not, if any."""
    for k, column in enumerate(table[:, 10:].T):
        if (column != column[0]).any():
            return k
    return None


def disagreement(what: str, texts: Sequence[str]) -> RankError:
    """That ranks have not the same of something, and who has what."""
    kinds = np.unique(np.array(texts), return_inverse=True)[1].astype(np.float64)
    try:
        _require_one(kinds, f"all ranks must have the same {what}", list(texts))
    except RankError as error:
        return error
    return RankError(f"all ranks must have the same {what}")


def _place(meeting: float, leaving: float) -> str:
    """Where a rank is, in words."""
    return "leaving the loop" if leaving else Meeting(int(meeting)).place


def _require_one(column: Float64[Array, " n"], rule: str, values: list[str]) -> None:
    if (column != column[0]).any():
        sets = [np.flatnonzero(column == value) for value in np.unique(column)]
        got = "; ".join(f"{ranks_named(list(s))}: {values[s[0]]}" for s in sets)
        raise RankError(f"{rule}; got {got}")
