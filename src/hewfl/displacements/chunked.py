"""Displacements as the replies of a federation bring them: in chunks, not subtracted.

    Δ_i = y_i − x

A reply holds an endpoint y_i as several arrays. Stacked they would be n·d numbers once
more. `post_local_weights`, `combine` and `data_gap` read the arrays of the replies
instead, and subtract x in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hewfl.core.array_types import Float, Float64
from hewfl.core.displacements import RoundProducts
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import CODES, Span
from hewfl.displacements.count_sketch import sketch_distortion
from hewfl.displacements.dense import DenseDisplacements
from hewfl.displacements.gram import round_products
from hewfl.displacements.weighted_sum import (
    inner_with_sum,
    inner_with_vector,
    weighted_sum,
)

Vector = Float[Array, " _"]
_BLOCK = 2**18
"""Entries of one float64 block: 2 MiB stay in cache."""
RANGE = 2**18
"""Entries of a vector that are stepped or summed at a time."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChunkedDisplacements:
    """n vectors Δ_i = y_i − x of d numbers of float32 or float64.

    Attributes:
        parts: for each range of the vectors, in order, the part of every client.
        base: x, or None where the parts are displacements already.
        sq_lengths: ‖Δ_i‖², where they were measured before.
        sketch_of: length of the vectors that these are sketches of, None where they
            are the vectors themselves.
    """

    parts: tuple[tuple[Vector, ...], ...]
    base: Float[Array, " d"] | None = None
    sq_lengths: Float64[Array, " n"] | None = None
    sketch_of: int | None = None

    def __post_init__(self) -> None:
        """Check that every client has every part, of one length and kind."""
        if not self.parts or not self.parts[0]:
            raise invalid("parts", "at least one, of at least one client", self.parts)
        for rows in self.parts:
            lengths = sorted({len(row) for row in rows})
            if len(rows) != self.n or len(lengths) != 1:
                value = f"{len(rows)} rows of lengths {lengths}"
                raise invalid("parts", f"of one length for {self.n} clients", value)
            if not all(_is_lendable(row) for row in rows):
                kinds = sorted({str(row.dtype) for row in rows})
                raise invalid("parts", "contiguous, of float32 or float64", kinds)
        if self.base is not None and len(self.base) != self.d:
            raise invalid("base", f"of shape ({self.d},)", self.base.shape)
        if self.base is not None and not _is_lendable(self.base):
            rule = "contiguous, of float32 or float64"
            raise invalid("base", rule, self.base.dtype)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.parts[0])

    @property
    def d(self) -> int:
        """Number of parameters."""
        return sum(len(rows[0]) for rows in self.parts)

    @property
    def shape(self) -> tuple[int, int]:
        """That of the matrix they would make."""
        return self.n, self.d

    @property
    def xp(self) -> Any:
        """Array namespace."""
        return np

    @property
    def data(self) -> None:
        """No matrix."""
        return None

    def spans(self) -> Iterator[Span]:
        """The parts with the range and the base of each."""
        lo = 0
        for rows in self.parts:
            hi = lo + len(rows[0])
            base = None if self.base is None else self.base[lo:hi]
            codes = bytes([CODES[row.dtype] for row in rows])
            yield Span(lo, hi, list(rows), codes, base)
            lo = hi

    def columns(self, lo: int, hi: int) -> "ChunkedDisplacements":
        """Entries lo to hi of every vector, without a copy."""
        parts, begin = [], 0
        for rows in self.parts:
            end = begin + len(rows[0])
            if begin < hi and end > lo:
                here = slice(max(lo - begin, 0), min(hi, end) - begin)
                whole = here == slice(0, end - begin)
                parts.append(rows if whole else tuple(row[here] for row in rows))
            begin = end
        base = None if self.base is None else self.base[lo:hi]
        return ChunkedDisplacements(tuple(parts), base)

    def take(self, members: NDArray[np.int64]) -> "ChunkedDisplacements":
        """The vectors of some clients, in that order, without a copy."""
        if np.array_equal(members, np.arange(self.n)):
            return self
        parts = tuple(tuple(rows[i] for i in members) for rows in self.parts)
        lengths = None if self.sq_lengths is None else self.sq_lengths[members]
        return ChunkedDisplacements(parts, self.base, lengths, self.sketch_of)

    def row(self, i: int) -> Float64[Array, " d"]:
        """Δ_i in float64; a copy."""
        vector: Array = self.take(np.array([i])).astype(np.float64)[0]
        return vector

    def block(self, lo: int, hi: int) -> Float64[Array, "n k"]:
        """Columns lo to hi in float64; a copy."""
        return self.columns(lo, hi).astype(np.float64)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Ranges of columns whose float64 block is of moderate size."""
        step = max(1, _BLOCK // self.n)
        for span in self.spans():
            for lo in range(span.lo, span.hi, step):
                yield lo, min(lo + step, span.hi)

    def column_chunks(self) -> Iterator[tuple[slice, "ChunkedDisplacements"]]:
        """Ranges of entries to work on one after the other, so that few are doubled."""
        for lo in range(0, self.d, RANGE):
            here = slice(lo, min(lo + RANGE, self.d))
            yield here, self.columns(here.start, here.stop)

    def spread(self, count: int) -> Float64[Array, "n k"]:
        """About `count` entries of each vector at equal distances, in float64."""
        stride = (self.d // count) | 1  # odd: lengths of layers' rows mostly are not
        pieces = []
        for span in self.spans():
            first = -span.lo % stride
            piece = np.stack(
                [row[first::stride].astype(np.float64) for row in span.rows]
            )
            if span.base is not None:
                piece -= span.base[first::stride]
            pieces.append(piece)
        return np.concatenate(pieces, axis=1)

    def largest(self) -> float:
        """A bound on all entries; a coarse one for float32, which is not read."""
        arrays = [row for rows in self.parts for row in rows]
        arrays += [] if self.base is None else [self.base]
        top = float(np.finfo(np.float32).max)
        tops = [max(row.max(), -row.min()) for row in arrays if row.dtype == np.float64]
        return 2 * max(top, *map(float, tops)) if tops else 2 * top

    def astype(self, kind: DTypeLike) -> Float[Array, "n d"]:
        """The matrix that they make; n·d numbers."""
        matrix = np.empty(self.shape, dtype=kind)
        for span in self.spans():
            here, x = matrix[:, span.lo : span.hi], span.base
            wide = None if x is None else x.astype(np.float64)
            for i, row in enumerate(span.rows):
                if wide is None:
                    here[i] = row
                else:
                    np.subtract(row, wide, out=here[i], casting="same_kind")
        return matrix

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products ⟨Δ_i, Δ_j⟩."""
        return self.products().uncentred_gram()

    def inner(self, vector: Any) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩."""
        return inner_with_vector(self, vector)

    def inner_with_sum(self, weights: Float64[Array, " n"]) -> Float64[Array, " n"]:
        """⟨Δ_i, Σ_j w_jΔ_j⟩."""
        return inner_with_sum(self, weights)

    def combine(self, weights: Float64[Array, " n"]) -> Float64[Array, " d"]:
        """Σ_i w_iΔ_i in float64; vectors of weight zero are not read."""
        total: Array = weighted_sum(self, weights)
        return total

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """Columns in float64, some at a time."""
        for lo, hi in self.ranges():
            yield self.block(lo, hi)

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ."""
        return round_products(self, reference, curvature)

    def dot(self, u: Float64[Array, " d"], v: Float64[Array, " d"]) -> float:
        """⟨u, v⟩."""
        return float(np.dot(u, v))

    def append_zero(self) -> "ChunkedDisplacements":
        """The vectors and Δ = 0 after them.

        Its endpoint is the base itself, not rounded: x − x is zero to the bit.
        """
        zeros = np.zeros(self.d, dtype=self.parts[0][0].dtype)
        end = zeros if self.base is None else self.base
        parts = tuple((*span.rows, end[span.lo : span.hi]) for span in self.spans())
        return ChunkedDisplacements(parts, self.base, sketch_of=self.sketch_of)

    def distortion(self, failure: float) -> tuple[float, float]:
        """Zero, but for sketches (`hewfl.displacements.count_sketch`)."""
        d = self.d if self.sketch_of is None else self.sketch_of
        return sketch_distortion(self.n, d, self.d, failure)

    def from_matrix(self, rows: Float64[Array, "m d"]) -> DenseDisplacements:
        """Other vectors of the same length, in a matrix."""
        return DenseDisplacements(rows, np, len(rows), self.d)

    def matrix(self) -> Float64[Array, "n d"]:
        """All vectors in float64; n·d numbers."""
        return self.astype(np.float64)


def _is_lendable(row: NDArray[Any]) -> bool:
    """Whether the compiled kernels can read it."""
    return row.dtype in CODES and row.flags.c_contiguous and row.flags.aligned
