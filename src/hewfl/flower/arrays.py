"""A model as Flower sends it, and as aggregators see it: one vector.

`hewfl.server.array_layout` says which arrays make up the vector. Flower carries
each array in NumPy's file format; it is read without a copy, and written with one.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from hewfl.core.array_types import Float
from hewfl.core.validation import Array as Vector
from hewfl.core.validation import invalid
from hewfl.server.array_layout import ArrayLayout, root_vector, split_arrays

_SORTED = 2**18
"""Numbers of all clients whose medians are taken at a time."""


def layout_of(record: ArrayRecord) -> ArrayLayout:
    """The layout of a model, all of whose arrays of real numbers are parameters.

    Raises:
        InvalidInputError: the model has no array of real numbers.
    """
    return split_layout(record, "*", "*")[0]


def split_layout(
    record: ArrayRecord, judge: str | Sequence[str], aggregate: str | Sequence[str]
) -> tuple[ArrayLayout, ArrayLayout]:
    """`split_arrays` of a Flower model."""
    arrays = {name: array_view(array) for name, array in record.items()}
    return split_arrays(arrays, judge, aggregate)


def median_buffers(
    layout: ArrayLayout, rows: Sequence[Sequence[NDArray[Any]]]
) -> dict[str, Array]:
    """The arrays that are not judged, after a round: the coordinate-wise median.

    The aggregator's weights say nothing about them: a client with honest parameters may
    send a variance of −1e30. Of two clients the median is the mean.

    Args:
        layout: of these arrays.
        rows: of each client, its arrays as vectors.
    """
    arrays, block = {}, max(1, _SORTED // max(1, len(rows)))
    for k, (name, shape, place, kind) in enumerate(layout.parts()):
        after = np.empty(place.stop - place.start, kind)
        for lo in range(0, len(after), block):  # no copy of all replies
            part = np.stack([row[k][lo : lo + block] for row in rows])
            after[lo : lo + block] = np.median(part, axis=0, overwrite_input=True)
        data = to_npy_bytes(after.reshape(shape))
        arrays[name] = Array(kind, shape, "numpy.ndarray", data)
    return arrays


def to_vector(layout: ArrayLayout, record: Mapping[str, Array]) -> Float[Vector, " d"]:
    """The vector of a model, in the precision of local branches."""
    return np.concatenate(flat_views(layout, record), dtype=layout.dtype)


def to_float64(record: ArrayRecord) -> Float[Vector, " d"]:
    """The vector of a model, in float64."""
    return to_vector(layout_of(record), record).astype(np.float64)


def gradient_vector(layout: ArrayLayout, gradient: Any) -> Float[Vector, " d"]:
    """`root_vector` of arrays that may be Flower's."""
    if isinstance(gradient, Mapping):
        return root_vector(layout, {k: _plain(v) for k, v in gradient.items()})
    if isinstance(gradient, Sequence):
        return root_vector(layout, [_plain(v) for v in gradient])
    return root_vector(layout, _plain(gradient))


def _plain(array: Any) -> Any:
    """The numbers of an array of Flower; any other array as it is."""
    return array_view(array) if isinstance(array, Array) else array


def flat_views(layout: ArrayLayout, record: Mapping[str, Array]) -> list[NDArray[Any]]:
    """The arrays of a model as vectors that hewfl's kernels can read.

    They are copied only where the kernels could not read them: half precision, foreign
    byte order, memory that is not aligned.
    """
    rows = []
    for name, shape, _, _ in layout.parts():
        if name not in record:
            raise invalid(name, "among the arrays", f"{list(record)}"[:80])
        try:
            array = array_view(record[name])
        except Exception as error:  # a parser of foreign bytes raises many kinds
            raise invalid(name, "an array in NumPy's format", error) from error
        if array.shape != shape:
            raise invalid(name, f"of shape {shape}", array.shape)
        if array.dtype.kind != "f":
            raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")
        kind = np.dtype(np.float64 if array.dtype.itemsize > 4 else np.float32)
        row = array.reshape(-1)
        is_ready = row.dtype == kind and row.flags.c_contiguous and row.flags.aligned
        rows.append(row if is_ready else np.array(row, dtype=kind))
    return rows


def to_record(
    layout: ArrayLayout,
    vector: Float[Vector, " d"],
    template: ArrayRecord | None = None,
) -> ArrayRecord:
    """The model of a vector, each array in its own precision.

    Args:
        layout: of the model.
        vector: its parameters.
        template: a model with the arrays that are no parameters, and the order of all:
            stock clients identify arrays by position. None: there are parameters alone.
    """
    arrays = {} if template is None else dict(template.items())
    with np.errstate(over="ignore"):  # callers check that the vector fits
        for name, shape, place, kind in layout.parts():
            part = vector[place].reshape(shape).astype(kind, copy=False)
            arrays[name] = Array(kind, shape, "numpy.ndarray", to_npy_bytes(part))
    return ArrayRecord(arrays)


def array_view(array: Array) -> NDArray[Any]:
    """The numbers of a Flower array, without a copy if possible; read-only."""
    view = view_npy_bytes(array.data)
    return np.asarray(array.numpy()) if view is None else view


def to_npy_bytes(array: NDArray[Any]) -> bytes:
    """An array in NumPy's format, copied once; `numpy.save` copies more often."""
    header = BytesIO()
    facts = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(header, facts)
    return b"".join((header.getvalue(), np.ascontiguousarray(array).data))


def view_npy_bytes(data: bytes) -> NDArray[Any] | None:
    """The array in bytes of NumPy's format, without a copy; None if it is not plain.

    Plain is version 1.0 of the format, C order and no objects.

    Raises:
        Exception: the bytes are no array; NumPy's parser raises many kinds.
    """
    end = 10 + int.from_bytes(data[8:10], "little")
    shape, dtype = _parse_header(data[:end])
    if shape is None:
        return None
    return np.frombuffer(data, dtype, prod(shape), end).reshape(shape)


@lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[tuple[int, ...] | None, Any]:
    """Shape and dtype of an array in NumPy's format; None if it is not plain.

    All clients send the same headers, and parsing one takes longer than reading a small
    array: hence the cache.

    Raises:
        ValueError: a size is negative, which NumPy would take for "whatever fits".
    """
    stream = BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        return None, None
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"a header of shape {shape}")
    return (None, None) if fortran or dtype.hasobject else (shape, dtype)
