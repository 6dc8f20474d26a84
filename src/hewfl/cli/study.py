"""`hewfl study quality`: who survives which world."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hewfl.cli.errors import one_line_errors
from hewfl.cli.execute import execute
from hewfl.cli.options import ROOT, Address, Jobs, Root, command, on_device
from hewfl.experiments.folder import folder_for
from hewfl.paper.quality.publish import finished, publish_quality
from hewfl.paper.quality.specs import Part, quality_specs

study = typer.Typer(help="Studies beyond the paper.", no_args_is_help=True)
OUTPUT = Path("studies/quality")


@study.callback()
def main() -> None:
    """Studies beyond the paper."""


@study.command()
def quality(  # noqa: PLR0913 - the options of a command
    part: Annotated[
        Part | None, typer.Argument(help="One half of the study; both if absent.")
    ] = None,
    *,
    root: Root = ROOT,
    jobs: Jobs = None,
    cluster: Address = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figure and tables.")
    ] = OUTPUT,
    device: Annotated[
        str | None, typer.Option(help="Of the CNN: cpu or cuda; as in a spec.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--quick", help="Few samples, rounds and seeds.")
    ] = False,
    only_publish: Annotated[
        bool, typer.Option("--publish", help="Run nothing; write what is done.")
    ] = False,
) -> None:
    """Compare rules where clients are not what they seem.

    MNIST and Covertype by softmax regression and a CNN on Fashion-MNIST, in worlds with
    bad labels, bad updates and hidden batch sizes: who survives which.

    Stopped at any time and called again, it goes on where it was.
    """
    console = Console()
    with one_line_errors():
        if not only_publish:
            specs = quality_specs(part, is_quick=small).values()
            # the convex panels have kernels of the host
            there = [on_device(s, device) if s.problem.is_module else s for s in specs]
            folders = [folder_for(spec, root) for spec in there]
            asked = {
                "--root": root,
                "--jobs": jobs,
                "--cluster": cluster,
                "--device": device,
                "--output": output,
            }
            again = command(
                ["hewfl", "study", "quality", *([part.value] if part else [])],
                asked,
                small=small,
            )
            execute(folders, jobs, console, cluster=cluster, again=again, is_brief=True)
        judged = publish_quality(finished(root, is_quick=small), output)
    for verdict in judged:
        told = f"  {escape(verdict.statement)}: [bold]{verdict.answer}[/]"
        console.print(told, soft_wrap=True)
    console.print(f"figure, tables and verdicts in {output}", highlight=False)
