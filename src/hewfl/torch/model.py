"""The model all ranks share, this rank's shards of it, and its outer optimiser."""

import math
from collections.abc import Sequence
from typing import final

import torch

from hewfl.server.average import average_weight, averaged
from hewfl.server.outer import Outer, outer_step
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
        outer: what is done with the aggregated step.
        memory: of the outer step, this rank's shards only; empty where it has none. Of
            an outer step that divides each has two rows.
        average: of x, this rank's shards only; empty where none is kept.
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
        self.outer = outer
        self.memory = [_memory_of(outer, m) for m in self.masters if outer.memory]
        self.average = [torch.zeros_like(m) for m in self.masters if outer.average]

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

    def moved_shard(self, b: int, step: torch.Tensor, rounds: int = 0) -> torch.Tensor:
        """This rank's shard of x after the outer step.

        Args:
            b: which bucket.
            step: s on this rank's shard.
            rounds: done before this one, which the average goes by.
        """
        move, kept = outer_step(self.outer, step, self._memory(b))
        if self.memory:
            self.memory[b] = kept
        master = self.masters[b].add_(move)
        if self.average:
            p = average_weight(self.outer, rounds)
            self.average[b] = averaged(p, self.average[b], master)
        return master.to(self.anchor[b].dtype)

    def _memory(self, b: int) -> torch.Tensor | None:
        return self.memory[b] if self.memory else None

    def is_bounded(self, b: int, far: float) -> bool:
        """Whether no step with entries up to `far` takes the shard out of range.

        |m| ≤ β|m| + |s| and |move| ≤ γ (1 + β)|m|, with or without Nesterov. Half the
        range is left to rounding. False means that it is not known, as always of an
        outer step that divides.
        """
        master, beta, memory = self.masters[b], self.outer.momentum, self._memory(b)
        if self.outer.adapt is not None:
            return False
        held = 0.0 if memory is None else largest(memory)
        ahead = (1 + beta) * (beta * held + far)
        reach = largest(master) + self.outer.step * ahead
        widest, range_ = torch.finfo(master.dtype), torch.finfo(self.anchor[b].dtype)
        return bool(ahead <= widest.max / 2 and reach <= range_.max / 2)

    def stays_finite(self, b: int, step: torch.Tensor) -> bool:
        """Whether `moved_shard` would be finite; nothing is changed."""
        move, kept = outer_step(self.outer, step, self._memory(b))
        held = kept is None or is_finite(kept)
        return held and is_finite((self.masters[b] + move).to(self.anchor[b].dtype))

    def take(self) -> None:
        """Let x = y."""
        for b, anchor in enumerate(self.anchor):
            for y, here in self._views(b):
                anchor[here] = y

    def give(self, wholes: Sequence[torch.Tensor] | None = None) -> None:
        """Let y = x, or another model that is given bucket by bucket."""
        for b, whole in enumerate(self.anchor if wholes is None else wholes):
            for y, here in self._views(b):
                y.copy_(whole[here])

    def follow(self, rank: int) -> None:
        """Masters and parameters as the anchor has them."""
        for master, anchor in zip(self.masters, self.anchor, strict=True):
            master.copy_(shard_of(anchor, self.layout.ranks, rank))
        for average, master in zip(self.average, self.masters, strict=False):
            average.copy_(master)
        self.give()

    def _views(self, b: int) -> list[tuple[torch.Tensor, slice]]:
        """Stretches of the parameters in a bucket, and where they lie in it."""
        views = []
        for piece in self.layout.buckets[b].pieces:
            flat = flat_view(self.parameters[piece.parameter])
            stretch = flat[piece.start : piece.start + piece.size]
            views.append((stretch, slice(piece.at, piece.at + piece.size)))
        return views


def _memory_of(outer: Outer, like: torch.Tensor) -> torch.Tensor:
    """What the outer step remembers of a shard before the first round."""
    rows = [torch.full_like(like, value) for value in outer.memory]
    return rows[0] if len(rows) == 1 else torch.stack(rows)


def shard_of(whole: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """One rank's part of a bucket, without a copy."""
    return whole.view(ranks, -1)[rank]


def largest(tensor: torch.Tensor) -> float:
    """max|x|, in one pass without temporaries; not finite if an entry is not."""
    if tensor.numel() == 0:
        return 0.0
    low, high = torch.aminmax(tensor.detach())
    return max(-float(low), float(high))


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    return math.isfinite(largest(tensor))
