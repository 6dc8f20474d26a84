"""Access to vectors of any array library and device, for three kinds of code.

Each operation asks here once which code reads its data:

- `gpu_kernels`: the CUDA kernels, for a matrix in the memory of a GPU;
- `compiled_kernels`: the C kernels, for contiguous rows in main memory;
- otherwise portable code, on blocks that `as_wide` brings to float64.

Nothing here copies the data.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from hewfl.core.native import PASSES, library

FLOAT32, FLOAT64, BFLOAT16, ZEROS = range(4)
"""Codes of the compiled kernels; the last stands for a vector that is not stored."""
CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): FLOAT32,
    np.dtype(np.float64): FLOAT64,
}


@runtime_checkable
class Readable(Protocol):
    """n vectors of d numbers that one process can read in any order."""

    @property
    def n(self) -> int:
        """Number of vectors."""

    @property
    def d(self) -> int:
        """Length of each."""

    @property
    def xp(self) -> Any:
        """Array namespace of what `row` and `block` give."""

    def row(self, i: int) -> Any:
        """The i-th vector."""

    def block(self, lo: int, hi: int) -> Any:
        """Columns lo to hi in float64, shape (n, hi − lo)."""

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Ranges of columns whose float64 block is of moderate size."""

    @property
    def data(self) -> Any:
        """The matrix or the rows where there are such, else None."""

    def take(self, members: NDArray[np.int64]) -> "Readable":
        """Some of the vectors, in that order, without a copy."""

    def spans(self) -> Iterable["Span"] | None:
        """The data for the compiled kernels, None where they cannot read it."""


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
        row = self.rows[i][lo:hi]
        if self.codes[i] == BFLOAT16:
            row = (row.astype(np.uint32) << np.uint32(16)).view(np.float32)
        wide = row.astype(np.float64)
        return wide if self.base is None else wide - self.base[lo:hi]


def as_readable(data: Any) -> Readable | None:
    """The data itself if it has all of `Readable`, else None.

    One attribute decides: `isinstance` would look at all of them in every call.
    """
    return data if hasattr(data, "spans") else None


def gpu_kernels(matrix: Any) -> Any:
    """The module of CUDA kernels where they can read a matrix, else None.

    Args:
        matrix: rows of vectors; anything else is not for a GPU.
    """
    if isinstance(matrix, np.ndarray | list) or not compat.is_torch_array(matrix):
        return None
    if not matrix.is_cuda:
        return None
    from hewfl.displacements import gpu  # noqa: PLC0415 - needs torch, loaded by now

    return gpu if gpu.is_readable(matrix) else None


def compiled_kernels(data: Any) -> tuple[Any, list[Span]] | None:
    """The C kernels and the data as they read it, else None."""
    kernels, readable = library(PASSES), as_readable(data)
    if kernels is None or readable is None:
        return None
    spans = readable.spans()
    return None if spans is None else (kernels, list(spans))


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
    lent = [_host_row(row) for row in rows]
    views = [pair for pair in lent if pair is not None]
    if len(views) < len(lent):
        return None
    return [view for view, _ in views], bytes(code for _, code in views)


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
