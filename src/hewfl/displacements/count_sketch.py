"""CountSketch: k numbers that stand for a long vector in inner products.

Coordinate j lies in row r = j div k and column c = j mod k of a table with k columns.
Its sign is b_r·h_(s_r + c), and each signed row is turned by ρ_r before the rows are
added:

    (Sx)_((c + ρ_r) mod k) = Σ_r b_r h_(s_r + c) x_(rk + c),      E⟨Sx, Sy⟩ = ⟨x, y⟩,
    Var⟨Sx, Sy⟩ ≤ (1 + 1/3k)(‖x‖²‖y‖² + ⟨x, y⟩²)/k + 2‖x‖²‖y‖²/3k

[Charikar2002], for any two vectors that do not depend on the signs. The signs h are
always the same, row signs b_r, shifts s_r < 3k and turns ρ_r follow from a seed, all by
integer arithmetic, so that every machine has the same, in NumPy and in torch. A sketch
is linear. A vector of at most k entries is stored whole, but for signs: its products
are exact.

**Proof.** One row meets itself in equal columns only: these terms add up to ⟨x, y⟩.
The error is Σ_(r<q) b_rb_q Z_rq, Z_rq = Σ_c h_(s_r + c) h_(s_q + e) a_c with e = c +
ρ_r − ρ_q mod k and a_c = x_rc y_qe + x_qe y_rc; products of signs of different pairs
of rows are uncorrelated, so the variance is Σ_(r<q) E Z². In Z², a sum over pairs of
columns c and f, a product of four h has mean 1 only where they are equal in pairs.
First, f = c: a column meets each column of the other row with probability 1/k; over
all r < q that is at most (‖x‖²‖y‖² + ⟨x, y⟩²)/k. Second, s_r − s_q = e − c for both:
each of the two values of e − c has probability at most 1/3k, and the products then
add up to at most (Σ|a_c|)² ≤ 2(‖x_r‖²‖y_q‖² + ‖x_q‖²‖y_r‖²). Third, f = c ± k/2,
crosswise: one value of s_r − s_q again, and Σ|a_ca_f| ≤ Σa_c². ∎

Without the turns all entries of one column would meet: a layer of a width that divides
k has its outlying features there.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64, Int64
from hewfl.core.native import PASSES, library
from hewfl.core.validation import Array, Ints, invalid
from hewfl.displacements.backend import (
    FLOAT32,
    FLOAT64,
    Readable,
    compiled_kernels,
    host_rows,
    to_host,
)

_SPREAD = 4
"""Lengths of a row in the table of signs. Two rows whose shifts differ as their turns
do have one relative sign in all columns that meet; with many shifts they are few."""
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
        signs, shifts, turns = self._rows(first, last)
        scaled = weight, out
        if self._by_kernel(total, pieces, begin, base, (signs, shifts, turns), scaled):
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
                part = part * float(signs[r - first])
                start = (c + int(turns[r - first])) % k
                over = max(0, start + hi - lo - k)  # those that come round
                total[start : start + hi - lo - over] += part[: hi - lo - over]
                total[:over] += part[hi - lo - over :]
        rows = vector[head - begin : tail - begin].reshape(-1, k)
        if len(rows) == 0:
            return
        chosen = slice(head // k - first, tail // k - first)
        if isinstance(total, np.ndarray):
            for r, row in enumerate(rows, chosen.start):
                s, t = shifts[r], turns[r]
                total += np.roll(signs[r] * row * table[s : s + k], t)
        elif total.is_cuda:
            given = signs[chosen], shifts[chosen], turns[chosen]
            _add_on_device(total, rows, table, *given)
        else:
            _add_rows(total, rows, table, signs[chosen], shifts[chosen], turns[chosen])

    def of_all(self, data: Readable) -> Float64[Array, "n k"]:
        """The sketches of all vectors, which are read once.

        Args:
            data: the vectors.
        """
        sums, compiled = np.zeros((data.n, self.size)), compiled_kernels(data)
        if compiled is not None:
            kernels, spans = compiled
            for span in spans:
                k, lo, hi = self.size, span.lo, span.hi
                where = self._rows(lo // k, -(-hi // k))
                given = span.rows, span.codes, hi - lo, lo, k
                kernels.sketches(*given, *where, _signs(k), sums, *span.lent_base)
            return sums
        for i, sketch in enumerate(sums):
            row = data.row(i)
            if isinstance(row, np.ndarray):  # what is not contiguous is copied
                row = np.ascontiguousarray(row)
            elif compat.is_torch_array(row):
                row = row.contiguous()
            sketch[:] = to_host(self.of([row]))
        return sums

    def _by_kernel(
        self,
        total: Any,
        pieces: list[Any],
        begin: int,
        base: Any,
        rows: tuple[Any, Any, Any],
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
    ) -> tuple[Int64[Ints, " r"], Int64[Ints, " r"], Int64[Ints, " r"]]:
        """b_r, s_r and ρ_r of some rows."""
        count = 1 << max(last - 1, 0).bit_length()
        signs, shifts, turns = _all_rows(self.size, self.seed, count)
        return signs[first:last], shifts[first:last], turns[first:last]

    def _table(self, like: Any) -> Any:
        """The signs h, long enough for every shift."""
        h = _signs(self.size)
        if isinstance(like, np.ndarray):
            return h
        return compat.array_namespace(like).asarray(h).to(like.device)


def sketch_distortion(n: int, d: int, size: int, failure: float) -> tuple[float, float]:
    """ε = √(n(5n + 4)/(3k·failure)) and the rounding to float32; see `Distorted`.

    With U an orthonormal basis of the span of n vectors, the entries of (SU)ᵀSU have
    the mean of the identity, and variances of at most 3/k on the diagonal and 5/3k
    beside it, up to 1/k² (at the top). So E‖(SU)ᵀSU − I‖² ≤ n(5n + 4)/3k, and Markov's
    inequality bounds the eigenvalues. The signs must be independent of the vectors. A
    sketch of a whole vector, d ≤ k, is exact.

    Args:
        n: number of vectors.
        d: their length.
        size: k.
        failure: probability that the bound does not hold.
    """
    if d <= size:
        return 0.0, 0.0
    return math.sqrt(n * (5 * n + 4) / (3 * size * failure)), 2.0**-24


def _add_rows(
    total: Any, rows: Any, table: Any, signs: Any, shifts: Any, turns: Any
) -> None:
    """Signed rows of a tensor on the host, two fused calls each."""
    k = rows.shape[1]
    if rows.dtype != total.dtype:  # halves are widened, integers with them
        rows = rows.to(table.dtype)
    table = table.to(rows.dtype)
    for lo in range(0, len(rows), _FLUSH):
        some = rows.new_zeros(k)
        for r in range(lo, min(lo + _FLUSH, len(rows))):
            s, t, b = int(shifts[r]), int(turns[r]), int(signs[r])
            row, h = rows[r], table[s : s + k]
            some[t:].addcmul_(row[: k - t], h[: k - t], value=b)
            some[:t].addcmul_(row[k - t :], h[k - t :], value=b)
        total += some


def _add_on_device(
    total: Any, rows: Any, table: Any, signs: Any, shifts: Any, turns: Any
) -> None:
    """Signed rows of a tensor on an accelerator, many at a time."""
    k, shifted = rows.shape[1], table.unfold(0, rows.shape[1], 1)
    xp = compat.array_namespace(total)
    b = total.new_tensor(signs)
    s, t = (total.new_tensor(part).long() for part in (shifts, turns))
    for lo in range(0, len(rows), _DEVICE_ROWS):
        part = slice(lo, lo + _DEVICE_ROWS)
        signed = rows[part] * shifted[s[part]]
        # two copies side by side: the turned row begins k − ρ_r after the first
        twice = xp.concat([signed, signed], axis=1).view(-1).unfold(0, k, 1)
        starts = 2 * k * xp.arange(len(signed), device=total.device) + k - t[part]
        total += b[part] @ twice[starts].to(total.dtype)


@lru_cache(maxsize=2)
def _all_rows(
    size: int, seed: int, rows: int
) -> tuple[Int64[Ints, " r"], Int64[Ints, " r"], Int64[Ints, " r"]]:
    """b_r, s_r and ρ_r of all rows; cached, as every piece of a model needs them."""
    index = np.arange(rows, dtype=np.uint64)
    bits, others = _mix(seed, 1, index), _scramble(_mix(seed, 1, index))
    shifts = (bits >> np.uint64(1)) % np.uint64((_SPREAD - 1) * size)
    turns = others % np.uint64(size)
    return _sign(bits), shifts.astype(np.int64), turns.astype(np.int64)


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
