"""The commands put together."""

from typing import Annotated

import typer

from hewfl.cli.certify import certify
from hewfl.cli.data import data
from hewfl.cli.demo import demo
from hewfl.cli.listing import ls
from hewfl.cli.methods import methods
from hewfl.cli.paper import paper
from hewfl.cli.run import report, resume, run, spec, tune
from hewfl.cli.study import study
from hewfl.core import native
from hewfl.version import __version__

app = typer.Typer(
    help="Exact-weight aggregation for local SGD with unequal local work.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (demo, run, tune, resume, ls, methods, spec, report, paper, certify)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(study, name="study")


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
