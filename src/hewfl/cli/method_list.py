"""`hewfl methods`: every method a spec can name, and what it can be given."""

import dataclasses
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.references import REFERENCES
from hewfl.core.plugins import (
    absolute_name,
    check_name,
    entry_points,
    load,
    parameters_of,
    short_name,
)
from hewfl.core.records import ProblemBounds
from hewfl.experiments.method_spec import GROUP
from hewfl.experiments.spec import field_meanings
from hewfl.methods.registry import METHODS
from hewfl.server.server_step import ServerStep

KEY = re.compile(r" ?\[([A-Z][A-Za-z]+\d{4}[a-z]?)\]")
"""A citation in a docstring."""
OWN, OTHERS = "of hewfl", "not of hewfl"
PAPER = "Pasechnyuk2026"


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A hyper-parameter of a method: its name, its default as text, and its meaning."""

    name: str
    default: str
    meaning: str


@final
@dataclass(frozen=True, slots=True)
class Sheet:
    """What is to be told of a method.

    Attributes:
        name: as specs write it.
        sentence: what it does.
        source: where it comes from, in two words.
        paper: the same in full.
        formulas: the rest of its docstring, without the hyper-parameters.
        parameters: those that a spec may set.
    """

    name: str
    sentence: str
    source: str
    paper: str
    formulas: str
    parameters: tuple[Parameter, ...]


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method; all of them if absent.")
    ] = None,
) -> None:
    """List the methods that a spec can name, or tell all about one.

    Args:
        name: one of them, such as HewHom.
    """
    console = Console()
    if name is None:
        table = Table("method", "what it does", "from", box=None, pad_edge=False)
        for each in METHODS:
            told = sheet(each)
            table.add_row(each, escape(told.sentence), told.source)
        for each, point in entry_points(GROUP).items():  # not loaded to be listed
            where = f"of an installed package: {point.value}"
            table.add_row(escape(each), escape(where), OTHERS)
        console.print(table)
        console.print("\nhewfl methods NAME tells the hyper-parameters of one.")
        return
    with one_line_errors():
        name = str(absolute_name(name, Path()))
        check_name(name, tuple(METHODS), GROUP, "name")
        told = sheet(name)
    title = f"[bold]{escape(short_name(name))}[/]: {escape(told.sentence)}"
    console.print(f"{title}\nfrom: {told.paper}")
    called = getattr(METHODS.get(name), "name", None)
    if isinstance(called, str) and called != name:
        console.print(f"in tables of `simulate`: {escape(called)}")
    console.print()
    if told.formulas:
        console.print(f"{escape(told.formulas)}\n", highlight=False, soft_wrap=True)
    titles = ("hyper-parameter", "default", "meaning")
    table = Table(*titles, box=None, pad_edge=False, title_justify="left")
    for one in (*told.parameters, *_outer_parameters()):
        table.add_row(one.name, escape(one.default), escape(one.meaning))
    console.print(table)


def sheet(name: str) -> Sheet:
    """What is to be told of a method, read off its class.

    Args:
        name: as specs write it; the code of one that is not of hewfl is loaded.
    """
    method = METHODS[name] if name in METHODS else load(name, GROUP, "name")
    text = inspect.getdoc(method) or ""  # none under python -OO
    opening, _, rest = text.partition("\n")
    before, _, _ = rest.partition("Attributes:")
    cited = KEY.search(opening)
    key = PAPER if name.startswith("Hew") else OWN
    key = key if cited is None else cited[1]
    key = key if name in METHODS else OTHERS
    source = re.sub(r"([a-z])(\d{4}).*", r"\1 \2", key)
    paper = REFERENCES.get(key, key if key == OTHERS else OWN)
    parameters = _parameters(method)
    if name == "HewControl":  # a spec gives the bounds one by one
        bounds = _parameters(ProblemBounds)
        parameters = (*bounds, *(one for one in parameters if one.name != "bounds"))
    own = tuple(one for one in parameters if one.name != "smoothness")
    return Sheet(name, KEY.sub("", opening), source, paper, before.strip("\n"), own)


def _outer_parameters() -> tuple[Parameter, ...]:
    """The server's own step, which every method can be given."""
    found = _parameters(ServerStep)
    return tuple(
        dataclasses.replace(one, name="server_learning_rate")
        if one.name == "step"
        else one
        for one in found
    )


def _parameters(record: Any) -> tuple[Parameter, ...]:
    """Fields of a record with their defaults, and what its docstring says of them."""
    if not dataclasses.is_dataclass(record):  # somebody's function that makes a rule
        given = inspect.signature(record).parameters
        known = [(n, given[n].default) for n in parameters_of(record)]
        empty = inspect.Parameter.empty
        return tuple(
            Parameter(n, "required" if v is empty else str(v), "") for n, v in known
        )
    meanings = field_meanings(record)
    return tuple(
        Parameter(field.name, _default(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(record)
    )


def _default(field: "dataclasses.Field[Any]") -> str:
    """A default as a spec would write it; "required" where there is none."""
    if field.default is not dataclasses.MISSING:
        value = field.default
        return str(value).lower() if isinstance(value, bool) else str(value)
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return "required"
