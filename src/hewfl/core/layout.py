"""A model of several named arrays as one vector: where each of them lies."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
from jaxtyping import Float

from hewfl.core.checks import Array


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Where the arrays of a model lie in its vector.

    Attributes:
        names: of the arrays of real numbers, in order.
        shapes: of each.
        kinds: of each, such as "float32".
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]

    @property
    def d(self) -> int:
        """Length of the vector."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of a local branch: of the finest array, at least float32."""
        return np.result_type(np.float32, *map(np.dtype, self.kinds))

    def parts(self) -> Iterator[tuple[str, tuple[int, ...], slice, str]]:
        """Name, shape, place and kind of each array."""
        begin = 0
        for name, shape, kind in zip(self.names, self.shapes, self.kinds, strict=True):
            end = begin + prod(shape)
            yield name, shape, slice(begin, end), kind
            begin = end

    def fits(self, vector: Float[Array, " d"]) -> bool:
        """Whether a vector is finite in the precision it is sent in."""
        return all(  # a NaN is both the largest and the smallest
            max(held.max(initial=0), -held.min(initial=0)) <= np.finfo(kind).max
            for held, kind in (
                (vector[place], kind) for *_, place, kind in self.parts()
            )
        )
