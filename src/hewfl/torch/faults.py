"""What goes wrong between ranks, said on every rank instead of a hang."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from torch.distributed import distributed_c10d

from hewfl.core.checks import Array
from hewfl.errors import HewError


@final
class RankError(HewError, RuntimeError):
    """Ranks are missing, or do not do the same thing; the text names them."""


@final
class Attendance:
    """A note of each rank's last round in the job's store, to name who is missing.

    Collectives that fail say that somebody is gone, not who. The store of the default
    process group outlives them in most failures.
    """

    def __init__(self, group: str, rank: int, ranks: int) -> None:
        """Take a name that others on the group take too, and nobody took before.

        Args:
            group: name of the process group.
            rank: of this process in it.
            ranks: n.
        """
        self._rank, self._ranks, self._meetings = rank, ranks, 0
        self._store: Any = distributed_c10d._get_default_store()
        number = self._store.add(f"hewfl/{group}/instances of {rank}", 1)
        self._name = f"hewfl/{group}/{number}"

    def note(self, round_: int) -> None:
        """This rank has come to a round."""
        self._store.set(f"{self._name}/{self._rank}", str(round_))

    def table(
        self, row: Float64[Array, " k"], timeout: timedelta
    ) -> Float64[Array, "n k"]:
        """One row of numbers from each rank, in the order of ranks, through the store.

        For backends whose collectives cannot be given up: on NCCL a missing rank is
        found here, before one of them is under way, by an error instead of an abort.
        """
        self._meetings += 1
        keys = [self._row_key(self._meetings, rank) for rank in range(self._ranks)]
        self._store.set(keys[self._rank], row.tobytes().hex())
        self._store.wait(keys, timeout)
        rows = [bytes.fromhex(self._store.get(key).decode()) for key in keys]
        if self._meetings > 2:  # all have come to the last, and so have read this one
            self._store.delete_key(self._row_key(self._meetings - 2, self._rank))
        return np.stack([np.frombuffer(row) for row in rows])

    @contextmanager
    def watched(self, round_: int, timeout: timedelta) -> Iterator[None]:
        """Turn a failed collective into an error that names the missing ranks."""
        try:
            yield
        except RankError:
            raise
        except RuntimeError as error:
            who = self._missing(round_)
            text = (
                f"round {round_} ended on rank {self._rank} because {who} (waited up "
                f"to {timeout.total_seconds():g} s): {_first_line(error)}"
            )
            raise RankError(text) from error

    def _missing(self, round_: int) -> str:
        try:
            seen = [self._last(rank) for rank in range(self._ranks)]
        except RuntimeError:  # the store is gone as well
            return "the process that keeps the job's store is gone"
        absent = [k for k, last in enumerate(seen) if last is None or last < round_]
        if not absent:
            return "a rank that had come to it broke off"
        lasts = [f"{k} (last seen in round {seen[k]})" for k in absent]
        return f"it never saw {ranks_named(lasts)}"

    def _row_key(self, meeting: int, rank: int) -> str:
        return f"{self._name}/meeting {meeting}/{rank}"

    def _last(self, rank: int) -> int | None:
        key = f"{self._name}/{rank}"
        return int(self._store.get(key)) if self._store.check([key]) else None


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
