"""Checks of arguments and of the fields of records, with errors of one form.

    «`name` must be rule; got value»

`positive`, `whole`, `as_float64` and the like check one argument. `Positive`, `Count`
and the like are the same checks as types of fields, for records that derive from
`Validated`. A `Schedule` is a hyper-parameter that may depend on the round.
"""

import math
import operator
import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike  # noqa: PLC0414 - handed on
    from numpy.typing import NDArray

    Array = NDArray[np.floating[Any]]
    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]
else:  # shape checks at run time need the class; ArrayLike is not for them
    Array = Ints = Mask = np.ndarray
    ArrayLike = Any
Reals = Float64[Array, "..."]
"""An array of real numbers in double precision, of any shape."""
PerClient = Float64[Array, " n"]
"""One such number for each client."""


def invalid(name: str, rule: str, value: object) -> InvalidInputError:
    """The one form of an input error: «`name` must be rule; got value»."""
    return InvalidInputError(f"`{name}` must be {rule}; got {value}")


def format_value(value: object) -> str:
    """A value for an error: its `repr`, cut short, NumPy's numbers as plain ones."""
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


def real_vector(name: str, value: Any, length: int) -> PerClient:
    """Convert to a float64 vector of a given length; entries may be NaN.

    Integers and other floats are converted; truth values, complex numbers, text and
    objects are refused.

    Raises:
        InvalidInputError: of another type or shape; the text names both.
    """
    rule = f"{length} real numbers"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, or on a GPU
        raise invalid(name, rule, format_value(value)) from error
    is_real = array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"
    if not is_real or array.shape != (length,):
        kind = "" if isinstance(value, np.ndarray) else f"{type(value).__name__}, "
        got = f"{kind}dtype {array.dtype}, shape {array.shape}"
        raise invalid(name, rule, got)
    return array.astype(np.float64, copy=False)


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
        raise invalid(name, "a whole number", format_value(value)) from error
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
        raise invalid(name, rule, format_value(value))
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


Check = Callable[[str, Any], Any]
"""A function of name and value that raises where the value is out of range."""


def _below(limit: float, name: str, value: float) -> None:
    if nonnegative(name, value) >= limit:
        raise invalid(name, f"from 0 to below {limit:g}", value)


def check_faulty(name: str, value: Any) -> None:
    """A whole number of type int, or a fraction of type float."""
    is_count = not isinstance(value, bool) and hasattr(value, "__index__")
    if is_count and operator.index(value) >= 0:
        return
    if is_count or not 0 <= _number(value) < 0.5:
        rule = "a count (a whole number from 0) or a fraction from 0 to below 0.5"
        raise invalid(name, rule, format_value(value))


def _part(name: str, value: float) -> None:
    if nonnegative(name, value) > 1:
        raise invalid(name, "from 0 to 1", value)


def _share(name: str, value: float) -> None:
    if positive(name, value) > 1:
        raise invalid(name, "above 0 and at most 1", value)


Positive = Annotated[float, positive]
Nonnegative = Annotated[float, nonnegative]
Part = Annotated[float, _part]
"""From 0 to 1."""
Share = Annotated[float, _share]
"""Above 0, at most 1."""
BelowOne = Annotated[float, partial(_below, 1.0)]
"""From 0 to below 1."""
Count = Annotated[int, partial(whole, least=1)]
"""A whole number of at least 1."""
Faulty = Annotated[int | float, check_faulty]
"""How many clients may be faulty: a whole number, or a fraction below ½ of those
present (`hewfl.aggregators.aggregator.faulty_count`)."""
Positives = Annotated[ArrayLike, positives]
Nonnegatives = Annotated[ArrayLike, nonnegatives]


_REFUSAL = """

    Raises:
        InvalidInputError: a field is out of its range.
    """


class _RefusesFields:
    """Base of records that raise for bad fields, and say so in their docstring."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the error to a docstring that lists none."""
        super().__init_subclass__(**options)
        if cls.__doc__ and "Raises:" not in cls.__doc__:
            cls.__doc__ = cls.__doc__.rstrip() + _REFUSAL


class Validated(_RefusesFields):
    """A record whose fields are checked by their types.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Noise(Validated):
    ...     share: Part
    ...     growth: Positive = 0.05
    >>> Noise(0.2, -1.0)
    Traceback (most recent call last):
    hewfl.errors.InvalidInputError: `growth` must be a positive finite number; got -1.0

    None and functions of the round pass where the type allows them. A field of a
    `Literal` must be one of its words.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check that every field is in range."""
        check_fields(self)


class Converted(_RefusesFields):
    """A record whose fields are checked by their types and stored as arrays."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check every field, and keep it as an array."""
        cls: Any = type(self)
        for name, check in _checks(cls):
            object.__setattr__(self, name, check(name, getattr(self, name)))


def check_fields(record: Any) -> None:
    """Require that the fields of a record are in the ranges that their types name.

    Raises:
        InvalidInputError: naming the field, the rule and the value.
    """
    cls: Any = type(record)
    for name, check in _checks(cls):
        check(name, getattr(record, name))


@cache
def _checks(cls: type) -> tuple[tuple[str, Check], ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple((name, check) for name in hints for check in _type_checks(hints[name]))


def _type_checks(hint: Any) -> Iterator[Check]:
    """The checks in a type; in a union those of what is neither None nor a function."""
    if get_origin(hint) is Annotated:
        yield from (check for check in hint.__metadata__ if callable(check))
    elif get_origin(hint) is Literal:
        yield partial(_one_of, get_args(hint))
    elif get_origin(hint) in (Union, types.UnionType):
        exempt = [
            p for p in get_args(hint) if p is NoneType or get_origin(p) is Callable
        ]
        values = [part for part in get_args(hint) if part not in exempt]
        if len(values) == 1:
            yield from (
                partial(_unless, exempt, check) for check in _type_checks(values[0])
            )


def _unless(exempt: list[Any], check: Check, name: str, value: Any) -> None:
    is_function = callable(value) and exempt != [NoneType]
    if not is_function and not (value is None and NoneType in exempt):
        check(name, value)


def _one_of(words: tuple[str, ...], name: str, value: Any) -> None:
    if value not in words:
        raise invalid(name, f"one of {', '.join(map(str, words))}", repr(value))


Schedule = Positive | Callable[[int], float]
"""A hyper-parameter: a positive number, or a function of the round.

A checkpoint identifies a method by its `repr`. That of a function is an address, which
changes with the process: a run with such a schedule cannot continue after a stop. A
frozen record with a `__call__` can:

    @dataclass(frozen=True)
    class Decay:
        first: float

        def __call__(self, t: int) -> float:
            return self.first / (1 + t)
"""


def at_round(name: str, value: Schedule, t: int) -> float:
    """The value of a positive hyper-parameter in round t.

    Raises:
        InvalidInputError: it is not a positive finite number.
    """
    return positive(f"{name} of round {t}", value(t)) if callable(value) else value
