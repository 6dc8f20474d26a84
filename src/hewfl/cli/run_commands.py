"""`hewfl run`, `tune`, `resume`, `spec`, `report`: experiments from a file."""

import math
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hewfl.cli.error_messages import as_change, one_line_errors
from hewfl.cli.execute import execute, execute_sweep, show_verdicts, tune_one
from hewfl.cli.options import RUNS_DIR, Address, Chunk, Jobs, RunsDir, with_client_chunk
from hewfl.core.validation import invalid
from hewfl.experiments.run import complete_spec
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import template
from hewfl.experiments.sweep import is_sweep, open_runs, open_sweep, sweep_specs
from hewfl.report.page import write_report

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set a field, as in --set clients.n=10 or "
        "--set methods.FedAvg.learning_rate=0.1. Repeatable.",
    ),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        help="Run once for each value of a field, as in --sweep clients.alpha=0.1,1.0. "
        "Repeatable: all combinations.",
    ),
]
File = Annotated[Path, typer.Argument(help="A spec in TOML; `hewfl spec` prints one.")]


def run(  # noqa: PLR0913 - options of a command
    file: File,
    *,
    runs_dir: RunsDir = RUNS_DIR,
    jobs: Jobs = None,
    cluster: Address = None,
    overrides: Overrides = None,
    sweeps: Sweeps = None,
    client_chunk: Chunk = None,
) -> None:
    """Tune and run an experiment; resume it if it was begun."""
    console = Console()
    with one_line_errors(as_change):
        if sweeps:
            name, specs = sweep_specs(file, overrides or [], sweeps)
            specs = {k: with_client_chunk(s, client_chunk) for k, s in specs.items()}
            panels = open_sweep(runs_dir / name, specs)
            execute_sweep(runs_dir / name, panels, jobs, console, cluster=cluster)
        else:
            spec = with_client_chunk(complete_spec(file, overrides or []), client_chunk)
            folder = folder_for(spec, runs_dir)
            execute([folder], jobs, console, cluster=cluster)
            show_verdicts(folder, console)


def tune(
    file: File,
    *,
    runs_dir: RunsDir = RUNS_DIR,
    jobs: Jobs = None,
    cluster: Address = None,
    overrides: Overrides = None,
    client_chunk: Chunk = None,
) -> None:
    """Choose the hyper-parameters of a spec from its grids; run no seeds."""
    console = Console()
    with one_line_errors(as_change):
        spec = with_client_chunk(complete_spec(file, overrides or []), client_chunk)
        folder = folder_for(spec, runs_dir)
        tune_one(folder, jobs, console, cluster=cluster)
        if folder.spec.is_tuned:
            console.print("nothing to tune: no method of the spec has a grid")
        else:
            tuned = folder.path / "tuned.toml"
            console.print(f"chosen: {tuned}", highlight=False, soft_wrap=True)
            next_ = f"run it: hewfl resume {folder.path}"
            console.print(next_, highlight=False, soft_wrap=True)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a sweep.")],
    *,
    jobs: Jobs = None,
    cluster: Address = None,
) -> None:
    """Resume a run, or a sweep, that was stopped."""
    console = Console()
    with one_line_errors():
        panels = open_runs([folder])
        if is_sweep(folder):
            execute_sweep(folder, panels, jobs, console, cluster=cluster)
        else:
            execute([panels[0].folder], jobs, console, cluster=cluster)
            show_verdicts(panels[0].folder, console)


def spec() -> None:
    """Print a spec with every field, its default and its meaning."""
    # Bytes, as TOML is UTF-8 whatever the console is.
    typer.echo(template().encode(), nl=False)


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs or sweeps.")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The HTML file.")
    ] = Path("report.html"),
    target: Annotated[
        list[str] | None,
        typer.Option(help="Value to reach, as in test_accuracy=0.8. Repeatable."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Write the page again until the runs are done."),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two writes of --watch.")
    ] = 10.0,
) -> None:
    """Write one self-contained HTML page about runs, finished or not.

    The page of an unfinished run shows the rounds done so far. With --watch it is
    written again, and reloads itself, until the run is done.
    """
    with one_line_errors():
        if output.is_dir():
            raise invalid("--output", "a file", f"the folder {output}")
        targets = dict(map(parse_target, target or []))
        runs = [panel.folder for panel in open_runs(folders)]
        again = interval if watch else None
        is_done = write_report(runs, output, targets=targets, refresh=again)
        typer.echo(
            f"wrote {output}" + ("" if is_done else ", of the rounds done so far")
        )
        try:
            while watch and not is_done:
                time.sleep(interval)
                is_done = write_report(runs, output, targets=targets, refresh=again)
        except KeyboardInterrupt as error:
            typer.echo(f"stopped watching; {output} is as of now", err=True)
            raise typer.Exit(130) from error
    if watch:
        typer.echo("all runs are done")


def parse_target(text: str) -> tuple[str, float]:
    """A quantity and its target."""
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise invalid("--target", "a quantity and a number, as a=1", repr(text))
    return name, number
