"""Displacements in one process: a matrix or a list of vectors of any array library.

The matrix of a simulation, and the arrays of a user. Nothing here copies the data:
blocks of a few columns are widened to float64 at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64
from hewfl.core.displacements import RoundProducts
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import (
    CODES,
    Span,
    as_wide,
    host_rows,
    is_host,
    to_host,
)
from hewfl.displacements.gram import round_products
from hewfl.displacements.weighted_sum import inner_with_vector, weighted_sum

_HOST_BLOCK = 2**18
_DEVICE_BLOCK = 2**24
"""Entries of one float64 block: 2 MiB stay in cache, an accelerator wants more."""


@final
@dataclass(frozen=True, slots=True)
class DenseDisplacements:
    """n vectors of d numbers, in one array library.

    Products are kept, so the numbers must not change afterwards: NumPy arrays are held
    as views that cannot be written to. Who owns an array must not change it either
    while this object is in use.

    Attributes:
        data: a matrix with one row per client, or a list of vectors.
        xp: array namespace of the data.
        n: number of clients.
        d: number of parameters.
    """

    data: Any
    xp: Any
    n: int
    d: int
    _plain: list[RoundProducts] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Hold views that are only read."""
        is_list = isinstance(self.data, list)
        held = [_only_read(v) for v in self.data] if is_list else _only_read(self.data)
        object.__setattr__(self, "data", held)

    def row(self, i: int) -> Any:
        """The i-th vector, in its own array library."""
        return self.data[i] if isinstance(self.data, list) else self.data[i, ...]

    def take(self, members: NDArray[np.int64]) -> "DenseDisplacements":
        """The vectors of some clients, in that order, without a copy."""
        count = len(members)
        lo = int(members[0]) if count else 0
        span = slice(lo, lo + count)
        if not (members == np.arange(lo, lo + count)).all():
            rows = [self.row(int(i)) for i in members]
        else:
            is_list = isinstance(self.data, list)
            rows = self.data[span] if is_list else self.data[span, ...]
        return DenseDisplacements(rows, self.xp, count, self.d)

    def spans(self) -> list[Span] | None:
        """All of the data as one span, None where the kernels cannot read it."""
        matrix = self.data
        if isinstance(matrix, np.ndarray) and matrix.dtype in CODES:
            if self.d > 1 and matrix.strides[1] != matrix.itemsize:
                return None
            codes = bytes([CODES[matrix.dtype]]) * self.n
            return [Span(0, self.d, list(matrix), codes, None)]
        lent = host_rows([self.row(i) for i in range(self.n)])
        return None if lent is None else [Span(0, self.d, *lent, None)]

    def largest(self) -> float:
        """A bound on all entries."""
        tops = [np.abs(to_host(self.block(lo, hi))).max() for lo, hi in self.ranges()]
        return float(max(tops))

    def block(self, lo: int, hi: int) -> Any:
        """Columns lo to hi in float64, shape (n, hi − lo)."""
        if isinstance(self.data, list):
            part = self.xp.stack([row[lo:hi] for row in self.data])
        else:
            part = self.data[:, lo:hi]
        return as_wide(self.xp, part)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Ranges of columns whose float64 block is of moderate size."""
        size = _HOST_BLOCK if is_host(self.row(0)) else _DEVICE_BLOCK
        step = max(1, min(self.d, size // self.n))
        for lo in range(0, self.d, step):
            yield lo, min(lo + step, self.d)

    def column_chunks(self) -> Iterator[tuple[slice, "DenseDisplacements"]]:
        """Ranges of entries to work on one after the other: all at once."""
        yield slice(None), self

    def gram(self) -> Float64[Array, "n n"]:
        """All pairwise products ⟨Δ_i, Δ_j⟩."""
        return self.products().uncentred_gram()

    def inner(self, vector: Any) -> Float64[Array, " n"]:
        """⟨Δ_i, v⟩."""
        return inner_with_vector(self, vector)

    def combine(self, weights: Float64[Array, " n"]) -> Any:
        """Σ_i w_iΔ_i in float64 and in client order."""
        if isinstance(self.data, np.ndarray) and self.data.dtype == np.float64:
            return np.asarray(weights @ self.data)
        return weighted_sum(self, weights)

    def blocks(self) -> Iterator[Float64[Array, "n k"]]:
        """Columns in float64, some at a time."""
        for lo, hi in self.ranges():
            yield to_host(self.block(lo, hi))

    def stored_blocks(self) -> Iterator[NDArray[Any]]:
        """Columns in float32 where they are stored so in main memory, else float64."""
        rows = self.data
        if isinstance(rows, np.ndarray) and rows.dtype in (np.float32, np.float64):
            yield from (rows[:, lo:hi] for lo, hi in self.ranges())
        elif isinstance(rows, list) and all(
            isinstance(row, np.ndarray) and row.dtype == np.float32 for row in rows
        ):
            for lo, hi in self.ranges():
                yield np.stack([row[lo:hi] for row in rows])
        else:
            yield from self.blocks()

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """The weight problem of a reference g and Λ.

        That of g = 0 and Λ = 1 is kept: each part of a pipeline asks for it.
        """
        if reference is not None or curvature != 1.0:
            return round_products(self, reference, curvature)
        if not self._plain:
            self._plain.append(round_products(self, None, 1.0))
        return self._plain[0]

    def dot(self, u: Any, v: Any) -> float:
        """⟨u, v⟩."""
        if self.xp is np or isinstance(u, np.ndarray) or isinstance(v, np.ndarray):
            return float(np.dot(to_host(u), to_host(v)))  # a rule may keep host vectors
        return float(self.xp.vecdot(u, v))

    def append(self, vector: Any) -> "DenseDisplacements":
        """The vectors and one more, of the same library, without a copy."""
        rows = [*(self.row(i) for i in range(self.n)), vector]
        return DenseDisplacements(rows, self.xp, self.n + 1, self.d)

    def append_zero(self) -> "DenseDisplacements":
        """The vectors and Δ = 0 after them."""
        zero = self.xp.zeros_like(self.row(0))
        if isinstance(self.data, list):
            return self.append(zero)
        whole = self.xp.concat([self.data, zero[None, :]], axis=0)
        return DenseDisplacements(whole, self.xp, self.n + 1, self.d)

    def from_matrix(self, rows: Float64[Array, "m d"]) -> "DenseDisplacements":
        """Other vectors of the same length."""
        return DenseDisplacements(rows, np, len(rows), self.d)

    def matrix(self) -> Float64[Array, "n d"]:
        """All vectors in float64; the data itself where it is such a matrix."""
        if isinstance(self.data, np.ndarray):
            return self.data.astype(np.float64, copy=False)
        return to_host(self.block(0, self.d))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The matrix as it is stored, for rules that treat it as an array."""
        rows = self.data
        if isinstance(rows, list):
            rows = self.xp.stack(rows)
        return np.array(to_host(rows), dtype=dtype, copy=copy)


def _only_read(array: Any) -> Any:
    """A view of a NumPy array that cannot be written to; any other array itself."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def as_dense(name: str, value: Any) -> DenseDisplacements:
    """Check shape and kind; accept a matrix or a sequence of vectors.

    Raises:
        InvalidInputError: not arrays, not real, ragged or empty.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        rows = [_vector(name, row) for row in value]
        if not rows:
            raise invalid(name, "at least one vector", "an empty sequence")
        lengths = sorted({int(row.shape[0]) for row in rows})
        if len(lengths) > 1 or lengths[0] == 0:
            raise invalid(name, "vectors of one positive length", f"lengths {lengths}")
        for row in rows:
            _require_real(name, row)
        try:
            xp = compat.array_namespace(*rows)
        except TypeError as error:
            kinds = sorted({type(row).__module__ for row in rows})
            raise invalid(name, "vectors of one array library", kinds) from error
        return DenseDisplacements(rows, xp, len(rows), lengths[0])
    matrix = _detach(value if compat.is_array_api_obj(value) else np.asarray(value))
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise invalid(name, "of shape (n, d) with n, d ≥ 1", tuple(matrix.shape))
    _require_real(name, matrix)
    n, d = (int(k) for k in matrix.shape)
    return DenseDisplacements(matrix, compat.array_namespace(matrix), n, d)


def _vector(name: str, row: Any) -> Any:
    try:
        vector = _detach(row if compat.is_array_api_obj(row) else np.asarray(row))
    except ValueError as error:
        raise invalid(name, "a sequence of vectors", repr(row)[:80]) from error
    if vector.ndim != 1:
        raise invalid(name, "a sequence of vectors", f"an item of shape {vector.shape}")
    return vector


def _require_real(name: str, array: Any) -> None:
    kind = array.dtype.name if isinstance(array, np.ndarray) else str(array.dtype)
    if not any(word in kind for word in ("float", "int", "bool")):
        raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")


def _detach(array: Any) -> Any:
    return array.detach() if compat.is_torch_array(array) else array


def matrix_round(
    anchor: Float64[Array, " d"],
    displacements: Any,
    cohort: Cohort,
    plan: LocalPlan,
    losses: Float64[Array, " s"] | None = None,
) -> Round:
    """A round whose displacements are given as a matrix or a list of vectors.

    Args:
        anchor: x_t.
        displacements: Δ, shape (s, d), or s vectors; any array library.
        cohort: the clients.
        plan: their local work.
        losses: F_i(x_t), for rules that demand them.

    Raises:
        InvalidInputError: displacements are not real, ragged or empty.
    """
    rows = as_dense("displacements", displacements)
    return Round(anchor, rows, cohort, plan, losses)
