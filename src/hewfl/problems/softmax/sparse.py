"""Samples whose entries mostly equal the minimum of their column.

Pixels, counts and indicators are mostly zero; standardised, they mostly equal the
minimum b of their column, and

    W a = W b + W (a − b),     Σ_j r_j a_jᵀ = Σ_j r_j (a_j − b)ᵀ + (Σ_j r_j) bᵀ

need only the other entries: a fifth of those of MNIST and of Covertype. A compiled pass
over the samples takes less than half the time of BLAS products, which are slow for the
few rows of one model. In float32 a − b is rounded, in the same way for all samples with
the same value: this is precise enough for directions, but not for losses that are
compared between rounds.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float, Int32, Int64
from hewfl.core.validation import Array, Ints
from hewfl.problems.softmax.kernel import LIBRARY, takes_features

LEAST_SIZE = 2**22
"""Fewest numbers for which lists of entries are faster than BLAS in cache."""
DENSEST = 0.3
"""Share of listed entries up to which products with them are faster than BLAS."""
LOOKED_AT = 1000
"""Rows sampled to estimate the density."""
BLOCK = 2**20
"""Numbers compared at a time."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """A matrix of samples, stored as entries that differ from the column's minimum.

    Attributes:
        starts: where the entries of each row begin, and the end of the last.
        columns: of each entry.
        values: of each entry, as in the matrix.
        background: b, the minimum of each column.
    """

    starts: Int64[Ints, " m1"]
    columns: Int32[Ints, " entries"]
    values: Float[Array, " entries"]
    background: Float[Array, " p"]

    def scores(self, W: Float[Array, "c p"], at: slice) -> Float[Array, "c b"]:
        """W Aᵀ for a range of rows A, in the precision of W."""
        return self._product(0, W, at, at.stop - at.start)

    def sums(self, R: Float[Array, "c b"], at: slice) -> Float[Array, "c p"]:
        """R A for a range of rows A, in the precision of R."""
        return self._product(1, R, at, len(self.background))

    def _product(
        self, kind: int, left: Float[Array, "c k"], at: slice, width: int
    ) -> Float[Array, "c q"]:
        assert LIBRARY is not None
        values, background = self.values, self.background
        wide = np.promote_types(left.dtype, values.dtype)
        given = np.ascontiguousarray(left, dtype=wide)
        product = np.empty((len(left), width), dtype=wide)
        sizes = (values.itemsize, wide.itemsize, at.start, len(left))
        entries = (self.starts, self.columns, values, background)
        LIBRARY.product(kind, *sizes, *entries, given, product)
        return product.astype(left.dtype, copy=False)


def sparse_rows(features: Any) -> SparseRows | None:
    """The sparse form of a matrix, or None if BLAS is as fast.

    Args:
        features: samples as rows.

    Returns:
        A copy of the entries; None if there is no kernel for these features, if they
        are few, or if most differ from the minimum of their column.
    """
    if not takes_features(features) or features.size < LEAST_SIZE:
        return None
    some = features[:: max(1, len(features) // LOOKED_AT)]
    background = features.min(axis=0)
    if (some != background).mean() > DENSEST:
        return None
    size = max(1, BLOCK // features.shape[1])
    parts = [features[lo : lo + size] for lo in range(0, len(features), size)]
    masks = [part != background for part in parts]
    counts = [np.count_nonzero(differs, axis=1) for differs in masks]
    columns = [np.nonzero(differs)[1].astype(np.int32) for differs in masks]
    values = [part[differs] for part, differs in zip(parts, masks, strict=True)]
    return SparseRows(
        np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        np.concatenate(columns),
        np.concatenate(values),
        background,
    )
