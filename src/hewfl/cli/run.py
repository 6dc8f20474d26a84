"""`hewfl run`, `tune`, `resume`, `ls`, `spec`, `report`: experiments from a file."""

import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hewfl.cli.errors import as_change, one_line_errors
from hewfl.cli.progress import Bars
from hewfl.core.checks import invalid
from hewfl.errors import DataError, HewError
from hewfl.experiments.files import read_json
from hewfl.experiments.idle import refuse_idle_fields
from hewfl.experiments.lock import holder_of
from hewfl.experiments.overrides import overridden
from hewfl.experiments.report import write_report
from hewfl.experiments.run import (
    Folder,
    folder_for,
    open_folder,
    rounds_done,
    run_all,
    tune_all,
)
from hewfl.experiments.spec import Spec, spec_from_table
from hewfl.experiments.summary import lost_seeds
from hewfl.experiments.template import template

ROOT = Path("runs")
COLUMNS = ("run", "data", "methods", "seeds", "rounds")
"""Of `hewfl ls`, before the state."""
STATE = 24
"""Least width of the state, the column that is wrapped; a narrower terminal cuts
lines itself."""
Root = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=0, help="Processes; one per core if absent, 0 for this one alone."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a field, as in --set clients.n=10. Repeatable."),
]
Chunk = Annotated[
    str | None,
    typer.Option(
        help='Most models of a module stepped at once: a number, or "auto" for as many '
        "as fit into memory. Sets problem.client_chunk."
    ),
]
File = Annotated[Path, typer.Argument(help="A spec in TOML; `hewfl spec` prints one.")]


def run(
    file: File,
    *,
    root: Root = ROOT,
    jobs: Jobs = None,
    change: Changes = None,
    client_chunk: Chunk = None,
) -> None:
    """Tune and run an experiment; one that was begun goes on where it stopped."""
    with one_line_errors(as_change):
        spec = chunked(read(file, change or []), client_chunk)
        go([folder_for(spec, root)], jobs, Console())


def tune(
    file: File,
    *,
    root: Root = ROOT,
    jobs: Jobs = None,
    change: Changes = None,
    client_chunk: Chunk = None,
) -> None:
    """Choose the hyper-parameters that a spec leaves open as grids, and stop there."""
    console = Console()
    with one_line_errors(as_change):
        spec = chunked(read(file, change or []), client_chunk)
        folder = folder_for(spec, root)
        if folder.tuned is None:
            _say_resumed([folder], console)
            with _resumable([folder], None), Bars(console) as bars:
                tune_all([folder], jobs=cores(jobs), progress=bars)
        show_choices(folder, console)
        if folder.spec.is_tuned:
            console.print("nothing to tune: no method of the spec has a grid")
        else:
            tuned = folder.path / "tuned.toml"
            console.print(f"chosen: {tuned}", highlight=False, soft_wrap=True)
            next_ = f"run it: hewfl resume {folder.path}"
            console.print(next_, highlight=False, soft_wrap=True)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    *,
    jobs: Jobs = None,
) -> None:
    """Go on with a run that was stopped."""
    with one_line_errors():
        go([open_folder(folder)], jobs, Console())


def ls(
    root: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = ROOT,
) -> None:
    """List the runs in a folder and how far they are.

    Specs, summaries, checkpoints' manifests and constants are read, traces are not.
    """
    with one_line_errors():
        if root != ROOT and not root.is_dir():
            raise invalid("root", "a folder that holds runs", repr(str(root)))
    rows = [_row(file.parent) for file in sorted(root.glob("*/spec.toml"))]
    if not rows:
        typer.echo(f"no runs in {root}")
        return
    table = Table(title=f"runs in {escape(str(root))}", title_justify="left")
    table.add_column("run", no_wrap=True)  # whole: `hewfl resume` wants it
    for name in COLUMNS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for cells, state in rows:
        table.add_row(*map(escape, cells), state)
    columns = zip(COLUMNS, *(cells for cells, _ in rows), strict=True)
    widths = [3 + max(map(cell_len, column)) for column in columns]
    console = Console()
    Console(width=max(console.width, sum(widths) + STATE)).print(table)


def spec() -> None:
    """Print a spec with every field, its default and what it means."""
    typer.echo(template(), nl=False)


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about finished runs."""
    with one_line_errors():
        if output.is_dir():
            raise invalid("--output", "a file", f"the folder {output}")
        runs = [open_folder(folder) for folder in folders]
        for folder in runs:
            if not folder.is_done:
                text = f"{folder.path} is not finished; hewfl resume {folder.path}"
                raise DataError(text)
        write_report(runs, output)
    typer.echo(f"wrote {output}")


# ------------------------------------------------------------------ shared


def read(file: Path, changes: Sequence[str]) -> Spec:
    """The spec in a file, with changes from the command line."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"cannot read the spec {file}: {error.strerror or error}"
        raise DataError(text) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"the spec {file} is not TOML: {error}") from error
    spec = spec_from_table(overridden(table, changes))
    refuse_idle_fields(spec)
    return spec


def chunked(spec: Spec, chunk: str | None) -> Spec:
    """The spec with at most so many models of a module stepped at once.

    Raises:
        InvalidInputError: neither "auto" nor at least 1, or the spec has no module.
    """
    if chunk is None:
        return spec
    if not spec.problem.is_module:
        rule = f'left out: problem.model = "{spec.problem.model}" does not use it'
        raise invalid("--client-chunk", rule, repr(chunk))
    if chunk == "auto":
        return replace(spec, problem=replace(spec.problem, client_chunk="auto"))
    if not chunk.isdecimal() or int(chunk) < 1:
        raise invalid("--client-chunk", '"auto" or at least 1', repr(chunk))
    return replace(spec, problem=replace(spec.problem, client_chunk=int(chunk)))


def go(
    folders: Sequence[Folder],
    jobs: int | None,
    console: Console,
    *,
    again: str | None = None,
) -> None:
    """Do what is left of runs, with bars, and show what came of them.

    Args:
        folders: the runs.
        jobs: processes.
        console: where to.
        again: the command that goes on after Ctrl-C; `hewfl resume` if absent.
    """
    _say_resumed(folders, console)
    with _resumable(folders, again), Bars(console) as bars:
        run_all(folders, jobs=cores(jobs), progress=bars)
    for folder in folders:
        show_choices(folder, console)
        show_summary(folder, console)


def cores(jobs: int | None) -> int:
    """The processes to use."""
    if jobs is not None:
        return jobs
    if sys.platform == "linux":  # a job may be given some of the cores only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def show_choices(folder: Folder, console: Console) -> None:
    """What tuning chose, with a warning where the best was at the end of a list."""
    for choice in folder.choices:
        values = ", ".join(f"{k} = {v}" for k, v in choice.parameters.items())
        edge = ", ".join(choice.at_edge)
        warning = f" [yellow]({edge} at the edge of its grid)[/]" if edge else ""
        if all(None in row["scores"] for row in choice.table):
            warning = (
                " [red](no candidate came through the trials; try smaller steps)[/]"
            )
        line = f"  {escape(choice.label)}: {escape(values)}{warning}"
        console.print(line, soft_wrap=True)


def show_summary(folder: Folder, console: Console) -> None:
    """The last round of every method, mean and deviation over the seeds."""
    summary = read_json(folder.path / "summary.json")
    rounds, seeds = summary["rounds"], len(summary["seeds"])
    title = f"{summary['name']}: after {rounds} rounds, {seeds} seeds"
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("method")
    columns = {
        "objective": "objective",
        "gap": "gap to F*",
        "test_accuracy": "test accuracy",
        "scalars": "numbers sent",
    }
    shown = [
        key for key in columns if any(key in m["final"] for m in summary["methods"])
    ]
    for key in shown:
        table.add_column(columns[key], justify="right", no_wrap=True)
    for method in summary["methods"]:
        cells = [_cell(key, method["final"].get(key)) for key in shown]
        table.add_row(escape(method["label"]), *cells)
    console.print(table)
    console.print(f"in {folder.path}", highlight=False)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if value["mean"] is None:
        return "diverged"
    if key == "scalars":
        return f"{value['mean']:,.0f}"
    spread = "" if value["std"] is None else f" ± {value['std']:.1g}"
    return f"{value['mean']:.4f}{spread}{lost_seeds(value)}"


def _row(path: Path) -> tuple[tuple[str, ...], str]:
    """A run's cells, and its state or what is wrong with it."""
    try:
        folder = open_folder(path)
        spec, state = folder.spec, _state(folder)
    except (HewError, OSError) as error:
        return (path.name, *("-",) * 4), f"[red]{escape(str(error))}[/]"
    numbers = (len(spec.methods), len(spec.seeds), spec.rounds)
    return (path.name, Path(spec.data.name).name, *map(str, numbers)), state


def _state(folder: Folder) -> str:
    """What is done of a run and who is at it.

    Raises:
        DataError: a file is damaged, of those that are quick to read.
    """
    for seed in folder.spec.seeds:
        read_json(folder.of_seed(seed) / "constants.json", missing=True)
    if folder.is_done:
        _how_far(folder)
        file = folder.path / "summary.json"
        summary = read_json(file)
        if not isinstance(summary, dict) or "methods" not in summary:
            raise DataError(f"{file} is damaged: it is no summary; delete it")
        return "[green]done[/]"
    holder = holder_of(folder.path)
    running = "" if holder is None else f", {escape(holder)} is at it"
    return _how_far(folder) + running


def _how_far(folder: Folder) -> str:
    """What is done of a run, in words."""
    if folder.tuned is None:
        how = folder.spec.tune
        total = len(how.seeds) + (len(how.screen_seeds) if how.screen_rounds else 0)
        done = sum(1 for _ in folder.trials.glob("*.json"))
        return f"to be tuned, {done} of {total} trials done" if done else "to be tuned"
    total = folder.spec.rounds * len(folder.spec.seeds)
    done = sum(rounds_done(folder.of_seed(seed)) for seed in folder.spec.seeds)
    return f"{100 * done // total} % of the rounds"


def _say_resumed(folders: Sequence[Folder], console: Console) -> None:
    """Say which runs are taken up where they were, and which need nothing more."""
    for folder in folders:
        is_new = not (folder.path / "spec.toml").exists()
        if is_new or holder_of(folder.path) is not None:  # the lock will say it
            continue
        far = "done before" if folder.is_done else f"going on, {_how_far(folder)}"
        line = f"{folder.path}: {far}"
        console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _resumable(folders: Sequence[Folder], again: str | None) -> Iterator[None]:
    """Ctrl-C leaves runs that can go on; say how."""
    try:
        yield
    except KeyboardInterrupt as error:
        left = [f for f in folders if not f.is_done]
        begun = [f.path for f in left if (f.path / "spec.toml").exists()]
        commands = [f"hewfl resume {path}" for path in begun]
        if again is not None and left:
            commands = [again]
        for command in commands:
            typer.echo(f"stopped; go on with: {command}", err=True)
        if not commands:
            typer.echo("stopped", err=True)
        raise typer.Exit(130) from error
