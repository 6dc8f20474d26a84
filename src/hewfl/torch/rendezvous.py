"""The rendezvous of ranks: what each did, whether all agree, and which are missing."""

import os
import secrets
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import distributed_c10d

from hewfl.core.array_types import Int64
from hewfl.core.validation import Ints
from hewfl.torch.collectives import Communicator, RankError, name_ranks

SKETCH_BYTES = 2**16
"""Bytes of a sketch: 16,384 numbers of float32, 8,192 of float64."""
_AGREEING: list[Any] = [(name, "i8") for name in ("purpose", "instance", "rounds")]
_AGREEING += [("digests", "i8", 3)]
"""Fields that agree at most rendezvous."""
_NUMBERS = [("job", "i8"), ("room", "i8"), ("weights", "i8")]
_NUMBERS += [("product", "f8"), ("reach", "f8")]
"""Numbers that only some rendezvous are given, zero at the others."""
_WORK = ("steps", "tokens", "leaving", "finite", "uncounted", "total_step")
"""Fields of `RankWork`."""
ROW = np.dtype(
    [*_AGREEING, *_NUMBERS]
    + [(name, "f8" if name == "total_step" else "i8") for name in _WORK]
)
"""The record that a rank sends: all that must agree, and its `RankWork`."""
_HEAD = -(-ROW.itemsize // 64) * 64
"""Bytes of a message before what is sent of a displacement, which is so aligned."""
_AGREEING_BYTES = np.dtype(_AGREEING).itemsize
_TEXT_BYTES = 1600
"""Bytes in which a rank describes a value on which ranks disagree."""
_COUNTS: "weakref.WeakKeyDictionary[Any, Counter[str]]" = weakref.WeakKeyDictionary()
"""For each process group: its instances and rendezvous so far, the job's number, the
instances agreed on, and the bytes that each message has for a displacement."""


AgreedValue = tuple[str, int, str]
"""What must be the same on all ranks: its name, a digest of its value, the value."""


@final
class Purpose(IntEnum):
    """What a rendezvous is for."""

    CONSTRUCTION = 0
    FIRST_STEP = 1
    ROUND = 2

    @property
    def place(self) -> str:
        """The purpose in words."""
        return ("at construction", "at the first step", "at a round")[self]


@final
@dataclass(frozen=True, slots=True)
class RankWork:
    """One rank's work since the last round: exchanged, never assumed."""

    steps: int = 0  # H_i, of the local optimiser
    tokens: int = 0  # or samples, where the loop counts them
    total_step: float = 0.0  # η_iH_i: the sum of those steps' learning rates
    leaving: bool = False  # whether the rank's loop has ended
    finite: bool = True  # whether the gradients of its first step are finite
    uncounted: bool = False  # whether parameters moved though no step was counted

    def after_step(self, learning_rate: float) -> "RankWork":
        """The work after one more step."""
        total = self.total_step + learning_rate
        return replace(self, steps=self.steps + 1, total_step=total)


@final
@dataclass(frozen=True, slots=True)
class RankRecords:
    """The records of all ranks at a rendezvous, in the order of ranks."""

    purpose: Purpose  # of the ranks whose loops have not ended
    rows: NDArray[Any]  # of `ROW`
    active: Int64[Ints, " s"]  # ranks that did a step at a learning rate above zero
    payloads: NDArray[np.uint8]  # until the next rendezvous; as `Rendezvous.payload`


@final
class Rendezvous:
    """All rendezvous of one `HewLocalSGD`.

    Messages have one size, whatever they are for and whoever sends them: gloo ends the
    process where sizes differ, and ranks that come to different rendezvous must instead
    learn of it. So the size belongs to the group, and changes only where all ranks have
    agreed, which no rank can have missed. While the group has one instance, messages
    have room for its displacements; from a second one on these follow on their own,
    after the ranks have agreed that they are at a round of the same.
    """

    def __init__(
        self, group: Any, comm: Communicator, agreed: tuple[AgreedValue, ...]
    ) -> None:
        self._comm, self._agreed = comm, agreed
        self._digests = [digest for _, digest, _ in agreed]
        self._attendance = Attendance(group, comm.rank, comm.ranks)
        self._table = torch.zeros((comm.ranks, 0), dtype=torch.uint8)
        self._size = 0  # bytes for a displacement
        self.watch = self._attendance.watch

    def payload(self) -> NDArray[np.uint8]:
        """The bytes of this rank's next message for its displacement: write there."""
        return self._messages()[self._comm.rank, _HEAD : _HEAD + self._size]

    def make_room(self, size: int) -> None:
        """Let this instance send so many bytes of each displacement from here on.

        To be called on all ranks after the same rendezvous.
        """
        counts, self._size = self._attendance.counts, size
        is_with_record = counts["agreed"] == 1 and self._comm.has_time_limits
        counts["room"] = size if is_with_record else 0

    def _messages(self) -> NDArray[np.uint8]:
        """Memory for the messages of all ranks."""
        size = _HEAD + max(self._size, self._attendance.counts["room"])
        if self._table.shape[1] != size:
            self._table = self._table.new_zeros((self._comm.ranks, size))
        table: NDArray[np.uint8] = self._table.numpy()
        return table

    @contextmanager
    def construction(self, whole: int, other: int) -> Iterator[bool]:
        """The first rendezvous, at which ranks agree on a number for the job.

        From here on a displacement has `whole` bytes, if that is above zero on all
        ranks, else `other`; yields whether it is.
        """
        counts, comm = self._attendance.counts, self._comm
        job = counts["job"] or secrets.randbelow(2**48) + 1
        if not (comm.has_time_limits or counts["job"]):
            # Ranks exchange records in the store, so they must agree on its keys first.
            number = torch.tensor([job], device=comm.device)
            comm.broadcast(number)
            job = counts["job"] = int(number)
        numbers = {"job": job, "room": whole}
        with self.gather(Purpose.CONSTRUCTION, RankWork(), 0, numbers) as records:
            counts["job"] = int(records.rows["job"][0])
            is_whole = bool(records.rows["room"].min() > 0)
            counts["agreed"] += 1
            self.make_room(whole if is_whole else other)
            yield is_whole

    @contextmanager
    def gather(
        self,
        purpose: Purpose,
        work: RankWork,
        rounds: int,
        numbers: Mapping[str, int | float],
    ) -> Iterator[RankRecords]:
        """The records of all ranks; failures inside the block name the missing ranks.

        `numbers` are of `_NUMBERS`: at construction a number for the `job` and the
        `room` that this rank asks for; in a round the largest entry of its displacement
        (`reach`), and of the last round ⟨d, Δ⟩ with the step d (`product`) and a digest
        of the `weights`. With a `reach` there is something in `payload`.
        """
        place = f"in round {rounds}" if purpose is Purpose.ROUND else purpose.place
        with self.watch(place):
            table = self._messages()
            record = table[self._comm.rank, : ROW.itemsize]
            fixed = purpose, self._attendance.instance, rounds, self._digests
            given = [numbers.get(name, 0) for name, _ in _NUMBERS]
            record.view(ROW)[0] = (*fixed, *given, *(getattr(work, k) for k in _WORK))
            room = self._attendance.counts["room"]
            if self._comm.has_time_limits:
                self._comm.gather(self._table[:, : _HEAD + room])
                records = table[:, : ROW.itemsize]
            else:
                # On NCCL a missing rank must show before a collective is started.
                records = self._attendance.table(record, self._comm.timeout)
            rows = records.copy().view(ROW)[:, 0]
            if (records[:, :_AGREEING_BYTES] != records[0, :_AGREEING_BYTES]).any():
                self._require_agreement(rows)
            if "reach" in numbers and room == 0:
                self._comm.gather(self._table[:, _HEAD:])
            active = np.flatnonzero((rows["steps"] > 0) & (rows["total_step"] > 0))
            payloads = table[:, _HEAD : _HEAD + self._size]
            yield RankRecords(_purpose_of(rows), rows, active, payloads)

    def _require_agreement(self, rows: NDArray[Any]) -> None:
        """Require one purpose, instance, round and all agreed values.

        A rank whose loop has ended joins whatever rendezvous the others hold.
        """
        joins = (rows["leaving"] != 0) & (rows["purpose"] == Purpose.ROUND)
        purposes = np.where(joins, _purpose_of(rows), rows["purpose"])
        places = [
            "leaving the loop" if row["leaving"] else Purpose(row["purpose"]).place
            for row in rows
        ]
        _require_same("come to the same rendezvous", purposes.tolist(), places)
        for name, text, rule in (
            ("instance", "number {}", "use the same HewLocalSGD"),
            ("rounds", "in round {}", "be in the same round"),
        ):
            column = rows[name].tolist()
            _require_same(rule, column, [text.format(k) for k in column])
        for k, (what, _, text) in enumerate(self._agreed):
            if len(set(rows["digests"][:, k])) > 1:  # on all ranks, so all send texts
                own = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
                sent = np.zeros((self._comm.ranks, _TEXT_BYTES), np.uint8)
                sent[self._comm.rank] = np.frombuffer(own, np.uint8)
                self._comm.gather(torch.from_numpy(sent))
                texts = [bytes(row).decode(errors="replace").rstrip() for row in sent]
                _require_same(f"have the same {what}", texts, texts)


def _purpose_of(rows: NDArray[Any]) -> Purpose:
    """The purpose of the first rank whose loop has not ended."""
    return Purpose(int(rows["purpose"][np.argmin(rows["leaving"])]))


def _require_same(rule: str, column: Sequence[Any], texts: Sequence[str]) -> None:
    """Require one value on all ranks; the error gives each rank's text."""
    values = sorted(set(column))
    if len(values) > 1:
        groups = [[i for i, v in enumerate(column) if v == value] for value in values]
        got = "; ".join(f"{name_ranks(group)}: {texts[group[0]]}" for group in groups)
        raise RankError(f"all ranks must {rule}; got {got}")


@final
class Attendance:
    """Each rank's last rendezvous, in the job's store, to name missing ranks.

    A collective that fails reports that a rank is gone, not which. The store of the
    default process group survives most failures. Rendezvous are counted on the group,
    for all purposes together: a rank with a lower count is missing. Nothing else reads
    the store: under torchrun it survives the processes, and the notes of an earlier
    attempt must not count for this one. So `counts` has the number of the `job`, the
    same on all ranks, and zero before construction; and of `instances` on the group by
    this rank, this one included.
    """

    def __init__(self, group: Any, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self.counts = _COUNTS.setdefault(group, Counter())
        self._store: Any = dist.HashStore()  # local to this process: it names no rank
        self._is_local = group not in distributed_c10d._world.pg_map  # as torchft's
        if not self._is_local:
            self._store = distributed_c10d._get_default_store()
        attempt = "0"
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # it survives
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._prefix = f"hewfl/attempt {attempt}/{getattr(group, 'group_name', '')}"
        self.counts["instances"] += 1
        self.instance = self.counts["instances"]

    def table(self, row: NDArray[np.uint8], timeout: timedelta) -> NDArray[np.uint8]:
        """One row of bytes from each rank, in the order of ranks, through the store.

        For backends whose collectives cannot be cancelled: on NCCL a missing rank shows
        here, before a collective is started, as an error instead of an abort.
        """
        count = self.counts["rendezvous"]
        keys = [self._row_key(count, rank) for rank in range(self._ranks)]
        self._store.set(keys[self._rank], row.tobytes().hex())
        self._store.wait(keys, timeout)
        rows = [bytes.fromhex(self._store.get(key).decode()) for key in keys]
        if count > 2:  # all ranks were at the last one, and so have read this one
            self._store.delete_key(self._row_key(count - 2, self._rank))
        return np.stack([np.frombuffer(row, np.uint8) for row in rows])

    @contextmanager
    def watch(self, place: str) -> Iterator[None]:
        """Record that this rank is here; let a failure name the ranks that are not."""
        start = time.monotonic()
        self.counts["rendezvous"] += 1
        try:
            note = f"{self.counts['job']} {self.counts['rendezvous']} {place}"
            self._store.set(f"{self._prefix}/{self._rank}", note)
            yield
        except RankError:
            raise
        except RuntimeError as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            seconds, why = time.monotonic() - start, self._name_missing()
            text = f"rank {self._rank} broke off {place} after {seconds:.1f} s because"
            raise RankError(f"{text} {why}: {line}") from error

    def _name_missing(self) -> str:
        if self._is_local:
            return "another rank is missing or broke off"
        try:
            notes = [self._read_note(rank) for rank in range(self._ranks)]
        except RuntimeError:  # the store is gone as well
            return "the process that keeps the job's store is gone"
        missing = [
            f"{rank} ({place})"
            for rank, (count, place) in enumerate(notes)
            if count < self.counts["rendezvous"]
        ]
        if not missing:
            return "another rank broke off"
        return f"it did not see {name_ranks(missing)}"

    def _row_key(self, count: int, rank: int) -> str:
        return f"{self._prefix}/job {self.counts['job']}/rendezvous {count}/{rank}"

    def _read_note(self, rank: int) -> tuple[int, str]:
        """The last rendezvous of a rank: its count, and in words."""
        key = f"{self._prefix}/{rank}"
        if not self._store.check([key]):
            return 0, "not seen before"
        job, count, place = self._store.get(key).decode().split(" ", 2)
        if self.counts["job"] and job not in ("0", str(self.counts["job"])):
            return 0, "not seen since the job was started again"
        return int(count), f"last seen {place}"
