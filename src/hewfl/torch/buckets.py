"""How the parameters of a model lie in buckets, which are exchanged one by one.

Parameters of one precision are laid end to end, in the order of their memory, and cut
into buckets. Nothing here depends on the number of ranks: a state that was saved by
four of them is read by three.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from hewfl.core.validation import invalid

SHARE, LEAST = 8, 2**22
"""Buckets of this part of the model, unless that is less than these bytes: the next
one is made ready while one travels, and a small model travels at once."""


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Where a stretch of a parameter lies in a bucket.

    Attributes:
        parameter: index of the parameter.
        start: first entry, in the order of the parameter's memory.
        at: the same in the bucket.
        size: entries.
    """

    parameter: int
    start: int
    at: int
    size: int


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of the model that is exchanged at once.

    Attributes:
        dtype: precision of its parameters, and on the wire.
        pieces: what it holds, end to end.
        begin: place of its first entry in the whole model.
    """

    dtype: torch.dtype
    pieces: tuple[Piece, ...]
    begin: int

    @property
    def size(self) -> int:
        """Entries."""
        return self.pieces[-1].at + self.pieces[-1].size

    @property
    def nbytes(self) -> int:
        """What a vector of it takes on the wire."""
        return self.size * int(self.dtype.itemsize)

    @property
    def wide(self) -> torch.dtype:
        """The precision of sums: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    def split(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """A vector of this bucket, piece by piece."""
        return list(whole.split([piece.size for piece in self.pieces]))

    def of(
        self, tensors: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        """The pieces where parameters, or tensors laid out like them, have them."""
        flat = [flat_view(tensors[piece.parameter]) for piece in self.pieces]
        spans = [(piece.start, piece.start + piece.size) for piece in self.pieces]
        return [v[a:b] for v, (a, b) in zip(flat, spans, strict=True)]


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The buckets of a model.

    Attributes:
        buckets: in order; all ranks have the same.
        parameters: d.
        signature: a number that ranks with another layout do not share.
    """

    buckets: tuple[Bucket, ...]
    parameters: int
    signature: int


def plan_layout(parameters: Sequence[torch.Tensor], bucket_bytes: int) -> Layout:
    """Cut a model into buckets of at most `bucket_bytes`.

    Raises:
        InvalidInputError: no parameter, several devices, a precision that is not
            floating, or a parameter that is itself spread over ranks (DTensor), or
            whose memory has gaps or overlaps.
    """
    if not any(p.numel() for p in parameters):
        raise invalid("parameters", "at least one that requires a gradient", "none")
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) > 1:
        raise invalid("parameters", "on one device", devices)
    for k, parameter in enumerate(parameters):
        _check(k, parameter)
    whole = sum(p.nbytes for p in parameters)
    bucket_bytes = min(bucket_bytes, max(whole // SHARE, LEAST))
    buckets: list[Bucket] = []
    begin = 0
    for dtype in sorted({p.dtype for p in parameters}, key=str):
        members = [k for k, p in enumerate(parameters) if p.dtype == dtype]
        sizes = [parameters[k].numel() for k in members]
        for pieces in _cut(members, sizes, max(1, bucket_bytes // dtype.itemsize)):
            buckets.append(Bucket(dtype, tuple(pieces), begin))
            begin += buckets[-1].size
    described = [(str(p.dtype), tuple(p.shape), p.stride()) for p in parameters]
    return Layout(tuple(buckets), begin, digest(described, bucket_bytes))


def digest(*values: Any) -> int:
    """A number of 48 bits, exact in float64, that other values do not share."""
    return int(hashlib.sha256(repr(values).encode()).hexdigest()[:12], 16)


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """The entries of a dense tensor in the order of its memory, without a copy."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def is_spread(parameter: torch.Tensor) -> bool:
    """Whether torch has spread it over ranks (DTensor), in a room loaded if needed."""
    room = sys.modules.get("torch.distributed.tensor")
    return room is not None and isinstance(parameter, room.DTensor)


def _check(k: int, parameter: torch.Tensor) -> None:
    if is_spread(parameter):
        rule = "whole on each rank: FSDP and tensor parallelism are not served"
        raise invalid("parameters", rule, f"a DTensor as number {k}")
    if not parameter.dtype.is_floating_point:
        raise invalid("parameters", "floating", f"{parameter.dtype} for number {k}")
    expected = 1
    strides = sorted(zip(parameter.stride(), parameter.shape, strict=True))
    for stride, size in strides:
        if size > 1 and stride != expected:
            got = f"strides {parameter.stride()} for number {k}"
            raise invalid("parameters", "without gaps in memory", got)
        expected *= size


def _cut(members: list[int], sizes: list[int], length: int) -> list[list[Piece]]:
    """Pieces of all parameters, bucket by bucket."""
    buckets: list[list[Piece]] = [[]]
    room = length
    for k, size in zip(members, sizes, strict=True):
        start = 0
        while start < size:
            if room == 0:
                buckets.append([])
                room = length
            taken = min(room, size - start)
            buckets[-1].append(Piece(k, start, length - room, taken))
            start, room = start + taken, room - taken
    return [pieces for pieces in buckets if pieces]
