"""Figures 1 and 2: the main grid."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.canvas import legend, plain_text, save
from hewfl.experiments.axes import Axis
from hewfl.experiments.curves import QUANTITIES, draw_curves, draw_difference, leaders
from hewfl.experiments.figures import draw_mass
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.results import Results
from hewfl.experiments.styles import Style, styles_of
from hewfl.paper.claims import Panels
from hewfl.paper.specs import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    TITLES,
    hew_of,
)

NAMES = {"covertype": "Covertype", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


def figure_1(
    panels: Panels, path: Path, *, axis: Axis = "scalars"
) -> tuple[Path, Path]:
    """Figure 1: what accuracy and training gap cost in scalars (fig:main-exp-grid).

    Columns are regimes: the paper's three, and heterogeneous data with equal horizons
    if it is given. Each data set has a row of accuracies, one of gaps, and one of
    differences: HEW less its best rival, with 95 % paired intervals. These two have
    bands and names; the others are thin lines.

    Args:
        panels: results by data set and regime; a panel not given stays empty.
        path: of the files, without the ending.
        axis: what runs from left to right: scalars by our count or by the paper's,
            which sends Δc_i along (erratum E-17), or rounds.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    data = _in_order((d for d, _ in panels), DATA)
    regimes = _in_order((r for _, r in panels), (*FIGURE_1, "het-equal"))
    kinds = ("test_accuracy", "gap", "difference")
    rows = [(d, kind) for d in data for kind in kinds]
    styles = _common_styles(panels)
    focus = {key: _focus(results, hew_of(key[1])) for key, results in panels.items()}

    def draw(figure: Any) -> None:
        heights = [0.72 if kind == "difference" else 1.0 for _, kind in rows]
        shape = {"squeeze": False, "height_ratios": heights}
        grid = figure.subplots(len(rows), len(regimes), **shape)
        for (d, kind), row in zip(rows, grid, strict=True):
            for regime, axes in zip(regimes, row, strict=True):
                if (d, regime) not in panels:
                    _leave_empty(axes)
                    continue
                found, chosen = panels[d, regime], focus[d, regime]
                _draw_panel(axes, found, (kind, axis), chosen, styles)
            name = QUANTITIES.get(kind, "objective of HEW\nless best rival's")
            _label_outside(row, plain_text(f"{NAMES.get(d, d)}\n{name}"))
        for regime, axes in zip(regimes, grid[0], strict=True):
            axes.set_title(TITLES.get(regime, regime))
        for axes in grid[:-1].flat:
            axes.set_xlabel("")
        legend(figure, grid.flat, columns=5 if len(regimes) > 2 else 3)

    return save(draw, (2.5 * len(regimes) + 0.4, 1.62 * len(rows) + 0.6), path)


def _draw_panel(
    axes: Any,
    results: Results,
    what: tuple[str, Axis],
    focus: Sequence[str],
    styles: Mapping[str, Style],
) -> None:
    """One panel: curves of all methods, or HEW less its best rival."""
    kind, axis = what
    if kind != "difference":
        quantity = results.judged(focus[0], kind)
        draw_curves(axes, results, quantity, axis=axis, styles=styles, focus=focus)
    elif len(focus) == 2:
        pair, ink = (focus[0], focus[1]), styles[focus[0]].ink
        draw_difference(axes, results, pair, "objective", axis=axis, ink=ink)
        axes.set_title(plain_text(f"less {focus[1]}"), fontsize=6.5, pad=2)


def _focus(results: Results, hew: str) -> list[str]:
    """The algorithm that stands for HEW, and the best rival by the last objective."""
    own, *rivals = leaders(results, "objective")
    return [hew if hew in results.labels else own, *rivals]


def figure_2(
    panels: Panels, labels: Mapping[tuple[str, str], str], path: Path
) -> tuple[Path, Path]:
    """Figure 2: final weights of HEW by horizon (fig:hew-weight-mass).

    Bars are means over seeds, points single seeds, and black marks what weights equal
    for all clients would give.

    Args:
        panels: results by data set and regime.
        labels: which method stands for HEW in each panel.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    data = _in_order((d for d, _ in panels), DATA)
    regimes = _in_order((r for _, r in panels), FIGURE_2)
    keys = [(d, r) for d in data for r in regimes if (d, r) in panels]
    styles = _common_styles(panels)

    def draw(figure: Any) -> None:
        row = figure.subplots(1, len(keys), squeeze=False, sharey=True)[0]
        for (d, regime), axes in zip(keys, row, strict=True):
            label = labels[d, regime]
            draw_mass(axes, panels[d, regime], label, styles[label].ink)
            title = TITLES.get(regime, regime)
            axes.set_title(plain_text(f"{NAMES.get(d, d)}\n{title}\n{label}"))
        row[0].set(ylabel="weight, last round", ylim=(0, None))
        legend(figure, row[:1], columns=3)

    return save(draw, (1.9 * len(keys) + 0.5, 2.7), path)


def _label_outside(row: Any, text: str) -> None:
    for axes in row:
        axes.set_ylabel("")
    row[0].set_ylabel(text)


def _leave_empty(axes: Any) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no run", ha="center", color="gray", transform=axes.transAxes)


def _common_styles(panels: Panels) -> dict[str, Style]:
    methods: dict[str, MethodSpec] = {}
    for results in panels.values():
        methods |= {m.label: m for m in results.spec.methods if m.label not in methods}
    return styles_of(tuple(methods.values()))


def _in_order(given: Iterable[str], known: Sequence[str]) -> list[str]:
    """What is given, each once, in a known order; the unknown come last."""
    names = list(dict.fromkeys(given))
    return [*(k for k in known if k in names), *(k for k in names if k not in known)]
