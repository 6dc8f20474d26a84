"""Where ranks meet: what each did, whether all came for the same, who is missing."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from hewfl.core.array_types import Int64
from hewfl.core.validation import Ints
from hewfl.torch.collectives import Wire
from hewfl.torch.rank_errors import Attendance, RankError, ranks_named

ROW = np.dtype(
    [(name, "i8") for name in ("meeting", "instance", "job", "rounds")]
    + [(name, "i8") for name in ("steps", "tokens", "leaving", "finite")]
    + [("travelled", "f8"), ("product", "f8"), ("weights", "i8"), ("same", "i8", 3)]
)
"""What a rank says of itself: `Work`, and all that must agree."""
_SAME = ("meeting", "instance", "rounds", "same")
"""Fields that agree in most meetings."""
_TEXT = 1600
"""Bytes of what a rank says where ranks disagree."""


@final
class Meeting(IntEnum):
    """What ranks meet for."""

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
    """One rank's work since the last round: exchanged, never assumed.

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
    """Who came to a meeting, and with what.

    Attributes:
        meeting: what those that are still in their loops came for.
        rows: of `ROW`, in the order of ranks.
        sketches: of the ranks, as bytes; None where they did not travel along.
    """

    meeting: Meeting
    rows: NDArray[Any]
    sketches: NDArray[np.uint8] | None

    @property
    def active(self) -> Int64[Ints, " s"]:
        """Ranks that did a step, at a learning rate that is not zero."""
        return np.flatnonzero((self.rows["steps"] > 0) & (self.rows["travelled"] > 0))


@final
@dataclass(frozen=True, slots=True)
class Shared:
    """Something that must be the same on all ranks.

    Attributes:
        what: how an error calls it.
        number: that ranks with another do not have.
        text: what this rank has.
    """

    what: str
    number: int
    text: str


@final
class Meetings:
    """The meetings of one `HewLocalSGD` or `HewAverager`.

    Args:
        group: the ranks.
        wire: the way to them.
        shared: what must agree besides.
    """

    def __init__(self, group: Any, wire: Wire, shared: tuple[Shared, ...]) -> None:
        self._wire, self._shared = wire, shared
        self._attendance = Attendance(group, wire.rank, wire.ranks)

    def watched(self, place: str) -> AbstractContextManager[None]:
        """Let a failure inside the block name who is missing."""
        return self._attendance.watched(place)

    @contextmanager
    def construction(self) -> Iterator[None]:
        """The first meeting, in which ranks agree on a number for the job."""
        attendance, wire = self._attendance, self._wire
        mine = attendance.job or secrets.randbelow(2**48) + 1
        if not (wire.keeps_time or attendance.job):
            # ranks meet in the store: before that they agree on its keys
            number = torch.tensor([mine], device=wire.device)
            wire.copied(number)
            mine = attendance.job = int(number)
        with self.met(Meeting.CONSTRUCTION, Work(), 0, job=mine) as arrivals:
            attendance.job = int(arrivals.rows["job"][0])
            yield

    @contextmanager
    def met(
        self,
        meeting: Meeting,
        work: Work,
        rounds: int,
        last: tuple[float, int] = (0.0, 0),
        meanwhile: Callable[[], NDArray[np.uint8] | None] | None = None,
        job: int = 0,
    ) -> Iterator[Arrivals]:
        """The work of all ranks; failures from here on name who is missing.

        Args:
            meeting: what this rank has come for.
            work: that it has done.
            rounds: done before.
            last: ⟨d, Δ⟩ of the last step d and this rank's displacement in it, and a
                number for the weights it had.
            meanwhile: called while this travels, on the host; gives this rank's sketch
                where all ranks send one.
            job: number of the job, at construction.

        Raises:
            RankError: on every rank alike, if they have not come for the same thing.
        """
        place = f"in round {rounds}" if meeting is Meeting.ROUND else meeting.place
        with self.watched(place):
            row = np.zeros((), ROW)
            row["meeting"], row["instance"] = meeting, self._attendance.instance
            row["job"], row["rounds"] = job, rounds
            row["product"], row["weights"] = last
            for name in ("steps", "tokens", "leaving", "finite", "travelled"):
                row[name] = getattr(work, name)
            row["same"] = [shared.number for shared in self._shared]
            mine, made = np.frombuffer(row.tobytes(), np.uint8).copy(), None
            if self._wire.keeps_time:
                told, coming = self._wire.gathering(mine)
                sketch = None if meanwhile is None else meanwhile()
                if sketch is not None:
                    made = self._wire.gathering(sketch)
                self._wire.wait([coming])
                rows = told.numpy().view(ROW)[:, 0]
            else:
                table = self._attendance.table(mine, self._wire.timeout)
                rows = table.view(ROW)[:, 0]
            self._require_one(rows)
            if made is not None:
                self._wire.wait([made[1]])
            sketches = None if made is None else made[0].numpy()
            yield Arrivals(_goal(rows), rows, sketches)

    def _require_one(self, rows: NDArray[Any]) -> None:
        """That all ranks have come for the same thing, and have the same of all.

        A rank that has left its loop comes along to whatever the others meet for.
        """
        if all((rows[what] == rows[what][0]).all() for what in _SAME):
            return
        goal, same = _goal(rows), rows["same"].T.tolist()
        comes = (rows["leaving"] != 0) & (rows["meeting"] == Meeting.ROUND)
        require_one(
            "all ranks must come to the same meeting",
            np.where(comes, goal, rows["meeting"]).tolist(),
            [
                "leaving the loop" if left else Meeting(m).place
                for m, left in zip(rows["meeting"], rows["leaving"], strict=True)
            ],
        )
        job = "meet over the same HewLocalSGD or HewAverager of the group"
        for what, place, rule in (
            ("instance", "number {}", job),
            ("rounds", "in round {}", "be in the same round"),
        ):
            column = rows[what].tolist()
            said = [place.format(k) for k in column]
            require_one(f"all ranks must {rule}", column, said)
        for k, column in enumerate(same):
            if len(set(column)) > 1:  # all see it, and come along to say what they have
                rule = f"all ranks must have the same {self._shared[k].what}"
                said = self._said(k)
                require_one(rule, said, said)

    def _said(self, k: int) -> list[str]:
        """What each rank has of something that should be the same."""
        mine = self._shared[k].text.encode()[:_TEXT].ljust(_TEXT)
        rows = self._wire.table(np.frombuffer(mine, np.uint8).copy())
        return [row.tobytes().decode(errors="replace").rstrip() for row in rows]


def _goal(rows: NDArray[Any]) -> Meeting:
    """What the first rank that is still in its loop has come for."""
    return Meeting(int(rows["meeting"][np.argmin(rows["leaving"])]))


def require_one(rule: str, column: Sequence[Any], said: Sequence[str]) -> None:
    """That all ranks have the same of something; else the error says what each has.

    Raises:
        RankError: they have not.
    """
    kinds = sorted(set(column))
    if len(kinds) > 1:
        sets = [[i for i, own in enumerate(column) if own == kind] for kind in kinds]
        got = "; ".join(f"{ranks_named(some)}: {said[some[0]]}" for some in sets)
        raise RankError(f"{rule}; got {got}")
