"""The model all ranks share, whole on each of them, and its outer optimiser."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch

from hewfl.aggregate.sketch import CountSketch
from hewfl.server.average import average_weight, averaged
from hewfl.server.outer import Outer, outer_step
from hewfl.torch.layout import Layout, flat_view

STRETCH = 2**18
"""Entries worked on at a time on the host: several passes over them stay in cache."""


@final
class SharedModel:
    """The parameters y of this rank and the common x they started from.

    All ranks apply the same numbers to the same numbers, entry by entry, so x, the
    outer step's memory and the average are the same bits on all of them, and any rank
    can give them to one that joins.

    Attributes:
        parameters: y, where the user's model has them.
        layout: their buckets.
        outer: what is done with the aggregated step.
        anchor: x, one vector per bucket, in float32 at least, so that small steps are
            not lost to bfloat16.
        memory: of the outer step; empty where it has none. Of an outer step that
            divides each has two rows.
        average: of x; empty where none is kept.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        layout: Layout,
        outer: Outer,
        *,
        on_host: bool = False,
    ) -> None:
        """Prepare vectors of zeros.

        Args:
            parameters: y.
            layout: of them.
            outer: the outer step.
            on_host: keep x and what goes with it in main memory, whatever the device
                of the parameters is; a bucket is copied where it is needed.
        """
        self.parameters, self.layout, self.outer = parameters, layout, outer
        self.device = parameters[0].device
        place = torch.device("cpu") if on_host else self.device
        self.anchor = [
            torch.zeros(bucket.size, dtype=bucket.wide, device=place)
            for bucket in layout.buckets
        ]
        self.memory = [_memory_of(outer, x) for x in self.anchor if outer.memory]
        self.average = [torch.zeros_like(x) for x in self.anchor if outer.average]
        self._held: list[torch.Tensor] = []
        self._reach = self._next = (math.inf, math.inf)  # bounds on |x| and |m|

    # ------------------------------------------------------------------ displacements

    def displacement(self, b: int, out: torch.Tensor, weight: float = 1.0) -> None:
        """Put w Δ = w (y − x) on a bucket into `out`; a weight of zero gives zeros.

        Δ is rounded once to the precision of the parameters, from the x that they
        started from in that precision.
        """
        if weight == 0:  # whatever y is, NaN included
            out.zero_()
            return
        for here, moved in self._moved(b, out):
            if weight != 1:
                out[here] = moved.mul_(weight)

    def sketch(self, sketch: CountSketch) -> torch.Tensor:
        """The sketch of Δ, in one pass over the parameters."""
        total: torch.Tensor = sketch.empty(self.parameters[0])
        for b, bucket in enumerate(self.layout.buckets):
            x = self._at_hand(self.anchor[b])
            for y, here in self._views(b, whole=x.dtype == bucket.dtype):
                start = x[here].to(bucket.dtype)
                sketch.add(total, y, bucket.begin + here.start, start)
        return total

    def is_displacement_finite(self) -> bool:
        """Whether all entries of Δ are finite."""
        room, buckets = self._scratch(), range(len(self.anchor))
        parts = (
            moved for b in buckets for _, moved in self._moved(b, room, in_place=False)
        )
        return all(is_finite(moved) for moved in parts)

    def _moved(
        self, b: int, room: torch.Tensor, *, in_place: bool = True
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Δ on a bucket, stretch by stretch, in its place of `room` or at the front."""
        x, dtype = self._at_hand(self.anchor[b]), self.layout.buckets[b].dtype
        for y, here in self._views(b):
            out = room[here] if in_place else room.view(dtype)[: len(y)]
            yield here, torch.sub(y, x[here].to(dtype), out=out)

    # ----------------------------------------------------------------- the outer step

    def fits(self, steps: Sequence[torch.Tensor]) -> bool:
        """Whether the model, moved by the outer step of s, would be finite.

        s is the same on all ranks, and so is the answer. Bounds are nearly always
        enough: |m| ≤ β|m| + |s| and |move| ≤ γ (1 + β)|m|, with or without Nesterov;
        half the range is left to rounding. Else, and for outer steps that divide, the
        step is tried. Nothing is changed.
        """
        far = max(largest(step) for step in steps)
        if not math.isfinite(far):
            return False
        limit = min(torch.finfo(bucket.dtype).max for bucket in self.layout.buckets) / 2
        for _ in range(2):
            beta = self.outer.momentum
            kept = beta * self._reach[1] + far
            reach = self._reach[0] + self.outer.step * (1 + beta) * kept
            if self.outer.adapt is None and reach <= limit:
                self._next = (reach, kept)
                return True
            self._reach = (_furthest(self.anchor), _furthest(self.memory))
        self._next = (math.inf, math.inf)
        return all(self._stays_finite(b, step) for b, step in enumerate(steps))

    def capture(self) -> None:
        """Remember y, from which steps go on while a sum travels; see `move`."""
        self._held = [
            torch.empty(bucket.size, dtype=bucket.dtype, device=self.device)
            for bucket in self.layout.buckets
        ]
        for b, held in enumerate(self._held):
            for y, here in self._views(b):
                held[here] = y

    def move(
        self, steps: Sequence[torch.Tensor], rounds: int, *, against: bool = False
    ) -> float:
        """Move x by the outer step of s, and let y = x.

        After `capture` y becomes x + (y − what was captured): steps made since then
        are kept, on top of the new x.

        Args:
            steps: s, bucket by bucket, for which `fits` has said yes.
            rounds: done before this one, which the average goes by.
            against: whether ⟨s, Δ⟩ is wanted.

        Returns:
            ⟨s, Δ⟩ for the Δ before the move, zero if it is not wanted.
        """
        product, p = 0.0, average_weight(self.outer, rounds) if self.average else 0.0
        for b, step in enumerate(steps):
            x = self._at_hand(self.anchor[b])
            for y, here in self._views(b):
                s, part = step[here].to(x.dtype), x[here]
                end = self._held[b][here] if self._held else y
                if against:
                    moved = (end - part.to(y.dtype)).to(s.dtype)
                    product += float(torch.dot(s, moved))
                if not self.outer.is_plain:
                    s, kept = outer_step(self.outer, s, self._memory(b, here))
                    if kept is not None:
                        self.memory[b][..., here] = kept
                part.add_(s)
                if self.average:
                    mean = self.average[b]
                    mean[here] = averaged(p, mean[here], part.to(mean.device))
                if self._held:
                    y.add_(part.to(y.dtype) - end)
                else:
                    y.copy_(part)
            if x is not self.anchor[b]:
                self.anchor[b].copy_(x)
        self._reach, self._held = self._next, []
        return product

    def _stays_finite(self, b: int, step: torch.Tensor) -> bool:
        x = self._at_hand(self.anchor[b])
        move, kept = outer_step(self.outer, step.to(x.dtype), self._memory(b))
        moved = (x + move).to(self.layout.buckets[b].dtype)
        return (kept is None or is_finite(kept)) and is_finite(moved)

    def _memory(self, b: int, here: slice = slice(None)) -> torch.Tensor | None:
        return self.memory[b][..., here].to(self.device) if self.memory else None

    # ------------------------------------------------------------------------ x and y

    def take(self) -> None:
        """Let x = y, the average with it."""
        for b, x in enumerate(self.anchor):
            for y, here in self._views(b):
                x[here] = y
        self.follow()

    def follow(self) -> None:
        """Let y = x, after x was written to; the average starts there."""
        for average, x in zip(self.average, self.anchor, strict=False):
            average.copy_(x)
        self.give()
        self.forget_reach()

    def forget_reach(self) -> None:
        """What was known of the size of x is not true any more."""
        self._reach = self._next = (math.inf, math.inf)

    def give(self, wholes: Sequence[torch.Tensor] | None = None) -> None:
        """Let y = x, or another model that is given bucket by bucket."""
        for b, whole in enumerate(self.anchor if wholes is None else wholes):
            for y, here in self._views(b):
                y.copy_(whole[here])

    def _at_hand(self, whole: torch.Tensor) -> torch.Tensor:
        """A vector on the device of the parameters: itself, unless kept on the host."""
        return whole.to(self.device)

    def _scratch(self) -> torch.Tensor:
        """Memory for a stretch of any bucket."""
        size = max(bucket.size for bucket in self.layout.buckets)
        size = min(size, STRETCH) if self.device.type == "cpu" else size
        return torch.empty(8 * size, dtype=torch.uint8, device=self.device)

    def _views(
        self, b: int, *, whole: bool = False
    ) -> Iterator[tuple[torch.Tensor, slice]]:
        """Stretches of the parameters in a bucket, and where they lie in it."""
        whole = whole or self.device.type != "cpu"
        step = self.layout.parameters if whole else STRETCH
        for piece in self.layout.buckets[b].pieces:
            flat = flat_view(self.parameters[piece.parameter])
            for lo in range(0, piece.size, step):
                hi = min(lo + step, piece.size)
                stretch = flat[piece.start + lo : piece.start + hi]
                yield stretch, slice(piece.at + lo, piece.at + hi)


def _memory_of(outer: Outer, like: torch.Tensor) -> torch.Tensor:
    """What the outer step remembers of a bucket before the first round."""
    rows = [torch.full_like(like, value) for value in outer.memory]
    return rows[0] if len(rows) == 1 else torch.stack(rows)


def _furthest(tensors: Sequence[Any]) -> float:
    return max((largest(tensor) for tensor in tensors), default=0.0)


def largest(tensor: torch.Tensor) -> float:
    """max|x|, in one pass without temporaries; not finite if an entry is not."""
    if tensor.numel() == 0:
        return 0.0
    low, high = torch.aminmax(tensor.detach())
    return max(-float(low), float(high))


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    return math.isfinite(largest(tensor))
