"""Figures 3 to 6: the deep-learning lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hewfl.core.canvas import legend, save
from hewfl.experiments.curves import draw_curves, draw_difference, leaders
from hewfl.experiments.figures import draw_mass
from hewfl.experiments.results import Results
from hewfl.experiments.styles import styles_of
from hewfl.paper.claims_deep import ACCURACY, HEW, HEW_FIXED, LOSS


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

    return save(draw, (6.6, 4.2), path)


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

    return save(draw, (6.6, 6.2), path)


def _accuracies(grid: Any, results: Results) -> None:
    """A row of accuracies, and one of what HEW's are above those of the best rival."""
    for column, quantity in zip(grid.T, ACCURACY, strict=True):
        draw_curves(column[0], results, quantity)
        pair = leaders(results, quantity)
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
