"""The model all ranks share, whole on each of them, and its server optimiser."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch

from hewfl.core.native import PASSES, library
from hewfl.server.server_step import (
    ServerStep,
    add_iterate,
    apply_server_step,
    average_weight,
)
from hewfl.torch.buckets import Layout

STRETCH = 2**18
"""Entries worked on at a time on the host: several passes over them stay in cache."""
SMALL = 2**13
"""Pieces that are shorter on average are copied together before they are worked on."""


@final
class SharedModel:
    """The parameters y of this rank and the common x they started from.

    All ranks apply the same numbers to the same numbers, entry by entry, so x, the
    server step's memory and the average are the same bits on all of them, and any rank
    can give them to one that joins.

    Args:
        parameters: y, where the user's model has them.
        layout: their buckets.
        server_step: what is done with the aggregated step.
        on_host: keep x and what goes with it in main memory, whatever the device of
            the parameters is; a bucket is copied where it is needed.

    Attributes:
        anchor: x, one vector per bucket, in float32 at least, so that small steps are
            not lost to bfloat16.
        memory: of the server step; empty where it has none. Of an server step that
            divides each has two rows.
        average: of x; empty where none is kept.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        layout: Layout,
        server_step: ServerStep,
        *,
        on_host: bool = False,
    ) -> None:
        self.parameters, self.layout, self.server_step = parameters, layout, server_step
        self.device = parameters[0].device
        place = torch.device("cpu") if on_host else self.device
        self.anchor = [
            torch.zeros(bucket.size, dtype=bucket.wide, device=place)
            for bucket in layout.buckets
        ]
        self.memory = [
            _memory_of(server_step, x) for x in self.anchor if server_step.memory
        ]
        self.average = [torch.zeros_like(x) for x in self.anchor if server_step.average]
        self._held: list[torch.Tensor] = []
        self._seen: dict[int, tuple[list[int], list[torch.Tensor]]] = {}
        # Memory that is used again: making it anew costs more than the arithmetic.
        self._sums: dict[int, torch.Tensor] = {}
        self._spare: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._next: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

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

    def start(self, b: int) -> torch.Tensor:
        """What Δ is measured from: x in the precision of the parameters."""
        return self._at_hand(self.anchor[b]).to(self.layout.buckets[b].dtype)

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

    def room(self, b: int) -> torch.Tensor:
        """Memory for a sum on a bucket."""
        if b not in self._sums:
            bucket = self.layout.buckets[b]
            size, kind = bucket.size, bucket.dtype
            self._sums[b] = torch.empty(size, dtype=kind, device=self.device)
        return self._sums[b]

    def _stretches(
        self, b: int, room: torch.Tensor | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """A bucket of y, stretch by stretch; many small pieces by way of a room."""
        pieces, at = self.pieces(b), 0
        if len(pieces) > 1 and self.layout.buckets[b].size < SMALL * len(pieces):
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

    # ----------------------------------------------------------------- the server step

    def advance(
        self, b: int, step: torch.Tensor, *, multiplies: bool = False
    ) -> tuple[Any, list[Any]]:
        """Make the next x, and memory, from s on a bucket; the present ones stay.

        s is used up: in a `room` it becomes the next x where it is of the same kind.

        Args:
            b: the bucket.
            step: s there.
            multiplies: whether ⟨s, Δ⟩ is wanted.

        Returns:
            The part of ⟨s, Δ⟩, zero if it is not wanted, and the largest entries of
            what was made, for `fits`. On a device they are tensors: nobody waits here.
        """
        x, product, far = self._at_hand(self.anchor[b]), 0.0, []
        is_room = b in self._sums and step is self._sums[b]
        if self.server_step.is_plain and is_room and step.dtype == x.dtype:
            ends: Any = self._stretches(b) if multiplies else [(slice(None), None)]
            for here, y in ends:
                part, reach = moved(step[here], x[here], y)
                product += part
                far.append(reach)
            self._next[b] = step, None
        else:
            if multiplies:
                away = torch.empty_like(step, dtype=self.layout.buckets[b].dtype)
                self.displacement(b, away)
                product = torch.dot(step.to(x.dtype), away.to(x.dtype))
            far = self._stepped(b, x, step)
        return product, far

    def fits(self, far: Sequence[Sequence[Any]]) -> bool:
        """Whether what `advance` made of all buckets can be held by the parameters."""
        limits = [torch.finfo(bucket.dtype).max for bucket in self.layout.buckets]
        pairs = zip(far, limits, strict=True)
        return all(float(reach) <= most for some, most in pairs for reach in some)

    def _stepped(self, b: int, x: torch.Tensor, step: torch.Tensor) -> list[Any]:
        """The next x and memory by any server step, and how far they reach."""
        m = self._at_hand(self.memory[b]) if self.memory else None
        if b not in self._spare:  # where x is kept, be it the host
            room = self.memory[b].clone() if self.memory else None
            self._spare[b] = torch.empty_like(self.anchor[b]), room
        (following, kept), far, at = self._spare[b], [], 0
        for part in self._cut(x):
            here = slice(at, at + len(part))
            at, s = here.stop, step[here].to(x.dtype)
            if not self.server_step.is_plain:
                s, new = apply_server_step(
                    self.server_step, s, None if m is None else m[..., here]
                )
                if kept is not None:
                    kept[..., here] = new
                    far.append(0 * largest(new))  # NaN unless all of it is finite
            new_x = part + s
            following[here] = new_x
            far.append(largest(new_x))
        self._next[b] = following, kept
        return far

    def accept(self, rounds: int) -> None:
        """Let x be what `advance` has made, and y = x.

        After `capture` y becomes x + (y − what was captured): steps made since then
        are kept, on top of the new x.

        Args:
            rounds: done before this one, which the average goes by.
        """
        p = average_weight(self.server_step, rounds) if self.average else 0.0
        for b, (x, kept) in self._next.items():
            bucket, y = self.layout.buckets[b], self.pieces(b)
            self._put(b, x, kept)
            if self.average:
                mean = self.average[b]
                mean.copy_(add_iterate(p, mean, self.anchor[b]))
            if self._held:
                ahead = x.to(self.device, bucket.dtype) - self._held[b]
                torch._foreach_add_(y, bucket.split(ahead))
            else:
                torch._foreach_copy_(y, bucket.split(x))
        self._next, self._held = {}, []

    def _put(self, b: int, x: torch.Tensor, kept: torch.Tensor | None) -> None:
        """Put x and the memory in place of the present ones, whose room is kept."""
        last = self.anchor[b], self.memory[b] if self.memory else None
        if x.device != last[0].device:  # kept on the host
            for held, new in zip(last, (x, kept), strict=True):
                if held is not None and new is not None:
                    held.copy_(new)
            return
        self.anchor[b] = x
        if kept is not None:
            self.memory[b] = kept
        if x is self._sums.get(b):
            self._sums[b] = last[0]
        elif b in self._spare:
            self._spare[b] = last

    def capture(self) -> None:
        """Remember y, from which steps go on while a sum travels; see `accept`."""
        buckets = range(len(self.layout.buckets))
        self._held = [torch.cat(self.pieces(b)) for b in buckets]

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

    def give(self, wholes: Sequence[torch.Tensor] | None = None) -> None:
        """Let y = x, or another model that is given bucket by bucket."""
        given = self.anchor if wholes is None else wholes
        for b, bucket in enumerate(self.layout.buckets):
            torch._foreach_copy_(self.pieces(b), bucket.split(given[b]))

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let y be anything inside the block; afterwards it is what it was."""
        held = [y.detach().clone() for y in self.parameters]
        try:
            yield
        finally:
            for y, own in zip(self.parameters, held, strict=True):
                y.detach().copy_(own)

    def _at_hand(self, whole: torch.Tensor) -> torch.Tensor:
        """A vector on the device of the parameters: itself, unless kept on the host."""
        return whole.to(self.device)


def _memory_of(server_step: ServerStep, like: torch.Tensor) -> torch.Tensor:
    """What the server step remembers of a bucket before the first round."""
    rows = [torch.full_like(like, value) for value in server_step.memory]
    return rows[0] if len(rows) == 1 else torch.stack(rows)


def moved(
    step: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None
) -> tuple[Any, Any]:
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
    product = 0.0 if y is None else torch.dot(step, y - x)
    return product, largest(step.add_(x))


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """max|x|, in one pass without temporaries; not finite if an entry is not."""
    low, high = torch.aminmax(tensor.detach())
    return torch.maximum(-low, high)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    return tensor.numel() == 0 or math.isfinite(largest(tensor))
