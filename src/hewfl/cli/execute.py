"""Execute runs with progress bars, and print their results."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import rich.table
import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hewfl.cli.options import cores
from hewfl.cli.progress import Bars
from hewfl.cli.run_list import progress_text
from hewfl.experiments.executor import Executor
from hewfl.experiments.run import run_all, tune_all
from hewfl.experiments.run_folder import Folder, holder_of
from hewfl.experiments.statistics import from_json, verdict_text
from hewfl.experiments.sweep import Panel
from hewfl.experiments.tables import Table, panel_table, run_table

MOST_PAIRS = 10
"""That the terminal shows; the report has all of them."""


def execute(
    folders: Sequence[Folder],
    jobs: int | None,
    console: Console,
    *,
    cluster: str | None = None,
    again: str | None = None,
    is_brief: bool = False,
) -> None:
    """Do the remaining work of runs, with progress bars, and print the results.

    Args:
        folders: the runs.
        jobs: processes.
        console: for the output.
        cluster: address of a scheduler whose workers do the work, None for none.
        again: the command that resumes after Ctrl-C; `hewfl resume` if absent.
        is_brief: leave out what tuning chose and the last rounds.
    """
    _print_resumed(folders, console)
    resumable = _resumable(folders, again, cluster)
    with resumable, _executor(cluster) as executor, Bars(console) as bars:
        run_all(folders, jobs=cores(jobs), progress=bars, cluster=executor)
    for folder in () if is_brief else folders:
        show_choices(folder, console)
        show_summary(folder, console)


def run_quietly(folders: Sequence[Folder], jobs: int | None, console: Console) -> None:
    """Do the remaining work of runs behind progress bars that disappear."""
    with _resumable(folders, "hewfl demo", None), Bars(console, transient=True) as bars:
        run_all(folders, jobs=cores(jobs), progress=bars)


def tune_one(
    folder: Folder, jobs: int | None, console: Console, *, cluster: str | None = None
) -> None:
    """Choose the hyper-parameters of a run, with progress bars, and print them."""
    if folder.tuned is None:
        _print_resumed([folder], console)
        resumable = _resumable([folder], None, cluster)
        with resumable, _executor(cluster) as executor, Bars(console) as bars:
            tune_all([folder], jobs=cores(jobs), progress=bars, cluster=executor)
    show_choices(folder, console)


def _executor(cluster: str | None) -> AbstractContextManager[Executor | None]:
    """The workers at an address; Dask is imported only with one."""
    if cluster is None:
        return nullcontext()
    from hewfl.experiments.dask_executor import cluster_at  # noqa: PLC0415 - as said

    return cluster_at(cluster)


def show_choices(folder: Folder, console: Console) -> None:
    """Print the choices of tuning, with a warning where one is at the end of a list."""
    for choice in folder.choices:
        values = ", ".join(f"{k} = {v}" for k, v in choice.parameters.items())
        edge = ", ".join(choice.at_edge)
        warning = f" [yellow]({edge} at the edge of its grid)[/]" if edge else ""
        if all(None in row["scores"] for row in choice.table):
            warning = " [red](every candidate diverged; try smaller steps)[/]"
        line = f"  {escape(choice.label)}: {escape(values)}{warning}"
        console.print(line, soft_wrap=True)


def execute_sweep(
    path: Path,
    panels: Sequence[Panel],
    jobs: int | None,
    console: Console,
    *,
    cluster: str | None = None,
) -> None:
    """Do the remaining work of a sweep, and print one table of its panels."""
    folders, name = [folder for _, folder in panels], shlex.quote(str(path))
    again = f"hewfl resume {name}" + (
        "" if cluster is None else f" --cluster {cluster}"
    )
    execute(folders, jobs, console, cluster=cluster, again=again, is_brief=True)
    print_table(panel_table({k: f.summary for k, f in panels}), console)
    console.print(f"in {path}", highlight=False, soft_wrap=True)
    _print_report(path, console)


def show_summary(folder: Folder, console: Console) -> None:
    """Print the last round of every method, mean and deviation over the seeds."""
    print_table(run_table(folder.summary), console)
    console.print(f"in {folder.path}", highlight=False)


def print_table(table: Table, console: Console) -> None:
    """Print a table of results; one that is too wide with rows for its columns."""
    shown = min(table, table.transposed, key=_width)
    table = table if _width(table) <= console.width else shown
    grid = rich.table.Table(
        title=escape(table.title), title_justify="left", box=SIMPLE_HEAD
    )
    for k, name in enumerate(table.head):
        lines = "\n".join(_lines(name))
        grid.add_column(escape(lines), justify="right" if k else "left", no_wrap=True)
    for i, row in enumerate(table.rows):
        styles = ["bold" if (i, j) in table.best else "" for j in range(len(row))]
        grid.add_row(*(Text(c, s) for c, s in zip(row, styles, strict=True)))
    if _width(table) > console.width:  # a narrow terminal breaks lines itself
        console = Console(file=console.file, width=_width(table))
    console.print(grid)
    if table.note:
        console.print(table.note, style="dim", highlight=False, soft_wrap=True)


def _width(table: Table) -> int:
    """The width of a table in a terminal."""
    columns = zip(map(_lines, table.head), *table.rows, strict=True)
    return 1 + sum(3 + max(map(cell_len, [*head, *cells])) for head, *cells in columns)


def _lines(name: str) -> list[str]:
    """The lines of a heading: the fields of a point of a sweep are below each other."""
    return name.split(", ")


def show_verdicts(folder: Folder, console: Console) -> None:
    """Print the pairs in the objective, what verdicts rest on, and what to do next."""
    lines = verdict_lines(folder.summary, "objective")
    if lines:
        about = "objective, paired by seed, 95 % intervals, Holm's correction:"
        console.print(about, highlight=False, soft_wrap=True)
    for line in lines[:MOST_PAIRS]:
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    if len(lines) > MOST_PAIRS:
        left = f"  and {len(lines) - MOST_PAIRS} pairs more, in summary.json"
        console.print(left, highlight=False)
    limits = [m["label"] for m in folder.summary["methods"] if m["is_limit"]]
    if limits:
        text = f"  {', '.join(limits)}: knows the truth, a limit without a verdict"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    _print_report(folder.path, console)


def _print_report(path: Path, console: Console) -> None:
    """Print the command that writes the page of a run or a sweep."""
    text = f"report: hewfl report {shlex.quote(str(path))} -o report.html"
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def verdict_lines(summary: Mapping[str, Any], quantity: str) -> list[str]:
    """A line for each pair of a summary in one quantity."""
    return [
        f"{p['first']} against {p['second']}: {verdict_text(from_json(p))}"
        for p in summary["pairs"]
        if p["quantity"] == quantity
    ]


def _print_resumed(folders: Sequence[Folder], console: Console) -> None:
    """Print which runs are resumed, and which were done before."""
    for folder in folders:
        is_new = not (folder.path / "spec.toml").exists()
        if is_new or holder_of(folder.path) is not None:  # the lock will say it
            continue
        far = "done before" if folder.is_done else f"resumed, {progress_text(folder)}"
        line = f"{folder.path}: {far}"
        console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _resumable(
    folders: Sequence[Folder], again: str | None, cluster: str | None
) -> Iterator[None]:
    """After Ctrl-C print the commands that resume the runs."""
    try:
        yield
    except KeyboardInterrupt as error:
        left = [f for f in folders if not f.is_done]
        begun = [f.path for f in left if (f.path / "spec.toml").exists()]
        where = "" if cluster is None else f" --cluster {cluster}"
        commands = [f"hewfl resume {path}{where}" for path in begun]
        if again is not None and left:
            commands = [again]
        for command in commands:
            typer.echo(f"stopped; resume with: {command}", err=True)
        if not commands:
            typer.echo("stopped", err=True)
        raise typer.Exit(130) from error
