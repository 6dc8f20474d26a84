"""`hewfl run`, `tune`, `resume`, `spec`, `report`: experiments from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hewfl.cli.errors import as_change, one_line_errors
from hewfl.cli.execute import execute, tune_one
from hewfl.cli.options import ROOT, Chunk, Jobs, Root, chunked
from hewfl.core.checks import invalid
from hewfl.errors import DataError
from hewfl.experiments.folder import folder_for, open_folder
from hewfl.experiments.overrides import overridden
from hewfl.experiments.report import write_report
from hewfl.experiments.spec import Spec, read_toml, spec_from_table
from hewfl.experiments.template import template
from hewfl.experiments.unused import refuse_unused_fields

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a field, as in --set clients.n=10. Repeatable."),
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
        execute([folder_for(spec, root)], jobs, Console(), verdicts=True)


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
        tune_one(folder, jobs, console)
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
        execute([open_folder(folder)], jobs, Console(), verdicts=True)


def spec() -> None:
    """Print a spec with every field, its default and what it means."""
    # Bytes, as TOML is UTF-8 whatever the console is.
    typer.echo(template().encode(), nl=False)


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


def read(file: Path, changes: Sequence[str]) -> Spec:
    """Read the spec in a file, with changes from the command line.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule, or has no effect.
    """
    spec = spec_from_table(overridden(read_toml(file), changes), file.parent)
    refuse_unused_fields(spec)
    return spec
