"""The commands put together; the module of a command loads when it is called."""

from importlib import import_module
from typing import Annotated, Any, NamedTuple, final

import click
import typer
from typer.core import TyperGroup

from hewfl.version import __version__


class _Listed(NamedTuple):
    """A command in the list of `hewfl --help`: its module and a sentence."""

    module: str
    help: str


COMMANDS = {
    "demo": _Listed("demo", "Find clients with random labels; resist colluding ones."),
    "run": _Listed("run_commands", "Tune and run an experiment, or continue one."),
    "tune": _Listed("run_commands", "Choose the hyper-parameters that are grids."),
    "resume": _Listed("run_commands", "Continue a run that was stopped."),
    "ls": _Listed("run_list", "List the runs in a folder and their progress."),
    "table": _Listed("show_results", "Print a table of runs, also for a paper."),
    "plot": _Listed("show_results", "Draw curves of runs into a file."),
    "new": _Listed("new_study", "Write a study of your own to begin with."),
    "methods": _Listed("method_list", "List the methods for specs, or describe one."),
    "spec": _Listed("run_commands", "Print a spec with all fields and defaults."),
    "report": _Listed("run_commands", "Write a self-contained HTML page about runs."),
    "certify": _Listed("certify", "List the theorems that apply to a federation."),
    "data": _Listed("data_commands", "List, get, check and show data sets."),
    "paper": _Listed("reproduction", "Run the paper's experiments (in a checkout)."),
    "study": _Listed("reproduction", "Run studies beyond the paper (in a checkout)."),
}
PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@final
class _LateCommands(TyperGroup):
    """A group of commands that stand for their modules until one is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        stubs = {k: click.Command(k, help=v.help) for k, v in COMMANDS.items()}
        self.commands = stubs | dict(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in COMMANDS else command, rest


def _load(name: str) -> click.Command:
    """Import a command: a function, or a group of them."""
    listed = COMMANDS[name]
    value: Any = getattr(import_module(f"hewfl.cli.{listed.module}"), name)
    group = value
    if not isinstance(value, typer.Typer):
        from hewfl.cli.options import Command  # noqa: PLC0415 - slow to import

        group = typer.Typer(add_completion=False)
        settings = PASSED_ON if listed.module == "reproduction" else None
        group.command(name, cls=Command, context_settings=settings)(value)
    command: click.Command = typer.main.get_command(group)
    command.name = name
    return command


app = typer.Typer(
    cls=_LateCommands,
    help="Exact-weight aggregation for local SGD with unequal local work.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        version()
        raise typer.Exit
    return wanted


@app.callback()
def main(
    *,
    show: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Exact-weight aggregation for local SGD with unequal local work.

    `hewfl COMMAND --help` describes one command.
    """


@app.command()
def version() -> None:
    """Print the version and whether the compiled kernels are in use."""
    from hewfl.core import native  # noqa: PLC0415 - with the command

    kernels = "compiled kernels" if native.is_available() else "NumPy only"
    typer.echo(f"hewfl {__version__} ({kernels})")
