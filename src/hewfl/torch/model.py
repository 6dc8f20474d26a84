"""The model all ranks share, this rank's shards of it, and its outer optimiser."""

import copy
from collections.abc import Sequence
from typing import Any, final

import torch

from hewfl.sim.outer import Outer
from hewfl.torch.layout import Layout, flat_view


@final
class SharedModel:
    """The parameters y of this rank and the common x they started from.

    Attributes:
        parameters: y, where the user's model has them.
        layout: their buckets and shards.
        anchor: x, one vector per bucket, the same bits on all ranks.
        masters: this rank's shards of x, in float32 at least, so that small steps are
            not lost to bfloat16.
        outer: torch's SGD on the masters. With the aggregated step for a negative
            gradient it is `hewfl.sim.outer`; its memory is this rank's shards only.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], layout: Layout, outer: Outer
    ) -> None:
        self.parameters, self.layout = parameters, layout
        n, device = layout.ranks, parameters[0].device
        self.anchor = [
            torch.zeros(n * bucket.shard, dtype=bucket.dtype, device=device)
            for bucket in layout.buckets
        ]
        self.masters = [
            torch.zeros(bucket.shard, dtype=bucket.wide, device=device)
            for bucket in layout.buckets
        ]
        self.outer: Any = torch.optim.SGD(
            self.masters,
            lr=outer.step,
            momentum=outer.momentum,
            nesterov=outer.nesterov and outer.momentum > 0,
        )

    def displacement(self, b: int, memory: torch.Tensor) -> torch.Tensor:
        """Δ = y − x on a bucket, rounded once to the precision of the parameters.

        Args:
            b: which bucket.
            memory: bytes from `scratch`, used for the result.
        """
        anchor = self.anchor[b]
        moved = memory[: anchor.nbytes].view(anchor.dtype)
        end = 0
        for y, here in self._views(b):
            torch.sub(y, anchor[here], out=moved[here])
            end = here.stop
        moved[end:] = 0
        return moved

    def scratch(self) -> torch.Tensor:
        """Memory for any bucket, not initialised."""
        size = max(anchor.nbytes for anchor in self.anchor)
        return torch.empty(size, dtype=torch.uint8, device=self.anchor[0].device)

    def moved_shard(self, b: int, step: torch.Tensor) -> torch.Tensor:
        """This rank's shard of x after the outer optimiser's move; uses up `step`."""
        self.masters[b].grad = step.neg_()
        self.outer.step()
        self.masters[b].grad = None
        return self.masters[b].to(self.anchor[b].dtype)

    def kept(self, b: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Copies of what `moved_shard` changes, for `put_back`."""
        master = self.masters[b]
        memory = self.outer.state.get(master, {})
        copies = {name: copy.deepcopy(value) for name, value in memory.items()}
        return master.clone(), copies

    def put_back(self, b: int, kept: tuple[torch.Tensor, dict[str, Any]]) -> None:
        """Undo `moved_shard`."""
        self.masters[b].copy_(kept[0])
        self.outer.state[self.masters[b]] = kept[1]

    def take(self) -> None:
        """Let x = y."""
        for b, anchor in enumerate(self.anchor):
            for y, here in self._views(b):
                anchor[here] = y

    def give(self) -> None:
        """Let y = x."""
        for b, anchor in enumerate(self.anchor):
            for y, here in self._views(b):
                y.copy_(anchor[here])

    def follow(self, rank: int) -> None:
        """Masters and parameters as the anchor has them."""
        for master, anchor in zip(self.masters, self.anchor, strict=True):
            master.copy_(shard_of(anchor, self.layout.ranks, rank))
        self.give()

    def _views(self, b: int) -> list[tuple[torch.Tensor, slice]]:
        """Stretches of the parameters in a bucket, and where they lie in it."""
        views = []
        for piece in self.layout.buckets[b].pieces:
            flat = flat_view(self.parameters[piece.parameter])
            stretch = flat[piece.start : piece.start + piece.size]
            views.append((stretch, slice(piece.at, piece.at + piece.size)))
        return views


def shard_of(whole: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """One rank's part of a bucket, without a copy."""
    return whole.view(ranks, -1)[rank]


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    return bool(torch.isfinite(tensor).all())
