"""Argument checks that speak one language: name, rule, value."""

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from hewfl.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike  # noqa: PLC0414 - handed on
    from numpy.typing import NDArray

    Array = NDArray[np.floating[Any]]
    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]
else:  # at run time shape checks want the class, and ArrayLike is beyond them
    Array = Ints = Mask = np.ndarray
    ArrayLike = Any
Reals = Float64[Array, "..."]
"""An array of real numbers in double precision, of any shape."""
PerClient = Float64[Array, " n"]
"""One such number for each client."""


def invalid(name: str, rule: str, value: object) -> InvalidInputError:
    """The one form of an input error: «`name` must be rule; got value»."""
    return InvalidInputError(f"`{name}` must be {rule}; got {value}")


def shown(value: object) -> str:
    """A value as errors show it: its `repr`, cut short, with NumPy's numbers plain."""
    with np.printoptions(legacy="1.25"):  # 0.5, where NumPy 2 has np.float64(0.5)
        return repr(value)[:80]


def as_float64(name: str, value: ArrayLike) -> Reals:
    """Convert to a float64 array and require finite entries.

    Raises:
        InvalidInputError: not numeric, complex, or an entry is NaN or infinite.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise invalid(name, "an array of real numbers", f"dtype {array.dtype}")
        array = array.astype(np.float64, copy=False)
    except InvalidInputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise invalid(name, "an array of real numbers", repr(value)[:80]) from error
    if not np.isfinite(array).all():
        place = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise invalid(name, "finite", f"{array[place]} at index {place}")
    return array


def positives(name: str, value: ArrayLike) -> Reals:
    """Convert and require positive finite numbers."""
    array = as_float64(name, value)
    return _all(name, "positive", array, array > 0)


def nonnegatives(name: str, value: ArrayLike) -> Reals:
    """Convert and require nonnegative finite numbers."""
    array = as_float64(name, value)
    return _all(name, "nonnegative", array, array >= 0)


def wholes(name: str, value: ArrayLike, *, least: int = 0) -> Reals:
    """Convert and require whole numbers, not below `least`."""
    array = as_float64(name, value)
    met = (array >= least) & (array == np.floor(array))
    return _all(name, f"a whole number of at least {least}", array, met)


def broadcast(
    values: dict[str, Reals], *, rule: str = "arrays that broadcast"
) -> dict[str, Reals]:
    """Named arrays in their common shape."""
    try:
        arrays = np.broadcast_arrays(*values.values())
    except ValueError as error:
        shapes = [value.shape for value in values.values()]
        raise invalid(", ".join(values), rule, shapes) from error
    return dict(zip(values, arrays, strict=True))


def positive(name: str, value: float) -> float:
    """Require a positive finite number."""
    return _scalar(name, value, "a positive finite number", positive=True)


def nonnegative(name: str, value: float) -> float:
    """Require a nonnegative finite number."""
    return _scalar(name, value, "a nonnegative finite number", positive=False)


def whole(name: str, value: int, *, least: int | None = None) -> int:
    """Require one whole number, not below `least`; a bool is none."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise invalid(name, "a whole number", shown(value)) from error
    if isinstance(value, bool):
        raise invalid(name, "a whole number", value)
    if least is not None and number < least:
        raise invalid(name, f"at least {least}", number)
    return number


def _all(name: str, rule: str, array: Reals, met: ArrayLike) -> Reals:
    broken = ~np.asarray(met, dtype=np.bool_)
    if broken.any():
        raise invalid(name, rule, array[broken].flat[0])
    return array


def _scalar(name: str, value: float, rule: str, *, positive: bool) -> float:
    number = value if type(value) is float else _number(value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise invalid(name, rule, shown(value))
    return number


def _number(value: Any) -> float:
    """A scalar as a float; NaN for all that is none, such as "1", True and [1.0]."""
    no_number = isinstance(value, str | bytes | bool | np.bool_ | complex)
    if no_number or getattr(value, "ndim", 0) > 0:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return float("nan")
