"""How the parameters of a model lie in buckets, and buckets in shards.

Parameters of one precision are laid end to end, in the order of their memory, and cut
into buckets; each bucket is cut into one shard per rank. Rank j does the arithmetic on
shard j of every bucket. Shards of a bucket are of one length; the few entries of
padding at its end are zero.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.distributed.tensor import DTensor

from hewfl.core.checks import invalid

SHARE, LEAST = 8, 2**20
"""Buckets of this part of the model, unless that is less than these bytes."""
LONG, ALIGNED = 4096, 16
"""Shards from the first length on are padded to a multiple of the second."""


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
        pieces: what it holds.
        shard: entries of one rank's part; ranks × shard is the padded length.
    """

    dtype: torch.dtype
    pieces: tuple[Piece, ...]
    shard: int

    @property
    def wide(self) -> torch.dtype:
        """The precision of sums: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The buckets of a model for a number of ranks.

    Attributes:
        ranks: n.
        buckets: in order; all ranks have the same.
        parameters: d, without padding.
        signature: a number that ranks with another layout do not share.
    """

    ranks: int
    buckets: tuple[Bucket, ...]
    parameters: int
    signature: int


def plan_layout(
    parameters: Sequence[torch.Tensor], ranks: int, bucket_bytes: int
) -> Layout:
    """Cut a model into buckets of at most `bucket_bytes`, rounded up to whole shards.

    A bucket is an eighth of the model at most, but for models below 8 MiB: a round
    needs memory for two besides the displacements it has received.

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
    for dtype in sorted({p.dtype for p in parameters}, key=str):
        members = [k for k, p in enumerate(parameters) if p.dtype == dtype]
        length = max(ranks, bucket_bytes // dtype.itemsize)
        sizes = [parameters[k].numel() for k in members]
        buckets += [
            Bucket(dtype, tuple(pieces), _shard(pieces, ranks))
            for pieces in _cut(members, sizes, length)
        ]
    described = [(str(p.dtype), tuple(p.shape), p.stride()) for p in parameters]
    count = sum(p.numel() for p in parameters)
    return Layout(ranks, tuple(buckets), count, digest(described, bucket_bytes))


def digest(*values: Any) -> int:
    """A number of 48 bits, exact in float64, that other values do not share."""
    return int(hashlib.sha256(repr(values).encode()).hexdigest()[:12], 16)


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """The entries of a dense tensor in the order of its memory, without a copy."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _check(k: int, parameter: torch.Tensor) -> None:
    if isinstance(parameter, DTensor):
        raise invalid("parameters", "whole on each rank", f"a DTensor as number {k}")
    if not parameter.dtype.is_floating_point:
        raise invalid("parameters", "floating", f"{parameter.dtype} for number {k}")
    expected = 1
    strides = sorted(zip(parameter.stride(), parameter.shape, strict=True))
    for stride, size in strides:
        if size > 1 and stride != expected:
            got = f"strides {parameter.stride()} for number {k}"
            raise invalid("parameters", "without gaps in memory", got)
        expected *= size


def _shard(pieces: Sequence[Piece], ranks: int) -> int:
    """Entries of a shard; long ones are aligned, for kernels that load 16 at once."""
    least = -(-sum(piece.size for piece in pieces) // ranks)
    return least if least < LONG else -(-least // ALIGNED) * ALIGNED


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
