"""The commands put together."""

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
)
COMMANDS = (demo, run, tune, resume, ls, methods, spec, report, paper, certify)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(study, name="study")


@app.callback()
def main() -> None:
    """Exact-weight aggregation for local SGD with unequal local work."""


@app.command()
def version() -> None:
    """Print the version and whether the compiled kernels are in use."""
    kernels = "compiled kernels" if native.is_available() else "NumPy only"
    typer.echo(f"hewfl {__version__} ({kernels})")
