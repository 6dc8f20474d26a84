"""What travels between ranks in a round: sketches, one sum, or all entries.

    1. each rank sketches its displacement, k numbers in one pass; all get all sketches;
    2. the rule decides on every rank from the same sketches, or from the cohort alone;
    3. one plain all-reduce of w_iΔ_i.

The sum of an all-reduce has the same bits on all ranks. Each rank applies its own
weight only, so that machines whose solves differ in a last bit agree on the model.

A rule that wants entries has them shard by shard: shard j of every displacement goes to
rank j (all-to-all), which forms its part of the products and of the step, and sends the
latter to all. As many bytes as an all-reduce of the model, and more arithmetic; no rank
ever holds all displacements.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray

from hewfl.core.array_types import Float64, Int64
from hewfl.core.native import PASSES, library
from hewfl.core.validation import Array, Ints
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import as_dense
from hewfl.displacements.sharded import ShardedDisplacements, VectorShard
from hewfl.torch.collectives import Wire
from hewfl.torch.compression import Narrow
from hewfl.torch.rank_errors import RankError
from hewfl.torch.shared_model import SharedModel, is_finite

ROOM = 2**16
"""Bytes of a sketch: 16,384 numbers of float32, 8,192 of float64."""
LONG, ALIGNED = 4096, 16
"""Shards from the first length on are padded to a multiple of the second, for kernels
that load 16 numbers at once."""


@final
class Exchange:
    """The displacements of all ranks, as much of them as a rule asks for.

    Args:
        model: whose displacements.
        wire: the way to the other ranks.
        send: how sums travel, see `Narrow`.

    Attributes:
        narrow: where sums are not sent as they are.
        entries: numbers of a vector that this rank is responsible for, padding
            included.
    """

    def __init__(
        self, model: SharedModel, wire: Wire, send: Literal["full", "bfloat16", "int8"]
    ) -> None:
        self._model, self._wire, self._buckets = model, wire, model.layout.buckets
        self.narrow = None if send == "full" else Narrow(self._buckets, wire, send)
        self._travelling: list[tuple[torch.Tensor, Any]] = []
        self._whole: list[torch.Tensor] = []
        kinds = [bucket.dtype for bucket in self._buckets]
        self._kind = reduce(torch.promote_types, kinds)
        least = -(-model.layout.parameters // wire.ranks)
        self.entries = least if least < LONG else -(-least // ALIGNED) * ALIGNED

    # ------------------------------------------------------------------------ sketches

    @property
    def _sketched(self) -> np.dtype[Any]:
        """As many digits as displacements have."""
        wide = max(bucket.dtype.itemsize for bucket in self._buckets)
        return np.dtype(np.float32 if wide <= 4 else np.float64)

    def sketch(self, rounds: int) -> NDArray[np.uint8]:
        """This rank's displacement in `ROOM` bytes.

        Other signs in every round: what a sketch gets wrong does not add up.
        """
        made = CountSketch(ROOM // self._sketched.itemsize, seed=rounds)
        total: Any = made.empty(self._model.parameters[0])
        lends = total.device.type == "cpu" and library(PASSES) is not None
        for b, bucket in enumerate(self._buckets):
            pieces, start = self._model.pieces(b), self._model.start(b)
            sums = total
            if lends and bucket.dtype == torch.float32:  # faster than tensors are lent
                sums, start = total.numpy(), start.numpy()
                pieces = [piece.numpy() for piece in pieces]
            made.add(sums, pieces, bucket.begin, start)
        numbers: NDArray[Any] = total.cpu().numpy().astype(self._sketched)
        return numbers.view(np.uint8)

    def sketches(self, table: NDArray[np.uint8]) -> Float64[Array, "n k"]:
        """The sketches of all ranks from their bytes."""
        rows = np.ascontiguousarray(table).view(self._sketched)
        return rows.astype(np.float64)

    # ---------------------------------------------------------------------- one sum

    def start(self, weight: float) -> None:
        """Let Σ w_iΔ_i travel, bucket by bucket: one is made ready while one travels.

        Args:
            weight: of this rank.
        """
        self.drop()
        for b in range(len(self._buckets)):
            part = self._model.room(b)
            if weight == 0:  # whatever Δ is, NaN included
                part.zero_()
            else:
                self._model.displacement(b, part, weight)
            if self.narrow is None:
                self._travelling.append((part, self._wire.adding(part)))
            else:
                self.narrow.start(b, part)

    @property
    def is_under_way(self) -> bool:
        """Whether a sum has set out that nobody has waited for."""
        return len(self._travelling) > 0

    def drop(self) -> None:
        """Wait for a sum that nobody wants any more; all ranks must."""
        self._wire.wait([work for _, work in self._travelling])
        self._travelling = []

    def arriving(self) -> Iterator[torch.Tensor]:
        """The sum, bucket by bucket as it comes; all of it must be waited for."""
        if self.narrow is not None:
            yield from self.narrow.finish()
        while self._travelling:
            part, work = self._travelling.pop(0)
            self._wire.wait([work])
            yield part

    # -------------------------------------------------------------------- all entries

    def spread(
        self, active: Int64[Ints, " s"], travelled: Float64[Array, " n"]
    ) -> tuple[Int64[Ints, " k"], ShardedDisplacements]:
        """All displacements on this rank's entries: a collective call.

        Args:
            active: ranks that did a step.
            travelled: η_iH_i of all ranks: who travelled least is the origin.

        Returns:
            Those of them whose displacements are finite, and the displacements.

        Raises:
            RankError: there is none.
        """
        n, size = self._wire.ranks, self._wire.ranks * self.entries
        if not self._whole:  # of such sizes memory is kept: making it takes long
            how = {"dtype": self._kind, "device": self._wire.device}
            self._whole = [torch.zeros(size, **how) for _ in range(2)]
        sent, received = self._whole
        sent[self._model.layout.parameters :].zero_()
        for b, bucket in enumerate(self._buckets):
            self._model.displacement(b, sent[bucket.begin :][: bucket.size])
        rows = received.view(n, -1)
        flying = self._wire.exchanged(sent, rows)
        fine = np.zeros(n)
        fine[self._wire.rank] = is_finite(sent)
        heard = active[self._wire.summed(fine)[active] != 0]
        self._wire.wait([flying])
        if len(heard) == 0:
            raise RankError("no rank's model was finite")
        origin = int(np.argmin(travelled[heard]))
        data = as_dense("displacements", rows if len(heard) == n else rows[heard])
        d = self._model.layout.parameters
        return heard, ShardedDisplacements(data, self._wire.summed, d, origin)

    def own_part(self, wholes: Sequence[torch.Tensor]) -> VectorShard:
        """This rank's entries of a vector that all ranks hold bucket by bucket."""
        first = self._wire.rank * self.entries
        last = first + self.entries
        parts = []
        for bucket, whole in zip(self._buckets, wholes, strict=True):
            lo, hi = (max(end - bucket.begin, 0) for end in (first, last))
            parts.append(whole[lo:hi].to(self._wire.device))
        part = torch.cat(parts)
        return VectorShard(torch.nn.functional.pad(part, (0, self.entries - len(part))))

    def wholes(self, own: Any) -> list[torch.Tensor]:
        """A vector of which each rank has its own entries, whole on all of them."""
        part = (
            own.data
            if isinstance(own, VectorShard)
            else torch.from_numpy(np.array(own))
        )
        part, whole = part.to(self._wire.device, self._kind), self._whole[0]
        self._wire.wait(self._wire.sent_to_all(part, whole))
        cut = [whole[bucket.begin :][: bucket.size] for bucket in self._buckets]
        return [s.to(b.dtype) for s, b in zip(cut, self._buckets, strict=True)]
