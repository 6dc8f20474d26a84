"""Linear maps of updates, in terms of their products: clipping and mixing.

A pre-aggregation replaces the n updates Δ by AΔ, with an n × n matrix A. The mapped
vectors are never formed: products are those of Δ between A and Aᵀ, and a combination
with weights w is the combination of Δ with Aᵀw. So certificates, sketches and masked
sums keep working. Coordinate-wise rules get A times a block of columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.displacements import (
    Displacements,
    Distorted,
    LinearCombination,
    RoundProducts,
)
from hewfl.core.validation import Array, PerClient


@final
@dataclass(frozen=True, slots=True, eq=False)
class MappedDisplacements:
    """The vectors Σ_j A_ijΔ_j, i = 1, …, m.

    Attributes:
        base: Δ; sketches of them serve all that products are enough for.
        map: A.
    """

    base: Any
    map: Float64[Array, "m n"]
    _plain: list[RoundProducts] = field(default_factory=list, init=False, repr=False)

    @property
    def n(self) -> int:
        """m, the number of mapped vectors."""
        return len(self.map)

    @property
    def d(self) -> int:
        """Length of a whole vector."""
        return int(self.base.d)

    def gram(self) -> Float64[Array, "m m"]:
        """A G Aᵀ."""
        return self.products().uncentred_gram()

    def inner(self, vector: Any) -> Float64[Array, " m"]:
        """A⟨Δ, v⟩."""
        return np.asarray(self.map @ self.base.inner(vector))

    def combine(self, weights: Float64[Array, " m"]) -> Any:
        """Σ_j (Aᵀw)_jΔ_j."""
        return self.base.combine(self.map.T @ weights)

    def blocks(self) -> Iterator[Float64[Array, "m k"]]:
        """A times columns of Δ."""
        for block in self.base.blocks():
            yield self.map @ block

    def stored_blocks(self) -> Iterator[NDArray[Any]]:
        """A times columns of Δ, in float32 where Δ is stored so."""
        if not hasattr(self.base, "stored_blocks"):
            yield from self.blocks()
            return
        for block in self.base.stored_blocks():
            yield self.map.astype(block.dtype, copy=False) @ block

    def column_chunks(self) -> Iterator[tuple[slice, "MappedDisplacements"]]:
        """Ranges of entries, each with its part of the vectors."""
        chunks: Any = self.base.column_chunks()
        for here, part in chunks:
            yield here, MappedDisplacements(part, self.map)

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of the mapped vectors, from that of the vectors.

        Both are around a short vector, so that a part that all vectors share takes no
        digits from their differences. That of g = 0 and Λ = 1 is kept.
        """
        if reference is not None or curvature != 1.0:
            return self._products(reference, curvature)
        if not self._plain:
            self._plain.append(self._products(None, 1.0))
        return self._plain[0]

    def _products(self, reference: Any, curvature: float) -> RoundProducts:
        if isinstance(reference, LinearCombination):
            reference = LinearCombination(self.map.T @ reference.weights)
        plain = self.base.products()
        basis = _Basis(plain.gram, plain.linear, 2 * plain.offset)
        slopes, along = np.zeros(len(plain.linear)), 0.0  # ⟨c_j, g⟩ and ⟨r, g⟩
        if reference is not None:
            given = self.base.products(reference, 1.0)
            scale = given.exponent - plain.exponent
            slopes = np.ldexp(given.linear, scale) - plain.linear
            along = float(np.ldexp(given.offset, scale)) - plain.offset
        is_diagonal = self.map.shape[0] == self.map.shape[1] and not np.any(
            self.map - np.diag(np.diagonal(self.map))
        )
        if is_diagonal:
            factors = np.diagonal(self.map)
            answer = basis.scaled(factors, slopes, along, curvature)
        else:
            answer = basis.mapped(self.map, slopes, along, curvature)
        return RoundProducts(*answer, plain.exponent)

    def distortion(self, failure: float) -> tuple[float, float]:
        """That of Δ: mapped vectors are in its span."""
        if isinstance(self.base, Distorted):
            return self.base.distortion(failure)
        return 0.0, 0.0

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩."""
        return float(self.base.dot(u, v))

    def take(self, members: NDArray[np.int64]) -> "MappedDisplacements":
        """Some of the mapped vectors, in that order."""
        return MappedDisplacements(self.base, self.map[members])

    def append_zero(self) -> "MappedDisplacements":
        """The vectors and Δ = 0 after them."""
        zero = np.zeros((1, self.map.shape[1]))
        return MappedDisplacements(self.base, np.concatenate([self.map, zero]))

    def from_matrix(self, rows: Float64[Array, "k d"]) -> Displacements:
        """Other vectors of the same space."""
        others: Displacements = self.base.from_matrix(rows)
        return others

    def matrix(self) -> Float64[Array, "m d"]:
        """All mapped vectors."""
        return np.asarray(self.map @ self.base.matrix())


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Basis:
    """Products of c_1, …, c_n and r, in which mapped vectors have coefficients.

    A mapped vector Σ_j A_ijΔ_j is Σ_j A_ij c_j + (Σ_j A_ij) r. Differences are taken in
    the coefficients: where rows of A have one sum, r drops out before it is squared.

    Attributes:
        gram: ⟨c_i, c_j⟩.
        cross: ⟨c_i, r⟩.
        sq_norm: ‖r‖².
    """

    gram: Float64[Array, "n n"]
    cross: PerClient
    sq_norm: float

    def mapped(
        self,
        A: Float64[Array, "m n"],
        slopes: PerClient,
        along: float,
        curvature: float,
    ) -> tuple[Float64[Array, "m m"], Float64[Array, " m"], float]:
        """G, q and offset of AΔ for any A."""
        n = len(self.gram)
        E = np.empty((n + 1, n + 1))
        E[:n, :n], E[n, :n], E[:n, n] = self.gram, self.cross, self.cross
        E[n, n] = self.sq_norm
        B = np.column_stack([A, A.sum(axis=1)])
        b = B[int(np.argmin(((B @ E) * B).sum(axis=1)))]
        C, g = B - b, np.append(slopes, along)
        # points with the products E: the rounding of their Gram matrix is of its own
        # size, not of the size of E. Unit lengths first: a far vector that no row of A
        # takes up then spoils nothing.
        lengths = np.sqrt(np.diagonal(E))
        lengths[lengths == 0] = 1.0
        values, vectors = np.linalg.eigh(E / lengths[:, None] / lengths)
        points = (C * lengths) @ (vectors * np.sqrt(np.maximum(values, 0.0)))
        linear = curvature * (C @ (E @ b)) + C @ g
        offset = 0.5 * curvature * float(b @ E @ b) + float(b @ g)
        return points @ points.T, linear, offset

    def scaled(
        self, f: PerClient, slopes: PerClient, along: float, curvature: float
    ) -> tuple[Float64[Array, "n n"], PerClient, float]:
        """G, q and offset of f_iΔ_i, entry by entry: twins keep the same bits."""
        G, cr, rr = self.gram, self.cross, self.sq_norm
        X = f[:, None] * f * G
        lengths = np.diagonal(X) + f**2 * (2 * cr + rr)
        k = int(np.argmin(lengths))
        # differences to k first: the short vector and its twins are exactly zero
        a, b = f - f[k], f * cr - f[k] * cr[k]
        gram = (X - X[k]) - (X[:, k, None] - X[k, k])
        gram = gram + a[:, None] * a * rr + b[:, None] * a + a[:, None] * b
        gram = _semidefinite(0.5 * (gram + gram.T))
        inner = X[:, k] - X[k, k] + f[k] * (a * (cr[k] + rr) + b)
        linear = curvature * inner + f * slopes - f[k] * slopes[k] + a * along
        offset = 0.5 * curvature * float(lengths[k])
        offset += float(f[k]) * (float(slopes[k]) + along)
        return gram, linear, offset


def _semidefinite(gram: Float64[Array, "n n"]) -> Float64[Array, "n n"]:
    """The nearest matrix without negative eigenvalues; twins keep the same bits.

    Differences of products may be indefinite by rounding where the rank is low.
    """
    _, first, group = np.unique(gram, axis=0, return_index=True, return_inverse=True)
    values, vectors = np.linalg.eigh(gram[np.ix_(first, first)])
    if values[0] >= 0:
        return gram
    points = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray((points @ points.T)[np.ix_(group.ravel(), group.ravel())])
