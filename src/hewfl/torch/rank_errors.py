"""What goes wrong between ranks, said on every rank instead of a hang."""

import os
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import distributed as dist
from torch.distributed import distributed_c10d

from hewfl.errors import HewError

_COUNTS: "weakref.WeakKeyDictionary[Any, Counter[str]]" = weakref.WeakKeyDictionary()
"""Of each process group: how many exchanges were made on it, how often ranks met."""


@final
class RankError(HewError, RuntimeError):
    """Ranks are missing, or do not do the same thing; the text names them.

    Examples:
        >>> issubclass(RankError, RuntimeError)  # so that it is caught as one
        True
    """


@final
class Attendance:
    """A note of each rank's last meeting in the job's store, to name who is missing.

    Collectives that fail say that somebody is gone, not who. The store of the default
    process group outlives them in most failures. Meetings are counted on the group,
    whatever they are for: who has come to fewer is missing. Nothing else depends on
    the store: under torchrun it outlives the processes, and what an attempt left there
    must not be taken for the next one's.

    Attributes:
        instance: how many were made on the group by this rank, this one included.
    """

    def __init__(self, group: Any, rank: int, ranks: int) -> None:
        """Count one more on the group.

        Args:
            group: the process group.
            rank: of this process in it.
            ranks: n.
        """
        self._rank, self._ranks = rank, ranks
        self._counts = _COUNTS.setdefault(group, Counter())
        self._store: Any = dist.HashStore()  # of this process: it names nobody
        if dist.is_initialized():
            self._store = distributed_c10d._get_default_store()
        attempt = "0"
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # it is kept
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._name = f"hewfl/attempt {attempt}/{getattr(group, 'group_name', '')}"
        self._counts["instances"] += 1
        self.instance = self._counts["instances"]

    @property
    def job(self) -> int:
        """A number that all ranks of the group share once they have met; zero before.

        Not that of an attempt before this one, which may have left notes in the store.
        """
        return self._counts["job"]

    @job.setter
    def job(self, number: int) -> None:
        self._counts["job"] = number

    def table(self, row: NDArray[np.uint8], timeout: timedelta) -> NDArray[np.uint8]:
        """One row of bytes from each rank, in the order of ranks, through the store.

        For backends whose collectives cannot be given up: on NCCL a missing rank is
        found here, before one of them is under way, by an error instead of an abort.
        """
        meeting = self._counts["meetings"]
        keys = [self._row_key(meeting, rank) for rank in range(self._ranks)]
        self._store.set(keys[self._rank], row.tobytes().hex())
        self._store.wait(keys, timeout)
        rows = [bytes.fromhex(self._store.get(key).decode()) for key in keys]
        if meeting > 2:  # all have come to the last, and so have read this one
            self._store.delete_key(self._row_key(meeting - 2, self._rank))
        return np.stack([np.frombuffer(row, np.uint8) for row in rows])

    @contextmanager
    def watched(self, place: str) -> Iterator[None]:
        """Note that this rank has come; let a failure name those who have not.

        Args:
            place: where it has come to, in words.
        """
        began = time.monotonic()
        self._counts["meetings"] += 1
        try:
            note = f"{self.job} {self._counts['meetings']} {place}"
            self._store.set(f"{self._name}/{self._rank}", note)
            yield
        except RankError:
            raise
        except RuntimeError as error:
            text = (
                f"rank {self._rank} broke off {place} after "
                f"{time.monotonic() - began:.1f} s because {self._missing()}: "
                f"{_first_line(error)}"
            )
            raise RankError(text) from error

    def _missing(self) -> str:
        try:
            seen = [self._last(rank) for rank in range(self._ranks)]
        except RuntimeError:  # the store is gone as well
            return "the process that keeps the job's store is gone"
        lasts = [
            f"{rank} ({place})"
            for rank, (meeting, place) in enumerate(seen)
            if meeting < self._counts["meetings"]
        ]
        if not lasts:
            return "a rank that had come as well broke off"
        return f"it never saw {ranks_named(lasts)}"

    def _row_key(self, meeting: int, rank: int) -> str:
        return f"{self._name}/job {self.job}/meeting {meeting}/{rank}"

    def _last(self, rank: int) -> tuple[int, str]:
        """The last meeting that a rank has come to: its number, and in words."""
        key = f"{self._name}/{rank}"
        if not self._store.check([key]):
            return 0, "not seen before"
        job, meeting, place = self._store.get(key).decode().split(" ", 2)
        if self.job and job not in ("0", str(self.job)):
            return 0, "not seen since the job was started again"
        return int(meeting), f"last seen {place}"


def named(items: Sequence[object]) -> str:
    """Things in a sentence: «1, 2 and 5»."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return ", ".join(texts[:-1]) + " and " + texts[-1]


def ranks_named(ranks: Sequence[object]) -> str:
    """Ranks in a sentence: «rank 2», «ranks 1, 2 and 5»."""
    return ("rank " if len(ranks) == 1 else "ranks ") + named(ranks)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
