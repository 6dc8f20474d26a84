"""The exchange of displacements in a round: whole, sketches and one sum, or shards.

A small model is sent whole by each rank to all, with the record of the rendezvous:

    1. all ranks have all displacements, and the aggregator decides on every rank;
    2. every rank forms Σ w_iΔ_i, the same bits where weights are the same.

Weights are rounded to float32, so that products with entries are exact in float64 and
the sum does not depend on the kind of processor. A digest of the weights goes with the
next record: where ranks find different ones, all take the model of rank 0, and sums.

A larger model is sketched:

    1. each rank sketches its displacement, k numbers in one pass; all get all sketches;
    2. the aggregator decides on every rank from the same sketches;
    3. one plain all-reduce of w_iΔ_i.

The pass of the sketch also writes w_iΔ_i with the weight of the round before, which is
often that of this one; else there is a second pass. The sum has the same bits on all
ranks. Each applies only its own weight, so that machines whose solutions differ in a
last bit agree on the model.

An aggregator that needs entries gets them shard by shard: shard j of every displacement
goes to rank j (all-to-all), which forms its part of the products and of the step, and
sends its part of the step to all. This takes as many bytes as an all-reduce of the
model, and more arithmetic; no rank ever holds all displacements.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from hewfl.core.array_types import Float, Float64, Int64
from hewfl.core.native import PASSES, library, load
from hewfl.core.validation import Array, Ints
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import as_dense
from hewfl.displacements.sharded import ShardedDisplacements, VectorShard
from hewfl.torch.collectives import Communicator, Shards
from hewfl.torch.rendezvous import SKETCH_BYTES, RankRecords
from hewfl.torch.shared_model import SharedModel, largest

WHOLE_BYTES = 2**21
"""What a rank sends at most to give its whole displacement to all."""
ALIGNMENT = 16
"""Shards are padded to a multiple of it, for kernels that load so many numbers."""


def split_unmoved(
    ranks: Int64[Ints, " s"], has_moved: NDArray[np.bool_]
) -> tuple[Int64[Ints, " k"], Int64[Ints, " u"]]:
    """Ranks that moved, and those that did not; all count as moved where none did."""
    moved = ranks[has_moved[ranks]]
    if len(moved) == len(ranks):
        return ranks, ranks[:0]
    return (moved, np.setdiff1d(ranks, moved)) if len(moved) else (ranks, moved)


@final
class Exchange:
    """The displacements of all ranks, as much of them as the aggregator needs.

    `entries` of a vector belong to this rank, padding included. With `is_half` sums are
    sent in bfloat16: each rank rounds w_iΔ_i, and the all-reduce what it adds. With
    `is_whole` all ranks get whole displacements.
    """

    def __init__(
        self, model: SharedModel, comm: Communicator, shards: Shards, *, is_half: bool
    ) -> None:
        self._shards, self._is_half = shards, is_half
        self._model, self._comm, self._buckets = model, comm, model.layout.buckets
        self._pending: list[tuple[torch.Tensor, Any]] = []
        self._weight, self._is_steady, self._is_written = 1 / comm.ranks, True, False
        self._shard_buffers: list[torch.Tensor] = []
        self._dtype = reduce(torch.promote_types, [b.dtype for b in self._buckets])
        self.entries = (
            -(-model.layout.parameters // (comm.ranks * ALIGNMENT)) * ALIGNMENT
        )
        self.is_whole = False

    @property
    def whole_bytes(self) -> int:
        """Bytes of a displacement if ranks can send it whole, else zero.

        That is a small model in one bucket of float32 on the host, where the compiled
        kernel is there.
        """
        is_plain = self._comm.has_time_limits and self._dtype == torch.float32
        is_plain &= len(self._buckets) == self._shards.count == 1 and not self._is_half
        size = self._buckets[0].size * self._dtype.itemsize
        is_small = (self._comm.ranks - 1) * size <= WHOLE_BYTES
        has_kernel = hasattr(library(PASSES), "stepped")
        return int(size) if is_plain and is_small and has_kernel else 0

    def write(self, rounds: int, payload: NDArray[np.uint8]) -> float:
        """Write the displacement, or its sketch, for a rendezvous.

        Returns:
            The largest entry of a whole displacement, not finite if an entry is not.
        """
        if not self.is_whole:
            payload[:] = self.sketch(rounds)
            return 0.0
        kernels: Any = load(PASSES)
        x = self._model.origin(0).numpy()
        reach: float = kernels.displaced(self._model.arrays(0), x, payload)
        return reach

    def read(
        self, records: RankRecords
    ) -> tuple[Float[Array, "n k"], NDArray[np.bool_], NDArray[np.bool_]]:
        """What all ranks wrote; which are finite, and which ranks moved."""
        if self.is_whole:
            reach = records.rows["reach"]
            return records.payloads.view(np.float32), np.isfinite(reach), reach > 0
        rows = self.decode_sketches(records.payloads)
        finite, has_moved = np.isfinite(rows).all(axis=1), rows.any(axis=1)
        return rows, np.asarray(finite), np.asarray(has_moved)

    @property
    def _sketch_dtype(self) -> np.dtype[Any]:
        """As many digits as displacements have."""
        itemsize = max(bucket.dtype.itemsize for bucket in self._buckets)
        return np.dtype(np.float32 if itemsize <= 4 else np.float64)

    def sketch(self, rounds: int) -> NDArray[np.uint8]:
        """The displacement of this rank's replica in `SKETCH_BYTES` bytes.

        Signs differ in every round, so that errors of sketches do not accumulate. While
        the weight is steady, the same pass writes the weighted displacement.
        """
        model, size = self._model, SKETCH_BYTES // self._sketch_dtype.itemsize
        count_sketch = CountSketch(size, seed=rounds)
        total: Any = count_sketch.empty(model.parameters[0])
        self._is_written = self._is_steady
        for b, bucket in enumerate(self._buckets):
            begin = self._shards.begin + bucket.begin
            sums, x = total, model.origin(b)
            out = model.sum_buffer(b) if self._is_written else None
            if total.device.type == "cpu" and bucket.dtype == torch.float32:
                pieces: Any = model.arrays(b)
                sums, x = total.numpy(), x.numpy()
                out = None if out is None else out.numpy()
            else:
                pieces = model.pieces(b)
            count_sketch.add(sums, pieces, begin, x, out=out, weight=self._weight)
        numbers: NDArray[Any] = self._shards.sum(total.cpu().numpy())
        return numbers.astype(self._sketch_dtype).view(np.uint8)

    def decode_sketches(self, table: NDArray[np.uint8]) -> Float64[Array, "n k"]:
        """The sketches of all ranks from their bytes."""
        rows = np.ascontiguousarray(table).view(self._sketch_dtype)
        return rows.astype(np.float64)

    def start_sum(self, weight: float) -> None:
        """Start the sum Σ w_iΔ_i: a bucket is prepared while one is sent."""
        is_written = self._is_written and weight == self._weight
        self._is_steady, self._weight = weight == self._weight, weight
        self._is_written = False
        for b in range(len(self._buckets)):
            part = self._model.sum_buffer(b)
            if weight == 0:  # Δ may hold NaN
                part.zero_()
            elif not is_written:
                self._model.displacement(b, part, weight)
            if self._is_half:
                part = part.bfloat16()
            self._pending.append((part, self._comm.start_sum(part)))

    def receive_sum(self) -> Iterator[torch.Tensor]:
        """The sum, bucket by bucket as it arrives; iterate to the end."""
        while self._pending:
            part, handle = self._pending.pop(0)
            self._comm.wait([handle])
            yield part

    def sum(self, values: Float64[Array, " k"]) -> Float64[Array, " k"]:
        """Numbers summed over the ranks of all replicas."""
        return self._shards.sum(self._comm.sum(values))

    def exchange_shards(
        self, active: Int64[Ints, " s"], total_steps: Float64[Array, " n"]
    ) -> tuple[Int64[Ints, " k"], Int64[Ints, " u"], ShardedDisplacements | None]:
        """All displacements on this rank's entries: a collective call.

        The active rank with the smallest η_iH_i is the origin of products.

        Returns:
            The active ranks with a finite displacement, those that did not move, and
            the displacements of the others; None without any.
        """
        n, size = self._comm.ranks, self._comm.ranks * self.entries
        if not self._shard_buffers:  # reused: to allocate such sizes takes long
            options = {"dtype": self._dtype, "device": self._comm.device}
            self._shard_buffers = [torch.zeros(size, **options) for _ in range(2)]
        sent, received = self._shard_buffers
        sent[self._model.layout.parameters :].zero_()
        for b, bucket in enumerate(self._buckets):
            self._model.displacement(b, sent[bucket.begin :][: bucket.size])
        rows = received.view(n, -1)
        handle = self._comm.start_all_to_all(sent, rows)
        reach, flags = float(largest(sent)), np.zeros((2, n))
        flags[:, self._comm.rank] = not math.isfinite(reach), reach > 0
        is_lost, has_moved = self.sum(flags.reshape(-1)).reshape(2, n) > 0
        self._comm.wait([handle])
        participants, unmoved = split_unmoved(active[~is_lost[active]], has_moved)
        if len(participants) == 0:
            return participants, unmoved, None
        origin = int(np.argmin(total_steps[participants]))
        is_all = len(participants) == n
        data = as_dense("displacements", rows if is_all else rows[participants])
        d = self._model.layout.parameters
        return participants, unmoved, ShardedDisplacements(data, self.sum, d, origin)

    def shard_root(self, gradient: Sequence[torch.Tensor] | None) -> VectorShard:
        """Rank 0's gradient, None on other ranks, on this rank's entries."""
        wholes = []
        for b, bucket in enumerate(self._buckets):
            whole = torch.zeros(bucket.size, dtype=bucket.dtype)
            whole = whole if gradient is None else gradient[b].to(bucket.dtype)
            whole = whole.to(self._comm.device)
            self._comm.broadcast(whole)
            wholes.append(whole)
        return self.own_part(wholes)

    def own_part(self, wholes: Sequence[torch.Tensor]) -> VectorShard:
        """This rank's entries of a vector that all ranks hold bucket by bucket."""
        first = self._comm.rank * self.entries
        last = first + self.entries
        parts = []
        for bucket, whole in zip(self._buckets, wholes, strict=True):
            lo, hi = (max(end - bucket.begin, 0) for end in (first, last))
            parts.append(whole[lo:hi].to(self._comm.device))
        part = torch.cat(parts)
        return VectorShard(torch.nn.functional.pad(part, (0, self.entries - len(part))))

    def gather_shards(self, shard: Any) -> list[torch.Tensor]:
        """A whole vector, bucket by bucket, from the shards of all ranks."""
        is_part = isinstance(shard, VectorShard)
        part = shard.data if is_part else torch.from_numpy(np.array(shard))
        part, whole = part.to(self._comm.device, self._dtype), self._shard_buffers[0]
        self._comm.wait(self._comm.start_all_gather(part, whole))
        slices = [whole[bucket.begin :][: bucket.size] for bucket in self._buckets]
        return [s.to(b.dtype) for s, b in zip(slices, self._buckets, strict=True)]
