"""`python -m reproduce`: the paper's experiments, our studies, and their publishing."""

import sys
from importlib import import_module

import typer

from reproduce.commands import paper, study

SCRIPTS = {
    "pieces": ("in_pieces", "Run parts of the paper and studies, by the clock."),
    "publish": ("publish_archives", "Publish finished runs from archives."),
    "same-digits": ("same_digits", "Compare a published folder with another one."),
    "control-audit": ("control_audit", "Study: Algorithm 1's certificate."),
    "server-steps": ("server_steps", "Study: averages, measured steps, momentum."),
    "measured-step": ("measured_step", "Study: measured steps against the truth."),
    "stock-apps": ("stock_apps", "Study: aggregators in three stock Flower apps."),
    "stock-worlds": (
        "stock_worlds",
        "Study: the default in stock apps, and all that hurts.",
    ),
    "size-lies": ("size_lies", "Study: how much a reported data size may count."),
    "torch-rules": ("torch_rules", "Study: aggregators in a job of unequal ranks."),
    "rules-table": ("rules_table", "Write the table of torch-rules into a page."),
}
"""Module and help of the commands with a `main` of their own."""

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


def _add_script(name: str, module: str, text: str) -> None:
    @app.command(
        name,
        help=text,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def run(context: typer.Context) -> None:
        sys.argv = [f"python -m reproduce {name}", *context.args]
        raise SystemExit(import_module(f"reproduce.{module}").main())


for _name, _about in SCRIPTS.items():
    _add_script(_name, *_about)


if __name__ == "__main__":
    app(prog_name="python -m reproduce")
