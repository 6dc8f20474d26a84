"""Displacements of which only sketches are known: products, and no entries.

A rule that weighs clients by inner products alone decides from k numbers of each as it
would from the vectors themselves, but for the sketch's error. A rule that asks for more
says so by the error it meets, on every machine alike: the transport then gives it more
and asks again, which is safe because a decision changes nothing.

What the data says of such weights is known for n more numbers: `checked`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.algorithm import RoundModel
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination, RoundProducts
from hewfl.core.validation import Array
from hewfl.displacements.dense import Rows
from hewfl.errors import HewError

_SAFE = 1e-100
"""Squares within this and its inverse can be multiplied without leaving the range."""


@final
class NeedsProductsError(HewError):
    """A rule asks for inner products, and no sketch was sent."""

    def __init__(self) -> None:
        super().__init__("the rule asks for inner products of the displacements")


@final
class NeedsEntriesError(HewError):
    """A rule asks for entries of the displacements, which a sketch does not have."""

    def __init__(self) -> None:
        super().__init__("the rule asks for entries of the displacements")


@final
@dataclass(frozen=True)
class Sketches:
    """n vectors of d numbers as a rule sees them where only sketches are at hand.

    Attributes:
        n: number of vectors.
        d: their length.
        rows: their sketches, (n, k) in float64; None where none were sent.
    """

    n: int
    d: int
    rows: Float64[Array, "n k"] | None = None

    @cached_property
    def _found(self) -> RoundProducts:
        """Products for g = 0 and Λ = 1: rules ask for several problems made of them."""
        if self.rows is None:
            raise NeedsProductsError
        lengths = np.einsum("ij,ij->i", self.rows, self.rows)
        if not (lengths.min() > _SAFE and lengths.max() < 1 / _SAFE):
            return Rows(self.rows, np, *self.rows.shape).products()  # minds the range
        r = self.rows[np.argmin(lengths)]  # around one of them, as all products here
        apart = self.rows - r
        G = apart @ apart.T
        return RoundProducts(G, apart @ r, 0.5 * float(r @ r), 0)

    @cached_property
    def _gram(self) -> Float64[Array, "n n"]:
        return self._found.plain()

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products, from the sketches."""
        return self._gram.copy()

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference, which must be a sum of displacements.

        Raises:
            NeedsEntriesError: the reference is another vector.
        """
        if reference is None:
            reference = LinearCombination(np.zeros(self.n))
        if not isinstance(reference, LinearCombination):
            raise NeedsEntriesError
        return self._found.against_sum(reference.weights, curvature)

    def take(self, members: NDArray[np.int64]) -> "Sketches":
        """Some of the vectors, in that order."""
        rows = None if self.rows is None else self.rows[members]
        return replace(self, n=len(members), rows=rows)

    def append_zero(self) -> "Sketches":
        """The vectors and Δ = 0 after them."""
        rows = self.rows
        if rows is not None:
            rows = np.vstack([rows, np.zeros(rows.shape[1])])
        return replace(self, n=self.n + 1, rows=rows)

    # ---------------------------------------------------------- what a sketch has not

    def inner(self, vector: Any) -> Float64[Array, " n"]:  # noqa: ARG002 - refused
        """⟨Δ_i, v⟩: refused."""
        raise NeedsEntriesError

    def combine(self, weights: Float64[Array, " n"]) -> Any:  # noqa: ARG002 - refused
        """Σ_i w_iΔ_i: refused."""
        raise NeedsEntriesError

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """Columns: refused."""
        raise NeedsEntriesError

    def dot(self, u: Any, v: Any) -> float:  # noqa: ARG002 - refused
        """⟨u, v⟩ of two vectors: refused."""
        raise NeedsEntriesError

    def from_matrix(self, rows: Float64[Array, "m k"]) -> "Sketches":  # noqa: ARG002 - refused
        """Other vectors: refused."""
        raise NeedsEntriesError

    def matrix(self) -> Float64[Array, "n k"]:
        """All entries: refused."""
        raise NeedsEntriesError


@final
@dataclass(frozen=True, slots=True)
class Validated:
    """What the data says of weights that were solved for from sketches.

    Attributes:
        round: whose weights.
        value: Ψ(w) of the step that was made, exact.
        gap: bound on how far it is from the best one; ⟨g, Δ_i⟩ in it is the sketches'.
        error: the largest error of a sketched ⟨d, Δ_i⟩, over ‖d‖‖Δ_i‖.
    """

    round: int
    value: float
    gap: float
    error: float


def checked(
    round_: int,
    model: RoundModel,
    weights: Float64[Array, " n"],
    rows: Float64[Array, "n k"],
    products: Float64[Array, " n"],
) -> Validated:
    """Value and gap of weights from sketches, and the sketches' error, on the data.

    With t_i = ⟨d, Δ_i⟩ from those who hold Δ_i, n numbers, and u the reference
    g = Σ u_jΔ_j,

        Ψ(w) = ⟨g, d⟩ + (Λ/2)‖d‖² = Σ u_jt_j + (Λ/2) Σ w_it_i

    is exact. The gap max_i Σ_j w_j p_j − p_i, p_i = ⟨g + Λd, Δ_i⟩, needs ⟨g, Δ_i⟩ as
    well, which nobody holds: that part is the sketches'.

    Args:
        round_: whose weights.
        model: what they minimise.
        weights: w.
        rows: the sketches they were solved for from.
        products: t.
    """
    w, t, curvature = weights, products, model.curvature
    u = (
        model.reference.weights
        if isinstance(model.reference, LinearCombination)
        else 0 * w
    )
    along = rows @ (w @ rows)  # t as the sketches have it
    square = max(float(w @ t), 0.0)
    lengths = np.sqrt(square * np.einsum("ij,ij->i", rows, rows))
    off = np.abs(along - t)
    error = np.divide(off, lengths, out=np.zeros_like(off), where=lengths > 0)
    value = float(u @ t) + 0.5 * curvature * square
    slopes = rows @ (u @ rows) + curvature * t
    least = slopes.min() if w.sum() > 1 - 1e-9 else min(slopes.min(), 0.0)
    gap = max(float(w @ slopes - least), 0.0)
    return Validated(round_, value, gap, float(error.max()))
