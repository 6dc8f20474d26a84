"""Linear maps of updates, found from their products: clipping, mixing, bucketing.

A pre-aggregation replaces the n updates Δ by AΔ, with an m × n matrix A. The mapped
vectors are never formed: products are those of Δ between A and Aᵀ, and a combination
with weights w is the combination of Δ with Aᵀw. So certificates, sketches and masked
sums keep working. Coordinate-wise rules get A times a block of columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements, LinearCombination, RoundProducts
from hewfl.core.validation import Array, PerClient


@final
@dataclass(frozen=True, slots=True, eq=False)
class MappedDisplacements:
    """The vectors Σ_j A_ijΔ_j, i = 1, …, m.

    Attributes:
        base: Δ.
        map: A.
    """

    base: Displacements
    map: Float64[Array, "m n"]

    @property
    def n(self) -> int:
        """m, the number of mapped vectors."""
        return len(self.map)

    @property
    def d(self) -> int:
        """Length of a whole vector."""
        return self.base.d

    def gram(self) -> Float64[Array, "m m"]:
        """A G Aᵀ."""
        return self.products().uncentred_gram()

    def inner(self, vector: Any) -> PerClient:
        """A⟨Δ, v⟩."""
        return self.map @ self.base.inner(vector)

    def combine(self, weights: PerClient) -> Any:
        """Σ_j (Aᵀw)_jΔ_j."""
        return self.base.combine(self.map.T @ weights)

    def blocks(self) -> Iterator[Float64[Array, "m k"]]:
        """A times columns of Δ."""
        for block in self.base.blocks():
            yield self.map @ block

    def column_chunks(self) -> Iterator[tuple[slice, "MappedDisplacements"]]:
        """Ranges of entries, each with its part of the vectors."""
        chunks: Any = self.base.column_chunks()
        for here, part in chunks:
            yield here, MappedDisplacements(part, self.map)

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of the mapped vectors, from that of the vectors.

        In the basis c_1, …, c_n, r of the base products a mapped vector has the
        coefficients (A_i, Σ_j A_ij). Differences of mapped vectors are taken in these
        coefficients: where rows of A have one sum, r drops out before it is squared.
        """
        if isinstance(reference, LinearCombination):
            reference = LinearCombination(self.map.T @ reference.weights)
        plain = self.base.products()
        n, G = len(plain.gram), plain.gram
        E = np.empty((n + 1, n + 1))  # products of the basis
        E[:n, :n], E[n, :n], E[:n, n] = G, plain.linear, plain.linear
        E[n, n] = rr = 2 * plain.offset  # ‖r‖², and ⟨c_j, r⟩ above
        B = np.column_stack([self.map, self.map.sum(axis=1)])
        lengths = np.einsum("ij,jk,ik->i", B, E, B)
        b = B[int(np.argmin(lengths))]
        C = B - b
        gram = C @ E @ C.T
        gram = 0.5 * (gram + gram.T)
        linear, offset = curvature * (C @ (E @ b)), 0.5 * curvature * float(b @ E @ b)
        if reference is not None:
            given = self.base.products(reference, 1.0)
            scale = given.exponent - plain.exponent
            slopes = np.append(
                np.ldexp(given.linear, scale) - E[:n, n],
                np.ldexp(given.offset, scale) - 0.5 * rr,
            )  # ⟨c_j, g⟩ and ⟨r, g⟩
            linear, offset = linear + C @ slopes, offset + float(b @ slopes)
        return RoundProducts(gram, linear, offset, plain.exponent)

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩."""
        return self.base.dot(u, v)

    def take(self, members: NDArray[np.int64]) -> "MappedDisplacements":
        """Some of the mapped vectors, in that order."""
        return MappedDisplacements(self.base, self.map[members])

    def append_zero(self) -> "MappedDisplacements":
        """The vectors and Δ = 0 after them."""
        zero = np.zeros((1, self.map.shape[1]))
        return MappedDisplacements(self.base, np.concatenate([self.map, zero]))

    def from_matrix(self, rows: Float64[Array, "k d"]) -> Displacements:
        """Other vectors of the same space."""
        return self.base.from_matrix(rows)

    def matrix(self) -> Float64[Array, "m d"]:
        """All mapped vectors."""
        return self.map @ self.base.matrix()
