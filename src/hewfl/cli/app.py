"""The commands put together."""

from typing import Annotated

import typer

from hewfl.cli.certify import certify
from hewfl.cli.data_commands import data
from hewfl.cli.demo import demo
from hewfl.cli.method_list import methods
from hewfl.cli.options import Command
from hewfl.cli.reproduction import paper, study
from hewfl.cli.run_commands import report, resume, run, spec, tune
from hewfl.cli.run_list import ls
from hewfl.core import native
from hewfl.version import __version__

app = typer.Typer(
    help="Exact-weight aggregation for local SGD with unequal local work.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (demo, run, tune, resume, ls, methods, spec, report, certify)
for command in COMMANDS:
    app.command(cls=Command)(command)
PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}
for command in (paper, study):
    app.command(cls=Command, context_settings=PASSED_ON)(command)
app.add_typer(data, name="data")


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

    `hewfl COMMAND --help` tells all about one command.
    """


@app.command()
def version() -> None:
    """Print the version and whether the compiled kernels are in use."""
    kernels = "compiled kernels" if native.is_available() else "NumPy only"
    typer.echo(f"hewfl {__version__} ({kernels})")
