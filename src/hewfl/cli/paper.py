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
from hewfl.experiments.figures_deep import figure_3, figure_4, figure_5, figure_6
from hewfl.experiments.files import write_bytes
from hewfl.experiments.paper import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    HEW_CORRECTED,
    HEW_PLAIN,
    REGIMES,
    extended_spec,
    hew_of,
    main_spec,
    quick,
)
from hewfl.experiments.paper_deep import HEW_FIXED, cnn_spec, head_spec, quick_deep
from hewfl.experiments.publish import panels_of, publish
from hewfl.experiments.report import write_report
from hewfl.experiments.run import Folder, folder_for
from hewfl.experiments.spec import Spec, spec_from_table, spec_table


class Figure(StrEnum):
    """What to make."""

    fig1 = "fig1"
    fig2 = "fig2"
    fig3 = "fig3"
    fig4 = "fig4"
    fig5 = "fig5"
    fig6 = "fig6"
    all = "all"
    extended = "extended"


LINES = {
    Figure.fig3: head_spec,
    Figure.fig4: head_spec,
    Figure.fig5: cnn_spec,
    Figure.fig6: cnn_spec,
}
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
    device: Annotated[
        str | None, typer.Option(help="numpy, cpu or cuda; as in a spec.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--quick", help="Few samples, rounds and seeds.")
    ] = False,
) -> None:
    """Run the paper's experiments and draw their figures.

    fig1 and fig2 run the panels they show; all is the main grid with a fourth regime;
    fig3 to fig6 are the deep-learning lines, which want a GPU; extended compares every
    method of the grid under outer momentum, with wider lists, and the adaptive rivals.
    """
    console = Console()
    if figure in LINES:
        with one_line_errors():
            _line(figure, root, jobs, output, device, console, small=small)
        return
    make = extended_spec if figure == Figure.extended else main_spec
    with one_line_errors():
        folders: dict[tuple[str, str], Folder] = {}
        for data in DATA:
            for regime in WANTED[figure]:
                spec = _on(make(data, regime), device)
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


def _on(spec: Spec, device: str | None) -> Spec:
    """The spec with its samples elsewhere; the name is checked as in a file."""
    if device is None:
        return spec
    return spec_from_table(spec_table(spec) | {"device": device})


def _line(  # noqa: PLR0913 - the command's own options
    figure: Figure,
    root: Path,
    jobs: int | None,
    output: Path,
    device: str | None,
    console: Console,
    *,
    small: bool,
) -> None:
    """One deep-learning line: run it, draw both of its figures, write the page."""
    spec = _on(LINES[figure](), device)
    folder = folder_for(quick_deep(spec) if small else spec, root)
    go([folder], jobs, console)
    (results,) = panels_of({(spec.data.name, spec.name): folder}).values()
    if figure in (Figure.fig3, Figure.fig4):
        figure_3(results, output / "figure3")
        labels = [HEW_PLAIN, HEW_CORRECTED, HEW_FIXED]
        figure_4(results, labels, output / "figure4")
    else:
        figure_5(results, output / "figure5")
        figure_6(results, ["FedAvg", HEW_PLAIN, HEW_CORRECTED], output / "figure6")
    for name in ("summary.json", "tuned.toml", "tuning.json", "times.json"):
        kept = folder.path / name
        if kept.exists():
            write_bytes(output / name, kept.read_bytes())
    write_report([folder], output / "report.html")
    console.print(f"figures and page in {output}", highlight=False)
