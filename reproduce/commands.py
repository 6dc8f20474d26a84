"""The commands `paper` and `study` of `python -m reproduce`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hewfl.cli.error_messages import one_line_errors
from hewfl.cli.execute import execute
from hewfl.cli.options import (
    RUNS_DIR,
    Address,
    Chunk,
    Jobs,
    RunsDir,
    command,
    cores,
    on_device,
    with_client_chunk,
)
from hewfl.core.validation import invalid
from hewfl.experiments.run_folder import folder_for
from reproduce.byzantine.byzantine_cells import (
    CELLS,
    GROUPS,
    HELD_OUT,
    HELD_OUT_CELLS,
    PANELS,
    SHARES,
    TRIAL,
)
from reproduce.byzantine.byzantine_scores import Scores
from reproduce.byzantine.cnn_tables import TABLES, Run, run_missing
from reproduce.byzantine.publish_byzantine import publish_byzantine
from reproduce.byzantine.stages import FRESH, FULL, QUICK_SIZES, Plan
from reproduce.byzantine.trials import read_trials, write_trials
from reproduce.curves_file import read_curves
from reproduce.parts import FOLDERS, Part, draw, publish, require_extras, specs_of
from reproduce.robustness.publish_robustness import finished_runs, publish_robustness
from reproduce.robustness.robustness_specs import Part as StudyPart
from reproduce.robustness.robustness_specs import robustness_specs

PROGRAM = ("python", "-m", "reproduce")
OUTPUT = Path("paper")
"""Where results go, each part of the paper in a folder of its own."""
QUICK = "-quick"
"""Behind the folder's name, so that a first look replaces no results."""


def paper(
    figure: Annotated[Part, typer.Argument(help="Which part of the paper.")],
    *,
    runs_dir: RunsDir = RUNS_DIR,
    jobs: Jobs = None,
    cluster: Address = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for figures and tables. If absent, in paper: fig1; fig2; main "
            "for all; head for fig3, fig4; cnn for fig5, fig6; wide; extended; with "
            "-quick behind it under --quick.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="numpy, cpu or cuda; as in a spec.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--quick", help="Few samples, rounds and seeds.")
    ] = False,
    client_chunk: Chunk = None,
    redraw: Annotated[
        bool,
        typer.Option(
            "--redraw", help="Draw anew from curves published in --output; run nothing."
        ),
    ] = False,
) -> None:
    """Run the paper's experiments and draw their figures.

    fig1 and fig2 run the panels they show; all is the main grid with a fourth regime;
    fig3 to fig6 are the deep-learning lines, which want a GPU; wide is the main grid
    with lists long enough to hold their best value; extended adds server momentum, the
    server's averaged model and the adaptive rivals.

    Stopped at any time and called again, it goes on where it was.
    """
    console = Console()
    asked = {
        "--device": device,
        "--client-chunk": client_chunk,
        "--jobs": jobs,
        "--cluster": cluster,
        "--runs-dir": None if runs_dir == RUNS_DIR else runs_dir,
        "--output": output,
    }
    again = command([*PROGRAM, "paper", figure.value], asked, small=small)
    output = output or OUTPUT / (FOLDERS[figure] + (QUICK if small else ""))
    if redraw:
        with one_line_errors():
            draw(figure, read_curves(output), output)
        console.print(f"figures in {output}", highlight=False)
        return
    with one_line_errors():
        specs = {
            key: with_client_chunk(on_device(spec, device), client_chunk)
            for key, spec in specs_of(figure, is_quick=small).items()
        }
        folders = {key: folder_for(spec, runs_dir) for key, spec in specs.items()}
        require_extras(figure, list(specs.values()))
        runs = list(folders.values())
        execute(runs, jobs, console, cluster=cluster, again=again)
        claims = publish(figure, folders, output, is_quick=small, jobs=cores(jobs))
    if small:
        trial = "a trial (--quick): it gives no verdicts"
        console.print(trial, highlight=False, soft_wrap=True)
    elif claims:
        console.print("\nthe paper's claims", highlight=False)
    for claim in () if small else claims:
        line = f"  {escape(claim.statement)}: [bold]{claim.verdict}[/]"
        console.print(line, soft_wrap=True)
    console.print(f"figures and tables in {output}", highlight=False)


study = typer.Typer(help="Studies beyond the paper.", no_args_is_help=True)
STUDY_OUTPUT = Path("studies/robustness")


@study.callback()
def main() -> None:
    """Studies beyond the paper."""


@study.command()
def robustness(
    part: Annotated[
        StudyPart | None, typer.Argument(help="One half of the study; both if absent.")
    ] = None,
    *,
    runs_dir: RunsDir = RUNS_DIR,
    jobs: Jobs = None,
    cluster: Address = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figure and tables.")
    ] = STUDY_OUTPUT,
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
    """Compare aggregators under faulty and Byzantine clients.

    MNIST and Covertype by softmax regression and a CNN on Fashion-MNIST, in scenarios
    with bad labels, bad updates and hidden batch sizes.

    Stopped at any time and called again, it goes on where it was.
    """
    console = Console()
    with one_line_errors():
        if not only_publish:
            specs = robustness_specs(part, is_quick=small).values()
            # the convex panels have kernels of the host
            there = [on_device(s, device) if s.problem.is_module else s for s in specs]
            folders = [folder_for(spec, runs_dir) for spec in there]
            asked = {
                "--runs-dir": runs_dir,
                "--jobs": jobs,
                "--cluster": cluster,
                "--device": device,
                "--output": output,
            }
            again = command(
                [*PROGRAM, "study", "robustness", *([part.value] if part else [])],
                asked,
                small=small,
            )
            execute(folders, jobs, console, cluster=cluster, again=again, is_brief=True)
        runs = finished_runs(runs_dir, is_quick=small)
        judged = publish_robustness(runs, output, is_quick=small)
    if small:
        trial = "a trial (--quick): it gives no verdicts"
        console.print(trial, highlight=False, soft_wrap=True)
    for verdict in () if small else judged:
        line = f"  {escape(verdict.statement)}: [bold]{verdict.answer}[/]"
        console.print(line, soft_wrap=True)
    console.print(f"figure, tables and verdicts in {output}", highlight=False)


@study.command()
def byzantine(
    *,
    panels: Annotated[
        list[str] | None,
        typer.Option("--panel", help=f"Only these: {', '.join(PANELS)}."),
    ] = None,
    attackers: Annotated[
        list[int] | None,
        typer.Option(help=f"Only these numbers: {', '.join(map(str, SHARES))}."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help=f"Only these rules: {', '.join(GROUPS)}."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for tables and figure.")
    ] = Path("studies/byzantine"),
    trials: Annotated[
        Path | None,
        typer.Option(help="File of all runs. If absent, trials.csv in the folder."),
    ] = None,
    small: Annotated[
        bool, typer.Option("--quick", help="Digits, few rounds, two seeds.")
    ] = False,
    only_publish: Annotated[
        bool, typer.Option("--publish", help="Run nothing; write what is done.")
    ] = False,
) -> None:
    """Compare aggregators under attackers that see everything and work together.

    MNIST and Covertype by softmax regression, 20 clients, every attack of the library
    with its searches. Every run is a line of the file of trials.

    Stopped at any time and called again, it goes on where it was, the most telling
    cells first.
    """
    console = Console()
    with one_line_errors():
        for option, given, all_of in (
            ("--panel", panels, PANELS),
            ("--group", groups, GROUPS),
        ):
            for name in given or ():
                if name not in all_of:
                    raise invalid(option, f"one of {', '.join(all_of)}", name)
        cells = (TRIAL,) if small else CELLS
        sizes = QUICK_SIZES if small else FULL
        file = trials or output / "trials.csv"
        known = read_trials(file)
        held_out = () if small else HELD_OUT_CELLS
        for cell in () if only_publish else (*cells, *held_out):
            if panels and cell.panel not in panels:
                continue
            if attackers and cell.f not in attackers:
                continue
            if groups and cell.group not in groups:
                continue
            title = f"{PANELS[cell.panel].title}, {cell.f} attackers, {cell.group}"
            console.print(title, highlight=False)
            Plan(cell, FRESH if cell.group == HELD_OUT else sizes, known).run(file)
        write_trials(known, file)
        fresh = Scores(known, FRESH, held_out)
        publish_byzantine(Scores(known, sizes, cells), output, fresh)
    console.print(f"figure and tables in {output}", highlight=False)


@study.command("byzantine-cnn")
def byzantine_cnn(
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", help=f"Only these: {', '.join(TABLES)}."),
    ] = None,
    attackers: Annotated[
        list[int] | None, typer.Option(help="Only these numbers of attackers.")
    ] = None,
    rules: Annotated[
        list[str] | None, typer.Option("--rule", help="Only these rules of a table.")
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="0, 1 and 2 if absent.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Steps; 0 for all of the published table.")
    ] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of cnn.csv.")
    ] = Path("studies/byzantine"),
) -> None:
    """Run two published tables of deep networks under attack, for our rules too.

    All rules and attacks of a table, a number of attackers and a seed are one stack of
    replicas. `study byzantine --publish` writes what is done beside the published
    values. Stopped at any time and called again, it goes on with the next stack.
    """
    console = Console()
    with one_line_errors():
        for name in tables or TABLES:
            if name not in TABLES:
                raise invalid("--table", f"one of {', '.join(TABLES)}", name)
            for rule in rules or ():
                if rule not in TABLES[name].rules:
                    known = ", ".join(TABLES[name].rules)
                    raise invalid("--rule", f"one of {known}", rule)
            for f in attackers or TABLES[name].attackers:
                for seed in seeds or (0, 1, 2):
                    title = f"{TABLES[name].title}, {f} attackers, seed {seed}"
                    console.print(title, highlight=False)
                    spec = Run(name, f, seed, rounds, tuple(rules or ()), device)
                    run_missing(spec, output / "cnn.csv")
    console.print(f"accuracies in {output / 'cnn.csv'}", highlight=False)
