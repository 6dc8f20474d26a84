"""A module's trainable parameters as one vector, and back.

Parameters lie one after the other in the module's own order, each row by row. Those
that do not require a gradient, and all buffers, are constants and have no place in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from jaxtyping import Float

from hewfl.core.checks import invalid
from hewfl.problems.module.backend import torch


@final
@dataclass(frozen=True)  # no slots: the sizes are kept once known
class Layout:
    """Where each trainable parameter lies in the vector.

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


def layout_of(module: Any) -> Layout:
    """The layout of a module's trainable parameters; tied ones count once.

    Raises:
        InvalidInputError: there are none.

    >>> layout_of(torch.nn.Linear(3, 2)).names
    ('weight', 'bias')
    """
    found = [(k, p) for k, p in module.named_parameters() if p.requires_grad]
    if not found:
        raise invalid("module", "one with trainable parameters", type(module).__name__)
    names, parameters = zip(*found, strict=True)
    return Layout(names, tuple(tuple(p.shape) for p in parameters))


def flatten(layout: Layout, state: Mapping[str, Any]) -> Float[Any, " d"]:
    """The vector of the parameters in a state dict, which may hold more."""
    return torch.cat([state[name].detach().reshape(-1) for name in layout.names])


def unflatten(layout: Layout, vector: Float[Any, " d"]) -> dict[str, Any]:
    """The parameters in a vector, by name: views of it, no copies.

    Raises:
        InvalidInputError: the vector has another length.
    """
    if tuple(vector.shape) != (layout.d,):
        raise invalid("vector", f"of shape ({layout.d},)", tuple(vector.shape))
    parts = vector.split(layout.sizes)  # one split: its derivative is one concatenation
    shaped = zip(layout.names, parts, layout.shapes, strict=True)
    return {name: part.reshape(shape) for name, part, shape in shaped}
