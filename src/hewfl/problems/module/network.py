"""A PyTorch module as a function of one flat vector of parameters, with keyed dropout.

Trainable parameters lie one after the other in the module's order, each row by row.
Parameters that require no gradient, and all buffers, are constants outside the vector.

Dropout masks are a function of a key instead of a global generator:

    mask_p = [hash(key, call, p) ≥ drop · 2³²],     p a position in a layer's input

Torch's own dropout draws from one global generator, so clients stepped side by side
would have other masks than clients stepped one by one. Here every client and step has
its key, so both have the same masks, on any device. A key is the hash of the sample
indices of the minibatch, drawn from (seed, round, step, client); two minibatches share
masks only if they are the same samples in the same order.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float, Int, Int64
from hewfl.core.validation import Ints, invalid
from hewfl.displacements.backend import to_host
from hewfl.errors import MissingExtraError

try:
    import torch as torch  # noqa: PLC0414 - exported to the modules of this package
except ImportError as error:
    _TEXT = "hewfl.problems.TorchModule needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(_TEXT) from error

_GOLDEN, _FIRST, _SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32
"""2³²/φ and the multipliers of lowbias32 (C. Wellons, hash-prospector), as int32."""
_CALL = 0x85EBCA6B
"""Distinguishes the layers of one pass; any large odd number."""
_WHOLE = (torch.nn.Dropout,)
_CHANNELS = (torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)
Loss = Callable[[Any, Any], Any]
"""One number per sample, from outputs and labels."""


@final
@dataclass(frozen=True)  # no slots: the sizes are cached
class ParameterLayout:
    """The place of each trainable parameter in the vector.

    Attributes:
        names: as in the module's state dict, in its order.
        shapes: of each.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each parameter."""
        return tuple(int(torch.Size(shape).numel()) for shape in self.shapes)

    @property
    def d(self) -> int:
        """Numbers in all."""
        return sum(self.sizes)


def parameter_layout(module: Any) -> ParameterLayout:
    """The layout of a module's trainable parameters; tied ones count once.

    Raises:
        InvalidInputError: there are none.

    >>> parameter_layout(torch.nn.Linear(3, 2)).names
    ('weight', 'bias')
    """
    trainable = [(k, p) for k, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise invalid("module", "one with trainable parameters", type(module).__name__)
    names, parameters = zip(*trainable, strict=True)
    return ParameterLayout(names, tuple(tuple(p.shape) for p in parameters))


def flatten(layout: ParameterLayout, state: Mapping[str, Any]) -> Float[Any, " d"]:
    """The vector of the parameters in a state dict, which may hold more."""
    return torch.cat([state[name].detach().reshape(-1) for name in layout.names])


def unflatten(layout: ParameterLayout, vector: Float[Any, " d"]) -> dict[str, Any]:
    """The parameters in a vector, by name: views of it, no copies.

    Raises:
        InvalidInputError: the vector has another length.
    """
    if tuple(vector.shape) != (layout.d,):
        raise invalid("vector", f"of shape ({layout.d},)", tuple(vector.shape))
    parts = vector.split(layout.sizes)  # one split: its derivative is one concatenation
    shaped = zip(layout.names, parts, layout.shapes, strict=True)
    return {name: part.reshape(shape) for name, part, shape in shaped}


@final
class DropoutKey:
    """The key of the current forward pass; its uses are counted."""

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
        """The key, and the number of layers that used it before."""
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
    """The smallest signed word that is kept."""
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
    z = np.where(columns < b[:, None].astype(np.uint64), _mix(z), np.uint64(0))
    keys: Ints = _mix(z.sum(axis=-1, dtype=np.uint64)).view(np.int64)
    return keys


def _mix(z: Any) -> Any:
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


def cross_entropy(outputs: Any, labels: Any) -> Any:
    """−log softmax(outputs) at the label, one number per sample."""
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A module as a function of one flat vector of parameters.

    Attributes:
        layout: of the vector.
        learner: a copy in training mode, its dropout keyed.
        scorer: a copy in evaluation mode.
        key: shared by the learner's dropout layers.
        loss: one number per sample, from outputs and labels.
        dtype: of all parameters and real buffers.
    """

    layout: ParameterLayout
    learner: Any
    scorer: Any
    key: DropoutKey
    loss: Loss
    dtype: Any

    def losses(
        self, x: Float[Any, " d"], inputs: Any, labels: Any, key: Int[Any, ""]
    ) -> Any:
        """The loss of each sample in training mode."""
        parameters = unflatten(self.layout, x)
        with self.key.set_to(key):
            outputs = torch.func.functional_call(self.learner, parameters, (inputs,))
        return self.loss(outputs, labels)

    def place(self, x: Float[Any, " d"]) -> list[Any]:
        """Make the learner's parameters views of x.

        From then on `placed_losses` are those at the current x. This avoids the
        exchange of parameters at every step in `losses`.

        Returns:
            The parameters, to take derivatives in.
        """
        leaves = [p for p in self.learner.parameters() if p.requires_grad]
        for leaf, part in zip(leaves, unflatten(self.layout, x).values(), strict=True):
            leaf.data = part
        return leaves

    def placed_losses(self, inputs: Any, labels: Any, key: Int[Any, ""]) -> Any:
        """The loss of each sample in training mode at the vector placed last."""
        with self.key.set_to(key):
            outputs = self.learner(inputs)
        return self.loss(outputs, labels)

    def outputs(self, x: Float[Any, " d"], inputs: Any) -> Any:
        """Outputs of the module in evaluation mode."""
        parameters = unflatten(self.layout, x)
        return torch.func.functional_call(self.scorer, parameters, (inputs,))


def network_of(module: Any, loss: Loss, device: Any, dtype: Any) -> Network:
    """A module as a network: copies of it in training mode and in evaluation mode.

    Args:
        module: not changed.
        loss: one number per sample, from outputs and labels.
        device: of the copies.
        dtype: of all their parameters and real buffers.
    """
    learner, key = with_keyed_dropout(module)
    learner.to(device=device, dtype=dtype).train()
    scorer, _ = with_keyed_dropout(module)
    scorer.to(device=device, dtype=dtype).eval()
    return Network(parameter_layout(learner), learner, scorer, key, loss, dtype)
