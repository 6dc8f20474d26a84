"""Records from tables of a TOML file and back, with errors that name the field."""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hewfl.core.checks import invalid
from hewfl.errors import InvalidInputError

Record = TypeVar("Record")


def from_table(cls: type[Record], table: Any, where: str) -> Record:
    """A record of type `cls` from a table.

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
        elif _is_required(field):
            raise invalid(path(where, name), "given", "nothing")
    try:
        with called({name: path(where, name) for name in fields}):
            return cls(**values)
    except InvalidInputError as error:
        if where and f"`{where}" not in str(error):
            raise InvalidInputError(f"in [{where}]: {error}") from error
        raise


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside name a field as the user wrote it.

    Args:
        names: what the code calls a field, and its dotted path in the file.
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
    """Require that a table names known fields only.

    Raises:
        InvalidInputError: with the nearest known name.
    """
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean `{near[0]}`?)" if near else ""
            rule = f"one of {', '.join(known)}{hint}"
            raise invalid(path(where, name), rule, "an unknown field")


def path(where: str, name: str) -> str:
    """The dotted path of a field."""
    return f"{where}.{name}" if where else name


def to_table(record: Any) -> dict[str, Any]:
    """The table of a record; fields that are None are left out."""
    found = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value is None:
            continue
        if dataclasses.is_dataclass(value):
            value = to_table(value)
        elif isinstance(value, tuple):
            value = [to_table(v) if dataclasses.is_dataclass(v) else v for v in value]
        found[field.name] = value
    return found


def write_toml(table: Mapping[str, Any]) -> str:
    """TOML text of a table: plain values first, then tables and lists of tables."""
    return "\n".join(_lines(table, "")).strip() + "\n"


def _lines(table: Mapping[str, Any], where: str) -> list[str]:
    plain = {k: v for k, v in table.items() if not _is_section(v)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{path(where, key)}]", *_lines(value, path(where, key))]
        elif _is_section(value):
            for item in value:
                lines += ["", f"[[{path(where, key)}]]"]
                lines += _lines(item, path(where, key))
    return lines


def _is_section(value: Any) -> bool:
    listed = isinstance(value, list | tuple)
    return isinstance(value, Mapping) or (
        listed and bool(value) and all(isinstance(v, Mapping) for v in value)
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    assert isinstance(value, list | tuple), value
    return "[" + ", ".join(_value(v) for v in value) + "]"


# ------------------------------------------------------------------ conversion


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in parts:
            rule = f"one of {', '.join(map(repr, parts))}"
            raise invalid(where, rule, repr(value))
        found = value
    elif origin in (Union, types.UnionType):
        found = _either(parts, value, where)
    elif origin is not None:
        found = _container(origin, parts, value, where)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        found = value if isinstance(value, kind) else from_table(kind, value, where)
    else:
        found = value if kind is Any else _scalar(kind, value, where)
    return found


def _container(origin: Any, parts: Sequence[Any], value: Any, where: str) -> Any:
    """A list as a tuple, or a table with values of one type."""
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise invalid(where, "a table", repr(value))
        return {k: _convert(parts[1], v, path(where, k)) for k, v in value.items()}
    if not isinstance(value, list | tuple):
        raise invalid(where, "a list", repr(value))
    return from_list(parts[0], value, where)


def from_list(kind: Any, values: Sequence[Any], where: str) -> tuple[Any, ...]:
    """Entries of one type, each error naming its place."""
    return tuple(_convert(kind, v, f"{where}[{i}]") for i, v in enumerate(values))


def is_whole(value: Any) -> bool:
    """Whether a value of a file is a whole number, however it is written."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and float(value).is_integer()


def _either(parts: Sequence[Any], value: Any, where: str) -> Any:
    errors = []
    for part in parts:
        if part is type(None):
            continue
        try:
            return _convert(part, value, where)
        except InvalidInputError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else errors[-1]


_RULES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is int and is_whole(value):
        return int(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise invalid(where, _RULES.get(kind, f"of type {kind}"), repr(value))
