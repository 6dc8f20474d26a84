"""Rounds in which rules see entries: shard j of every displacement goes to rank j.

    1. displacements are cut into one shard per rank, and exchanged (all-to-all);
    2. each rank forms the inner products of its shards; they are added up in float64;
    3. the rule decides from `Shards`, all entries of all ranks at hand;
    4. each rank combines its shards; shards of the step are sent to all.

As many bytes as an all-reduce of the model, and more arithmetic. No rank ever holds all
displacements.
"""

from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.core.displacements import RoundProducts
from hewfl.torch.faults import RankError
from hewfl.torch.model import SharedModel
from hewfl.torch.shards import Shards, centred, products_of, shard_products, summed
from hewfl.torch.sums import weighted_sums
from hewfl.torch.wire import Wire
from hewfl.torch.work import Arrivals

LONG, ALIGNED = 4096, 16
"""Shards from the first length on are padded to a multiple of the second, for kernels
that load 16 numbers at once."""


@final
class Spread:
    """The exchange of entries.

    Args:
        model: whose displacements.
        wire: the way to the other ranks.
        besides: vectors that all ranks hold, bucket by bucket, whose products are
            wanted too and which sums may contain: the server's control variate.
    """

    def __init__(
        self, model: SharedModel, wire: Wire, besides: list[torch.Tensor] | None
    ) -> None:
        self._model, self._wire, self._besides = model, wire, besides
        sizes = [bucket.size for bucket in model.layout.buckets]
        self._shards = [_shard(size, wire.ranks) for size in sizes]

    @property
    def entries(self) -> int:
        """Numbers of a vector that this rank is responsible for, padding included."""
        return sum(self._shards)

    def own_part(self, wholes: list[torch.Tensor]) -> Float64[Array, " k"]:
        """This rank's entries of a vector that all ranks hold."""
        parts = [self._part(b, whole).double() for b, whole in enumerate(wholes)]
        own: Array = torch.cat(parts).cpu().numpy()
        return own

    def collected(self, arrivals: Arrivals, reference: Any) -> Shards:
        """The displacements of the ranks heard, with their products.

        The origin of the products is the rank that travelled least; another one, with
        no more than a second look at the shards, where it is not finite or turns out
        to lie far from the rest.

        Args:
            arrivals: what ranks did.
            reference: how the rule calls what lies `besides`.

        Raises:
            RankError: no rank came back finite.
        """
        active, ranks = arrivals.active, self._wire.ranks
        order = active[np.argsort(arrivals.travelled[active], kind="stable")]
        origin = int(order[0])
        received, own = self._exchanged(origin)
        products = summed(self._wire, own)

        def around(rank: int) -> RoundProducts:
            parts = [self._products(b, rows, rank) for b, rows in enumerate(received)]
            return summed(self._wire, parts)

        for another in order[1:]:
            if np.isfinite(products.offset):
                break
            origin = int(another)
            products = around(origin)
        heard = active[np.isfinite(np.diagonal(products.gram)[active])]
        if not np.isfinite(products.offset) or len(heard) == 0:
            raise RankError("no rank's model was finite")
        products, origin = centred(around, products, heard, origin)
        kept = np.append(heard, np.arange(ranks, len(products.linear)))
        d, known = self._model.layout.parameters, products_of(products, kept)
        return Shards(self._wire, received, heard, d, (known, origin), reference)

    def sums(
        self,
        received: list[torch.Tensor],
        weights: Float64[Array, "m n"],
        step: Float64[Array, " k"] | None,
    ) -> list[list[torch.Tensor]]:
        """Sums of displacements, and of what lies besides, whole on all ranks.

        The first is a step, in the precision of the parameters; others are in float32
        at least. Uses up `received`.

        Args:
            received: shards, bucket by bucket.
            weights: one row for each sum: of all ranks, and of the vector besides.
            step: this rank's entries of the first sum, of rules with a step of their
                own.
        """
        made: list[list[torch.Tensor]] = [[] for _ in weights]
        works: list[Any] = []
        held: list[torch.Tensor] = []  # alive until sent
        begin = 0
        for b, bucket in enumerate(self._model.layout.buckets):
            shard = self._shards[b]
            besides = None if self._besides is None else self._part(b, self._besides[b])
            parts = weighted_sums(received.pop(0), besides, weights)
            if step is not None:
                given = torch.from_numpy(step[begin : begin + shard].copy())
                parts[0] = given.to(parts[0])
            parts[0] = parts[0].to(bucket.dtype)
            for part, wholes in zip(parts, made, strict=True):
                held.append(part)
                whole = part.new_empty(self._wire.ranks * shard)
                works += self._wire.sent_to_all(part, whole)
                wholes.append(whole[: bucket.size])
            begin += shard
        self._wire.wait(works)
        return made

    def _exchanged(self, origin: int) -> tuple[list[torch.Tensor], list[RoundProducts]]:
        """Send shards out; form the products of a bucket while the next travels."""
        received: list[torch.Tensor] = []
        parts: list[RoundProducts] = []
        before: Any = None
        buckets, n = self._model.layout.buckets, self._wire.ranks
        rooms = [[], []]  # type: list[list[torch.Tensor]]  # two at a time are in use
        for b, bucket in enumerate(buckets):
            sent = torch.zeros(
                n * self._shards[b], dtype=bucket.dtype, device=self._wire.device
            )
            rooms[b % 2] = [sent]
            self._model.displacement(b, sent[: bucket.size])
            rows = torch.empty_like(sent).view(n, -1)
            flying = self._wire.exchanged(sent, rows)
            received.append(rows)
            if before is not None:
                self._wire.wait([before])
                parts.append(self._products(b - 1, received[b - 1], origin))
            before = flying
        self._wire.wait([before])
        parts.append(self._products(len(parts), received[-1], origin))
        return received, parts

    def _products(self, b: int, rows: torch.Tensor, origin: int) -> RoundProducts:
        besides = None if self._besides is None else self._part(b, self._besides[b])
        return shard_products(rows, besides, origin)

    def _part(self, b: int, whole: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a bucket, padded with zeros where that is at its end."""
        shard = self._shards[b]
        begin = min(self._wire.rank * shard, len(whole))
        part = whole[begin : begin + shard].to(self._wire.device)
        if len(part) == shard:
            return part
        return torch.nn.functional.pad(part, (0, shard - len(part)))


def _shard(size: int, ranks: int) -> int:
    """Entries of one rank's shard of a bucket."""
    least = -(-size // ranks)
    return least if least < LONG else -(-least // ALIGNED) * ALIGNED
