"""The model all ranks share, whole on each of them, and its outer optimiser."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch

from hewfl.core.native import PASSES, library
from hewfl.server.average import average_weight, averaged
from hewfl.server.outer import Outer, outer_step
from hewfl.torch.layout import Layout

STRETCH = 2**18
"""Entries worked on at a time on the host: several passes over them stay in cache."""
SMALL = 2**13
"""Pieces that are shorter on average are copied together before they are worked on."""


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
        self._seen: dict[int, tuple[list[int], list[torch.Tensor]]] = {}
        self._scratch: list[torch.Tensor] = []
        self._reach = self._next = (math.inf, math.inf)  # bounds on |x| and |m|

    # ------------------------------------------------------------------ displacements

    def pieces(self, b: int) -> list[torch.Tensor]:
        """A bucket of y, piece by piece, where the parameters have it.

        Views are kept while parameters stay where they are: a model has hundreds, and
        making one takes as long as the arithmetic on a thousand numbers.
        """
        bucket = self.layout.buckets[b]
        at = [self.parameters[piece.parameter].data_ptr() for piece in bucket.pieces]
        if b not in self._seen or self._seen[b][0] != at:
            self._seen[b] = at, bucket.of(self.parameters)
        return self._seen[b][1]

    def displacement(self, b: int, out: torch.Tensor, weight: float = 1.0) -> None:
        """Put Δ = y − x on a bucket into `out`, times a weight.

        Δ is rounded once to the precision of the parameters, from the x that they
        started from in that precision.
        """
        x = self.start(b)
        for here, y in self._stretches(b, out):
            moved = torch.sub(y, x[here], out=out[here])
            if weight != 1:
                moved.mul_(weight)

    def start(self, b: int) -> torch.Tensor:
        """What Δ is measured from: x in the precision of the parameters."""
        return self._at_hand(self.anchor[b]).to(self.layout.buckets[b].dtype)

    def _stretches(
        self, b: int, room: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """A bucket of y, stretch by stretch; many small pieces by way of a room."""
        pieces, at = self.pieces(b), 0
        if len(pieces) > 1 and len(room) < SMALL * len(pieces):
            pieces = [torch.cat(pieces, out=room)]
        for piece in pieces:
            for part in self._cut(piece):
                yield slice(at, at + len(part)), part
                at += len(part)

    def _cut(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """Parts of a vector: on the host several passes over one stay in cache."""
        whole = vector.numel() <= STRETCH or self.device.type != "cpu"
        parts: Sequence[torch.Tensor] = [vector] if whole else vector.split(STRETCH)
        return parts

    def is_displacement_finite(self) -> bool:
        """Whether all entries of Δ are finite."""
        for b in range(len(self.layout.buckets)):
            self.displacement(b, self._room(b))
            if not is_finite(self._room(b)):
                return False
        return True

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
            torch.cat(self.pieces(b)) for b in range(len(self.layout.buckets))
        ]

    @property
    def is_direct(self) -> bool:
        """Whether x + s is the next x: `advance` and `accept` do for `fits`, `move`."""
        kinds = {(bucket.dtype, bucket.wide) for bucket in self.layout.buckets}
        at_hand = self.anchor[0].device == self.device
        alike = at_hand and all(dtype == wide for dtype, wide in kinds)
        return alike and self.outer.is_plain and not (self.average or self._held)

    def advance(
        self, b: int, step: torch.Tensor, *, multiplies: bool
    ) -> tuple[Any, ...]:
        """Turn s on a bucket into x + s, in place; x and y are as they were.

        Args:
            b: the bucket.
            step: s there.
            multiplies: whether ⟨s, Δ⟩ is wanted.

        Returns:
            The part of ⟨s, Δ⟩, zero if it is not wanted, and the largest |x + s|.
        """
        x, found = self.anchor[b], [(0.0, 0.0)]
        if multiplies:
            for here, y in self._stretches(b, self._room(b)):
                found.append(moved(step[here], x[here], y))
        else:
            for s, start in zip(self._cut(step), self._cut(x), strict=True):
                found.append(moved(s, start, None))
        products, reaches = zip(*found, strict=True)
        far = max(reaches) if all(map(math.isfinite, reaches)) else math.inf
        return sum(products), far

    def accept(self, wholes: list[torch.Tensor], far: float) -> list[torch.Tensor]:
        """Let x be what `advance` has made, and y = x.

        Args:
            wholes: the next x, bucket by bucket.
            far: bound on its entries.

        Returns:
            The memory of the last x, for the next sum.
        """
        last, self.anchor = self.anchor, wholes
        self._reach = self._next = (far, 0.0)
        self.give()
        return last

    def move(
        self, steps: Sequence[torch.Tensor], rounds: int, *, multiplies: bool = False
    ) -> float:
        """Move x by the outer step of s, and let y = x.

        After `capture` y becomes x + (y − what was captured): steps made since then
        are kept, on top of the new x.

        Args:
            steps: s, bucket by bucket, for which `fits` has said yes.
            rounds: done before this one, which the average goes by.
            multiplies: whether ⟨s, Δ⟩ is wanted.

        Returns:
            ⟨s, Δ⟩, zero if it is not wanted.
        """
        product, p = 0.0, average_weight(self.outer, rounds) if self.average else 0.0
        for b, (bucket, step) in enumerate(
            zip(self.layout.buckets, steps, strict=True)
        ):
            x = self._at_hand(self.anchor[b])
            if multiplies:
                away = self._room(b)
                self.displacement(b, away)
                product += float(torch.dot(step.to(x.dtype), away.to(x.dtype)))
            at = 0
            for part in self._cut(x):
                here = slice(at, at + len(part))
                at, s = here.stop, step[here].to(x.dtype)
                if not self.outer.is_plain:
                    s, kept = outer_step(self.outer, s, self._memory(b, here))
                    if kept is not None:
                        self.memory[b][..., here] = kept
                part.add_(s)
                if self.average:
                    mean = self.average[b]
                    mean[here] = averaged(p, mean[here], part.to(mean.device))
            if x is not self.anchor[b]:
                self.anchor[b].copy_(x)
            y = self.pieces(b)
            if self._held:
                ahead = x.to(bucket.dtype) - self._held[b]
                torch._foreach_add_(y, bucket.split(ahead))
            else:
                torch._foreach_copy_(y, bucket.split(x))
        self._reach, self._held = self._next, []
        return product

    def _room(self, b: int) -> torch.Tensor:
        """Memory for a vector of a bucket, used again and again."""
        if not self._scratch:
            size = max(bucket.size for bucket in self.layout.buckets)
            wide = max((x.dtype for x in self.anchor), key=lambda kind: kind.itemsize)
            self._scratch = [torch.empty(size, dtype=wide, device=self.device)]
        bucket = self.layout.buckets[b]
        return self._scratch[0].view(bucket.dtype)[: bucket.size]

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
        for b, bucket in enumerate(self.layout.buckets):
            torch._foreach_copy_(bucket.split(self.anchor[b]), self.pieces(b))
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
        given = self.anchor if wholes is None else wholes
        for b, bucket in enumerate(self.layout.buckets):
            torch._foreach_copy_(self.pieces(b), bucket.split(given[b]))

    def _at_hand(self, whole: torch.Tensor) -> torch.Tensor:
        """A vector on the device of the parameters: itself, unless kept on the host."""
        return whole.to(self.device)


def _memory_of(outer: Outer, like: torch.Tensor) -> torch.Tensor:
    """What the outer step remembers of a bucket before the first round."""
    rows = [torch.full_like(like, value) for value in outer.memory]
    return rows[0] if len(rows) == 1 else torch.stack(rows)


def _furthest(tensors: Sequence[Any]) -> float:
    return max((largest(tensor) for tensor in tensors), default=0.0)


def moved(
    step: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None
) -> tuple[float, float]:
    """Let s become x + s, in one pass where the compiled kernel can.

    Returns:
        ⟨s, y − x⟩, zero without y, and the largest |x + s|.
    """
    kernel = getattr(library(PASSES), "moved", None)
    on_host = step.device.type == "cpu"
    if kernel is not None and step.dtype == torch.float32 and on_host:
        lent = None if y is None else y.numpy()
        found: tuple[float, float] = kernel(step.numpy(), x.numpy(), lent)
        return found
    product = 0.0 if y is None else float(torch.dot(step, y - x))
    return product, largest(step.add_(x))


def largest(tensor: torch.Tensor) -> float:
    """max|x|, in one pass without temporaries; not finite if an entry is not."""
    if tensor.numel() == 0:
        return 0.0
    low, high = torch.aminmax(tensor.detach())
    return max(-float(low), float(high))


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    return math.isfinite(largest(tensor))
