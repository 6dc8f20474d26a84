"""Fields of a spec replaced from the command: overrides, and sweeps over values.

    clients.n=10                        a field of a section
    methods.FedAvg.learning_rate=0.1    a field of a method, by its label or its name
    clients.alpha=0.1,0.5,1.0           a sweep: one run for each value

Values are read as TOML, else as text. Several sweeps make their product.
"""

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from hewfl.core.plugins import short_name
from hewfl.core.toml_records import one_of
from hewfl.core.validation import invalid

STEP_SIZES = ("learning_rate", "step_scale", "total", "amplitude")
"""Fields of a method of which exactly one is given: a new one replaces another."""
Point = dict[str, Any]
"""The value of each swept field."""


def with_overrides(
    table: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """The table with fields replaced; values are read as TOML, else as text.

    Fields and types are validated when the spec is built from the table.

    Raises:
        InvalidInputError: an override is not of the form field=value, or names a method
            that the table does not have.

    >>> with_overrides({"rounds": 90}, ["clients.n=10", "data.name=mnist"])
    {'rounds': 90, 'clients': {'n': 10}, 'data': {'name': 'mnist'}}
    """
    new = dict(table)
    for override in overrides:
        key, text = _split("--set", override)
        new = _replace(new, key, _parse_value(text), "--set")
    return new


def sweep_points(sweeps: Sequence[str]) -> list[Point]:
    """The points of a sweep: every combination of the values, the last field fastest.

    Raises:
        InvalidInputError: a sweep is not of the form field=value,value,... with
            different values, or two are of one field.

    >>> sweep_points(["clients.alpha=0.1,1.0", "data.name=digits"])
    [{'clients.alpha': 0.1, 'data.name': 'digits'}, {'clients.alpha': 1.0, \
'data.name': 'digits'}]
    """
    fields: dict[str, list[Any]] = {}
    for sweep in sweeps:
        key, text = _split("--sweep", sweep)
        if key in fields:
            raise invalid("--sweep", "given once for each field", repr(key))
        values = _parse_value(f"[{text}]")
        if not isinstance(values, list):  # words without quotation marks
            values = [_parse_value(part.strip()) for part in text.split(",")]
        if not values or any(v in values[:k] for k, v in enumerate(values)):
            raise invalid(
                "--sweep", "different values, separated by commas", repr(sweep)
            )
        fields[key] = values
    return [
        dict(zip(fields, values, strict=True))
        for values in itertools.product(*fields.values())
    ]


def at_point(table: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The table of one point of a sweep, with the point in its name."""
    new = dict(table)
    for key, value in point.items():
        new = _replace(new, key, value, "--sweep")
    name = f"{table.get('name', '')}-{point_text(point, '-')}"
    return new | {"name": re.sub(r"[/\\]", "_", name)}


def point_text(point: Point, between: str = ", ") -> str:
    """A point in words, each field by the last part of its path where that is enough.

    >>> point_text({"clients.alpha": 0.1, "methods.FedAvg.momentum": 0.9})
    'alpha=0.1, momentum=0.9'
    """
    last = [key.rpartition(".")[2] for key in point]
    names = [
        short if last.count(short) == 1 else key
        for key, short in zip(point, last, strict=True)
    ]
    pairs = zip(names, point.values(), strict=True)
    return between.join(f"{name}={value}" for name, value in pairs)


def sweep_digest(table: Mapping[str, Any], points: Sequence[Point]) -> str:
    """Eight letters that identify a sweep but for its values: more may follow."""
    base = at_point(table, dict.fromkeys(points[0], "swept"))
    return hashlib.sha256(json.dumps(base, sort_keys=True).encode()).hexdigest()[:8]


def _split(option: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise invalid(option, "of the form field=value", repr(text))
    return key.strip(), value.strip()


def _replace(
    table: dict[str, Any], key: str, value: Any, option: str
) -> dict[str, Any]:
    if re.match(r"methods[.\[]", key):
        methods = table.get("methods")
        where, name = _find_method(methods, key.partition(".")[2], option)
        assert isinstance(methods, list)
        new = [*methods]
        new[where] = _replace_in_method(methods[where], name, value, option)
        return table | {"methods": new}
    return _replace_field(table, key.split("."), value, option)


def _find_method(methods: Any, rest: str, option: str) -> tuple[int, str]:
    """The method whose label, or else whose name, begins a path; and its field."""
    tables = [m for m in methods or () if isinstance(m, Mapping)]
    names = [str(m.get("method")) for m in tables]
    labels = [str(m.get("label", short_name(str(m.get("method"))))) for m in tables]
    by_name = [name if names.count(name) == 1 else "" for name in names]
    for known in (labels, by_name):  # a label may have points in it: the longest first
        for name in sorted(filter(None, known), key=len, reverse=True):
            if rest.startswith(f"{name}.") and len(rest) > len(name) + 1:
                return known.index(name), rest[len(name) + 1 :]
    if rest in labels:
        rule = f"the path of a field, such as methods.{rest}.learning_rate"
        raise invalid(option, rule, f"methods.{rest}")
    asked = rest.partition(".")[0]
    raise invalid(f"{option} methods", one_of(labels, asked), repr(asked))


def _replace_in_method(
    table: Mapping[str, Any], name: str, value: Any, option: str
) -> dict[str, Any]:
    """A method with one field replaced: it is no longer in the grid, or only there.

    A step size replaces a step size of another kind.
    """
    field = name.removeprefix("grid.")
    gone = STEP_SIZES if field in STEP_SIZES else (field,)
    grid = table.get("grid", {})
    if isinstance(grid, Mapping):
        grid = {k: v for k, v in grid.items() if k not in gone}
    new = {k: v for k, v in table.items() if k not in (*gone, "grid")}
    new |= {"grid": grid} if grid else {}
    return _replace_field(new, name.split("."), value, option)


def _replace_field(
    table: dict[str, Any], keys: Sequence[str], value: Any, option: str
) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return table | {first: value}
    inner = table.get(first, {})
    if not isinstance(inner, dict):
        raise invalid(option, f"a field of a table; `{first}` is none", ".".join(keys))
    return table | {first: _replace_field(inner, rest, value, option)}


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
