"""A model as Flower sends it, and as the rules see it: one vector.

Arrays of real numbers, in the record's order, make up the vector. Other arrays, such as
the batch counters of a normalisation layer, are no parameters: they stay as they were.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import isfinite, prod
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from hewfl.core.checks import Array as Vector
from hewfl.core.checks import invalid


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Where the arrays of a model lie in its vector.

    Attributes:
        names: of the arrays of real numbers, in order.
        shapes: of each.
        kinds: of each, such as "float32".
        order: names of all arrays of the model, those outside the vector included.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def d(self) -> int:
        """Length of the vector."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision in which vectors travel: of the finest array, at least float32."""
        return np.result_type(np.float32, *map(np.dtype, self.kinds))

    def parts(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        """Name, shape and place of each array."""
        begin = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            end = begin + prod(shape)
            yield name, shape, slice(begin, end)
            begin = end


def layout_of(record: ArrayRecord) -> Layout:
    """The layout of a model.

    Raises:
        InvalidInputError: the model has no array of real numbers.
    """
    arrays = {name: viewed(array) for name, array in record.items()}
    kept = {name: a for name, a in arrays.items() if a.dtype.kind == "f"}
    if sum(a.size for a in kept.values()) == 0:
        kinds = sorted({str(a.dtype) for a in arrays.values()})
        raise invalid("arrays", "a model with parameters of real numbers", kinds)
    return Layout(
        tuple(kept),
        tuple(a.shape for a in kept.values()),
        tuple(str(a.dtype) for a in kept.values()),
        tuple(arrays),
    )


def others_of(layout: Layout, record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The arrays of a model that are not in its vector."""
    names = [name for name in record if name not in layout.names]
    return {name: np.asarray(record[name].numpy(), order="C") for name in names}


def flat(layout: Layout, record: ArrayRecord) -> Float[Vector, " d"]:
    """The vector of a model.

    Raises:
        InvalidInputError: an array is missing or of another shape.
    """
    vector = np.empty(layout.d, dtype=layout.dtype)
    for name, shape, place in layout.parts():
        vector[place] = part(record, name, shape).ravel()
    return vector


def part(
    record: Mapping[str, Array], name: str, shape: tuple[int, ...]
) -> NDArray[Any]:
    """One array of a record, checked, without a copy.

    Raises:
        InvalidInputError: it is missing, unreadable, of another shape, or not real.
    """
    if name not in record:
        raise invalid(name, "among the arrays", f"{list(record)}"[:80])
    try:
        array = viewed(record[name])
    except Exception as error:  # a parser's own failures on bytes of others are many
        raise invalid(name, "an array in NumPy's format", error) from error
    if array.shape != shape:
        raise invalid(name, f"of shape {shape}", array.shape)
    if array.dtype.kind != "f":
        raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")
    return array


def record_of(
    layout: Layout, vector: Float[Vector, " d"], others: Mapping[str, NDArray[Any]]
) -> ArrayRecord:
    """The model that a vector stands for, rounded as `sent` does.

    Arrays are in the order of the first model: stock clients tell them by place.
    """
    arrays = {name: Array(array) for name, array in others.items()}
    with np.errstate(over="ignore"):  # whoever makes a vector sees that it fits
        for (name, shape, place), kind in zip(
            layout.parts(), layout.kinds, strict=True
        ):
            part_ = vector[place].reshape(shape).astype(layout.dtype, copy=False)
            arrays[name] = packed(part_.astype(kind, copy=False))
    return ArrayRecord({name: arrays[name] for name in layout.order})


def packed(array: Float[Vector, "..."]) -> Array:
    """An array in Flower's form, copied once; Flower's own way copies three times."""
    head = BytesIO()
    facts = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(head, facts)
    data = b"".join((head.getvalue(), np.ascontiguousarray(array).data))
    return Array(str(array.dtype), array.shape, "numpy.ndarray", data)


def vector_record(vector: Float[Vector, " d"]) -> ArrayRecord:
    """A record of one vector: a displacement, a gradient, a control variate."""
    return ArrayRecord({"0": packed(vector)})


def vector_of(record: ArrayRecord, d: int) -> Float[Vector, " d"]:
    """The vector in a record of one.

    Raises:
        InvalidInputError: there is not one vector of that length.
    """
    if len(record) != 1:
        raise invalid("the record", "one vector", f"{len(record)} arrays")
    return part(record, next(iter(record)), (d,))


def viewed(array: Array) -> NDArray[Any]:
    """The numbers of a Flower array where they lie; read-only."""
    data = array.data
    end = 10 + int.from_bytes(data[8:10], "little")
    shape, dtype = _head(data[:end])
    if shape is None:
        return np.asarray(array.numpy())
    return np.frombuffer(data, dtype, prod(shape), end).reshape(shape)


def lendable(array: NDArray[Any]) -> NDArray[Any]:
    """A vector that hewfl's kernels can read, a copy only where they could not."""
    kind = np.dtype(np.float64 if array.dtype.itemsize > 4 else np.float32)
    flat_ = array.reshape(-1)
    ready = flat_.dtype == kind and flat_.flags.c_contiguous and flat_.flags.aligned
    return flat_ if ready else np.array(flat_, dtype=kind)


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


def sent(layout: Layout, anchor: Float64[Vector, " d"]) -> Float[Vector, " d"]:
    """The vector that clients start from: the server's, rounded as it is sent."""
    with np.errstate(over="ignore"):  # whoever takes it checks what came of it
        rounded = anchor.astype(layout.dtype)
        for (_, _, place), kind in zip(layout.parts(), layout.kinds, strict=True):
            if np.dtype(kind) != layout.dtype:
                rounded[place] = rounded[place].astype(kind)
    return rounded


def bad_entries(vector: Float[Vector, " d"]) -> int:
    """How many entries are not finite."""
    squares = float(np.dot(vector, vector))  # one look at all; it may overflow, though
    return 0 if isfinite(squares) else int((~np.isfinite(vector)).sum())


def is_sendable(layout: Layout, vector: Float[Vector, " d"]) -> bool:
    """Whether a vector is finite in the precision it is sent in."""
    for (_, _, place), kind in zip(layout.parts(), layout.kinds, strict=True):
        held, most = vector[place], np.finfo(kind).max
        if held.size and not (held.max() <= most and -held.min() <= most):
            return False
    return True
