"""Where the arrays of a model lie in its vector, and which of them are parameters.

Arrays of real numbers, in the model's order, make up the vector. Running statistics of
normalisation layers are no parameters: they are recognised by name (`BUFFERS`), do not
count in lengths and cosines, and take the median of the clients. Arrays of whole
numbers, such as batch counters, stay as they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, final

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from hewfl.core.array_types import Float
from hewfl.core.validation import Array, invalid
from hewfl.displacements.backend import to_host

BUFFERS = ("*running_mean", "*running_var", "*moving_mean", "*moving_variance")
"""Running statistics of PyTorch's and Keras' normalisation layers."""
PARAMETERS = tuple(f"!{pattern}" for pattern in BUFFERS)
"""What aggregators see by default: all arrays but these."""


@final
@dataclass(frozen=True, slots=True)
class ArrayLayout:
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

    def vector(self, arrays: Mapping[str, Any]) -> Float[Array, " d"]:
        """The arrays of a model or of a client as one vector; a copy.

        Args:
            arrays: by name, of any array library.

        Raises:
            InvalidInputError: one is missing, or has another shape or kind.
        """
        vector = np.empty(self.d, self.dtype)
        for name, shape, place, _ in self.parts():
            array = to_host(arrays[name]) if name in arrays else None
            if array is None or array.shape != shape or array.dtype.kind != "f":
                got = None if array is None else f"{array.dtype}, shape {array.shape}"
                raise invalid(f'array "{name}"', f"of real numbers, shape {shape}", got)
            with np.errstate(over="ignore"):  # what is not finite is found later
                vector[place] = array.reshape(-1)
        return vector

    def arrays(
        self, vector: Float[Array, " d"], like: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arrays of a vector, of the library and precision of those of a model."""
        arrays = {}
        with np.errstate(over="ignore"):  # callers check that the vector fits
            for name, shape, place, _ in self.parts():
                xp, part = array_namespace(like[name]), vector[place].reshape(shape)
                arrays[name] = xp.asarray(
                    part.astype(part.dtype), dtype=like[name].dtype
                )
        return arrays

    def fits(self, vector: Float[Array, " d"]) -> bool:
        """Whether a vector is finite in the precision it is sent in."""
        return all(  # a NaN is both the largest and the smallest
            max(part.max(initial=0), -part.min(initial=0)) <= np.finfo(kind).max
            for part, kind in (
                (vector[place], kind) for *_, place, kind in self.parts()
            )
        )


NO_ARRAYS = ArrayLayout((), (), ())


def split_arrays(
    arrays: Mapping[str, NDArray[Any]],
    judge: str | Sequence[str],
    aggregate: str | Sequence[str],
) -> tuple[ArrayLayout, ArrayLayout]:
    """The layouts of the arrays that are judged, and of the other aggregated ones.

    Args:
        arrays: of a model, by name.
        judge: patterns of the arrays that aggregators see.
        aggregate: patterns of the arrays that are aggregated; the others stay as the
            server has them.

    Raises:
        InvalidInputError: no array of real numbers is judged.
    """
    real = {
        name: a
        for name, a in arrays.items()
        if a.dtype.kind == "f" and is_matched(name, aggregate)
    }
    judged = {name: a for name, a in real.items() if is_matched(name, judge)}
    if sum(a.size for a in judged.values()) == 0:
        kinds = sorted({str(a.dtype) for a in arrays.values()})
        rule = "a model with parameters of real numbers"
        raise invalid("arrays", rule, f"{list(arrays)} of {kinds}"[:120])
    averaged = {name: a for name, a in real.items() if name not in judged}
    return _layout(judged), _layout(averaged)


def _layout(arrays: Mapping[str, NDArray[Any]]) -> ArrayLayout:
    shapes = tuple(a.shape for a in arrays.values())
    kinds = tuple(str(a.dtype) for a in arrays.values())
    return ArrayLayout(tuple(arrays), shapes, kinds)


def is_matched(name: str, patterns: str | Sequence[str]) -> bool:
    """Whether a name matches a pattern, and none that begins with "!".

    >>> is_matched("bn.running_mean", ("!*running_mean", "!*running_var"))
    False
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    out = [pattern[1:] for pattern in given if pattern.startswith("!")]
    into = [pattern for pattern in given if not pattern.startswith("!")] or ["*"]
    return any(fnmatchcase(name, p) for p in into) and not any(
        fnmatchcase(name, p) for p in out
    )


def root_vector(layout: ArrayLayout, gradient: Any) -> Float[Array, " d"]:
    """A gradient of the user as one vector, in float64.

    Args:
        layout: of the model.
        gradient: one array for each of the layout, in its order; or a mapping from
            names, where absent ones are zero.

    Raises:
        InvalidInputError: names, numbers or shapes are not those of the model.
    """
    name, given = "root_fn", dict[str, Any]()
    if isinstance(gradient, Mapping):
        unknown = [key for key in gradient if key not in layout.names]
        if unknown or not gradient:
            raise invalid(name, f"of the arrays {list(layout.names)}", unknown)
        given = dict(gradient)
    else:
        rows = list(gradient) if isinstance(gradient, Sequence) else [gradient]
        if len(rows) != len(layout.names):
            rule = f"{len(layout.names)} arrays, or a mapping from names of arrays"
            raise invalid(name, rule, f"{len(rows)}")
        given = dict(zip(layout.names, rows, strict=True))
    vector = np.zeros(layout.d)
    for key, shape, place, _ in layout.parts():
        if key in given:
            row, what = given[key], f"{name}, its array {key},"
            part = to_host(row)
            if part.dtype.kind not in "fiu":
                raise invalid(what, "of real numbers", f"dtype {part.dtype}")
            if part.shape != shape:
                raise invalid(what, f"of shape {shape}", part.shape)
            vector[place] = part.reshape(-1)
    return vector
