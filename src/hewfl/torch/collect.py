"""The first half of a round: shards to their ranks, and all inner products."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from hewfl.core.displacements import RoundProducts
from hewfl.torch.faults import RankError
from hewfl.torch.model import SharedModel, shard_of
from hewfl.torch.shards import Shards, centred, products_of, shard_products, summed
from hewfl.torch.variates import RankVariates, SpreadVector
from hewfl.torch.wire import Wire
from hewfl.torch.work import Arrivals


@final
@dataclass(frozen=True, slots=True)
class Collector:
    """What the first half needs.

    Attributes:
        model: whose displacements.
        variates: c is a further vector of the products, if there is one.
        server: c as rules see it.
        wire: the way to the other ranks.
    """

    model: SharedModel
    variates: RankVariates | None
    server: SpreadVector | None
    wire: Wire

    def collected(self, arrivals: Arrivals) -> tuple[Shards, RoundProducts]:
        """The displacements of the ranks heard, and the products of all ranks'.

        The origin of the products is the rank that travelled least; another one, with
        no more than a second look at the shards, where it is not finite or turns out
        to lie far from the rest.

        Raises:
            RankError: no rank came back finite.
        """
        active = arrivals.active
        order = active[np.argsort(arrivals.travelled[active], kind="stable")]
        origin = int(order[0])
        received, own = self._exchanged(origin)
        products = summed(self.wire, own)

        def around(rank: int) -> RoundProducts:
            parts = [self._part(b, rows, rank) for b, rows in enumerate(received)]
            return summed(self.wire, parts)

        for another in order[1:]:
            if np.isfinite(products.offset):
                break
            origin = int(another)
            products = around(origin)
        heard = active[np.isfinite(np.diagonal(products.gram)[active])]
        if not np.isfinite(products.offset) or len(heard) == 0:
            raise RankError("no rank's model was finite")
        products, origin = centred(around, products, heard, origin)
        kept = np.append(heard, np.arange(self.wire.ranks, len(products.linear)))
        d, known = self.model.layout.parameters, products_of(products, kept)
        shards = Shards(self.wire, received, heard, d, (known, origin), self.server)
        return shards, products

    def _exchanged(self, origin: int) -> tuple[list[torch.Tensor], list[RoundProducts]]:
        """Send shards out; form the products of a bucket while the next travels."""
        received: list[torch.Tensor] = []
        parts: list[RoundProducts] = []
        memory = [self.model.scratch() for _ in range(2)]
        flying: list[Any] = []
        for b in range(len(self.model.anchor)):
            sent = self.model.displacement(b, memory[b % 2])
            rows = torch.empty_like(sent).view(self.wire.ranks, -1)
            before, flying = flying, self.wire.exchanged(sent, rows)
            received.append(rows)
            if b > 0:
                self.wire.wait(before)
                parts.append(self._part(b - 1, received[b - 1], origin))
        self.wire.wait(flying)
        parts.append(self._part(len(parts), received[-1], origin))
        return received, parts

    def _part(self, b: int, rows: torch.Tensor, origin: int) -> RoundProducts:
        reference = None
        if self.variates is not None:
            server = self.variates.server[b]
            reference = shard_of(server, self.wire.ranks, self.wire.rank)
        return shard_products(rows, reference, origin)
