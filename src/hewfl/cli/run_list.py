"""`hewfl ls`: the runs in a folder and their progress."""

from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.options import RUNS_DIR
from hewfl.core.atomic import read_json
from hewfl.core.validation import invalid
from hewfl.errors import HewError
from hewfl.experiments.run import rounds_done
from hewfl.experiments.run_folder import Folder, holder_of, open_folder, verify
from hewfl.experiments.sweep import SWEEP
from hewfl.experiments.user_code import check_user_files

COLUMNS = ("run", "data", "methods", "seeds", "rounds")
"""Of `hewfl ls`, before the state."""
STATE = 24
"""Least width of the state, the column that is wrapped; a narrower terminal cuts
lines itself."""


def ls(
    runs_dir: Annotated[
        Path, typer.Argument(help="Folder that holds runs.")
    ] = RUNS_DIR,
) -> None:
    """List the runs in a folder and their progress.

    Files of finished runs are compared with their checksums, as `hewfl resume` does.
    """
    with one_line_errors():
        if runs_dir != RUNS_DIR and not runs_dir.is_dir():
            raise invalid("runs_dir", "a folder that holds runs", repr(str(runs_dir)))
    files = [*runs_dir.glob("*/spec.toml")]  # and the runs of sweeps:
    files += [
        f for s in runs_dir.glob(f"*/{SWEEP}") for f in s.parent.glob("*/spec.toml")
    ]
    rows = [_row(file.parent, runs_dir) for file in sorted(files)]
    if not rows:
        typer.echo(f"no runs in {runs_dir}")
        return
    table = Table(title=f"runs in {escape(str(runs_dir))}", title_justify="left")
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


def _row(path: Path, runs_dir: Path) -> tuple[tuple[str, ...], str]:
    """A run's cells, and its state or its error."""
    name = path.relative_to(runs_dir).as_posix()
    try:
        folder = open_folder(path)
        spec, state = folder.spec, _state(folder)
    except (HewError, OSError) as error:
        return (name, *("-",) * 4), f"[red]{escape(str(error))}[/]"
    numbers = (len(spec.methods), len(spec.seeds), spec.rounds)
    return (name, Path(spec.data.name).name, *map(str, numbers)), state


def _state(folder: Folder) -> str:
    """The progress of a run and the process that works on it."""
    holder = holder_of(folder.path)
    running = "" if holder is None else f", {escape(holder)} works on it"
    if not folder.spec.is_record:
        verify(folder.path, remakes="results")
    if folder.is_whole or (folder.is_done and holder is not None):
        return f"[green]done[/]{running}"
    if not folder.spec.is_record and not folder.has_results:
        check_user_files(folder.path, folder.spec, asks_hub=False)
    for seed in folder.spec.seeds:
        read_json(folder.of_seed(seed) / "constants.json", missing=True)
    progress = progress_text(folder)  # raises if a checkpoint is damaged
    if folder.is_done:
        return "results are there, other files are missing: resume it"
    return progress + running


def progress_text(folder: Folder) -> str:
    """The progress of a run, in words."""
    if folder.tuned is None:
        how = folder.spec.tune
        total = len(how.seeds) + (len(how.screen_seeds) if how.screen_rounds else 0)
        done = sum(1 for _ in folder.trials.glob("*.json"))
        of = "" if how.local_search else f" of {total}"  # not known in advance
        return f"to be tuned, {done}{of} trials done" if done else "to be tuned"
    total = folder.spec.rounds * len(folder.spec.seeds)
    done = sum(rounds_done(folder.of_seed(seed)) for seed in folder.spec.seeds)
    return f"{100 * done // total} % of the rounds"
