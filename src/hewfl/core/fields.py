"""Ranges of a record's fields, written as their types and checked when it is made.

    @final
    @dataclass(frozen=True, slots=True)
    class Noise(Checked):
        share: Part
        growth: Positive = 0.05

`Noise(0.2, -1)` then says «`growth` must be a positive finite number; got -1». What may
be None, or a function of the round, is let through as such. Fields of a `Literal`
must be one of its words.
"""

import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hewfl.core.checks import (
    ArrayLike,
    invalid,
    nonnegative,
    nonnegatives,
    positive,
    positives,
    whole,
)

Check = Callable[[str, Any], Any]
"""Raises an error that names the field where a value is out of range."""


def _below(limit: float, name: str, value: float) -> None:
    if nonnegative(name, value) >= limit:
        raise invalid(name, f"from 0 to below {limit:g}", value)


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
Minority = Annotated[float, partial(_below, 0.5)]
"""From 0 to below ½."""
Count = Annotated[int, partial(whole, least=1)]
"""A whole number of at least 1."""
Positives = Annotated[ArrayLike, positives]
Nonnegatives = Annotated[ArrayLike, nonnegatives]


_REFUSAL = """

    Raises:
        InvalidInputError: a field is out of its range.
    """


class _Telling:
    """Whoever derives from it says in its docstring that it refuses bad fields."""

    __slots__ = ()

    def __init_subclass__(cls, **given: Any) -> None:
        """Add what every such record raises, unless it says more itself."""
        super().__init_subclass__(**given)
        if cls.__doc__ and "Raises:" not in cls.__doc__:
            cls.__doc__ = cls.__doc__.rstrip() + _REFUSAL


class Checked(_Telling):
    """A record whose fields are checked by their types."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check that every field is in range."""
        check_fields(self)


class Converted(_Telling):
    """A record whose fields become what their types make of them: checked arrays."""

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
    return tuple((name, check) for name in hints for check in _of(hints[name]))


def _of(hint: Any) -> Iterator[Check]:
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
            yield from (partial(_unless, exempt, check) for check in _of(values[0]))


def _unless(exempt: list[Any], check: Check, name: str, value: Any) -> None:
    is_function = callable(value) and exempt != [NoneType]
    if not is_function and not (value is None and NoneType in exempt):
        check(name, value)


def _one_of(words: tuple[str, ...], name: str, value: Any) -> None:
    if value not in words:
        raise invalid(name, f"one of {', '.join(map(str, words))}", repr(value))
