"""Dropout whose masks are a function of a key, not of a global generator.

    mask_p = [hash(key, call, p) ≥ drop · 2³²],     p a position in a layer's input

Torch's own dropout draws from one global generator: clients stepped side by side would
see other masks than clients stepped one by one. Here every client and step has its key,
so both see the same ones, on any device. A key is the hash of the minibatch's sample
indices, which the engine draws from (seed, round, step, client); two minibatches share
masks only if they are the same samples in the same order.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from jaxtyping import Int, Int64

from hewfl.aggregate.memory import to_host
from hewfl.core.checks import Ints
from hewfl.problems.module.backend import torch

_GOLDEN, _FIRST, _SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32
"""2³²/φ and the multipliers of lowbias32 (C. Wellons, hash-prospector), as int32."""
_CALL = 0x85EBCA6B
"""Tells the layers of one pass apart; any large odd number."""
_WHOLE = (torch.nn.Dropout,)
_CHANNELS = (torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)


@final
class DropoutKey:
    """The key of the forward pass under way; every use of it gets a number."""

    def __init__(self) -> None:
        self._key: Any = None
        self._calls = 0

    @contextmanager
    def set_to(self, key: Int[Any, ""]) -> Iterator[None]:
        """Run one forward pass with this key."""
        self._key, self._calls = key, 0
        try:
            yield
        finally:
            self._key = None

    def draw(self) -> tuple[Int[Any, ""], int]:
        """The key, and how many layers used it before."""
        assert self._key is not None, "a forward pass in training mode needs a key"
        self._calls += 1
        return self._key, self._calls - 1


@final
class KeyedDropout(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Zeroes entries, or whole channels, by key; scales the rest by 1/(1 − drop)."""

    def __init__(self, drop: float, key: DropoutKey, *, channels: bool) -> None:
        super().__init__()
        self.drop, self.key, self.channels = drop, key, channels

    def forward(self, x: Any) -> Any:
        """The input, masked in training mode and as it is otherwise."""
        if not self.training or self.drop == 0:
            return x
        if self.drop == 1:
            return torch.zeros_like(x)
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channels else x.shape
        kept = _words(shape, *self.key.draw(), x.device) >= _threshold(self.drop)
        return x * (kept.to(x.dtype) / (1 - self.drop))


def _threshold(drop: float) -> int:
    """The least signed word that is kept."""
    return round(drop * 2**32) - 2**31


def with_keyed_dropout(module: Any) -> tuple[Any, DropoutKey]:
    """A copy of the module with its dropout layers replaced, and the key they share."""
    key, copied = DropoutKey(), copy.deepcopy(module)
    for path, layer in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(layer, _WHOLE + _CHANNELS):
            channels = isinstance(layer, _CHANNELS)
            parent, _, name = path.rpartition(".")
            keyed = KeyedDropout(float(layer.p), key, channels=channels)
            setattr(copied.get_submodule(parent), name, keyed)
    return copied, key


def batch_keys(
    samples: Int[Any, "*steps a b"], counts: Int[Any, " a"]
) -> Int64[Ints, "*steps a"]:
    """A key for each minibatch, from its first b_i sample indices in their order."""
    rows, b = to_host(samples).astype(np.uint64), to_host(counts)
    columns = np.arange(rows.shape[-1], dtype=np.uint64)
    z = rows + (columns + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = np.where(columns < b[:, None].astype(np.uint64), _mixed(z), np.uint64(0))
    keys: Ints = _mixed(z.sum(axis=-1, dtype=np.uint64)).view(np.int64)
    return keys


def _mixed(z: Any) -> Any:
    """The finaliser of splitmix64; products wrap around."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _words(shape: Any, key: Int[Any, ""], call: int, device: Any) -> Int[Any, "..."]:
    """A signed 32-bit word for every position, good in its upper bits.

    Two multiplications of lowbias32 with half a key before each; sums and products wrap
    around. Low bits, which a comparison with a threshold hardly sees, are not mixed.
    """
    low = (key + call * _CALL).to(torch.int32)
    high = (key >> 32).to(torch.int32)
    positions = torch.arange(
        torch.Size(shape).numel(), dtype=torch.int32, device=device
    )
    z = (positions * _GOLDEN).reshape(shape) + low
    z ^= (z >> 16) & 0xFFFF  # the mask makes the shift a logical one
    z *= _FIRST
    z ^= (z >> 15) & 0x1FFFF
    z += high
    z *= _SECOND
    return z
