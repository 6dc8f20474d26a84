"""The paper's figures: 1 and 2 of the main grid, 3 to 6 of the deep-learning lines."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.plots import (
    QUANTITIES,
    Style,
    draw_curves,
    draw_difference,
    draw_mass,
    styles_of,
)
from hewfl.experiments.results import LARGER_IS_BETTER, Axis, Results
from hewfl.experiments.statistics import final_values
from hewfl.plotting import legend, plain_text, save
from reproduce.claims import ACCURACY, HEW, HEW_FIXED, LOSS, Panels
from reproduce.specs import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    TITLES,
    hew_of,
)

EXACT = ("HewHom", "HewHet", "exact", "HewControl")
"""The methods with exact weights."""
NAMES = {"covertype": "Covertype", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


def figure_1(
    panels: Panels, path: Path, *, axis: Axis = "scalars"
) -> tuple[Path, Path]:
    """Figure 1: what accuracy and training gap cost in scalars (fig:main-exp-grid).

    Columns are regimes: the paper's three, and heterogeneous data with equal horizons
    if it is given. Each data set has a row of accuracies, one of gaps, and one of
    ratios: HEW over its best rival, with 95 % paired intervals. These two have
    thick lines and bands; the others are thin lines.

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
                results, chosen = panels[d, regime], focus[d, regime]
                _draw_panel(axes, results, (kind, axis), chosen, styles)
            name = QUANTITIES.get(kind, "objective of HEW\nover best rival's")
            _label_outside(row, plain_text(f"{NAMES.get(d, d)}\n{name}"))
        for regime, axes in zip(regimes, grid[0], strict=True):
            axes.set_title(TITLES.get(regime, regime))
        for axes in grid[:-1].flat:
            axes.set_xlabel("")
        legend(figure, grid.flat, columns=6)

    return save(draw, (2.5 * len(regimes) + 0.4, 1.62 * len(rows)), path)


def _draw_panel(
    axes: Any,
    results: Results,
    what: tuple[str, Axis],
    focus: Sequence[str],
    styles: Mapping[str, Style],
) -> None:
    """One panel: curves of all methods, or HEW over its best rival."""
    kind, axis = what
    if kind != "difference":
        quantity = results.evaluated_quantity(focus[0], kind)
        draw_curves(axes, results, quantity, axis=axis, styles=styles, focus=focus)
    elif len(focus) == 2:
        pair, ink = (focus[0], focus[1]), styles[focus[0]].ink
        draw_difference(axes, results, pair, "objective", axis=axis, ink=ink)
        axes.set_title(plain_text(f"over {focus[1]}"), fontsize=6.5, pad=2)


def _focus(results: Results, hew: str) -> list[str]:
    """The algorithm that stands for HEW, and the best rival by the last objective."""
    first, *rivals = _leaders(results, "objective")
    return [hew if hew in results.labels else first, *rivals]


def _leaders(results: Results, quantity: str) -> list[str]:
    """The best method with exact weights and the best without, by their last means."""
    exact = {m.label for m in results.spec.methods if m.method in EXACT}
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    ends = {k: sign * final_values(results, k, quantity).mean() for k in results.labels}
    ends = {k: end for k, end in ends.items() if np.isfinite(end)}
    sides = ([k for k in ends if (k in exact) is own] for own in (True, False))
    return [min(side, key=ends.__getitem__) for side in sides if side]


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


def draw_head(results: Results, output: Path) -> None:
    """Figures 3 and 4 in a folder."""
    figure_3(results, output / "figure3")
    shown = [label for label in (*HEW, HEW_FIXED) if label in results.labels]
    figure_4(results, shown, output / "figure4")


def draw_cnn(results: Results, output: Path) -> None:
    """Figures 5 and 6 in a folder."""
    figure_5(results, output / "figure5")
    shown = [label for label in ("FedAvg", *HEW) if label in results.labels]
    figure_6(results, shown, output / "figure6")


def figure_3(results: Results, path: Path) -> tuple[Path, Path]:
    """Validation and test accuracy by scalars sent (fig:distilbert_head_only_acc).

    Below, HEW less its best rival, with 95 % paired intervals over the seeds.
    """

    def draw(figure: Any) -> None:
        grid = figure.subplots(2, 2, height_ratios=[1.0, 0.6])
        _accuracies(grid, results)
        legend(figure, grid[0][:1], columns=4)

    return save(draw, (6.6, 3.8), path)


def figure_4(results: Results, labels: Sequence[str], path: Path) -> tuple[Path, Path]:
    """Final weight by realised steps (fig:distilbert_head_only_weights)."""

    def draw(figure: Any) -> None:
        _masses(figure.subplots(1, len(labels), squeeze=False)[0], results, labels)

    return save(draw, (2.6 * len(labels), 2.4), path)


def figure_5(results: Results, path: Path) -> tuple[Path, Path]:
    """Accuracy by scalars sent, and over seeds at the end (fig:medium_cnn_hew_acc).

    Between them, HEW less its best rival, with 95 % paired intervals over the seeds.
    """

    def draw(figure: Any) -> None:
        grid = figure.subplots(3, 2, height_ratios=[1.0, 0.6, 0.8])
        _accuracies(grid, results)
        for axes, quantity in zip(grid[2], ACCURACY, strict=True):
            values = [results.final(label, quantity) for label in results.labels]
            ink = {"color": "black", "linewidth": 1.0}
            axes.boxplot(values, tick_labels=results.labels, medianprops=ink)
            axes.tick_params(axis="x", labelrotation=30)
            axes.set_ylabel(f"final {quantity.replace('_', ' ')}")
        legend(figure, grid[0][:1], columns=4)

    return save(draw, (6.6, 5.8), path)


def _accuracies(grid: Any, results: Results) -> None:
    """A row of accuracies, and one of what HEW's are above those of the best rival."""
    for column, quantity in zip(grid.T, ACCURACY, strict=True):
        draw_curves(column[0], results, quantity)
        pair = _leaders(results, quantity)
        if len(pair) == 2:
            ink = styles_of(results.spec.methods)[pair[0]].ink
            draw_difference(column[1], results, (pair[0], pair[1]), quantity, ink=ink)
            column[1].set_title(f"{pair[0]} less {pair[1]}", fontsize=7, pad=2)
            column[1].set_ylabel("difference")
        else:
            column[1].set_axis_off()


def figure_6(results: Results, labels: Sequence[str], path: Path) -> tuple[Path, Path]:
    """Loss curves and final weight by epochs (fig:medium_cnn_hew_loss_weights)."""

    def draw(figure: Any) -> None:
        grid = figure.subplots(2, max(2, len(labels)), squeeze=False)
        for axes, quantity in zip(grid[0], LOSS, strict=False):
            draw_curves(axes, results, quantity)
        for axes in grid[0][2:]:
            axes.set_axis_off()
        _masses(grid[1], results, labels)
        legend(figure, grid[0][:1], columns=4)

    return save(draw, (3.0 * max(2, len(labels)), 4.8), path)


def _masses(row: Any, results: Results, labels: Sequence[str]) -> None:
    styles = styles_of(results.spec.methods)
    for axes, label in zip(row, labels, strict=False):
        draw_mass(axes, results, label, styles[label].ink)
        axes.set(title=label, ylabel="weight, last round", ylim=(0, None))
