"""Final weights by local work, and any run on one sheet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.canvas import legend, plain_text, save
from hewfl.experiments.axes import Axis
from hewfl.experiments.curves import draw_curves, measured
from hewfl.experiments.results import Group, Results

MOST_TICKS = 10
"""Horizons that are named below a panel; of more every second or third."""


def figure_run(results: Results, path: Path) -> tuple[Path, Path]:
    """Draw any run on one sheet: training, accuracy, and final weights by horizon.

    Where methods keep averaged models, these have panels of their own.
    """
    kinds = (
        ("gap", "objective"),
        ("averaged_gap", "averaged_objective"),
        ("test_accuracy", "test_loss"),
        ("averaged_test_accuracy", "averaged_test_loss"),
    )
    offered = [measured(results, kind)[:1] for kind in kinds]
    quantities = [found[0] for found in offered if found]

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(2, len(quantities) + 1)
        ways: tuple[Axis, Axis] = ("rounds", "scalars")
        for i, axis in enumerate(ways):
            for j, quantity in enumerate(quantities):
                panel = figure.add_subplot(grid[i, j])
                draw_curves(panel, results, quantity, axis=axis)
        _draw_weight_map(figure.add_subplot(grid[:, -1]), results)
        figure.suptitle(plain_text(results.spec.name))
        legend(figure, figure.axes[:1], columns=5)

    height = 4.6 + 0.16 * (len(results.labels) // 5)
    return save(draw, (3.1 * len(quantities) + 3.3, height), path)


def draw_mass(axes: Any, results: Results, label: str, ink: str) -> None:
    """Bars of the weight of each horizon, seeds, and what equal weights would give."""
    mass, share = results.mass(label), _share_of_clients(results, label)
    at = np.arange(len(mass))
    means = [seeds.mean() for seeds in mass.values()]
    axes.bar(at, means, 0.62, color=ink, alpha=0.55, label="mean over seeds")
    for k, seeds in enumerate(mass.values()):
        x = k + np.linspace(-0.18, 0.18, len(seeds))  # side by side, none hidden
        name = "one seed" if k == 0 else None
        axes.scatter(x, seeds, s=7, color=ink, linewidths=0, label=name)
    marks = [share[h] for h in mass]
    axes.hlines(
        marks, at - 0.36, at + 0.36, color="black", linewidth=1.4, label="equal weights"
    )
    _name_horizons(axes, results, list(mass))
    axes.grid(visible=False, axis="x")


def _draw_weight_map(axes: Any, results: Results) -> None:
    """Final weights as a map: methods by horizons, the mean over seeds in each cell."""
    mass = {label: results.mass(label) for label in results.labels}
    horizons = sorted({h for found in mass.values() for h in found})
    rows = [
        [float(found[h].mean()) if h in found else np.nan for h in horizons]
        for found in mass.values()
    ]
    shares = [_share_of_clients(results, label) for label in results.labels]
    equal = {h: value for found in shares for h, value in found.items()}
    values = np.array([[equal[h] for h in horizons], *rows])
    image = axes.imshow(values, cmap="Blues", vmin=0, aspect="auto")
    axes.figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, label="weight")
    dark = 0.6 * np.nanmax(values, initial=0.0)
    if len(horizons) <= 6:  # more do not leave room for numbers
        for (i, j), value in np.ndenumerate(values):
            ink = "white" if value > dark else "black"
            text = f"{value:.2f}" if np.isfinite(value) else ""
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)
    axes.axhline(0.5, color="white", linewidth=3)
    _name_horizons(axes, results, horizons)
    axes.set_yticks(
        range(len(values)), ["(equal weights)", *map(_short, results.labels)]
    )
    axes.set_title("weight by horizon, last round")
    axes.grid(visible=False)


def _share_of_clients(results: Results, label: str) -> dict[Group, float]:
    """Share of the clients with each horizon in the last round, mean over seeds."""
    lane = results.labels.index(label)
    last = [
        results.groups(k, by_lane[lane][-1])
        for k, by_lane in enumerate(results.records)
    ]
    kept = [horizons for horizons in last if len(horizons)]
    found = sorted({h for horizons in kept for h in horizons})
    return {
        h: float(np.mean([np.mean(np.array(horizons) == h) for horizons in kept]))
        for h in found
    }


def _name_horizons(axes: Any, results: Results, horizons: Sequence[Group]) -> None:
    """Ticks at horizons, as many as have room."""
    step = -(-len(horizons) // MOST_TICKS)
    at = range(0, len(horizons), step)
    axes.set_xticks(at, [str(horizons[k]) for k in at])
    axes.set_xlabel("local epochs H" if results.counts_epochs else "local steps H")


def _short(name: str) -> str:
    return plain_text(name if len(name) <= 26 else f"{name[:25]}…")
