"""Arrays in NumPy's file format, in memory: written with one copy, read with none."""

from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(array: NDArray[Any]) -> bytes:
    """An array in NumPy's format, copied once; `numpy.save` copies more often."""
    head = BytesIO()
    facts = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(head, facts)
    return b"".join((head.getvalue(), np.ascontiguousarray(array).data))


def viewed(data: bytes) -> NDArray[Any] | None:
    """The numbers of an array where they lie, read-only; None for what is not plain.

    Plain is version 1.0 of the format, C order and no objects.

    Raises:
        Exception: the bytes are no array; a parser's own failures are many.
    """
    end = 10 + int.from_bytes(data[8:10], "little")
    shape, dtype = _head(data[:end])
    if shape is None:
        return None
    return np.frombuffer(data, dtype, prod(shape), end).reshape(shape)


@lru_cache(maxsize=4096)
def _head(head: bytes) -> tuple[tuple[int, ...] | None, Any]:
    """Shape and kind of an array in NumPy's format; None for what is not plain.

    All clients send the same heads, and reading one takes longer than a small array.

    Raises:
        ValueError: a size is negative, which NumPy would take for "whatever fits".
    """
    stream = BytesIO(head)
    if np.lib.format.read_magic(stream) != (1, 0):
        return None, None
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"a header of shape {shape}")
    return (None, None) if fortran or dtype.hasobject else (shape, dtype)
