"""The second half of a round: shards of the new model, formed and sent to all."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from hewfl.aggregate.variates import variate_weights
from hewfl.core.checks import Array, Ints
from hewfl.core.displacements import RoundProducts
from hewfl.torch.model import SharedModel, is_finite, largest, shard_of
from hewfl.torch.sums import weighted_sum, weighted_sums
from hewfl.torch.variates import RankVariates
from hewfl.torch.wire import Wire


@final
@dataclass(frozen=True, slots=True)
class Combination:
    """How displacements become a step.

    Attributes:
        heard: ranks that count.
        weights: w_i of these.
        travelled: η_iH_i of these.
        products: of all displacements, and of c_t after them if there is one.
        step: this rank's entries of the step, of rules that give one of their own.
    """

    heard: Int64[Ints, " s"]
    weights: Float64[Array, " s"]
    travelled: Float64[Array, " s"]
    products: RoundProducts
    step: Float64[Array, " k"] | None = None

    @property
    def lengths(self) -> Float64[Array, " m"]:
        """Bounds on the entries of all vectors: ‖v − o‖ + ‖o‖ for the origin o."""
        squares = np.maximum(np.diagonal(self.products.gram), 0)
        return np.asarray(np.sqrt(squares) + np.sqrt(max(self.products.offset, 0)))

    @property
    def reach(self) -> float:
        """A bound on the entries of the step."""
        if self.step is not None:
            return float(np.abs(self.step).max(initial=0.0))
        return float(np.abs(self.weights) @ self.lengths[self.heard])

    def of_rank(self, rank: int) -> float:
        """Its η_iH_i, zero if it is not heard."""
        return float(self.travelled[self.heard == rank].sum())


@final
@dataclass(frozen=True, slots=True)
class Distributor:
    """What the second half needs.

    Attributes:
        model: moved here.
        variates: moved along with it, if there are any.
        wire: the way to the other ranks.
    """

    model: SharedModel
    variates: RankVariates | None
    wire: Wire

    def is_safe(self, received: list[torch.Tensor], how: Combination) -> bool:
        """Whether all ranks' shards of the new model will be finite: a collective call.

        Finite displacements may take the model beyond its precision. The products
        bound every step, so that a look at this rank's shards is nearly always enough;
        else the step is tried, one bucket after the other. Nothing is changed.
        """
        if self._on_all_ranks(self._is_bounded(how)):
            return True
        return self._on_all_ranks(self._stays_finite(received, how))

    def distribute(
        self, received: list[torch.Tensor], how: Combination, rounds: int
    ) -> None:
        """Move this rank's shards and exchange them; variates along with the model.

        A bucket is combined while the one before travels. Every rank moves its own
        variate where anchor and server's variate are still the old ones.

        Args:
            received: displacements, used up.
            how: they become a step.
            rounds: done before this one.
        """
        works: list[Any] = []
        held: list[torch.Tensor] = []  # alive until sent
        memory = self.model.scratch() if self.variates is not None else None
        far = how.of_rank(self.wire.rank)
        for b, anchor in enumerate(self.model.anchor):
            step, next_ = self._sums(b, received.pop(0), how)
            if self.variates is not None and memory is not None and next_ is not None:
                if far > 0:
                    displacement = self.model.displacement(b, memory)
                    self.variates.move(b, displacement, far)
                held.append(next_)
                works += self.wire.sent_to_all(next_, self.variates.server[b])
            held.append(self.model.moved_shard(b, step, rounds))
            works += self.wire.sent_to_all(held[-1], anchor)
        self.wire.wait(works)

    def _on_all_ranks(self, fine: bool) -> bool:
        return bool(self.wire.summed(np.array([float(not fine)]))[0] == 0)

    def _is_bounded(self, how: Combination) -> bool:
        """From max|x| + Σ|w_i| ‖Δ_i‖ and the like; False means that it is not known."""
        lengths = how.lengths
        buckets = range(len(self.model.anchor))
        fine = all(self.model.is_bounded(b, how.reach) for b in buckets)
        if self.variates is None:
            return fine
        kept, u = variate_weights(how.travelled, self.wire.ranks)
        server = float(lengths[-1])
        next_ = abs(kept) * server + float(np.abs(u) @ lengths[how.heard])
        own, mine = 0.0, how.of_rank(self.wire.rank)
        if mine > 0:
            own = max(largest(c) for c in self.variates.own)
            own += server + float(lengths[self.wire.rank]) / mine
        widest = min(torch.finfo(c.dtype).max for c in self.variates.own)
        return bool(fine and next_ <= widest / 2 and own <= widest / 2)

    def _stays_finite(self, received: list[torch.Tensor], how: Combination) -> bool:
        """Whether this rank's new shards are finite, by trying the step."""
        fine, far = True, how.of_rank(self.wire.rank)
        for b, rows in enumerate(received):
            step, next_ = self._sums(b, rows, how)
            fine = fine and self.model.stays_finite(b, step)
            if self.variates is not None and next_ is not None:
                fine = fine and is_finite(next_)
                if far > 0:
                    moved = self.model.displacement(b, self.model.scratch())
                    fine = fine and self.variates.stays_finite(b, moved, far)
        return fine

    def _sums(
        self, b: int, rows: torch.Tensor, how: Combination
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """This rank's shards of the step and of the server's next variate."""
        rank, ranks = self.wire.rank, self.wire.ranks
        weights = np.zeros(ranks)
        weights[how.heard] = how.weights
        if self.variates is None:
            return self._given(b, rows, how, weights), None
        kept, u = variate_weights(how.travelled, ranks)
        both = np.zeros((2, ranks + 1))
        both[0, :ranks], both[1, how.heard], both[1, ranks] = weights, u, kept
        server = shard_of(self.variates.server[b], ranks, rank)
        step, next_ = weighted_sums(rows, server, both)
        if how.step is not None:
            step = self._given(b, rows, how, weights)
        return step, next_

    def _given(
        self,
        b: int,
        rows: torch.Tensor,
        how: Combination,
        weights: Float64[Array, " n"],
    ) -> torch.Tensor:
        """This rank's shard of the step: the rule's own, or the weighted sum."""
        if how.step is None:
            return weighted_sum(rows, weights)
        sizes = [bucket.shard for bucket in self.model.layout.buckets]
        begin = sum(sizes[:b])
        part = torch.from_numpy(how.step[begin : begin + sizes[b]].copy())
        return part.to(self.model.masters[b])
