"""Curves of a run's quantities: means over seeds, with bands, on axes of matplotlib.

Lines are means over seeds, bands one standard deviation of the seeds to each side. A
line ends where one of its seeds diverged.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid
from hewfl.experiments.canvas import plain_text
from hewfl.experiments.compare import Axis
from hewfl.experiments.results import GAPS, Results
from hewfl.experiments.styles import Style, styles_of
from hewfl.experiments.tune import LARGER_IS_BETTER
from hewfl.server.trace import AVERAGED

AXES = {
    "rounds": "rounds",
    "scalars": "scalars sent",
    "paper_scalars": "scalars sent, paper's count",
}
QUANTITIES = {
    "gap": "training gap",
    "objective": "training objective",
    "pooled_gap": "pooled training gap",
    "pooled": "pooled training objective",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "validation_accuracy": "validation accuracy",
    "validation_loss": "validation loss",
}
QUANTITIES |= {f"{AVERAGED}{k}": f"{name}, averaged" for k, name in QUANTITIES.items()}
"""What a page and its figures call them, in the order in which they are offered."""
HEADROOM = 3.0
"""Lines that rise above this many times the common start leave the panel."""
WARM_UP = 0.1
"""Share of the rounds whose accuracies need not fit in: all methods start at chance."""


def draw_curves(
    axes: Any,
    results: Results,
    quantity: str,
    *,
    axis: Axis = "scalars",
    labels: Sequence[str] | None = None,
    styles: Mapping[str, Style] | None = None,
) -> None:
    """Draw a quantity of each method, with bands, on axes of matplotlib.

    Gaps are on a logarithmic scale. Where participation is random, seeds differ in what
    they send, and a point is at the mean of that.

    Args:
        axes: to draw on.
        results: of a run.
        quantity: what `Results.curve` knows.
        axis: what runs from left to right.
        labels: methods to draw, those the run does not have left out; all by default.
        styles: of the methods, where several panels are to agree.
    """
    styles = styles or styles_of(results.spec.methods)
    means = {}
    for label in _chosen(results, labels, quantity):
        x = positions(results, label, axis)
        mean, spread = mean_and_spread(results.curve(label, quantity))
        if quantity in GAPS:  # rounding may put an optimal method below the optimum
            mean = np.where(mean > 0, mean, np.nan)
        style, means[label] = styles[label], mean
        line = {
            "color": style.ink,
            "linewidth": style.width,
            "label": plain_text(label),
        }
        dashes = (0, style.dash) if style.dash else "-"
        # Wide lines lie on the others; narrow ones are many, and their bands fainter.
        over, alpha = (3, 0.16) if style.width > 1.5 else (2, 0.06)
        axes.plot(x, mean, linestyle=dashes, zorder=over, **line)
        low, high = mean - spread, mean + spread
        axes.fill_between(x, low, high, color=style.ink, alpha=alpha, linewidth=0)
    axes.set(xlabel=AXES[axis], ylabel=QUANTITIES.get(quantity, quantity))
    if quantity in GAPS:
        axes.set_yscale("log", nonpositive="clip")  # a band may reach below zero
    axes.set_ylim(*_limits(list(means.values()), results, quantity))
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))


def measured(results: Results, quantities: Iterable[str]) -> list[str]:
    """Those of some quantities that a run has, of at least one of its methods."""
    labels = results.labels
    return [q for q in quantities if any(results.measures(k, q) for k in labels)]


def positions(results: Results, label: str, axis: Axis) -> Float64[Array, " points"]:
    """Where a method's points lie from left to right."""
    if axis == "rounds":
        return results.rounds.astype(np.float64)
    return np.asarray(results.curve(label, axis).mean(axis=0))


def mean_and_spread(
    values: Float64[Array, "seeds points"],
) -> tuple[Float64[Array, " points"], Float64[Array, " points"]]:
    """Mean and standard deviation over seeds; NaN where a seed has no finite value."""
    kept = np.where(np.isfinite(values).all(axis=0), values, np.nan)
    if len(kept) == 1:
        return kept[0], np.zeros(kept.shape[1])
    return kept.mean(axis=0), kept.std(axis=0, ddof=1)


def _limits(
    means: Sequence[Float64[Array, " points"]], results: Results, quantity: str
) -> tuple[float | None, float | None]:
    """Ends of the vertical axis: means fit in, but for what has diverged."""
    every = np.stack(means)
    if quantity in LARGER_IS_BETTER:
        every = every[:, results.rounds >= WARM_UP * results.spec.rounds]
    elif np.nanmax(every[:, 0]) > 0:
        every = np.where(every > HEADROOM * np.nanmax(every[:, 0]), np.nan, every)
    is_log = quantity in GAPS
    seen = every[np.isfinite(every) & ((every > 0) | (not is_log))]
    if seen.size == 0 or seen.min() == seen.max():
        return None, None
    low, high = float(seen.min()), float(seen.max())
    if is_log:
        margin = (high / low) ** 0.04
        return low / margin, high * margin
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _chosen(results: Results, labels: Sequence[str] | None, quantity: str) -> list[str]:
    kept = [k for k in results.labels if labels is None or k in labels]
    kept = [k for k in kept if results.measures(k, quantity)]
    if not kept:
        known = ", ".join(results.labels)
        raise invalid("labels", f"some of {known}", list(labels or ()))
    return kept
