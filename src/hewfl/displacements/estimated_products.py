"""Displacements at hand, whose products are estimated from sketches.

A Gram matrix of n vectors takes n²d/2 multiplications. Sketches of k numbers each take
nd additions, and the products of the sketches n²k/2. Everything else, the step and what
certifies it, comes from the vectors themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements, LinearCombination, RoundProducts
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import as_readable, to_host
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.sketched_displacements import (
    SketchedDisplacements,
    SketchedVector,
)

GramSource = Literal["exact", "sketch"] | CountSketch
"""Whose products a rule gets: those of the vectors, or those of their sketches."""


def gram_source(gram: Any) -> CountSketch | None:
    """The sketch that is asked for; None for exact products.

    Raises:
        InvalidInputError: it is neither of the two words nor a `CountSketch`.
    """
    if isinstance(gram, CountSketch):
        return gram
    if isinstance(gram, str) and gram in ("exact", "sketch"):
        return CountSketch() if gram == "sketch" else None
    raise invalid("gram", '"exact", "sketch" or a CountSketch', repr(gram))


@final
@dataclass(frozen=True)
class EstimatedProducts:
    """Vectors whose products come from sketches, and all else from the vectors.

    Attributes:
        vectors: Δ.
        sketch: the linear map to k numbers. Its signs must not depend on the vectors:
            who chooses a vector and knows the seed can hide the vector's length.
    """

    vectors: Displacements
    sketch: CountSketch

    @property
    def n(self) -> int:
        """Number of vectors."""
        return self.vectors.n

    @property
    def d(self) -> int:
        """Their length."""
        return self.vectors.d

    @cached_property
    def _sketches(self) -> SketchedDisplacements:
        """One pass over the data."""
        readable = as_readable(self.vectors)
        if readable is not None:
            rows = self.sketch.of_all(readable)
            return SketchedDisplacements(self.n, self.d, rows)
        rows, begin = np.zeros((self.n, self.sketch.size)), 0
        for block in self.vectors.blocks():
            for row, part in zip(rows, block, strict=True):
                self.sketch.add(row, part, begin)
            begin += block.shape[1]
        return SketchedDisplacements(self.n, self.d, rows)

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products, from the sketches."""
        return self._sketches.gram()

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of g and Λ, from the sketches; g is sketched as well."""
        if reference is not None and not isinstance(reference, LinearCombination):
            short = self.sketch.of([_contiguous(reference)])
            reference = SketchedVector(to_host(short))
        return self._sketches.products(reference, curvature)

    def distortion(self, failure: float) -> tuple[float, float]:
        """How far squared lengths may be from their estimates; see `Distorted`."""
        return self._sketches.distortion(failure)

    def take(self, members: NDArray[np.int64]) -> "EstimatedProducts":
        """Some of the vectors, in that order; their sketches are not formed again."""
        return self._with(self.vectors.take(members), self._sketches.take(members))

    def append_zero(self) -> "EstimatedProducts":
        """The vectors and Δ = 0 after them."""
        return self._with(self.vectors.append_zero(), self._sketches.append_zero())

    def _with(
        self, vectors: Any, sketches: SketchedDisplacements
    ) -> "EstimatedProducts":
        other = EstimatedProducts(vectors, self.sketch)
        other.__dict__["_sketches"] = sketches
        return other

    def inner(self, vector: Any) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩, exact."""
        return self.vectors.inner(vector)

    def combine(self, weights: Float64[Array, " n"]) -> Any:
        """Σ_i w_iΔ_i, exact."""
        return self.vectors.combine(weights)

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """Columns in float64, some at a time."""
        return self.vectors.blocks()

    def column_chunks(self) -> Iterator[tuple[slice, Displacements]]:
        """Ranges of entries to work on one after the other."""
        return self.vectors.column_chunks()

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩, exact."""
        return self.vectors.dot(u, v)

    def from_matrix(self, rows: Float64[Array, "m k"]) -> Displacements:
        """Other vectors of the same length, with exact products."""
        return self.vectors.from_matrix(rows)

    def matrix(self) -> Float64[Array, "n d"]:
        """All vectors in float64."""
        return self.vectors.matrix()


def _contiguous(vector: Any) -> Any:
    """What the sketch's kernel can read: rows of a transposed matrix are copied."""
    if isinstance(vector, np.ndarray):
        return np.ascontiguousarray(vector)
    return vector.contiguous() if compat.is_torch_array(vector) else vector
