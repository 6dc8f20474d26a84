"""What each rank did since the last round: exchanged, never assumed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, final

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
        active: ranks that did a step, at a learning rate that is not zero.
    """

    meeting: Meeting
    job: int
    steps: Int64[Ints, " n"]
    tokens: Int64[Ints, " n"]
    travelled: Float64[Array, " n"]
    finite: Bool[Mask, " n"]
    leaving: Bool[Mask, " n"]
    products: Float64[Array, " n"]
    active: Int64[Ints, " s"]


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
    rows = table.tolist()  # for a few ranks faster than columns of NumPy
    goal = Meeting(int(next((row for row in rows if not row[4]), rows[0])[0]))
    came = [goal if row[4] and row[0] == Meeting.ROUND else row[0] for row in rows]
    rule = "all ranks must come to the same meeting"
    require_one(rule, came, lambda i: _place(rows[i]))
    rule = "all ranks must meet over the same HewLocalSGD or HewAverager of the group"
    require_one(rule, [row[1] for row in rows], lambda i: f"number {rows[i][1]:.0f}")
    rule = "all ranks must be in the same round"
    require_one(rule, [row[3] for row in rows], lambda i: f"in round {rows[i][3]:.0f}")
    steps, tokens = table[:, 6:8].T.astype(np.int64)
    finite, far, products = table[:, 5] != 0, table[:, 8].copy(), table[:, 9].copy()
    done = steps, tokens, far, finite, table[:, 4] != 0, products
    active = np.flatnonzero((steps > 0) & (far > 0))
    return Arrivals(goal, int(rows[0][2]), *done, active)


def differing(table: Float64[Array, "n k"]) -> int | None:
    """Which of the things that must agree does not, if any."""
    columns = table[:, 10:].T.tolist()
    return next((k for k, column in enumerate(columns) if len(set(column)) > 1), None)


def require_one(rule: str, column: Sequence[Any], said: Callable[[int], str]) -> None:
    """That all ranks have the same of something; else the error says what each has.

    Raises:
        RankError: they have not.
    """
    kinds = sorted(set(column))
    if len(kinds) > 1:
        sets = [[i for i, own in enumerate(column) if own == kind] for kind in kinds]
        got = "; ".join(f"{ranks_named(some)}: {said(some[0])}" for some in sets)
        raise RankError(f"{rule}; got {got}")


def _place(row: Sequence[float]) -> str:
    """Where a rank is, in words."""
    return "leaving the loop" if row[4] else Meeting(int(row[0])).place
