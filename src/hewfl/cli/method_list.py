"""`hewfl methods`: every method of the registry, with its hyper-parameters."""

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

from hewfl.aggregators import NAMES, PREAGGREGATIONS, find_maker
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.references import REFERENCES
from hewfl.core.plugins import (
    absolute_name,
    entry_points,
    load,
    parameters_of,
    short_name,
)
from hewfl.core.records import ProblemBounds
from hewfl.experiments.method_spec import (
    CURVATURE,
    FIXED,
    GROUP,
    ONLINE,
    SCALED,
    SHARE,
    STEP,
    check_method_name,
    check_old_name,
)
from hewfl.experiments.spec import field_meanings
from hewfl.methods.method import LocalSGD
from hewfl.methods.registry import ALGORITHMS, PARTS
from hewfl.server.server_step import ServerStep

KEY = re.compile(r" ?\[([A-Z][A-Za-z]+\d{4}[a-z]?)(?:, [^\]]*)?\]")
"""A citation in a docstring."""
OWN, OTHERS = "hewfl", "not hewfl"
PAPER = "Pasechnyuk2026"
EXACT = ("exact", "power-weights")
"""Aggregators with the paper's weights."""
SECTION = re.compile(r"^(?:Args|Attributes|Examples|Raises|Returns):$", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A hyper-parameter of a method: its name, its default as text, and its meaning."""

    name: str
    default: str
    meaning: str


@final
@dataclass(frozen=True, slots=True)
class MethodSheet:
    """The documentation of a method.

    Attributes:
        name: in specs.
        sentence: first line of its docstring.
        source: author and year.
        paper: the citation in full.
        formulas: the rest of its docstring, without the hyper-parameters.
        parameters: that a spec may set.
        is_planned: whether the method plans the local work itself.
    """

    name: str
    sentence: str
    source: str
    paper: str
    formulas: str
    parameters: tuple[Parameter, ...]
    is_planned: bool


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method; all of them if absent.")
    ] = None,
) -> None:
    """List the methods that a spec can name, or describe one."""
    console = Console()
    if name is None:
        table = Table("method", "what it does", "from", box=None, pad_edge=False)
        for each in PARTS:
            sheet = read_sheet(each)
            shown = f"{each}+…" if each in PREAGGREGATIONS else each
            table.add_row(shown, escape(sheet.sentence), sheet.source)
        for each, point in entry_points(GROUP).items():  # listed without loading them
            where = f"of an installed package: {point.value}"
            table.add_row(escape(each), escape(where), OTHERS)
        console.print(table)
        console.print("\nhewfl methods NAME lists the hyper-parameters of one.")
        console.print("Before an aggregator may be pre-aggregations: nnm+trimmed-mean.")
        return
    with one_line_errors():
        name = str(absolute_name(name, Path()))
        if name not in PREAGGREGATIONS:
            check_old_name(name, "name")
            check_method_name(name, "name")
        is_ours = ":" not in name and name not in entry_points(GROUP)
        sheets = [read_sheet(part) for part in (name.split("+") if is_ours else [name])]
    listed = set(FIXED.get(name, ()))
    for sheet in sheets:
        title = f"[bold]{escape(short_name(sheet.name))}[/]: {escape(sheet.sentence)}"
        console.print(f"{title}\nfrom: {sheet.paper}\n")
        if sheet.formulas:
            console.print(
                f"{escape(sheet.formulas)}\n", highlight=False, soft_wrap=True
            )
        _print_parameters(console, "hyper-parameter", sheet.parameters)
        listed |= {one.name for one in sheet.parameters}
    if name in PREAGGREGATIONS:
        return
    groups = {"server step": _server_parameters()}
    if not sheets[-1].is_planned:
        groups = {"local work": _local_parameters()} | groups
    for group, parameters in groups.items():
        rest = tuple(one for one in parameters if one.name not in listed)
        _print_parameters(console, group, rest)


def _print_parameters(
    console: Console, group: str, parameters: tuple[Parameter, ...]
) -> None:
    """A table of the hyper-parameters of one kind, if there are any."""
    if parameters:
        table = Table(group, "default", "meaning", box=None, pad_edge=False)
        for one in parameters:
            table.add_row(one.name, escape(one.default), escape(one.meaning))
        console.print(table, "")


def read_sheet(name: str) -> MethodSheet:
    """The documentation of a method, from its docstring and its fields.

    Args:
        name: in specs, or of a pre-aggregation; the user's own code is loaded.
    """
    method = PARTS[name] if name in PARTS else load(name, GROUP, "name")
    sentence, cited, formulas = split_docstring(method)
    key = PAPER if name.startswith("Hew") or name in EXACT else OWN
    key = (cited or key) if name in PARTS else OTHERS
    source = re.sub(r"([a-z])(\d{4}).*", r"\1 \2", key)
    paper = REFERENCES.get(key, key if key == OTHERS else OWN)
    return MethodSheet(
        name,
        sentence,
        source,
        paper,
        formulas,
        _own_parameters(name, method),
        name in ALGORITHMS,
    )


def split_docstring(record: Any) -> tuple[str, str, str]:
    """The parts of a docstring that say what something is.

    Args:
        record: with a docstring.

    Returns:
        Its first sentence without the citation, the key of the work that this cites or
        "", and the rest up to the sections (Attributes, Raises and so on).
    """
    text = inspect.getdoc(record) or ""  # none under python -OO
    opening, _, rest = text.partition("\n")
    citation = KEY.search(opening)
    body = SECTION.split(rest, maxsplit=1)[0]
    return KEY.sub("", opening), citation[1] if citation else "", body.strip("\n")


def _own_parameters(name: str, method: Any) -> tuple[Parameter, ...]:
    """The hyper-parameters that are neither local work nor server step."""
    parameters = _parameters(method)
    if name == "HewControl":  # a spec gives the bounds one by one
        bounds = _parameters(ProblemBounds)
        parameters = (*bounds, *(one for one in parameters if one.name != "bounds"))
    if name in ("HewHom", "HewHet"):
        parameters = (*parameters, *_curvature_parameters())
    left_out = {"smoothness"}
    if name in NAMES:
        left_out |= set(find_maker(name)[1])  # fixed by the name
    return tuple(one for one in parameters if one.name not in left_out)


def _local_parameters() -> tuple[Parameter, ...]:
    """Local work: step sizes, also in units of 1/L, and the other fields."""
    fields = _parameters(LocalSGD)
    scaled = {
        new: Parameter(new, "None", f"`{old}` in units of 1/L")
        for new, old in SCALED.items()
    }
    return (*scaled.values(), *fields)


def _server_parameters() -> tuple[Parameter, ...]:
    """The server step of any method."""
    share = "in place of `average_from`: the last share of the rounds, up to 1"
    return (
        *(
            dataclasses.replace(one, name=STEP) if one.name == "step" else one
            for one in _parameters(ServerStep)
        ),
        Parameter(SHARE, "None", share),
    )


def _curvature_parameters() -> tuple[Parameter, ...]:
    """Where Λ of HewHom and HewHet comes from."""
    meaning = '"given": Λ = ratio · L; "online": Λ = ratio · estimate of L'
    known = {one.name: one for one in _parameters(OnlineCurvature)}
    return (Parameter(CURVATURE, "given", meaning), *(known[name] for name in ONLINE))


def _parameters(record: Any) -> tuple[Parameter, ...]:
    """Fields of a record, or keywords of a function, with defaults and meanings."""
    meanings = field_meanings(record)
    if not dataclasses.is_dataclass(record):
        known = inspect.signature(record).parameters
        is_preset = any(p.kind is p.VAR_KEYWORD for p in known.values())
        names = (
            [n for n, p in known.items() if p.kind is p.KEYWORD_ONLY]
            if is_preset
            else parameters_of(record)
        )
        return tuple(
            Parameter(n, _default_text(known[n].default), meanings.get(n, ""))
            for n in names
        )
    return tuple(
        Parameter(field.name, _field_default(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(record)
    )


def _field_default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return _default_text(field.default)


def _default_text(value: Any) -> str:
    """A default as in a spec; "required" where there is none."""
    if value in (dataclasses.MISSING, inspect.Parameter.empty):
        return "required"
    return str(value).lower() if isinstance(value, bool) else str(value)
