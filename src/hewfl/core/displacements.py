"""The clients' work as a rule sees it: n vectors Δ_i = y_i − x, wherever they lie.

A rule never asks where the numbers are. Three things implement the protocol: the matrix
of a simulation (`hewfl.displacements.dense`), the replies of a federation left where they
came (`hewfl.displacements.chunked`) and shards over ranks (`hewfl.displacements.sharded`).

Vectors that a rule handles (the anchor, a control variate, its own step) are of the
same space: NumPy vectors of d numbers at a server, and on a rank of a torch job the
part of each vector that this rank is responsible for. Adding and scaling them is right
everywhere; every sum over entries must go through the protocol, which also adds up what
the other ranks have.
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

    def against_sum(self, u: PerClient, curvature: float) -> "RoundProducts":
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

    def judged_by(
        self, judges: Float64[Array, "n n"], curvature: float
    ) -> "RoundProducts":
        """The weight problem in which each vector has a slope of its own.

            q_i = ⟨Δ_i, Σ_j V_ijΔ_j⟩,   from products for g = 0 and Λ = 1.

        With equal rows of V it is `against_sum`. With V_ii = 0 nobody is judged by
        itself: cross-fitting.

        Args:
            judges: V, one row for each vector.
            curvature: Λ.
        """
        G, cr, rr, V = self.gram, self.linear, 2 * self.offset, judges
        rows = V.sum(axis=1)
        low = float(rows.min())
        # What all slopes share goes to the offset: ‖r‖² may be far above the
        # differences that decide the weights.
        linear = (V * G).sum(axis=1) + V @ cr + (rows + curvature) * cr
        linear += (rows - low) * rr
        offset = (low + 0.5 * curvature) * rr
        return RoundProducts(G, linear, offset, self.exponent)

    def plain(self) -> Float64[Array, "n n"]:
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
class Displacements(Protocol):
    """n vectors of d numbers, and all that a rule may do with them.

    Examples:
        >>> import numpy as np
        >>> from hewfl.displacements.dense import as_rows
        >>> moves = as_rows("displacements", np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> moves.gram()
        array([[ 5., 11.],
               [11., 25.]])
        >>> moves.combine(np.array([0.5, 0.5]))
        array([2., 3.])
    """

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
            The sum, as the transport keeps vectors.
        """

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """Columns in float64, some at a time and in order, for coordinate-wise rules.

        On a rank of a torch job these are the columns that the rank is responsible for.

        Returns:
            An iterator of blocks, all n vectors in each.
        """

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ, in one pass over the data.

        It holds what `gram` and `against` say, around a short vector: so a common part
        of all displacements, or one very long one, takes no digits from the differences
        that decide the weights.

        Args:
            reference: g, a vector of the same space, an `LinearCombination`, or None for zero.
            curvature: Λ.

        Returns:
            What a solver needs, with a common power of two taken out.
        """

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩ of two vectors of the same space.

        Args:
            u: a vector.
            v: another.

        Returns:
            The product, all ranks' parts together.
        """

    def take(self, members: NDArray[np.int64]) -> "Displacements":
        """Some of the vectors, in that order.

        Args:
            members: places of the vectors, in the order wanted.

        Returns:
            Those vectors.
        """

    def append_zero(self) -> "Displacements":
        """The vectors and Δ = 0 after them: standing still.

        Returns:
            One vector more.
        """

    def from_matrix(self, rows: Float64[Array, "m k"]) -> "Displacements":
        """Other vectors of the same space, such as a rule's memory of its clients.

        Args:
            rows: the vectors, or on a rank the part of them that it is responsible for.

        Returns:
            The vectors, with all that a rule may do with them.
        """

    def matrix(self) -> Float64[Array, "n k"]:
        """All vectors as a matrix of float64, for rules that keep them: n·d numbers.

        Returns:
            A matrix; on a rank of a torch job its own columns.
        """


@runtime_checkable
class KnownLengths(Protocol):
    """Displacements whose lengths were measured before: replies of a federation.

    A rule that compares directions needs no Gram matrix then: n·d multiplications in
    place of n²d/2.
    """

    @property
    def sq_lengths(self) -> PerClient | None:
        """‖Δ_i‖²; None where nobody measured, or out of range."""

    def against_sum(self, weights: PerClient) -> PerClient:
        """⟨Δ_i, Σ_j w_jΔ_j⟩, in one pass over the data.

        Args:
            weights: w_j, of any sign and sum.

        Returns:
            One product for each Δ_i.
        """
