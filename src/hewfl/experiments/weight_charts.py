"""Final weights by local work: bars of one method, a map of all."""

from typing import Any

import numpy as np

from hewfl.experiments.canvas import plain_text
from hewfl.experiments.results import Group, Results


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
    axes.set_xticks(at, [str(h) for h in mass])
    axes.set_xlabel(_work(results))
    axes.grid(visible=False, axis="x")


def draw_weight_map(axes: Any, results: Results) -> None:
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
    axes.imshow(values, cmap="Blues", vmin=0, aspect="auto")
    dark = 0.6 * np.nanmax(values, initial=0.0)
    if len(horizons) <= 6:  # more do not leave room for numbers
        for (i, j), value in np.ndenumerate(values):
            ink = "white" if value > dark else "black"
            text = f"{value:.2f}" if np.isfinite(value) else ""
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)
    axes.axhline(0.5, color="white", linewidth=3)
    axes.set_xticks(range(len(horizons)), [str(h) for h in horizons])
    axes.set_yticks(
        range(len(values)), ["(equal weights)", *map(_short, results.labels)]
    )
    axes.set(xlabel=_work(results), title="weight by horizon, last round")
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


def _work(results: Results) -> str:
    return "local epochs H" if results.counts_epochs else "local steps H"


def _short(name: str) -> str:
    return plain_text(name if len(name) <= 26 else f"{name[:25]}…")
