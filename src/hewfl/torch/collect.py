"""The first half of a round: shards to their ranks, and all inner products."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from hewfl.aggregate.from_products import nearer_origin
from hewfl.aggregate.gram import ORIGINS
from hewfl.core.checks import Array, Ints
from hewfl.core.displacements import RoundProducts
from hewfl.torch.faults import RankError
from hewfl.torch.model import SharedModel, shard_of
from hewfl.torch.products import packed, shard_products, unpacked
from hewfl.torch.variates import RankVariates
from hewfl.torch.wire import Wire
from hewfl.torch.work import Arrivals


@final
@dataclass(frozen=True, slots=True)
class Collector:
    """What the first half needs.

    Attributes:
        model: whose displacements.
        variates: c is a further vector of the products, if there is one.
        wire: the way to the other ranks.
    """

    model: SharedModel
    variates: RankVariates | None
    wire: Wire

    def collected(
        self, arrivals: Arrivals
    ) -> tuple[list[torch.Tensor], RoundProducts, Int64[Ints, " s"]]:
        """All displacements on this rank's shards, their products, who is finite.

        The origin of the products is the rank that travelled least; another one, with
        no more than a second look at the shards, where it is not finite or turns out
        to lie far from the rest.
        """
        active = arrivals.active
        order = active[np.argsort(arrivals.travelled[active], kind="stable")]
        received, own = self._exchanged(int(order[0]))
        products = self._gathered(own)
        for origin in order[1:]:
            if np.isfinite(products.offset):
                break
            products = self._gathered(self._products(received, int(origin)))
        heard = active[np.isfinite(np.diagonal(products.gram)[active])]
        if not np.isfinite(products.offset) or len(heard) == 0:
            raise RankError("no rank's model was finite")
        return received, self._centred(received, products, heard), heard

    def _centred(
        self,
        received: list[torch.Tensor],
        products: RoundProducts,
        heard: Int64[Ints, " s"],
    ) -> RoundProducts:
        """The same products about an origin among the rest."""
        for _ in range(ORIGINS):
            G = products.gram[np.ix_(heard, heard)]
            part = RoundProducts(G, products.linear[heard], products.offset, 0)
            origin = int(np.flatnonzero(np.diagonal(G) == 0)[0])
            nearer = nearer_origin(part, origin)
            if nearer is None:
                break
            own = self._products(received, int(heard[nearer]))
            products = self._gathered(own)
        return products

    def _exchanged(
        self, origin: int
    ) -> tuple[list[torch.Tensor], Float64[Array, " k"]]:
        """Send shards out; form the products of a bucket while the next travels."""
        received: list[torch.Tensor] = []
        parts: list[Array] = []
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
        return received, np.asarray(np.sum(parts, axis=0))

    def _products(
        self, received: list[torch.Tensor], origin: int
    ) -> Float64[Array, " k"]:
        parts = [self._part(b, rows, origin) for b, rows in enumerate(received)]
        return np.asarray(np.sum(parts, axis=0))

    def _part(self, b: int, rows: torch.Tensor, origin: int) -> Float64[Array, " k"]:
        reference = None
        if self.variates is not None:
            server = self.variates.server[b]
            reference = shard_of(server, self.wire.ranks, self.wire.rank)
        return packed(shard_products(rows, reference, origin))

    def _gathered(self, own: Float64[Array, " k"]) -> RoundProducts:
        m = self.wire.ranks + (self.variates is not None)
        return unpacked(self.wire.summed(own), m)
