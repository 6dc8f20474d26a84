"""`hewfl paper`: the paper's experiments and figures."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hewfl.cli.errors import one_line_errors
from hewfl.cli.run import ROOT, Jobs, Root, go
from hewfl.experiments.figures import figure_1, figure_2
from hewfl.experiments.paper import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    REGIMES,
    extended_spec,
    hew_of,
    main_spec,
    quick,
)
from hewfl.experiments.publish import panels_of, publish
from hewfl.experiments.report import write_report
from hewfl.experiments.run import Folder, folder_for


class Figure(StrEnum):
    """What to make."""

    fig1 = "fig1"
    fig2 = "fig2"
    all = "all"
    extended = "extended"


WANTED = {
    Figure.fig1: FIGURE_1,
    Figure.fig2: FIGURE_2,
    Figure.all: tuple(REGIMES),
    Figure.extended: tuple(REGIMES),
}


def paper(
    figure: Annotated[Figure, typer.Argument(help="Which part of the paper.")],
    *,
    root: Root = ROOT,
    jobs: Jobs = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figures and tables.")
    ] = Path("paper"),
    small: Annotated[
        bool, typer.Option("--quick", help="Few samples, rounds and seeds.")
    ] = False,
) -> None:
    """Run the paper's main grid and draw its figures.

    fig1 and fig2 run the panels they show; all adds the fourth regime; extended
    compares every method under outer momentum, and the adaptive rivals.
    """
    console = Console()
    make = extended_spec if figure == Figure.extended else main_spec
    with one_line_errors():
        folders: dict[tuple[str, str], Folder] = {}
        for data in DATA:
            for regime in WANTED[figure]:
                spec = make(data, regime)
                folders[data, regime] = folder_for(quick(spec) if small else spec, root)
        go(list(folders.values()), jobs, console)
        claims = publish(folders, output)
        panels = panels_of(folders)
        if figure in (Figure.fig1, Figure.all):
            figure_1(panels, output / "figure1")
        if figure in (Figure.fig2, Figure.all):
            chosen = {key: value for key, value in panels.items() if key[1] in FIGURE_2}
            labels = {key: hew_of(key[1]) for key in chosen}
            figure_2(chosen, labels, output / "figure2")
        write_report(list(folders.values()), output / "report.html")
    if figure != Figure.extended:
        console.print("\nthe paper's claims")
        for claim in claims:
            console.print(f"  {escape(claim.statement)}: [bold]{claim.verdict}[/]")
    console.print(f"figures and tables in {output}", highlight=False)
