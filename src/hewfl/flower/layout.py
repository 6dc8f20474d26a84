"""A model as Flower sends it, and as the rules see it: one vector.

Arrays of real numbers, in the record's order, make up the vector. Other arrays, such as
the batch counters of a normalisation layer, are no parameters: they stay as they were.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from jaxtyping import Float
from numpy.typing import NDArray

from hewfl.core import npy
from hewfl.core.checks import Array as Vector
from hewfl.core.checks import invalid
from hewfl.core.layout import Layout


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
            array = viewed(record[name])
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
            arrays[name] = Array(kind, shape, "numpy.ndarray", npy.packed(own))
    return ArrayRecord(arrays)


def viewed(array: Array) -> NDArray[Any]:
    """The numbers of a Flower array, where they lie if that can be; read-only."""
    found = npy.viewed(array.data)
    return np.asarray(array.numpy()) if found is None else found
