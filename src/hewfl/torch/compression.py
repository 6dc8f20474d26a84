"""Sums in fewer bytes: bfloat16 or int8, and nothing is lost for good.

What a rank rounds off is kept and added to what it sends next (error feedback). Numbers
of bfloat16 are all-reduced, and what that rounds is not kept. Sums of int8 would need
more bits than they have: shard j of every displacement goes to rank j, which adds up in
float32, rounds once more, keeps that error too, and sends its shard of the sum to all.
"""

from collections.abc import Sequence
from typing import Any, final

import torch

from hewfl.torch.buckets import Bucket
from hewfl.torch.collectives import Wire

BLOCK = 512
"""Numbers of int8 that share a scale of float32."""


@final
class Narrow:
    """One sum at a time, bucket by bucket.

    Args:
        buckets: of the model.
        wire: the way to the other ranks.
        send: "bfloat16" or "int8".

    Attributes:
        residuals: what was rounded off so far: of each bucket, and with int8 of this
            rank's shard of each sum after these.
    """

    def __init__(self, buckets: Sequence[Bucket], wire: Wire, send: str) -> None:
        self._wire, self._buckets = wire, buckets
        self._is_int = send == "int8"
        self._shards = [
            -(-bucket.size // (wire.ranks * BLOCK)) * BLOCK for bucket in self._buckets
        ]
        sizes = [bucket.size for bucket in self._buckets]
        sizes += self._shards if self._is_int else []
        wide = [bucket.wide for bucket in self._buckets] * 2
        self.residuals = [
            torch.zeros(size, dtype=dtype, device=wire.device)
            for size, dtype in zip(sizes, wide, strict=False)
        ]
        self._left: dict[int, torch.Tensor] = {}
        self._rooms: dict[int, torch.Tensor] = {}
        self._works: list[Any] = []
        self._held: list[torch.Tensor] = []  # alive until sent

    def start(self, b: int, moved: torch.Tensor) -> None:
        """Let this rank's part of the sum on a bucket travel."""
        whole = self.residuals[b] + moved
        if not self._is_int:
            self._rooms[b] = whole.bfloat16()
            self._left[b] = whole - self._rooms[b]
            self._works.append(self._wire.adding(self._rooms[b]))
            return
        spare = self._wire.ranks * self._shards[b] - len(whole)
        rows = torch.nn.functional.pad(whole, (0, spare)).view(self._wire.ranks, -1)
        sent = packed(rows)
        self._left[b] = whole - unpacked(sent, whole.dtype).view(-1)[: len(whole)]
        self._rooms[b] = torch.empty_like(sent)
        self._held.append(sent)
        self._works.append(self._wire.exchanged(sent.view(-1), self._rooms[b]))

    def finish(self) -> list[torch.Tensor]:
        """The sum, once it is there."""
        works, self._works = self._works, []
        self._wire.wait(works)
        if not self._is_int:
            return list(self._rooms.values())
        wholes, works = [], []
        for b, rows in self._rooms.items():
            k = len(self._buckets) + b
            wide = self.residuals[k].dtype
            total = unpacked(rows, wide).sum(dim=0) + self.residuals[k]
            mine = packed(total)
            self._left[k] = total - unpacked(mine, wide)
            self._held.append(mine)
            wholes.append(mine.new_empty(self._wire.ranks * len(mine)))
            works += self._wire.sent_to_all(mine, wholes[-1])
        self._wire.wait(works)
        self._held = []
        return [
            unpacked(whole.view(self._wire.ranks, -1), bucket.wide).view(-1)[
                : bucket.size
            ]
            for whole, bucket in zip(wholes, self._buckets, strict=True)
        ]

    def settle(self) -> None:
        """Keep what was rounded off, once the sum is accepted."""
        for k, left in self._left.items():
            self.residuals[k].copy_(left)


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """Bytes of int8 in blocks, and then the scales of the blocks.

    A block with a number that is not finite comes back as NaN.
    """
    blocks = numbers.float().unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(dim=-1, keepdim=True) / 127
    least = torch.finfo(torch.float32).tiny
    small = (blocks / scales.clamp_min(least)).round().nan_to_num().to(torch.int8)
    parts = small.flatten(-2), scales.squeeze(-1).contiguous()
    return torch.cat([part.view(torch.uint8) for part in parts], dim=-1)


def unpacked(message: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of `packed`."""
    size = message.shape[-1] // (BLOCK + 4) * BLOCK
    small = message[..., :size].contiguous().view(torch.int8).to(dtype)
    scales = message[..., size:].contiguous().view(torch.float32).to(dtype)
    return (small.unflatten(-1, (-1, BLOCK)) * scales[..., None]).flatten(-2)
