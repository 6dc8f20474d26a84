"""Where vectors lie: any array library, any device, lent to the compiled kernels.

Nothing here copies the data. `host_rows` lends pointers to the compiled kernels where
the data lies in main memory; `as_wide` widens a few columns at a time elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, final, runtime_checkable

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

FLOAT32, FLOAT64, BFLOAT16, ZEROS = range(4)
"""Codes of the compiled kernels; the last stands for a vector that is not stored."""
CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): FLOAT32,
    np.dtype(np.float64): FLOAT64,
}


@runtime_checkable
class Readable(Protocol):
    """n vectors of d numbers that one process can read."""

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

    def sample(self) -> NDArray[Any]:
        """Up to 2048 columns spread over the data, on the host."""

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
        found = self.rows[i][lo:hi].astype(np.float64)
        if self.codes[i] == BFLOAT16:
            bits = self.rows[i][lo:hi].astype(np.uint32) << np.uint32(16)
            found = bits.view(np.float32).astype(np.float64)
        return found if self.base is None else found - self.base[lo:hi]


def on_gpu(rows: Any) -> Any:
    """The kernels for a matrix of a GPU, None for all other data."""
    is_tensor = not isinstance(rows, np.ndarray | list) and compat.is_torch_array(rows)
    if not (is_tensor and rows.is_cuda):
        return None
    gpu = import_module("hewfl.displacements.gpu")  # needs torch, which is at hand then
    return gpu if gpu.serves(rows) else None


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
