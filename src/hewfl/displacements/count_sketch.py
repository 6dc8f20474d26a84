"""CountSketch: k numbers that stand for a long vector in inner products.

Coordinate j lies in row r = j div k and column c = j mod k of a table with k columns.
Its sign is b_r·h_(s_r + c), and the sketch is the sum of the signed rows:

    (Sx)_c = Σ_r b_r h_(s_r + c) x_(rk + c),      E⟨Sx, Sy⟩ = ⟨x, y⟩,
    Var⟨Sx, Sy⟩ ≤ (‖x‖²‖y‖² + ⟨x, y⟩²)/k    for entries of no special order

[Charikar2002]. The signs h are always the same, row signs b_r and shifts s_r
follow from a seed, all by integer arithmetic, so that every machine has the same, in
NumPy and in torch. A sketch is linear. A vector of at most k entries is stored whole,
but for signs: its products are exact.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Int64
from hewfl.core.native import PASSES, library
from hewfl.core.validation import Ints, invalid
from hewfl.displacements.backend import FLOAT32, FLOAT64, host_rows

_SPREAD = 4
"""Lengths of a row in the table of signs. Two rows with one shift have one relative
sign in all columns, which matters if the rows are equal (a constant vector); with many
shifts such pairs are few."""
_FLUSH = 32
"""Rows added in float32 before their sum goes into float64: rounding stays that of a
few additions, and no row is widened."""
_DEVICE_ROWS = 256
"""Rows at once on an accelerator, where a call costs more than its numbers."""


@final
@dataclass(frozen=True, slots=True)
class CountSketch:
    """A linear map to k numbers that keeps inner products on average.

    >>> short = CountSketch(4, seed=1).of([np.array([3.0, 4.0])])
    >>> float(short @ short)
    25.0

    Attributes:
        size: k; the relative error of a product is about 1/√k.
        seed: of the signs; all who compare sketches must have the same.
    """

    size: int = 2**14
    seed: int = 0

    def __post_init__(self) -> None:
        """Check that the size is positive."""
        if self.size < 1:
            raise invalid("size", "at least 1", self.size)

    def empty(self, like: Any = None) -> Any:
        """The sketch of zero, in float64.

        Args:
            like: a NumPy array or a torch tensor; the sketch is of its library and
                where it lies. NumPy by default.
        """
        if like is None or not compat.is_torch_array(like):
            return np.zeros(self.size)
        return like.new_zeros(self.size, dtype=compat.array_namespace(like).float64)

    def of(self, pieces: Iterable[Any]) -> Any:
        """The sketch of a vector given in pieces, each read once.

        Args:
            pieces: arrays of one library, laid end to end; flattened where they are
                not vectors.

        Raises:
            InvalidInputError: no piece is given.
        """
        total, begin = None, 0
        for piece in pieces:
            vector = piece.reshape(-1)
            total = self.empty(vector) if total is None else total
            self.add(total, vector, begin)
            begin += len(vector)
        if total is None:
            raise invalid("pieces", "at least one array", "none")
        return total

    def add(
        self,
        total: Any,
        vector: Any,
        begin: int = 0,
        base: Any = None,
        *,
        out: Any = None,
        weight: float = 1.0,
    ) -> None:
        """Add the sketch of some entries to a sketch, in place.

        Args:
            total: from `empty`.
            vector: entries `begin` and after, of the library of `total`; one array, or
                a list of them that are laid end to end.
            begin: place of the first one in the whole vector.
            base: what is to be subtracted from them, one array; None for nothing.
            out: receives the entries, less `base`, times `weight`, in the same pass;
                one array, or None.
            weight: factor of what goes into `out`; the sketch is without it.
        """
        pieces = vector if isinstance(vector, list) else [vector]
        k, end = self.size, begin + sum(map(len, pieces))
        first, last = begin // k, -(-end // k)
        signs, shifts = self._rows(first, last)
        scaled = weight, out
        if self._by_kernel(total, pieces, begin, base, (signs, shifts), scaled):
            return
        vector = pieces[0]
        if len(pieces) > 1:
            vector = compat.array_namespace(*pieces).concat(pieces)
        if base is not None:
            vector = vector - base
        if out is not None:
            out[:] = vector
            out *= weight
        table = self._table(total)
        head = min(end, -(-begin // k) * k)  # where the first whole row starts
        tail = max(head, end // k * k)  # where the last one ends
        for lo, hi in ((begin, head), (tail, end)):
            if lo < hi:
                r, c = lo // k, lo % k
                s = int(shifts[r - first]) + c
                part = vector[lo - begin : hi - begin] * table[s : s + hi - lo]
                total[c : c + hi - lo] += part * float(signs[r - first])
        rows = vector[head - begin : tail - begin].reshape(-1, k)
        if len(rows) == 0:
            return
        chosen = slice(head // k - first, tail // k - first)
        if isinstance(total, np.ndarray):
            for row, b, s in zip(rows, signs[chosen], shifts[chosen], strict=True):
                total += b * row * table[s : s + k]
        elif total.is_cuda:
            _add_on_device(total, rows, table, signs[chosen], shifts[chosen])
        else:
            _add_rows(total, rows, table, signs[chosen], shifts[chosen])

    def _by_kernel(
        self,
        total: Any,
        pieces: list[Any],
        begin: int,
        base: Any,
        rows: tuple[Any, Any],
        scaled: tuple[float, Any],
    ) -> bool:
        """Add by the compiled kernel, if it can read the data: float32 on the host."""
        kernel = getattr(library(PASSES), "sketch_weighted", None)
        weight, out = scaled
        given = [total, *pieces, *(v for v in (base, out) if v is not None)]
        lent = None if kernel is None else host_rows(given)
        kinds = bytes((FLOAT64, *[FLOAT32] * (len(given) - 1)))
        if kernel is None or lent is None or lent[1] != kinds:
            return False
        sums, *parts = lent[0]
        target = None if out is None else parts.pop()
        less = np.empty(0, np.float32) if base is None else parts.pop()
        table = _signs(self.size)
        kernel(parts, less, begin, self.size, *rows, table, sums, weight, target)
        return True

    def _rows(
        self, first: int, last: int
    ) -> tuple[Int64[Ints, " r"], Int64[Ints, " r"]]:
        """b_r and s_r of some rows."""
        signs, shifts = _all_rows(self.size, self.seed, 1 << (last - 1).bit_length())
        return signs[first:last], shifts[first:last]

    def _table(self, like: Any) -> Any:
        """The signs h, long enough for every shift."""
        h = _signs(self.size)
        if isinstance(like, np.ndarray):
            return h
        return compat.array_namespace(like).asarray(h).to(like.device)


def sketch_distortion(n: int, d: int, size: int, failure: float) -> tuple[float, float]:
    """ε = √(n(n + 1)/(k·failure)) and the rounding to float32; see `Distorted`.

    With U an orthonormal basis of the span of n vectors, the entries of (SU)ᵀSU have
    the mean of the identity, and variances of at most 2/k on the diagonal and 1/k
    beside it. So E‖(SU)ᵀSU − I‖² ≤ n(n + 1)/k, and Markov's inequality bounds the
    eigenvalues. The signs must be independent of the vectors. A sketch of a whole
    vector, d ≤ k, is exact.

    Args:
        n: number of vectors.
        d: their length.
        size: k.
        failure: probability that the bound does not hold.
    """
    if d <= size:
        return 0.0, 0.0
    return math.sqrt(n * (n + 1) / (size * failure)), 2.0**-24


def _add_rows(total: Any, rows: Any, table: Any, signs: Any, shifts: Any) -> None:
    """Signed rows of a tensor on the host, one fused call each."""
    k = rows.shape[1]
    if rows.dtype != total.dtype:  # halves are widened, integers with them
        rows = rows.to(table.dtype)
    table = table.to(rows.dtype)
    for lo in range(0, len(rows), _FLUSH):
        some = rows.new_zeros(k)
        for r in range(lo, min(lo + _FLUSH, len(rows))):
            s = int(shifts[r])
            some.addcmul_(rows[r], table[s : s + k], value=int(signs[r]))
        total += some


def _add_on_device(total: Any, rows: Any, table: Any, signs: Any, shifts: Any) -> None:
    """Signed rows of a tensor on an accelerator, many at a time."""
    k, shifted = rows.shape[1], table.unfold(0, rows.shape[1], 1)
    b = total.new_tensor(signs)
    s = total.new_tensor(shifts).long()
    for lo in range(0, len(rows), _DEVICE_ROWS):
        part = slice(lo, lo + _DEVICE_ROWS)
        total += b[part] @ (rows[part] * shifted[s[part]]).to(total.dtype).view(-1, k)


@lru_cache(maxsize=2)
def _all_rows(
    size: int, seed: int, rows: int
) -> tuple[Int64[Ints, " r"], Int64[Ints, " r"]]:
    """b_r and s_r of all rows; cached, as every piece of a model needs them."""
    bits = _mix(seed, 1, np.arange(rows, dtype=np.uint64))
    shifts = (bits >> np.uint64(1)) % np.uint64((_SPREAD - 1) * size)
    return _sign(bits), shifts.astype(np.int64)


@lru_cache(maxsize=4)
def _signs(size: int) -> NDArray[np.float32]:
    """All h; cached, as every piece of a model needs them in every round."""
    index = np.arange(_SPREAD * size, dtype=np.uint64)
    return _sign(_mix(0, 0, index)).astype(np.float32)


def _sign(bits: NDArray[np.uint64]) -> Int64[Ints, " m"]:
    """±1 from the lowest bit."""
    return np.asarray(1 - 2 * (bits & np.uint64(1)).astype(np.int64))


def _mix(seed: int, kind: int, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random bits of each index: splitmix64 [Steele2014], the same everywhere."""
    start = np.uint64((seed * 2 + kind) * 0xD1342543DE82EF95 % 2**64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        z = _scramble(start + np.uint64(1)) + (index + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        return np.asarray(_scramble(z))


def _scramble(z: Any) -> Any:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
