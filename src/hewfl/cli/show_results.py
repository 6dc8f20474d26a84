"""`hewfl table` and `hewfl plot`: results without a browser."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.execute import print_table
from hewfl.cli.run_commands import parse_target
from hewfl.core.toml_records import one_of
from hewfl.core.validation import invalid
from hewfl.errors import DataError
from hewfl.experiments.plots import COLUMN, PAGE, figure_curves
from hewfl.experiments.results import Axis, Results, available_axes, measured
from hewfl.experiments.run_folder import Folder, read_partial_results
from hewfl.experiments.summary import QUANTITIES, summarise
from hewfl.experiments.sweep import Panel, open_runs
from hewfl.experiments.tables import (
    OF_PANELS,
    Table,
    as_latex,
    as_markdown,
    panel_table,
    run_table,
    target_table,
)
from hewfl.plotting import check_figure_path

Runs = Annotated[list[Path], typer.Argument(help="Folders of runs or sweeps.")]
Form = Literal["terminal", "markdown", "latex"]


def table(
    folders: Runs,
    *,
    quantity: Annotated[
        list[str] | None,
        typer.Option(help="Column, as in test_accuracy. Repeatable."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Rounds to a value, as in test_accuracy=0.8. Repeatable."),
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="Markdown or LaTeX to copy from.")
    ] = "terminal",
) -> None:
    """Print a table of one run, or of several side by side, finished or not.

    One run: methods by quantities. Several, or a sweep: methods by runs, a table for
    each quantity.
    """
    with one_line_errors():
        panels = open_runs(folders)
        tables: list[Table] = []
        if not target or quantity:
            tables += _final_tables(panels, quantity)
        for name, value in map(parse_target, target or []):
            tables.append(target_table(_results(panels), name, value))
        if form == "terminal":
            for each in tables:
                print_table(each, Console())
        else:
            write = as_markdown if form == "markdown" else as_latex
            typer.echo("\n".join(map(write, tables)), nl=False)


def _final_tables(panels: list[Panel], quantities: list[str] | None) -> list[Table]:
    summaries = {
        name: folder.summary if folder.is_done else summarise(_results_of(folder))
        for name, folder in panels
    }
    if len(summaries) == 1:
        return [run_table(next(iter(summaries.values())), quantities)]
    if not quantities:
        return [panel_table(summaries)]
    return [panel_table(summaries, name) for name in quantities]


def plot(
    folders: Runs,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file: .pdf, .png or .svg.")
    ],
    quantity: Annotated[
        str | None,
        typer.Option(help="What is drawn; test_accuracy or objective if absent."),
    ] = None,
    axis: Annotated[
        str, typer.Option(help="Horizontal axis: rounds, bytes, scalars or seconds.")
    ] = "rounds",
    width: Annotated[
        str, typer.Option(help="Inches, or column (3.25) or page (6.75).")
    ] = "",
) -> None:
    """Draw curves of one run, or of several side by side, into a file.

    One run is as wide as a column of a paper, several as wide as its page.
    """
    with one_line_errors():
        check_figure_path("--output", output)
        panels = _results(open_runs(folders))
        every = list(panels.values())
        names = [k for k in QUANTITIES if all(k in measured(r, [k]) for r in every)]
        chosen = quantity or next(k for k in (*OF_PANELS, *names) if k in names)
        if chosen not in names:
            raise invalid("--quantity", one_of(names, chosen), repr(chosen))
        axes = [
            a
            for a in available_axes(every[0])
            if all(a in available_axes(r) for r in every)
        ]
        if axis not in axes:
            raise invalid("--axis", one_of(axes, axis), repr(axis))
        over: Axis = next(a for a in axes if a == axis)
        inches = _inches(width or ("column" if len(every) == 1 else "page"))
        figure_curves(panels, chosen, output, axis=over, width=inches)
        typer.echo(f"wrote {output}")


def _inches(text: str) -> float:
    try:
        value = {"column": COLUMN, "page": PAGE}.get(text) or float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 40:
        raise invalid("--width", "column, page, or inches from 1 to 40", repr(text))
    return value


def _results(panels: list[Panel]) -> Mapping[str, Results]:
    return {name: _results_of(folder) for name, folder in panels}


def _results_of(folder: Folder) -> Results:
    """The results of a run, or those of its rounds so far."""
    results = folder.results if folder.is_done else read_partial_results(folder)
    if results is None:
        raise DataError(f"{folder.path} has no results yet: resume it")
    return results
