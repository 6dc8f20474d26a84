"""Displacements spread over machines: each holds all vectors on its own entries.

Sums over entries are added up over machines, so every one gets the same numbers and
decides alike: all must ask for the same things in the same order, which a rule that is
a pure function does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import array_api_compat as compat
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination, RoundProducts
from hewfl.core.validation import Array
from hewfl.displacements.backend import as_wide, on_gpu, to_host
from hewfl.displacements.dense import Rows, as_rows
from hewfl.displacements.gram import (
    ORIGINS,
    nearer_origin,
    vector_products,
    weight_problem,
)
from hewfl.displacements.weighted_sum import weighted_sum

BLOCK = 2**20
"""Entries that are widened at a time."""
Summed = Callable[[Float64[Array, " k"]], Float64[Array, " k"]]
"""Adds numbers up over machines in float64, to the same bits on all of them."""


@final
class OwnPart(NDArrayOperatorsMixin):
    """A vector on this machine's entries, where it lies; NumPy's for who computes.

    Args:
        data: the entries, an array of any library.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The entries in float64."""
        wide = as_wide(compat.array_namespace(self.data), self.data)
        return np.array(to_host(wide), dtype=dtype, copy=copy)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **given: Any
    ) -> Any:
        """NumPy's functions, on the numbers."""
        plain = [np.asarray(x) if isinstance(x, OwnPart) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **given)


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """Vectors of which this machine holds some entries, and others the rest.

    Attributes:
        own: the vectors on this machine's entries, padding included.
        summed: the way to the other machines.
        d: length of a whole vector, without padding.
        origin: the vector that products start from, best one of the shortest.
    """

    own: Rows
    summed: Summed
    d: int
    origin: int = 0
    _known: list[RoundProducts] = field(default_factory=list, init=False, repr=False)

    @property
    def n(self) -> int:
        """Number of vectors."""
        return self.own.n

    def _plain(self) -> RoundProducts:
        """Products for g = 0 and Λ = 1: rules ask for several problems made of them."""
        if not self._known:
            self._known.append(self._problem(None, 1.0))
        return self._known[0]

    def _problem(self, reference: Any, curvature: float) -> RoundProducts:
        """Products around a vector that lies among the rest; a collective call."""
        g, origin = None if reference is None else self._here(reference), self.origin
        found = self._around(origin, g)
        for _ in range(ORIGINS):
            nearer = nearer_origin(found.gram[: self.n, : self.n], origin)
            if nearer is None:
                break
            origin, found = nearer, self._around(nearer, g)
        return weight_problem(found, self.n, curvature)

    def _around(self, origin: int, reference: Any) -> RoundProducts:
        """Products of whole vectors, the reference after them, from those of parts."""
        rows, gpu, part = self.own, on_gpu(self.own.data), None
        if gpu is not None:
            part = gpu.vector_products(rows.data, reference, origin)
        if part is None:
            if reference is not None:
                vectors = [*(rows.row(i) for i in range(self.n)), reference]
                rows = as_rows("vectors", vectors)
            part = vector_products(rows, origin)
        m = len(part.linear)
        flat = np.concatenate([part.gram.ravel(), part.linear, [part.offset]])
        total = self.summed(flat)
        gram, linear = total[: m * m].reshape(m, m), total[m * m : -1]
        return RoundProducts(gram, linear, float(total[-1]), 0)

    def _here(self, vector: Any) -> Any:
        """A vector of this space as an array of the library of the data."""
        is_part, xp = isinstance(vector, OwnPart), self.own.xp
        if is_part and compat.array_namespace(vector.data) is xp:
            return vector.data
        held = xp.asarray(np.asarray(vector))
        return compat.to_device(held, compat.device(self.own.row(0)))

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products ⟨Δ_i, Δ_j⟩."""
        return self._plain().plain()

    def inner(self, vector: Any) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩."""
        return self.summed(self.own.inner(self._here(vector)))

    def combine(self, weights: Float64[Array, " n"]) -> OwnPart:
        """Σ_i w_iΔ_i on this machine's entries, in float32 at least."""
        rows, gpu = self.own, on_gpu(self.own.data)
        if gpu is not None:
            return OwnPart(gpu.weighted_sum(rows.data, weights))
        kind = rows.xp.result_type(rows.row(0).dtype, rows.xp.float32)
        return OwnPart(weighted_sum(rows, weights, kind=kind))

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """This machine's columns in float64, some at a time."""
        return self.own.blocks()

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ."""
        if reference is None:
            reference = LinearCombination(np.zeros(self.n))
        if isinstance(reference, LinearCombination):
            return self._plain().against_sum(reference.weights, curvature)
        return self._problem(reference, curvature)

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩ over all machines, in float64 where the vectors lie."""
        here, total = [self._here(vector) for vector in (u, v)], 0.0
        for lo in range(0, self.own.d, BLOCK):
            wide = [as_wide(self.own.xp, part[lo : lo + BLOCK]) for part in here]
            total += self.own.dot(*wide)
        return float(self.summed(np.array([total]))[0])

    def take(self, members: NDArray[np.int64]) -> "Spread":
        """Some of the vectors, in that order."""
        return replace(self, own=self.own.take(members), origin=0)

    def append_zero(self) -> "Spread":
        """The vectors and Δ = 0 after them."""
        return replace(self, own=self.own.append_zero())

    def from_matrix(self, rows: Float64[Array, "m k"]) -> "Spread":
        """Other vectors of the same space, of which each machine gives its entries."""
        return replace(self, own=as_rows("rows", rows), origin=0)

    def matrix(self) -> Float64[Array, "n k"]:
        """All vectors on this machine's entries."""
        return self.own.matrix()
