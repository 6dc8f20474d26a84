"""Where ranks meet: what each did, whether all came for the same, who is missing."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.torch.faults import Attendance
from hewfl.torch.wire import Wire
from hewfl.torch.work import (
    Arrivals,
    Meeting,
    Work,
    differing,
    from_table,
    require_one,
    to_row,
)

ROOM = 2**16
"""Bytes for a sketch in every row: 16,384 numbers of float32, 8,192 of float64."""
_TEXT = 1600
"""Bytes of what a rank says of itself where ranks disagree."""


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
        with self.met(Meeting.CONSTRUCTION, Work(), 0, job=mine) as (arrivals, _):
            attendance.job = arrivals.job
            yield

    @contextmanager
    def met(
        self,
        meeting: Meeting,
        work: Work,
        rounds: int,
        product: float = 0.0,
        sketch: Callable[[], Float64[Array, " m"]] | None = None,
        job: int = 0,
    ) -> Iterator[tuple[Arrivals, Float64[Array, "n m"] | None]]:
        """The work of all ranks; failures from here on name who is missing.

        Rows are of one length whatever ranks come for, so that any two can be told
        apart: they have room for a sketch, used or not.

        Args:
            meeting: what this rank has come for.
            work: that it has done.
            rounds: done before.
            product: see `to_row`.
            sketch: makes this rank's, where all ranks send one.
            job: number of the job, at construction.

        Returns:
            What ranks did, and their sketches; None where they did not travel along.
        """
        place = f"in round {rounds}" if meeting is Meeting.ROUND else meeting.place
        with self.watched(place):
            same = tuple(shared.number for shared in self._shared)
            counts = self._attendance.instance, job, rounds
            row, sketches = to_row(meeting, counts, work, product, same), None
            if self._wire.keeps_time:
                mine: Array = np.zeros(len(row) + ROOM // 8)
                mine[: len(row)] = row
                if sketch is not None and work.steps > 0:
                    mine[len(row) :] = sketch()
                whole = self._wire.table(mine)
                table = np.ascontiguousarray(whole[:, : len(row)])
                sketches = whole[:, len(row) :] if sketch is not None else None
            else:
                table = self._attendance.table(row, self._wire.timeout)
            arrivals, k = from_table(table), differing(table)
            if k is not None:  # all ranks see it, and come along to say what they have
                rule = f"all ranks must have the same {self._shared[k].what}"
                said = self._said(k)
                require_one(rule, said, said.__getitem__)
            yield arrivals, sketches

    def _said(self, k: int) -> list[str]:
        """What each rank has of something that should be the same."""
        mine = self._shared[k].text.encode()[:_TEXT].ljust(_TEXT)
        rows = self._wire.table(np.frombuffer(mine).copy())
        return [row.tobytes().decode(errors="replace").rstrip() for row in rows]
