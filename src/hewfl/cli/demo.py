"""`hewfl demo`: two comparisons on the built-in digits, good clients and bad ones."""

from collections.abc import Sequence
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
from hewfl.experiments.results import Results
from hewfl.paper.demo import (
    KNOWS,
    TRUST,
    bad_demo_spec,
    bad_of,
    demo_spec,
    without_weight,
)
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
    method is tuned on the same grid of step sizes and run for three seeds. Then three
    of twenty have random labels, and nobody is told who.
    """
    console = Console()
    console.print(f"[bold]hewfl demo[/]: {escape(str(demo.__doc__).splitlines()[0])}")
    with one_line_errors():
        specs = (demo_spec(), bad_demo_spec())
        folders = [folder_for(spec, output / "runs") for spec in specs]
        execute(folders, jobs, console)
        write_report(folders, output / "report.html")
        made = [output / "report.html"]
        good, bad = folders
        if find_spec("matplotlib") is not None:
            figure_run(good.results, output / "figure")
            made += [output / "figure.png", output / "figure.pdf"]
        told = [*sentences(good.summary), *bad_sentences(bad.results, bad.summary)]
    if any(choice.at_edge for choice in good.choices):
        console.print(
            "The first grids are the paper's. Where the best value is at the edge, a "
            "wider grid changes the ranking: see docs/results/README.md.",
            soft_wrap=True,
        )
    for line in told:
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


def bad_sentences(results: Results, summary: dict[str, Any]) -> list[str]:
    """Who was bad, who was given no weight, and what it cost those who trust all."""
    final = {m["label"]: m["final"] for m in summary["methods"]}
    lines = [f"clients with random labels (first seed): {_names(bad_of(results))}"]
    for label in (TRUST, "FedAvg"):
        found = without_weight(results, label)
        lines.append(f"given no weight by {label}: {_names(found)}")
    shown = [
        f"{label} {mean:.3f}"
        for label in ("FedAvg", TRUST, KNOWS)
        if (mean := final[label].get("test_accuracy", {}).get("mean")) is not None
    ]
    lines.append(f"test accuracy with three bad clients: {', '.join(shown)}")
    return lines


def _names(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients)) if clients else "nobody"
