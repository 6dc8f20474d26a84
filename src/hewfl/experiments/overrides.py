"""Changes to a spec from the command line: `clients.n=10`."""

import tomllib
from collections.abc import Sequence
from typing import Any

from hewfl.core.checks import invalid


def overridden(table: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The table with fields replaced; values are read as TOML, else as text.

    Fields and types are checked when the spec is built from the table.

    Raises:
        InvalidInputError: a change is not of the form field=value.

    >>> overridden({"rounds": 90}, ["clients.n=10", "data.name=mnist"])
    {'rounds': 90, 'clients': {'n': 10}, 'data': {'name': 'mnist'}}
    """
    found = dict(table)
    for change in changes:
        field, sign, text = change.partition("=")
        if not sign or not field.strip():
            raise invalid("--set", "of the form field=value", repr(change))
        found = _replaced(found, field.strip().split("."), _value(text.strip()))
    return found


def _replaced(table: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return table | {first: value}
    inner = table.get(first, {})
    if not isinstance(inner, dict):
        raise invalid("--set", f"a field of a table; `{first}` is none", ".".join(path))
    return table | {first: _replaced(inner, rest, value)}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
