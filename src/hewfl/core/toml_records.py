"""Records from tables of a TOML file and back, with errors that name the field.

Why not msgspec or pydantic: both ignore unknown fields of dataclasses. msgspec refuses
2.0 for a whole number and does not list the allowed words. pydantic takes 1 for true
and "2" for a number, or no tables at all.
"""

import dataclasses
import difflib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w

from hewfl.core.validation import invalid
from hewfl.errors import InvalidInputError

Record = TypeVar("Record")
_RULES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_LIST = re.compile(r"\[\n([^][{}]*),\n\s*\]")


def from_table(cls: type[Record], table: Any, where: str) -> Record:
    """Make a record from a table.

    Args:
        cls: a dataclass; nested records, tuples, literals and unions are converted.
        table: as parsed from TOML.
        where: path of the table, for errors.

    Raises:
        InvalidInputError: a field is unknown, missing, of a wrong type or out of range.
    """
    if not isinstance(table, Mapping):
        raise invalid(where or "the file", "a table", repr(table))
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # only dataclasses are given
    check_names(table, tuple(fields), where)
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], path(where, name))
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise invalid(path(where, name), "given", "nothing")
    try:
        with rename_errors({name: path(where, name) for name in fields}):
            return cls(**values)
    except InvalidInputError as error:
        if where and f"`{where}" not in str(error):
            raise InvalidInputError(f"in [{where}]: {error}") from error
        raise


@contextmanager
def rename_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors raised inside name a field as the user wrote it.

    Args:
        names: of fields in the code, and their dotted paths in the file.
    """
    try:
        yield
    except InvalidInputError as error:
        text = str(error)
        for name, written in names.items():
            if name != written and text.startswith(f"`{name}` "):
                renamed = f"`{written}`" + text.removeprefix(f"`{name}`")
                raise InvalidInputError(renamed) from error
        raise


def check_names(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Require that a table names known fields only."""
    for name in table:
        if name not in known:
            rule = one_of(known, name)
            raise invalid(path(where, name), rule, "an unknown field")


def one_of(known: Sequence[str], given: object) -> str:
    """The rule that a value is one of some names, with the nearest of them.

    >>> one_of(["rounds", "seeds"], "round")
    'one of rounds, seeds (did you mean `rounds`?)'
    """
    near = difflib.get_close_matches(str(given), known, n=1)
    hint = f" (did you mean `{near[0]}`?)" if near else ""
    return f"one of {', '.join(known)}{hint}"


def path(where: str, name: str) -> str:
    """The dotted path of a field."""
    return f"{where}.{name}" if where else name


def to_table(record: Any) -> dict[str, Any]:
    """The table of a record; fields that are None are left out."""
    table = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value is None:
            continue
        if dataclasses.is_dataclass(value):
            value = to_table(value)
        elif isinstance(value, tuple):
            value = [to_table(v) if dataclasses.is_dataclass(v) else v for v in value]
        table[field.name] = value
    return table


def write_toml(table: Mapping[str, Any]) -> str:
    """TOML text of a table; lists of plain values on one line each."""
    text = tomli_w.dumps(table)
    # tomli-w gives every entry of a list a line of its own: 7 seeds would be 9 lines.
    # Text has no line breaks in it but as \n, so these are between entries only.
    return _LIST.sub(lambda m: "[" + re.sub(r"\n\s*", " ", m[1].strip()) + "]", text)


def from_list(kind: Any, values: Sequence[Any], where: str) -> tuple[Any, ...]:
    """Convert entries to one type, each error naming its place."""
    return tuple(_convert(kind, v, f"{where}[{i}]") for i, v in enumerate(values))


def is_whole(value: Any) -> bool:
    """Whether a value of a file is a whole number, as 2 or as 2.0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and float(value).is_integer()


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in parts:
            raise invalid(where, f"one of {', '.join(map(repr, parts))}", repr(value))
        return value
    if origin in (Union, types.UnionType):
        return _either([part for part in parts if _is_written(part)], value, where)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise invalid(where, "a table", repr(value))
        return dict(value)
    if origin is not None:  # tuples and sequences: all entries are of one type
        if not isinstance(value, list | tuple):
            raise invalid(where, "a list", repr(value))
        return from_list(parts[0], value, where)
    if dataclasses.is_dataclass(kind) and not isinstance(value, kind):  # type: ignore[arg-type]  # a class
        return from_table(kind, value, where)  # type: ignore[arg-type]  # a class
    return _scalar(kind, value, where)


def _is_written(kind: Any) -> bool:
    """Whether a file can have values of a type: None and functions it cannot."""
    return kind is not type(None) and get_origin(kind) is not Callable


def _either(parts: Sequence[Any], value: Any, where: str) -> Any:
    """Convert by the first type that takes the value, else raise for the last."""
    *first, last = parts
    for part in first:
        try:
            return _convert(part, value, where)
        except InvalidInputError:
            continue
    return _convert(last, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is int and is_whole(value):
        return int(value)
    if kind not in (int, float) and (kind is Any or isinstance(value, kind)):
        return value
    raise invalid(where, _RULES.get(kind, f"of type {kind}"), repr(value))
