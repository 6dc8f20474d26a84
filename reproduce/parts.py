"""Parts of the paper that can be made: their runs, figures, tables and claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import final

from hewfl.errors import MissingExtraError
from hewfl.experiments.executor import Task, execute
from hewfl.experiments.results import Results
from hewfl.experiments.run_folder import Folder
from hewfl.experiments.spec import Spec
from hewfl.report.page import write_report
from reproduce.claims import Claim, Panels, judge_cnn, judge_head
from reproduce.figures import draw_cnn, draw_head, figure_1, figure_2
from reproduce.publish import (
    Key,
    panels_of,
    publish_deep,
    publish_extended,
    publish_grid,
)
from reproduce.specs import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    REGIMES,
    cnn_spec,
    extended_spec,
    head_spec,
    hew_of,
    main_spec,
    quick,
    quick_deep,
    wide_spec,
)


class Part(StrEnum):
    """What can be made."""

    fig1 = "fig1"
    fig2 = "fig2"
    fig3 = "fig3"
    fig4 = "fig4"
    fig5 = "fig5"
    fig6 = "fig6"
    all = "all"
    wide = "wide"
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


HEAD = Line(head_spec, draw_head, judge_head)
CNN = Line(cnn_spec, draw_cnn, judge_cnn)
LINES = {Part.fig3: HEAD, Part.fig4: HEAD, Part.fig5: CNN, Part.fig6: CNN}
FOLDERS = {
    Part.fig1: "fig1",
    Part.fig2: "fig2",
    Part.all: "main",
    **dict.fromkeys((Part.fig3, Part.fig4), "head"),
    **dict.fromkeys((Part.fig5, Part.fig6), "cnn"),
    Part.wide: "wide",
    Part.extended: "extended",
}
"""Where each part goes; figures of one line go together."""
WANTED = {
    Part.fig1: FIGURE_1,
    Part.fig2: FIGURE_2,
    Part.all: tuple(REGIMES),
    Part.wide: tuple(REGIMES),
    Part.extended: tuple(REGIMES),
}
"""Regimes of each part of the grid."""
MADE = {Part.wide: wide_spec, Part.extended: extended_spec}
"""What makes the panels of a part that are not those of the paper."""


def specs_of(part: Part, *, is_quick: bool) -> dict[Key, Spec]:
    """The specs of a part, by data set and regime; a deep-learning line has one."""
    if part in LINES:
        spec = LINES[part].spec()
        key = (spec.data.name, spec.name)
        return {key: quick_deep(spec) if is_quick else spec}
    make = MADE.get(part, main_spec)
    specs = {(data, r): make(data, r) for data in DATA for r in WANTED[part]}
    return {key: quick(spec) if is_quick else spec for key, spec in specs.items()}


def require_extras(part: Part, specs: Sequence[Spec]) -> None:
    """Require what the runs and the figures need, before an hour is spent on them.

    Raises:
        MissingExtraError: matplotlib or PyTorch is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("figures need matplotlib: install hewfl's extra report")
    (spec, *_) = specs
    needs_torch = spec.problem.is_module or spec.device != "numpy"
    if needs_torch and find_spec("torch") is None:
        why = f"python -m reproduce paper {part.value}"
        why += "" if spec.problem.is_module else f" --device {spec.device}"
        raise MissingExtraError(f"{why} needs PyTorch: install hewfl's extra torch")


def publish(
    part: Part,
    folders: Mapping[Key, Folder],
    output: Path,
    *,
    is_quick: bool,
    jobs: int = 0,
) -> list[Claim]:
    """Write the figures, the tables and the page of a part whose runs are done.

    Args:
        part: what to make.
        folders: its runs, by data set and regime.
        output: folder to write to.
        is_quick: whether the runs are a first look.
        jobs: processes; 0 for none but this one.

    Returns:
        The paper's claims about it, judged.

    Raises:
        DataError: files of a run are missing or damaged.
        MissingExtraError: matplotlib is not installed.
    """
    given, names = (part, dict(folders), output), list(_drawings(part))
    tasks = [  # of about one length; the page, which is short, comes last
        Task("figures", "tables", 1, _tables, (*given, names[1::2], is_quick)),
        Task("figures", "figures", 1, _figures, (*given, names[::2])),
        Task("figures", "page", 1, _page, given[1:]),
    ]
    claims: list[Claim]
    claims, *_ = execute(tasks, jobs=jobs, report=lambda *_: None)
    return claims


def draw(part: Part, panels: Panels, output: Path) -> None:
    """Draw the figures of a part into a folder.

    Args:
        part: what to make.
        panels: its results, by data set and regime; of runs or of published curves.
        output: folder to write to.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    for drawn in _drawings(part).values():
        drawn(panels, output)


def _drawings(part: Part) -> dict[str, Callable[[Panels, Path], object]]:
    """What draws each figure of a part."""
    if part in LINES:
        line = LINES[part]
        return {"line": lambda panels, to: line.draw(next(iter(panels.values())), to)}
    drawings: dict[str, Callable[[Panels, Path], object]] = {}
    if part != Part.fig2:
        drawings["1"] = lambda panels, to: figure_1(panels, to / "figure1")
    if part in (Part.fig1, Part.all):
        drawings["1, the paper's count"] = lambda panels, to: figure_1(
            panels, to / "figure1_paper_count", axis="paper_scalars"
        )
    if part in (Part.fig2, Part.all):
        drawings["2"] = _draw_weights
    return drawings


def _draw_weights(panels: Panels, output: Path) -> None:
    chosen = {key: value for key, value in panels.items() if key[1] in FIGURE_2}
    labels = {key: hew_of(key[1]) for key in chosen}
    figure_2(chosen, labels, output / "figure2")


# ------------------ in a worker


def _tables(
    part: Part,
    folders: Mapping[Key, Folder],
    output: Path,
    names: Sequence[str],
    is_quick: bool,
    on_step: Callable[[int], None],
) -> list[Claim]:
    """Write the tables and some figures; return the claims, judged."""
    panels, claims = panels_of(folders), list[Claim]()
    if part in LINES:
        (folder,) = folders.values()
        judge = LINES[part].judge
        claims = publish_deep(folder, output, judge, is_quick=is_quick)
    elif part in MADE:
        publish_extended(folders, panels, output, is_quick=is_quick)
    else:
        claims = publish_grid(folders, panels, output, is_quick=is_quick)
    for name in names:
        _drawings(part)[name](panels, output)
    on_step(1)
    return claims


def _figures(
    part: Part,
    folders: Mapping[Key, Folder],
    output: Path,
    names: Sequence[str],
    on_step: Callable[[int], None],
) -> None:
    panels = panels_of(folders)
    for name in names:
        _drawings(part)[name](panels, output)
    on_step(1)


def _page(
    folders: Mapping[Key, Folder], output: Path, on_step: Callable[[int], None]
) -> None:
    write_report(list(folders.values()), output / "report.html")
    on_step(1)
