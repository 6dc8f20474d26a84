"""Displacements of which only sketches are known: products, and no entries.

A rule that weighs clients by inner products alone decides from k numbers of each as it
would from the vectors themselves, but for the error of the sketch. A rule that asks for
more gets an error, the same on every machine: the transport then provides more and asks
again, which is safe because a decision changes nothing.

n more numbers certify such weights on the data: `check_sketched_weights`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.algorithm import RoundModel
from hewfl.core.array_types import Float, Float32, Float64
from hewfl.core.displacements import (
    Displacements,
    LinearCombination,
    Products,
    RoundProducts,
)
from hewfl.core.native import PASSES, library
from hewfl.core.validation import Array
from hewfl.displacements.count_sketch import sketch_distortion
from hewfl.displacements.dense import DenseDisplacements
from hewfl.errors import HewError

_SAFE = 1e-100
"""Squares within this and its inverse can be multiplied without leaving the range."""
_FEW = 8
"""Up to so many vectors of float32 are multiplied pair by pair."""
_APART = 1e-5
"""Least squared distance over the largest squared length: above it, a difference of
products has ten digits."""


ENTRIES = frozenset(dir(Displacements)) - frozenset(dir(Products))
"""Members that need entries."""


@final
class NeedsProductsError(HewError):
    """A rule asks for inner products, and no sketch was sent."""

    def __init__(self) -> None:
        super().__init__("the rule asks for inner products of the displacements")


@final
class NeedsEntriesError(HewError, AttributeError):
    """A rule asks for entries of the displacements, which a sketch does not have.

    It is an `AttributeError`, so that sketches are no `Displacements` to `isinstance`.
    """

    def __init__(self) -> None:
        super().__init__("the rule asks for entries of the displacements")


@final
@dataclass(frozen=True, slots=True, eq=False)
class SketchedVector:
    """A vector of which only a sketch is known, such as a root gradient.

    Attributes:
        data: k numbers, with the signs of the displacements' sketches.
    """

    data: Float64[Array, " k"]


@final
@dataclass(frozen=True)
class SketchedDisplacements:
    """Products of n vectors of d numbers from their sketches.

    Attributes:
        n: number of vectors.
        d: their length.
        rows: their sketches, (n, k) in float64, or the vectors themselves in float32;
            None where none were sent.
    """

    n: int
    d: int
    rows: Float[Array, "n k"] | None = None

    @cached_property
    def _products(self) -> RoundProducts:
        """Products for g = 0 and Λ = 1: rules ask for several problems made of them."""
        if self.rows is None:
            raise NeedsProductsError
        if self.rows.dtype == np.float32:
            return _float32_products(self.rows)
        lengths = np.einsum("ij,ij->i", self.rows, self.rows)
        if not (lengths.min() > _SAFE and lengths.max() < 1 / _SAFE):
            return DenseDisplacements(
                self.rows, np, *self.rows.shape
            ).products()  # scales them
        r = self.rows[np.argmin(lengths)]  # around one of them, as all products here
        apart = self.rows - r
        G = apart @ apart.T
        return RoundProducts(G, apart @ r, 0.5 * float(r @ r), 0)

    @cached_property
    def _gram(self) -> Float64[Array, "n n"]:
        return self._products.uncentred_gram()

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products, from the sketches."""
        return self._gram.copy()

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference: a sum of displacements, or a sketch.

        Raises:
            NeedsEntriesError: the reference is another vector.
        """
        if reference is None:
            reference = LinearCombination(np.zeros(self.n))
        if isinstance(reference, SketchedVector):
            if self.rows is None:
                raise NeedsProductsError
            rows = DenseDisplacements(self.rows, np, *self.rows.shape)
            return rows.products(reference.data, curvature)
        if not isinstance(reference, LinearCombination):
            raise NeedsEntriesError
        return self._products.with_reference(reference.weights, curvature)

    def inner(self, vector: Any) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩ for a vector with a sketch.

        Raises:
            NeedsEntriesError: the vector has none.
            NeedsProductsError: the displacements have none.
        """
        if not isinstance(vector, SketchedVector):
            raise NeedsEntriesError
        if self.rows is None:
            raise NeedsProductsError
        return np.asarray(self.rows @ vector.data)

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩ of two vectors with a sketch.

        Raises:
            NeedsEntriesError: one has none.
        """
        if not (isinstance(u, SketchedVector) and isinstance(v, SketchedVector)):
            raise NeedsEntriesError
        return float(u.data @ v.data)

    def distortion(self, failure: float) -> tuple[float, float]:
        """Of sketches of random signs (`hewfl.displacements.count_sketch`)."""
        if self.rows is None:
            raise NeedsProductsError
        n, k = self.rows.shape
        return sketch_distortion(n, self.d, k, failure)

    def take(self, members: NDArray[np.int64]) -> "SketchedDisplacements":
        """Some of the vectors, in that order."""
        rows = None if self.rows is None else self.rows[members]
        return replace(self, n=len(members), rows=rows)

    def append_zero(self) -> "SketchedDisplacements":
        """The vectors and Δ = 0 after them."""
        rows = self.rows
        if rows is not None:
            rows = np.vstack([rows, np.zeros(rows.shape[1])])
        return replace(self, n=self.n + 1, rows=rows)

    def __getattr__(self, name: str) -> Any:
        """Members of `Displacements` beyond `Products` need entries."""
        if name in ENTRIES:
            raise NeedsEntriesError
        raise AttributeError(name, name=name, obj=self)


def _float32_products(rows: Float32[Array, "n d"]) -> RoundProducts:
    """Products of whole vectors as they were sent, for g = 0 and Λ = 1.

    Where they are few, and apart enough to lose no digits, from plain inner products.
    """
    n, d = rows.shape
    kernel = getattr(library(PASSES), "inner", None)
    if kernel is not None and n <= _FEW:
        A = np.empty((n, n))
        kernel(list(rows), d, A)
        lengths = np.diagonal(A)
        o, most = int(np.argmin(lengths)), float(lengths.max())
        cr, rr = A[o] - A[o, o], float(A[o, o])
        G = A - A[o] - cr[:, None]
        apart = np.diagonal(G) + (most * (np.arange(n) == o))
        if rr > _SAFE and most < 1 / _SAFE and apart.min() > _APART * most:
            return RoundProducts(G, cr, 0.5 * rr, 0)
    return DenseDisplacements(rows, np, n, d).products()


@final
@dataclass(frozen=True, slots=True)
class SketchCheck:
    """A certificate on the data of weights that sketches gave.

    Attributes:
        round: the round of the weights.
        value: Ψ(w) of the step, exact.
        gap: bound on how far it is from the best one; ⟨g, Δ_i⟩ in it is the sketches'.
        error: the largest error of a sketched ⟨d, Δ_i⟩, over ‖d‖‖Δ_i‖.
    """

    round: int
    value: float
    gap: float
    error: float


def check_sketched_weights(
    round_: int,
    model: RoundModel,
    weights: Float64[Array, " n"],
    rows: Float64[Array, "n k"],
    products: Float64[Array, " n"],
) -> SketchCheck:
    """Value and gap of weights from sketches, and the sketches' error, on the data.

    With t_i = ⟨d, Δ_i⟩ from the machines that have Δ_i, n numbers, and u the reference
    g = Σ u_jΔ_j,

        Ψ(w) = ⟨g, d⟩ + (Λ/2)‖d‖² = Σ u_jt_j + (Λ/2) Σ w_it_i

    is exact. The gap max_i Σ_j w_j p_j − p_i, p_i = ⟨g + Λd, Δ_i⟩, needs ⟨g, Δ_i⟩ as
    well, which no machine has: that part is of the sketches.

    Args:
        round_: the round of the weights.
        model: their objective.
        weights: w.
        rows: the sketches.
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
    return SketchCheck(round_, value, gap, float(error.max()))
