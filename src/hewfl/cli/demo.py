"""`hewfl demo`: a whole comparison on the built-in digits."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hewfl.cli.errors import one_line_errors
from hewfl.cli.execute import execute
from hewfl.cli.options import Jobs
from hewfl.experiments.figures import figure_run
from hewfl.experiments.folder import folder_for
from hewfl.experiments.report import write_report
from hewfl.paper.demo import demo_spec
from hewfl.paper.specs import HEW_CORRECTED as HEW


def demo(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for page and figures.")
    ] = Path("hewfl-demo"),
    jobs: Jobs = None,
) -> None:
    """Compare exact weights with fixed rules on handwritten digits.

    Twenty clients hold skewed shares and do 1, 2, 4 or 8 local steps each; every
    method is tuned on the same grid of step sizes and run for three seeds.
    """
    console = Console()
    console.print(f"[bold]hewfl demo[/]: {escape(str(demo.__doc__).splitlines()[0])}")
    with one_line_errors():
        folder = folder_for(demo_spec(), output / "runs")
        execute([folder], jobs, console)
        write_report([folder], output / "report.html")
        made = [output / "report.html"]
        if find_spec("matplotlib") is not None:
            figure_run(folder.results, output / "figure")
            made += [output / "figure.png", output / "figure.pdf"]
        summary = folder.summary
    if any(choice.at_edge for choice in folder.choices):
        console.print(
            "These are the paper's grids. Where the best value is at the edge, a wider "
            "grid changes the ranking: see docs/results/README.md.",
            soft_wrap=True,
        )
    for line in sentences(summary):
        console.print(line, highlight=False, soft_wrap=True)
    console.print("made " + ", ".join(map(str, made)), highlight=False)


def sentences(summary: dict[str, Any]) -> list[str]:
    """What the comparison says, with its intervals, and what the audit found."""
    lines = []
    for pair in summary["pairs"]:
        if pair["first"] == HEW and pair["quantity"] == "objective":
            mean, low, high = pair["mean"], pair["low"], pair["high"]
            told = ""
            if low is not None:  # both came through with two seeds or more
                told = f"{mean:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}: "
            start = f"objective of {HEW} less that of {pair['second']}"
            lines.append(f"{start}: {told}{pair['verdict']}")
    audits = [m["audit"] for m in summary["methods"] if m["audit"] is not None]
    checks = sum(audit["checks"] for audit in audits)
    violations = sum(audit["violations"] for audit in audits)
    lines.append(
        f"certificate of the exact weights checked with exact gradients in {checks} "
        f"rounds: {violations} violations"
    )
    return lines
