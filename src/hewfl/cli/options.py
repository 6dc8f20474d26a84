"""Options of several commands, and their effect on a spec."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand

from hewfl.core.validation import invalid
from hewfl.experiments.spec import Spec, spec_from_table, spec_table

RUNS_DIR = Path("runs")
RunsDir = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=0, help="Worker processes; one per core if absent, 0 for none."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Do the work on a Dask cluster: its scheduler's address, as in "
        "tcp://host:8786, or file:scheduler.json.",
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        help="Send the rounds to tensorboard:FOLDER, wandb:PROJECT or mlflow:FOLDER. "
        "Repeatable.",
    ),
]
Chunk = Annotated[
    str | None,
    typer.Option(
        help='Largest number of module replicas stepped at once, or "auto" for as many '
        "as fit into memory. Sets problem.client_chunk."
    ),
]


def with_client_chunk(spec: Spec, chunk: str | None) -> Spec:
    """The spec with a limit on the module replicas stepped at once."""
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


def on_device(spec: Spec, device: str | None) -> Spec:
    """The spec on a device; the name is validated as in a file."""
    if device is None:
        return spec
    return spec_from_table(spec_table(spec) | {"device": device})


def command(words: Sequence[str], asked: Mapping[str, Any], *, small: bool) -> str:
    """The command that resumes: its words and the options that were given."""
    command_ = [*words, *(["--quick"] if small else [])]
    for option, value in asked.items():
        command_ += [] if value is None else [option, str(value)]
    return shlex.join(command_)


def cores(jobs: int | None) -> int:
    """The number of worker processes."""
    if jobs is not None:
        return jobs
    if sys.platform == "linux":  # a job may be given some of the cores only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


RENAMED = {
    "--root": "--runs-dir",
    "--every": "--interval",
    "--label": "--label-column",
    "--client": "--client-column",
    "--minimum": "--min-samples",
    "--per-client": "--classes-per-client",
}
"""Old options and the options to write instead."""


class Command(TyperCommand):
    """A command that refuses an old option and names the new one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look for old options of this command, then parse."""
        known = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            old = word.partition("=")[0]
            new = RENAMED.get(old)
            if new is None or old in known:
                continue
            if new in known or (ctx.ignore_unknown_options and old == "--root"):
                raise click.UsageError(f"{old} is now {new}", ctx)
            if self.name == "ls" and old == "--root":
                text = "--root no longer exists: the folder is an argument, as in "
                raise click.UsageError(f"{text}hewfl ls FOLDER", ctx)
        return super().parse_args(ctx, args)
