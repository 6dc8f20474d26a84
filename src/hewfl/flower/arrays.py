"""Arrays in NumPy's file format, in memory: written with one copy, read with none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from hewfl.core.array_types import Float
from hewfl.core.validation import Array as Vector
from hewfl.core.validation import invalid


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


# ------------------ A model of several named arrays as one vector: where each of


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Where the arrays of a model lie in its vector.

    Attributes:
        names: of the arrays of real numbers, in order.
        shapes: of each.
        kinds: of each, such as "float32".
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]

    @property
    def d(self) -> int:
        """Length of the vector."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of a local branch: of the finest array, at least float32."""
        return np.result_type(np.float32, *map(np.dtype, self.kinds))

    def parts(self) -> Iterator[tuple[str, tuple[int, ...], slice, str]]:
        """Name, shape, place and kind of each array."""
        begin = 0
        for name, shape, kind in zip(self.names, self.shapes, self.kinds, strict=True):
            end = begin + prod(shape)
            yield name, shape, slice(begin, end), kind
            begin = end

    def fits(self, vector: Float[Vector, " d"]) -> bool:
        """Whether a vector is finite in the precision it is sent in."""
        return all(  # a NaN is both the largest and the smallest
            max(held.max(initial=0), -held.min(initial=0)) <= np.finfo(kind).max
            for held, kind in (
                (vector[place], kind) for *_, place, kind in self.parts()
            )
        )


# ------------------ A model as Flower sends it, and as the rules see it: one vector

# Arrays of real numbers, in the record's order, make up the vector. Other arrays, such as
# the batch counters of a normalisation layer, are no parameters: they stay as they were.


def layout_of(record: ArrayRecord) -> Layout:
    """The layout of a model.

    Raises:
        InvalidInputError: the model has no array of real numbers.
    """
    arrays = {name: view_record(array) for name, array in record.items()}
    kept = {name: a for name, a in arrays.items() if a.dtype.kind == "f"}
    if sum(a.size for a in kept.values()) == 0:
        kinds = sorted({str(a.dtype) for a in arrays.values()})
        raise invalid("arrays", "a model with parameters of real numbers", kinds)
    shapes = tuple(a.shape for a in kept.values())
    return Layout(tuple(kept), shapes, tuple(str(a.dtype) for a in kept.values()))


def flat(layout: Layout, record: Mapping[str, Array]) -> Float[Vector, " d"]:
    """The vector of a model, in the precision of local branches."""
    return np.concatenate(views(layout, record), dtype=layout.dtype)


def wide(record: ArrayRecord) -> Float[Vector, " d"]:
    """The vector of a model, in float64."""
    return flat(layout_of(record), record).astype(np.float64)


def views(layout: Layout, record: Mapping[str, Array]) -> list[NDArray[Any]]:
    """The arrays of a model as vectors that hewfl's kernels can read.

    They are copied only where the kernels could not: half precision, foreign byte
    order, memory that is not aligned.
    """
    found = []
    for name, shape, _, _ in layout.parts():
        if name not in record:
            raise invalid(name, "among the arrays", f"{list(record)}"[:80])
        try:
            array = view_record(record[name])
        except Exception as error:  # of a parser of bytes of others: there are many
            raise invalid(name, "an array in NumPy's format", error) from error
        if array.shape != shape:
            raise invalid(name, f"of shape {shape}", array.shape)
        if array.dtype.kind != "f":
            raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")
        kind = np.dtype(np.float64 if array.dtype.itemsize > 4 else np.float32)
        row = array.reshape(-1)
        ready = row.dtype == kind and row.flags.c_contiguous and row.flags.aligned
        found.append(row if ready else np.array(row, dtype=kind))
    return found


def record_of(
    layout: Layout, vector: Float[Vector, " d"], like: ArrayRecord | None = None
) -> ArrayRecord:
    """The model that a vector stands for, each array in its own precision.

    Args:
        layout: of the model.
        vector: its parameters.
        like: a model with the arrays that are no parameters, and the order of all:
            stock clients tell arrays by place. None: there are parameters alone.
    """
    arrays = {} if like is None else dict(like.items())
    with np.errstate(over="ignore"):  # whoever makes a vector sees that it fits
        for name, shape, place, kind in layout.parts():
            own = vector[place].reshape(shape).astype(kind, copy=False)
            arrays[name] = Array(kind, shape, "numpy.ndarray", packed(own))
    return ArrayRecord(arrays)


def view_record(array: Array) -> NDArray[Any]:
    """The numbers of a Flower array, where they lie if that can be; read-only."""
    found = viewed(array.data)
    return np.asarray(array.numpy()) if found is None else found
