"""Client displacements as they come: a matrix or a list of vectors, any library.

Nothing here copies the data. `blocks` hands it out in float64 a few columns at a time;
`host_rows` lends pointers to the compiled kernels where the data lies in main memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.checks import invalid

FLOAT32, FLOAT64, BFLOAT16, ZEROS = range(4)
"""Codes of the compiled kernels; the last stands for a vector that is not stored."""
CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): FLOAT32,
    np.dtype(np.float64): FLOAT64,
}
_HOST_BLOCK = 2**18
_DEVICE_BLOCK = 2**24
"""Entries of one float64 block: 2 MiB stay in cache, an accelerator wants more."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Entries lo to hi of all vectors, lent to the compiled kernels.

    Attributes:
        lo: first entry.
        hi: the one after the last.
        rows: a contiguous array of each client.
        codes: its kind.
        base: what is to be subtracted from each row, None for nothing.
    """

    lo: int
    hi: int
    rows: list[NDArray[Any]]
    codes: bytes
    base: NDArray[Any] | None

    @property
    def lent_base(self) -> tuple[NDArray[Any] | None, int]:
        """The base and its kind."""
        return (
            (None, ZEROS) if self.base is None else (self.base, CODES[self.base.dtype])
        )

    def wide(self, i: int, lo: int, hi: int) -> NDArray[np.float64]:
        """Entries lo to hi of the span's i-th row less the base, in float64."""
        found = self.rows[i][lo:hi].astype(np.float64)
        if self.codes[i] == BFLOAT16:
            bits = self.rows[i][lo:hi].astype(np.uint32) << np.uint32(16)
            found = bits.view(np.float32).astype(np.float64)
        return found if self.base is None else found - self.base[lo:hi]


@final
@dataclass(frozen=True, slots=True)
class Displacements:
    """n vectors of d numbers.

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

    def row(self, i: int) -> Any:
        """The i-th vector, in its own array library."""
        return self.data[i] if isinstance(self.data, list) else self.data[i, ...]

    def take(self, members: NDArray[np.int64]) -> "Displacements":
        """The vectors of some clients, in that order, without a copy."""
        lo, count = int(members[0]), len(members)
        span = slice(lo, lo + count)
        if not (members == np.arange(lo, lo + count)).all():
            rows = [self.row(int(i)) for i in members]
        else:
            listed = isinstance(self.data, list)
            rows = self.data[span] if listed else self.data[span, ...]
        return Displacements(rows, self.xp, count, self.d)

    def spans(self) -> list[Span] | None:
        """All of the data as one span, None where the kernels cannot read it."""
        lent = host_rows([self.row(i) for i in range(self.n)])
        return None if lent is None else [Span(0, self.d, *lent, None)]

    def largest(self) -> float:
        """A bound on all entries."""
        tops = [np.abs(to_host(self.block(lo, hi))).max() for lo, hi in self.blocks()]
        return float(max(tops))

    def block(self, lo: int, hi: int) -> Any:
        """Columns lo to hi in float64, shape (n, hi − lo)."""
        if isinstance(self.data, list):
            part = self.xp.stack([row[lo:hi] for row in self.data])
        else:
            part = self.data[:, lo:hi]
        return as_wide(self.xp, part)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of columns whose float64 block is of moderate size."""
        size = _HOST_BLOCK if is_host(self.row(0)) else _DEVICE_BLOCK
        step = max(1, min(self.d, size // self.n))
        for lo in range(0, self.d, step):
            yield lo, min(lo + step, self.d)

    def sample(self) -> NDArray[np.float64]:
        """Up to 2048 columns spread over the data, on the host."""
        if self.d <= 2048:
            return to_host(self.block(0, self.d))
        starts = np.linspace(0, self.d - 512, 4).astype(np.int64)
        parts = [to_host(self.block(int(lo), int(lo) + 512)) for lo in starts]
        return np.concatenate(parts, axis=1)


def as_displacements(name: str, value: Any) -> Displacements:
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
        return Displacements(rows, xp, len(rows), lengths[0])
    matrix = _detached(value if compat.is_array_api_obj(value) else np.asarray(value))
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise invalid(name, "of shape (n, d) with n, d ≥ 1", tuple(matrix.shape))
    _require_real(name, matrix)
    n, d = (int(k) for k in matrix.shape)
    return Displacements(matrix, compat.array_namespace(matrix), n, d)


def _vector(name: str, row: Any) -> Any:
    try:
        vector = _detached(row if compat.is_array_api_obj(row) else np.asarray(row))
    except ValueError as error:
        raise invalid(name, "a sequence of vectors", repr(row)[:80]) from error
    if vector.ndim != 1:
        raise invalid(name, "a sequence of vectors", f"an item of shape {vector.shape}")
    return vector


def _require_real(name: str, array: Any) -> None:
    kind = array.dtype.name if isinstance(array, np.ndarray) else str(array.dtype)
    if not any(word in kind for word in ("float", "int", "bool")):
        raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")


def _detached(array: Any) -> Any:
    return array.detach() if compat.is_torch_array(array) else array


def is_host(array: Any) -> bool:
    """Whether the data lies in main memory."""
    return "cpu" in str(compat.device(array)).lower()


def as_wide(xp: Any, part: Any) -> Any:
    """In float64: in its own library where that has it, else on the host."""
    if compat.is_jax_array(part) and xp.asarray(0.0).dtype != xp.float64:
        return np.asarray(to_host(part), dtype=np.float64)  # its 64-bit mode is off
    try:
        return xp.astype(part, xp.float64)
    except (TypeError, AttributeError, RuntimeError):  # a device without float64
        return np.asarray(to_host(part), dtype=np.float64)


def to_host(array: Any) -> NDArray[Any]:
    """A NumPy array with the same numbers."""
    if compat.is_torch_array(array):
        return np.asarray(array.detach().cpu())
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError):
        return np.asarray(np.from_dlpack(array))


def host_rows(rows: Sequence[Any]) -> tuple[list[NDArray[Any]], bytes] | None:
    """Contiguous views of the rows and their type codes, None where there are none."""
    views, codes = [], []
    for row in rows:
        found = _host_row(row)
        if found is None:
            return None
        views.append(found[0])
        codes.append(found[1])
    return views, bytes(codes)


def _host_row(row: Any) -> tuple[NDArray[Any], int] | None:
    if not isinstance(row, np.ndarray) and compat.is_torch_array(row):
        if not is_host(row) or not row.is_contiguous():
            return None
        xp = compat.array_namespace(row)
        if row.dtype == xp.bfloat16:
            return np.asarray(row.view(xp.int16)), BFLOAT16
        row = np.asarray(row) if row.dtype in (xp.float32, xp.float64) else None
    if not isinstance(row, np.ndarray) or not row.flags.c_contiguous:
        return None
    if row.dtype in CODES:
        return row, CODES[row.dtype]
    return (row.view(np.uint16), BFLOAT16) if row.dtype.name == "bfloat16" else None
