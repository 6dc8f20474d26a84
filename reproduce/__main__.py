"""`python -m reproduce`: the paper's experiments, and the studies beyond it."""

import typer

from reproduce.cli import paper, study

app = typer.Typer(
    help="The paper's experiments, and the studies beyond it.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(paper)
app.add_typer(study, name="study")


@app.callback()
def main() -> None:
    """Run the paper's experiments and our studies, and publish their results."""


if __name__ == "__main__":
    app(prog_name="python -m reproduce")
