"""The model all ranks share, whole on each of them, and the server step on it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from hewfl.core.native import PASSES, library, load
from hewfl.server.server_step import ServerStep, add_iterate, average_weight
from hewfl.torch.parameters import BucketLayout

CHUNK = 2**15
"""Entries processed at a time on the host: several passes over them stay in cache, and
temporaries are small: aligned blocks of a megabyte would fragment the heap, by more
than a model after some rounds."""
SMALL_PIECE = 2**13
"""Pieces shorter than this on average are concatenated before they are processed."""


@final
class SharedModel:
    """The parameters y of this rank and the common x they started from.

    All ranks apply the same numbers to the same numbers, entry by entry. So x, the
    server step's memory and the average are the same bits on all ranks, and any rank
    can send them to one that joins. All are lists of one vector per bucket, x and the
    average in float32 at least: bfloat16 would lose small steps. An adaptive server
    step has two rows in each vector of memory. With `on_host` they are in main memory,
    whatever the device of y; a bucket is copied to the device when it is needed.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        layout: BucketLayout,
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
        self.memory: list[torch.Tensor] = []
        for x in self.anchor if server_step.memory else ():
            rows = [torch.full_like(x, value) for value in server_step.memory]
            self.memory.append(rows[0] if len(rows) == 1 else torch.stack(rows))
        self.average = [torch.zeros_like(x) for x in self.anchor if server_step.average]
        self._captured: list[torch.Tensor] = []
        self.is_captured = False  # whether a copy of y is in use
        self._views: dict[int, tuple[list[int], list[torch.Tensor], list[Any]]] = {}
        # Buffers are reused: to allocate them costs more than the arithmetic.
        self._sums: dict[int, torch.Tensor] = {}
        self._spare: dict[int, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
        self._next: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def _piece_views(self, b: int) -> tuple[list[int], list[torch.Tensor], list[Any]]:
        """Places of a bucket's parameters, their views, and these as arrays.

        Views are reused while parameters stay in place: a model has hundreds, and to
        make one takes as long as the arithmetic on a thousand numbers.
        """
        bucket = self.layout.buckets[b]
        at = [self.parameters[piece.parameter].data_ptr() for piece in bucket.pieces]
        if b not in self._views or self._views[b][0] != at:
            views = bucket.views(self.parameters)
            is_array = self.device.type == "cpu" and bucket.dtype == torch.float32
            arrays = [view.numpy() for view in views] if is_array else []
            self._views[b] = at, views, arrays
        return self._views[b]

    def pieces(self, b: int) -> list[torch.Tensor]:
        """A bucket of y, as views of the parameters."""
        return self._piece_views(b)[1]

    def arrays(self, b: int) -> list[NDArray[Any]]:
        """The same as arrays, for compiled kernels; none unless float32 on the host."""
        return self._piece_views(b)[2]

    def origin(self, b: int) -> torch.Tensor:
        """The origin of Δ: x in the precision of the parameters."""
        return self.anchor[b].to(self.device, self.layout.buckets[b].dtype)

    def displacement(self, b: int, out: torch.Tensor, weight: float = 1.0) -> None:
        """Write Δ = y − x on a bucket into `out`, times a weight.

        Δ is rounded once to the precision of the parameters, relative to the x that
        they started from in that precision.
        """
        x = self.origin(b)
        for here, y in self._chunks(b, out):
            difference = torch.sub(y, x[here], out=out[here])
            if weight != 1:
                difference.mul_(weight)

    def has_moved(self) -> bool:
        """Whether y differs from the model that it was set to last."""
        for b, bucket in enumerate(self.layout.buckets):
            start = self._captured[b] if self.is_captured else self.origin(b)
            pairs = zip(self.pieces(b), bucket.split(start), strict=True)
            if not all(torch.equal(piece, part) for piece, part in pairs):
                return True
        return False

    def sum_buffer(self, b: int) -> torch.Tensor:
        """Memory for a sum on a bucket."""
        if b not in self._sums:
            bucket = self.layout.buckets[b]
            size, dtype = bucket.size, bucket.dtype
            self._sums[b] = torch.empty(size, dtype=dtype, device=self.device)
        return self._sums[b]

    def _chunks(
        self, b: int, buffer: torch.Tensor | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """A bucket of y, chunk by chunk; many small pieces are copied to a buffer."""
        pieces, at = self.pieces(b), 0
        if len(pieces) > 1 and self.layout.buckets[b].size < SMALL_PIECE * len(pieces):
            pieces = [torch.cat(pieces, out=buffer)]
        for piece in pieces:
            for part in self._split(piece):
                yield slice(at, at + len(part)), part
                at += len(part)

    def _split(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """Parts of a vector: on the host several passes over one stay in cache."""
        is_one = vector.numel() <= CHUNK or self.device.type != "cpu"
        parts: Sequence[torch.Tensor] = [vector] if is_one else vector.split(CHUNK)
        return parts

    def advance(
        self, b: int, step: torch.Tensor, *, multiplies: bool = False
    ) -> tuple[Any, list[Any]]:
        """Make the next x and memory from s on a bucket; the present ones stay.

        s is consumed: in a `sum_buffer` of the same precision it becomes the next x.

        Returns:
            This bucket's part of ⟨s, Δ⟩ if `multiplies`, and the largest magnitudes of
            the new values, for `is_representable`. On a GPU they are tensors, and the
            host does not wait for them here.
        """
        x, product, magnitudes = self.anchor[b].to(self.device), 0.0, []
        is_buffer = step.dtype == x.dtype and step is self._sums.get(b)
        if self.server_step.is_plain and is_buffer:
            chunks: Any = self._chunks(b) if multiplies else [(slice(None), None)]
            for here, y in chunks:
                part, magnitude = add_anchor(step[here], x[here], y)
                product += part
                magnitudes.append(magnitude)
            self._next[b] = step, None
            return product, magnitudes
        if multiplies:
            delta = torch.empty_like(step, dtype=self.layout.buckets[b].dtype)
            self.displacement(b, delta)
            product = torch.dot(step.to(x.dtype), delta.to(x.dtype))
        return product, self._apply_server_step(b, x, step, is_buffer=is_buffer)

    def advance_whole(
        self, rows: Sequence[NDArray[Any]], weights: NDArray[np.float64]
    ) -> list[Any]:
        """The same from whole displacements, s = Σ w_iΔ_i, of one bucket of float32."""
        kernels: Any = load(PASSES)
        out, is_plain = self.sum_buffer(0), self.server_step.is_plain
        x = self.anchor[0].numpy() if is_plain else None
        magnitude = kernels.stepped(list(rows), len(out), weights, x, out.numpy())
        if not is_plain:
            return self.advance(0, out)[1]
        self._next[0] = out, None
        return [magnitude]

    def is_representable(self, magnitudes: Sequence[Sequence[Any]]) -> bool:
        """Whether the parameters can hold what `advance` made of all buckets."""
        limits = [torch.finfo(bucket.dtype).max for bucket in self.layout.buckets]
        pairs = zip(magnitudes, limits, strict=True)
        return all(float(m) <= limit for several, limit in pairs for m in several)

    def _apply_server_step(
        self, b: int, x: torch.Tensor, step: torch.Tensor, *, is_buffer: bool
    ) -> list[Any]:
        """Make the next x and memory by any server step; their largest magnitudes.

        The next x takes the place of s where that is a `sum_buffer` of its precision.
        """
        memory = self.memory[b].to(self.device) if self.memory else None
        next_x, next_memory = self._spare.pop(b, (None, None))
        if is_buffer and step.device == self.anchor[b].device:
            next_x = step
        next_x = torch.empty_like(self.anchor[b]) if next_x is None else next_x
        if next_memory is None and self.memory:
            next_memory = torch.empty_like(self.memory[b])
        magnitudes, at = [], 0
        for part in self._split(x):
            here = slice(at, at + len(part))
            at, s = here.stop, step[here].to(x.dtype)
            if not self.server_step.is_plain:
                old = None if memory is None else memory[..., here]
                s, new = self.server_step.apply(s, old)
                if next_memory is not None:
                    next_memory[..., here] = new
                    magnitudes.append(0 * largest(new))  # NaN unless all is finite
            new_x = part + s
            next_x[here] = new_x
            magnitudes.append(largest(new_x))
        self._next[b] = next_x, next_memory
        return magnitudes

    def commit(self, rounds: int) -> None:
        """Replace x by what `advance` has made, and set y = x.

        After `capture` y becomes x + (y − what was captured): steps made since then
        stay, on top of the new x. Without such steps it is x to the bit. The average
        depends on the rounds done before.
        """
        p = average_weight(self.server_step, rounds) if self.average else 0.0
        is_ahead = self.is_captured and self.has_moved()
        for b, (x, memory) in self._next.items():
            bucket, y = self.layout.buckets[b], self.pieces(b)
            self._swap_in(b, x, memory)
            if self.average:
                mean = self.average[b]
                mean.copy_(add_iterate(p, mean, self.anchor[b]))
            if is_ahead:
                start = self._captured[b]
                torch.sub(x.to(self.device, bucket.dtype), start, out=start)
                torch._foreach_add_(y, bucket.split(start))
            else:
                torch._foreach_copy_(y, bucket.split(x))
        self._next, self.is_captured = {}, False

    def _swap_in(self, b: int, x: torch.Tensor, memory: torch.Tensor | None) -> None:
        """Replace x and memory; the old tensors become buffers."""
        last: Any = self.anchor[b], self.memory[b] if self.memory else None
        if x.device != last[0].device:  # kept on the host
            for old, new in zip(last, (x, memory), strict=True):
                if old is not None and new is not None:
                    old.copy_(new)
            return
        self.anchor[b] = x
        if memory is not None:
            self.memory[b] = memory
        if x is self._sums.get(b):
            self._sums[b] = last[0]
            last = None, last[1]
        self._spare[b] = last

    def capture(self) -> None:
        """Copy y, from which steps continue while a sum is pending; see `commit`."""
        if not self._captured:
            self._captured = [self.origin(b).clone() for b in range(len(self.anchor))]
        for b, copy in enumerate(self._captured):
            torch.cat(self.pieces(b), out=copy)
        self.is_captured = True

    def set_anchor(self) -> None:
        """Set x = y, and the average to it."""
        for b, bucket in enumerate(self.layout.buckets):
            torch._foreach_copy_(bucket.split(self.anchor[b]), self.pieces(b))
        self.restart_from_anchor()

    def restart_from_anchor(self) -> None:
        """Set y and the average to x, after x was written to."""
        for average, x in zip(self.average, self.anchor, strict=False):
            average.copy_(x)
        self.set_parameters()

    def set_parameters(self, wholes: Sequence[torch.Tensor] | None = None) -> None:
        """Set y = x, or y to another model, given bucket by bucket."""
        source = self.anchor if wholes is None else wholes
        for b, bucket in enumerate(self.layout.buckets):
            torch._foreach_copy_(self.pieces(b), bucket.split(source[b]))

    def discard(self) -> None:
        """Set y to where local steps began: x, or what a pending sum was taken of."""
        self.set_parameters(self._captured if self.is_captured else None)

    @contextmanager
    def borrow_parameters(self, wholes: Sequence[torch.Tensor]) -> Iterator[None]:
        """Set y to another model inside the block."""
        copies = [y.detach().clone() for y in self.parameters]
        self.set_parameters(wholes)
        try:
            yield
        finally:
            for y, copy in zip(self.parameters, copies, strict=True):
                y.detach().copy_(copy)


def add_anchor(
    step: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None
) -> tuple[Any, Any]:
    """⟨s, y − x⟩, zero without y, and the largest |x + s|, which takes the place of s.

    In one pass of the compiled kernel where possible.
    """
    kernel = getattr(library(PASSES), "moved", None)
    on_host = step.device.type == "cpu"
    if kernel is not None and step.dtype == torch.float32 and on_host:
        y_array = None if y is None else y.numpy()
        pair: tuple[float, float] = kernel(step.numpy(), x.numpy(), y_array)
        return pair
    product = 0.0 if y is None else torch.dot(step, y - x)
    return product, largest(step.add_(x))


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """max|x|, in one pass without temporaries; not finite if an entry is not."""
    low, high = torch.aminmax(tensor.detach())
    return torch.maximum(-low, high)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    return tensor.numel() == 0 or math.isfinite(largest(tensor))
