"""Displacements sharded over machines: each has all vectors on some of their entries.

Sums over entries are added up over machines, so every machine gets the same numbers and
makes the same decision. All must call the same methods in the same order, as a rule
that is a pure function does.
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
from hewfl.displacements.backend import as_wide, to_host
from hewfl.displacements.dense import DenseDisplacements, as_dense
from hewfl.displacements.gram import (
    ORIGINS,
    nearer_origin,
    part_products,
    weight_problem,
)
from hewfl.displacements.weighted_sum import weighted_sum

BLOCK = 2**20
"""Entries that are widened at a time."""
AllReduce = Callable[[Float64[Array, " k"]], Float64[Array, " k"]]
"""Adds numbers up over machines in float64, to the same bits on all of them."""


@final
class VectorShard(NDArrayOperatorsMixin):
    """A vector on this machine's entries, on its device; NumPy functions accept it.

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
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """NumPy's functions, on the numbers."""
        plain = [np.asarray(x) if isinstance(x, VectorShard) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **options)


@final
@dataclass(frozen=True, slots=True)
class ShardedDisplacements:
    """Vectors of which this machine has some entries, and other machines the rest.

    Attributes:
        shard: the vectors on this machine's entries, padding included.
        all_reduce: adds numbers up over the machines.
        d: length of a whole vector, without padding.
        origin: the vector that products start from, best one of the shortest.
    """

    shard: DenseDisplacements
    all_reduce: AllReduce
    d: int
    origin: int = 0
    _products: list[RoundProducts] = field(default_factory=list, init=False, repr=False)

    @property
    def n(self) -> int:
        """Number of vectors."""
        return self.shard.n

    def _without_reference(self) -> RoundProducts:
        """Products for g = 0 and Λ = 1: rules ask for several problems made of them."""
        if not self._products:
            self._products.append(self._problem(None, 1.0))
        return self._products[0]

    def _problem(self, reference: Any, curvature: float) -> RoundProducts:
        """Products around a vector that lies among the rest; a collective call."""
        g, origin = None if reference is None else self._local(reference), self.origin
        products = self._around(origin, g)
        for _ in range(ORIGINS):
            nearer = nearer_origin(products.gram[: self.n, : self.n], origin)
            if nearer is None:
                break
            origin, products = nearer, self._around(nearer, g)
        return weight_problem(products, self.n, curvature)

    def _around(self, origin: int, reference: Any) -> RoundProducts:
        """Products of whole vectors, the reference after them, from those of parts."""
        part = part_products(self.shard, reference, origin)
        m = len(part.linear)
        flat = np.concatenate([part.gram.ravel(), part.linear, [part.offset]])
        total = self.all_reduce(flat)
        gram, linear = total[: m * m].reshape(m, m), total[m * m : -1]
        return RoundProducts(gram, linear, float(total[-1]), 0)

    def _local(self, vector: Any) -> Any:
        """A vector of this space as an array of the library of the data."""
        is_part, xp = isinstance(vector, VectorShard), self.shard.xp
        if is_part and compat.array_namespace(vector.data) is xp:
            return vector.data
        array = xp.asarray(np.asarray(vector))
        return compat.to_device(array, compat.device(self.shard.row(0)))

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products ⟨Δ_i, Δ_j⟩."""
        return self._without_reference().uncentred_gram()

    def inner(self, vector: Any) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩."""
        return self.all_reduce(self.shard.inner(self._local(vector)))

    def combine(self, weights: Float64[Array, " n"]) -> VectorShard:
        """Σ_i w_iΔ_i on this machine's entries, in float32 at least."""
        xp = self.shard.xp
        kind = xp.result_type(self.shard.row(0).dtype, xp.float32)
        return VectorShard(weighted_sum(self.shard, weights, kind=kind))

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """This machine's columns in float64, some at a time."""
        return self.shard.blocks()

    def column_chunks(self) -> Iterator[tuple[slice, "ShardedDisplacements"]]:
        """Ranges of this machine's entries: all at once."""
        yield slice(None), self

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ."""
        if reference is None:
            reference = LinearCombination(np.zeros(self.n))
        if isinstance(reference, LinearCombination):
            return self._without_reference().with_reference(
                reference.weights, curvature
            )
        return self._problem(reference, curvature)

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩ over all machines, in float64 where the vectors lie."""
        parts, total = [self._local(vector) for vector in (u, v)], 0.0
        for lo in range(0, self.shard.d, BLOCK):
            wide = [as_wide(self.shard.xp, part[lo : lo + BLOCK]) for part in parts]
            total += self.shard.dot(*wide)
        return float(self.all_reduce(np.array([total]))[0])

    def take(self, members: NDArray[np.int64]) -> "ShardedDisplacements":
        """Some of the vectors, in that order."""
        return replace(self, shard=self.shard.take(members), origin=0)

    def append_zero(self) -> "ShardedDisplacements":
        """The vectors and Δ = 0 after them."""
        return replace(self, shard=self.shard.append_zero())

    def from_matrix(self, rows: Float64[Array, "m k"]) -> "ShardedDisplacements":
        """Other vectors of the same space, of which each machine gives its entries."""
        return replace(self, shard=as_dense("rows", rows), origin=0)

    def matrix(self) -> Float64[Array, "n k"]:
        """All vectors on this machine's entries."""
        return self.shard.matrix()
