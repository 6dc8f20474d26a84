"""Figures 1 and 2: the main grid."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.canvas import legend, plain_text, save
from hewfl.experiments.axes import Axis
from hewfl.experiments.curves import QUANTITIES, draw_curves
from hewfl.experiments.figures import draw_mass
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.styles import Style, styles_of
from hewfl.paper.claims import Panels
from hewfl.paper.specs import DATA, FIGURE_1, FIGURE_2, TITLES

NAMES = {"covertype": "Covertype", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


def figure_1(
    panels: Panels,
    path: Path,
    *,
    labels: Sequence[str] | None = None,
    axis: Axis = "scalars",
) -> tuple[Path, Path]:
    """Figure 1: what accuracy and training gap cost in scalars (fig:main-exp-grid).

    Columns are regimes: the paper's three, and heterogeneous data with equal horizons
    if it is given; for each data set a row of accuracies and one of gaps.

    Args:
        panels: results by data set and regime; a panel not given stays empty.
        path: of the files, without the ending.
        labels: methods to show; all by default.
        axis: what runs from left to right: scalars by our count or by the paper's,
            which sends Δc_i along (erratum E-17), or rounds.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    data = _in_order((d for d, _ in panels), DATA)
    regimes = _in_order((r for _, r in panels), (*FIGURE_1, "het-equal"))
    rows = [(d, q) for d in data for q in ("test_accuracy", "gap")]
    styles = _common_styles(panels)

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(rows), len(regimes), squeeze=False)
        for (d, quantity), row in zip(rows, grid, strict=True):
            for regime, axes in zip(regimes, row, strict=True):
                if (d, regime) not in panels:
                    _leave_empty(axes)
                    continue
                results = panels[d, regime]
                draw_curves(
                    axes, results, quantity, axis=axis, labels=labels, styles=styles
                )
            _label_outside(
                row, plain_text(f"{NAMES.get(d, d)}\n{QUANTITIES[quantity]}")
            )
        for regime, axes in zip(regimes, grid[0], strict=True):
            axes.set_title(TITLES.get(regime, regime))
        for axes in grid[:-1].flat:
            axes.set_xlabel("")
        legend(figure, grid.flat, columns=5 if len(regimes) > 2 else 3)

    return save(draw, (2.5 * len(regimes) + 0.4, 1.75 * len(rows) + 0.6), path)


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
