"""`hewfl paper`: the paper's experiments and figures."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.markup import escape

from hewfl.cli.errors import one_line_errors
from hewfl.cli.run import ROOT, Chunk, Jobs, Root, chunked, go
from hewfl.errors import MissingExtraError
from hewfl.experiments.claims import Claim
from hewfl.experiments.claims_deep import judge_cnn, judge_head
from hewfl.experiments.figures import figure_1, figure_2
from hewfl.experiments.figures_deep import figure_3, figure_4, figure_5, figure_6
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
from hewfl.experiments.publish import (
    panels_of,
    publish_extended,
    publish_grid,
    publish_line,
)
from hewfl.experiments.report import write_report
from hewfl.experiments.results import Results
from hewfl.experiments.run import Folder, folder_for
from hewfl.experiments.spec import Spec, spec_from_table, spec_table

OUTPUT = Path("paper")
"""Where results go, each part of the paper in a folder of its own."""
QUICK = "-quick"
"""Behind the folder's name, so that a first look replaces no results."""


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


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One deep-learning line.

    Attributes:
        spec: makes its spec.
        draw: draws its two figures into a folder.
        judge: holds its claims against the results.
    """

    spec: Callable[[], Spec]
    draw: Callable[[Results, Path], None]
    judge: Callable[[Results], list[Claim]]


def _draw_head(results: Results, output: Path) -> None:
    figure_3(results, output / "figure3")
    figure_4(results, [HEW_PLAIN, HEW_CORRECTED, HEW_FIXED], output / "figure4")


def _draw_cnn(results: Results, output: Path) -> None:
    figure_5(results, output / "figure5")
    figure_6(results, ["FedAvg", HEW_PLAIN, HEW_CORRECTED], output / "figure6")


HEAD = Line(head_spec, _draw_head, judge_head)
CNN = Line(cnn_spec, _draw_cnn, judge_cnn)
LINES = {Figure.fig3: HEAD, Figure.fig4: HEAD, Figure.fig5: CNN, Figure.fig6: CNN}
PARTS = {
    Figure.fig1: "fig1",
    Figure.fig2: "fig2",
    Figure.all: "main",
    **dict.fromkeys((Figure.fig3, Figure.fig4), "head"),
    **dict.fromkeys((Figure.fig5, Figure.fig6), "cnn"),
    Figure.extended: "extended",
}
WANTED = {
    Figure.fig1: FIGURE_1,
    Figure.fig2: FIGURE_2,
    Figure.all: tuple(REGIMES),
    Figure.extended: tuple(REGIMES),
}


def paper(  # noqa: PLR0913 - the options of a command
    figure: Annotated[Figure, typer.Argument(help="Which part of the paper.")],
    *,
    root: Root = ROOT,
    jobs: Jobs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for figures and tables. If absent, in paper: fig1; fig2; main "
            "for all; head for fig3, fig4; cnn for fig5, fig6; extended; with -quick "
            "behind it under --quick.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="numpy, cpu or cuda; as in a spec.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--quick", help="Few samples, rounds and seeds.")
    ] = False,
    client_chunk: Chunk = None,
) -> None:
    """Run the paper's experiments and draw their figures.

    fig1 and fig2 run the panels they show; all is the main grid with a fourth regime;
    fig3 to fig6 are the deep-learning lines, which want a GPU; extended compares every
    method of the grid under outer momentum, with wider lists, and the adaptive rivals.

    Stopped at any time and called again, it goes on where it was.
    """
    console = Console()
    asked = {
        "--device": device,
        "--client-chunk": client_chunk,
        "--jobs": jobs,
        "--root": None if root == ROOT else root,
        "--output": output,
    }
    again = _command(figure, asked, small=small)
    output = output or OUTPUT / (PARTS[figure] + (QUICK if small else ""))
    with one_line_errors():
        if figure in LINES:
            line = LINES[figure]
            spec = chunked(_on(line.spec(), device), client_chunk)
            folder = folder_for(quick_deep(spec) if small else spec, root)
            require_extras(figure, spec)
            go([folder], jobs, console, again=again)
            claims = _publish_line(line, folder, output, small=small)
        else:
            make = extended_spec if figure == Figure.extended else main_spec
            folders: dict[tuple[str, str], Folder] = {}
            for data in DATA:
                for regime in WANTED[figure]:
                    spec = chunked(_on(make(data, regime), device), client_chunk)
                    spec = quick(spec) if small else spec
                    folders[data, regime] = folder_for(spec, root)
            require_extras(figure, spec)
            go(list(folders.values()), jobs, console, again=again)
            claims = _publish_grid(figure, folders, output, small=small)
    if claims:
        note = ", by a --quick run, which decides nothing" if small else ""
        console.print(f"\nthe paper's claims{note}", highlight=False)
    for claim in claims:
        told = f"  {escape(claim.statement)}: [bold]{claim.verdict}[/]"
        console.print(told, soft_wrap=True)
    console.print(f"figures and tables in {output}", highlight=False)


def require_extras(figure: Figure, spec: Spec) -> None:
    """Require what the runs and the figures need, before an hour is spent on them.

    Raises:
        MissingExtraError: matplotlib or PyTorch is not installed.
    """
    if figure != Figure.extended and find_spec("matplotlib") is None:
        raise MissingExtraError("figures need matplotlib: pip install 'hewfl[report]'")
    needs_torch = spec.problem.is_module or spec.device != "numpy"
    if needs_torch and find_spec("torch") is None:
        why = f"hewfl paper {figure.value}"
        why += "" if spec.problem.is_module else f" --device {spec.device}"
        raise MissingExtraError(f"{why} needs PyTorch: pip install 'hewfl[torch]'")


def _publish_line(
    line: Line, folder: Folder, output: Path, *, small: bool
) -> list[Claim]:
    """Both figures of a line, its tables and its page."""
    claims = publish_line(folder, output, line.judge, is_quick=small)
    (results,) = panels_of({("", ""): folder}).values()
    line.draw(results, output)
    write_report([folder], output / "report.html")
    return claims


def _publish_grid(
    figure: Figure,
    folders: dict[tuple[str, str], Folder],
    output: Path,
    *,
    small: bool,
) -> list[Claim]:
    """What was asked for of the grid: figures, tables and the page."""
    if figure == Figure.extended:
        publish_extended(folders, output, is_quick=small)
        claims = []
    else:
        claims = publish_grid(folders, output, is_quick=small)
    panels = panels_of(folders)
    if figure in (Figure.fig1, Figure.all):
        figure_1(panels, output / "figure1")
    if figure in (Figure.fig2, Figure.all):
        chosen = {key: value for key, value in panels.items() if key[1] in FIGURE_2}
        labels = {key: hew_of(key[1]) for key in chosen}
        figure_2(chosen, labels, output / "figure2")
    write_report(list(folders.values()), output / "report.html")
    return claims


def _command(figure: Figure, asked: Mapping[str, Any], *, small: bool) -> str:
    """The command that goes on with what was stopped."""
    words = ["hewfl", "paper", figure.value]
    words += ["--quick"] if small else []
    for option, value in asked.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def _on(spec: Spec, device: str | None) -> Spec:
    """The spec with its samples elsewhere; the name is checked as in a file."""
    if device is None:
        return spec
    return spec_from_table(spec_table(spec) | {"device": device})
