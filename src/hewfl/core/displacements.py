"""The clients' updates as a rule sees them: n vectors Δ_i = y_i − x.

Two protocols, so that a rule does not depend on where the numbers are:

- `Products`: inner products alone. Sketches implement no more
  (`hewfl.displacements.sketched_displacements`).
- `Displacements`: entries as well. A matrix in one process
  (`hewfl.displacements.dense`), the replies of a federation
  (`hewfl.displacements.chunked`) and shards over ranks (`hewfl.displacements.sharded`)
  implement it. So may any other class.

Vectors that a rule handles (the anchor, a control variate, its own step) are of the
same space: NumPy vectors of d numbers at a server, and on a rank of a torch job the
part of each vector that this rank is responsible for. Adding and scaling them is right
everywhere. Every sum over entries must go through the protocol, which also adds the
parts of the other ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, PerClient


@final
@dataclass(frozen=True, slots=True)
class RoundProducts:
    """The weight problem of a round: (G, q, offset) times a power of two.

    With r one of the shortest displacements and c_i = Δ_i − r,

        ⟨g, Σw_iΔ_i⟩ + (Λ/2)‖Σw_iΔ_i‖² = ⟨q, w⟩ + (Λ/2) wᵀGw + offset   for Σw_i = 1,
        G_ij = ⟨c_i, c_j⟩,   q_i = ⟨c_i, g + Λr⟩,   offset = ⟨g, r⟩ + (Λ/2)‖r‖².

    Attributes:
        gram: G · 2^−exponent.
        linear: q · 2^−exponent.
        offset: offset · 2^−exponent.
        exponent: zero unless the data is outside 1e±70.
    """

    gram: Float64[Array, "n n"]
    linear: PerClient
    offset: float
    exponent: int

    def with_reference(self, u: PerClient, curvature: float) -> "RoundProducts":
        """The weight problem for g = Σ u_jΔ_j, from products for g = 0 and Λ = 1.

        With U = Σ u_j,

            q_i = Σ_j u_j G_ij + (U + Λ) ⟨c_i, r⟩,
            offset = Σ_j u_j ⟨c_j, r⟩ + (U + Λ/2) ‖r‖²

        so that g is never formed; the rounding is of the size of G's.
        """
        G, cr, rr, U = self.gram, self.linear, 2 * self.offset, float(u.sum())
        linear = G @ u + (U + curvature) * cr
        offset = float(u @ cr + (U + 0.5 * curvature) * rr)
        return RoundProducts(G, linear, offset, self.exponent)

    def cross_fitted(
        self, slopes: Float64[Array, "n n"], curvature: float
    ) -> "RoundProducts":
        """The weight problem in which each vector has a slope of its own.

            q_i = ⟨Δ_i, Σ_j V_ijΔ_j⟩,   from products for g = 0 and Λ = 1.

        With equal rows of V it is `with_reference`. With V_ii = 0 no vector enters its
        own slope: cross-fitting.

        Args:
            slopes: V, one row for each vector.
            curvature: Λ.
        """
        G, cr, rr, V = self.gram, self.linear, 2 * self.offset, slopes
        sums = V.sum(axis=1)
        low = float(sums.min())
        # What all slopes share goes to the offset: ‖r‖² may be far above the
        # differences that decide the weights.
        linear = (V * G).sum(axis=1) + V @ cr + (sums + curvature) * cr
        linear += (sums - low) * rr
        offset = (low + 0.5 * curvature) * rr
        return RoundProducts(G, linear, offset, self.exponent)

    def uncentred_gram(self) -> Float64[Array, "n n"]:
        """⟨Δ_i, Δ_j⟩, from products for g = 0 and Λ = 1."""
        cr, rr = self.linear, 2 * self.offset
        G = self.gram + cr + cr[:, None] + rr
        np.fill_diagonal(G, np.maximum(np.diagonal(G), 0.0))  # of a zero vector
        return np.ldexp(G, self.exponent)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LinearCombination:
    """A reference that is itself a sum of the displacements, g = Σ u_iΔ_i.

    Given as such it is never formed: the data is read once instead of twice.

    Attributes:
        weights: u, one for each displacement.
    """

    weights: PerClient


@runtime_checkable
class Products(Protocol):
    """Inner products of n vectors: enough for every rule that weighs by them."""

    @property
    def n(self) -> int:
        """Number of vectors."""

    @property
    def d(self) -> int:
        """Length of a whole vector, all ranks' parts together."""

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products ⟨Δ_i, Δ_j⟩.

        Returns:
            A symmetric matrix in float64.
        """

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ, in one pass over the data.

        It contains the same numbers as `gram` and `inner`, around a short vector: so a
        common part of all displacements, or one very long one, takes no digits from the
        differences that decide the weights.

        Args:
            reference: g as a `LinearCombination`, or None for zero. `Displacements`
                also take a vector of the same space.
            curvature: Λ.

        Returns:
            The input of a solver, with a common power of two taken out.
        """

    def take(self, members: NDArray[np.int64]) -> "Products":
        """Some of the vectors, in that order.

        Args:
            members: places of the vectors, in the order wanted.

        Returns:
            Those vectors, as the same class.
        """

    def append_zero(self) -> "Products":
        """The vectors and Δ = 0 after them: the endpoint that does not move.

        Returns:
            One vector more, as the same class.
        """


@runtime_checkable
class Displacements(Products, Protocol):
    """n vectors of d numbers, and all that a rule may do with them.

    Examples:
        >>> import numpy as np
        >>> from hewfl.displacements.dense import as_dense
        >>> updates = as_dense("displacements", np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> updates.gram()
        array([[ 5., 11.],
               [11., 25.]])
        >>> updates.combine(np.array([0.5, 0.5]))
        array([2., 3.])
    """

    def inner(self, vector: Any) -> PerClient:
        """⟨Δ_i, v⟩ for a vector of the same space.

        Args:
            vector: v.

        Returns:
            One product for each Δ_i.
        """

    def combine(self, weights: PerClient) -> Any:
        """Σ_i w_iΔ_i as a vector of the same space, rounded once.

        Args:
            weights: w_i, of any sign and sum.

        Returns:
            The sum, as the transport stores vectors.
        """

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """Columns in float64, some at a time and in order, for coordinate-wise rules.

        On a rank of a torch job these are the columns that the rank is responsible for.

        Returns:
            An iterator of blocks, all n vectors in each.
        """

    def column_chunks(self) -> Iterator[tuple[slice, "Displacements"]]:
        """Ranges of entries, so that work on a long vector needs little memory.

        Returns:
            Each range and the vectors restricted to it, in order.
        """

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩ of two vectors of the same space.

        Args:
            u: a vector.
            v: another.

        Returns:
            The product, all ranks' parts together.
        """

    def from_matrix(self, rows: Float64[Array, "m k"]) -> "Displacements":
        """Other vectors of the same space, such as a rule's memory of its clients.

        Args:
            rows: the vectors, or on a rank the part of them that it is responsible for.

        Returns:
            The vectors, as displacements.
        """

    def matrix(self) -> Float64[Array, "n k"]:
        """All vectors as a matrix of float64, for rules that keep them: n·d numbers.

        Returns:
            A matrix; on a rank of a torch job its own columns.
        """


@runtime_checkable
class Distorted(Protocol):
    """Products that are estimates, as those of sketches are."""

    def distortion(self, failure: float) -> tuple[float, float]:
        """How far squared lengths may be from their estimates.

        Args:
            failure: a probability, over the random numbers of the estimate.

        Returns:
            ε, such that with probability 1 − failure the estimate of ‖Σw_iΔ_i‖² is from
            1 − ε to 1 + ε times the true one, for all w at once; and the relative error
            to which the estimates of the vectors were stored.
        """


@runtime_checkable
class KnownLengths(Protocol):
    """Displacements whose lengths were measured before: replies of a federation.

    A rule that compares directions needs no Gram matrix then: n·d multiplications in
    place of n²d/2.
    """

    @property
    def sq_lengths(self) -> PerClient | None:
        """‖Δ_i‖²; None where they were not measured, or out of range."""

    def inner_with_sum(self, weights: PerClient) -> PerClient:
        """⟨Δ_i, Σ_j w_jΔ_j⟩, in one pass over the data.

        Args:
            weights: w_j, of any sign and sum.

        Returns:
            One product for each Δ_i.
        """

    def spread(self, count: int) -> Float64[Array, "n k"]:
        """Entries at equal distances, in float64.

        Args:
            count: about how many of each vector; all where there are no more.

        Returns:
            A matrix of n rows.
        """


@runtime_checkable
class StoredBlocks(Protocol):
    """Displacements whose entries are stored in one precision, which may be float32.

    Rules that compare entries need no wider ones.
    """

    def stored_blocks(self) -> Iterator[NDArray[Any]]:
        """Columns as they are stored, some at a time and in order.

        Returns:
            An iterator of blocks, all n vectors in each, not to be written to.
        """
