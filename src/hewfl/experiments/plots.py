"""Figures of a run by matplotlib: styles of methods, curves, final weights.

The author's rule, which is the user's own code or else the first of the spec, has the
strong colour. The algorithm gives every other method its colour, in every figure and
page; variants of one algorithm differ in dashes and markers. If another algorithm of
the comparison has the colour already, a free one is taken as long as there are any.

Lines are means over seeds; a line ends where one of its seeds diverged. The leaders,
the author's rule and the best of the others, have bands of one standard deviation of
the seeds to each side; the others are thin lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.plugins import is_user_code
from hewfl.core.validation import Array, invalid
from hewfl.experiments.method_spec import GROUP, MethodSpec
from hewfl.experiments.results import (
    AXES,
    GAPS,
    LARGER_IS_BETTER,
    Axis,
    Group,
    Results,
    axis_values,
    mean_axis_values,
    measured,
)
from hewfl.experiments.statistics import final_values, half_width, scale_of
from hewfl.plotting import COLOURS, legend, plain_text, save_as
from hewfl.server.trace import AVERAGED, SPREAD, WORST

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6.0, 2.0),
    (2.0, 1.5),
    (6.0, 2.0, 1.5, 2.0),
    (10.0, 3.0),
    (4.0, 1.5, 1.5, 1.5, 1.5, 1.5),
)
"""Lengths of strokes and gaps, in line widths; the first is solid."""

MARKERS = {
    "": "",
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "x",
    "plus": "+",
    "wedge": "v",
}
"""Markers by their names on a page and in matplotlib; the first is none."""

STRONG = "vermilion"
"""The colour of the author's rule."""
WIDTH, STRONG_WIDTH = 1.3, 2.2
"""Of the line of a method, and of the author's rule."""
AVERAGES = ("FedAvg", "size-weighted", "mean", "UniformLocalSGD")
"""Methods that average the updates by fixed weights: what others are compared with."""
_FAMILIES = {
    "HewHom": ("blue", 1),
    "HewHet": ("blue", 0),
    "HewFixed": ("green", 1),
    "HewControl": ("sky", 0),
    "UniformLocalSGD": ("olive", 1),
    "FedAvg": ("amber", 2),
    "size-weighted": ("amber", 2),
    "mean": ("amber", 1),
    "FedNova": ("purple", 3),
    "Scaffold": ("sky", 4),
    "FedProx": ("pink", 5),
    "MinibatchSGD": ("brown", 2),
    "fedmgda": ("olive", 2),
    "fedaware": ("blue", 2),
    "fedexp": ("green", 3),
    "fedadp": ("amber", 4),
    "qfedavg": ("purple", 1),
    "StepWeighted": ("pink", 3),
    "exact": ("blue", 3),
    "trust": ("blue", 0),
    "root-weights": ("green", 0),
    "disagreement": ("brown", 0),
    "agreement": ("purple", 0),
    "geometric-median": ("purple", 1),
    "coordinate-median": ("olive", 5),
    "trimmed-mean": ("pink", 3),
    "krum": ("pink", 1),
    "multi-krum": ("sky", 0),
    "centered-clipping": ("sky", 2),
}
"""Colour and first dash of each algorithm."""
LIMIT, GREY = (5.0, 3.0), "grey"
"""Dashes and colour of methods that know the truth, which are limits and no rivals."""
QUANTITIES = {
    "gap": "training gap",
    "objective": "training objective",
    "pooled_gap": "pooled training gap",
    "pooled": "pooled training objective",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    WORST: "test accuracy, worst tenth of clients",
    SPREAD: "deviation of test accuracy over clients",
    "validation_accuracy": "validation accuracy",
    "validation_loss": "validation loss",
}
QUANTITIES |= {f"{AVERAGED}{k}": f"{name}, averaged" for k, name in QUANTITIES.items()}
"""Quantities and their names on a page and in figures, in order."""
HEADROOM = 3.0
"""Lines that rise above this many times the common start leave the panel."""
WARM_UP = 0.2
"""Share of the rounds that need not fit in: all methods are still far from the end."""
FENCE = 3.0
"""A line that ends this many quartile distances behind the others leaves the panel."""
FEW = 5
"""Up to this number all lines stay in the panel."""
COLUMN, PAGE = 3.25, 6.75
"""Inches: a column and the whole width of a page of two columns (ICML)."""
PANELS_IN_ROW = 3
MOST_TICKS = 10
"""Groups of local steps named below a panel; of more every second or third."""


@final
@dataclass(frozen=True, slots=True)
class Style:
    """The line of one method."""

    colour: str
    dash: tuple[float, ...]
    marker: str
    width: float

    @property
    def ink(self) -> str:
        """The colour on white."""
        return COLOURS[self.colour][0]

    @property
    def strokes(self) -> list[float]:
        """Lengths of strokes and gaps on a page, in pixels; none of a solid line."""
        return [round(self.width * part, 2) for part in self.dash]


def author_rule(methods: Sequence[MethodSpec], limits: Sequence[str] = ()) -> str:
    """The method that a run is about: the user's own code, or else the first.

    Args:
        methods: of a spec.
        limits: labels of methods that know the truth, beside those of hewfl; they are
            what a run is about only where there is nothing else.
    """
    rules = [m for m in methods if not (m.is_yardstick or m.label in limits)] or methods
    own = [m for m in rules if is_user_code(m.method, GROUP)]
    return (own or list(rules))[0].label


def average_of(results: Results) -> str | None:
    """The method that averages by fixed weights, if the comparison has one."""
    found = (m.label for m in results.spec.methods if m.method in AVERAGES)
    return next(found, None)


def styles_of(
    methods: Sequence[MethodSpec],
    limits: Sequence[str] = (),
    strong: Sequence[str] = (),
) -> dict[str, Style]:
    """A style for each label; variants of one algorithm share the colour alone.

    Args:
        methods: of all panels.
        limits: labels of methods that know the truth, beside those of hewfl: their
            lines are grey and dashed.
        strong: labels of the methods that the panels are about, in thick lines;
            `author_rule` by default. A single one has the strong colour.
    """
    if not methods:
        return {}
    strong = strong or (author_rule(methods, limits),)
    kinds = {method.label: method.method for method in methods}
    colours = {kinds[strong[0]]: STRONG} if len(strong) == 1 else {}
    styles: dict[str, Style] = {}
    taken: set[tuple[str, int, str]] = set()
    markers = tuple(MARKERS)
    for method in methods:
        if method.is_yardstick or method.label in limits:
            styles[method.label] = Style(GREY, LIMIT, "", WIDTH)
            continue
        preferred, first = _FAMILIES.get(method.method, ("olive", 3))
        used = {*colours.values(), GREY, STRONG}
        free = [name for name in (preferred, *COLOURS) if name not in used]
        colour = colours.setdefault(method.method, free[0] if free else preferred)
        first = 0 if method.label in strong else first  # solid
        # 6 dashes and 7 markers have no common divisor: 42 different looks. The first
        # variant has no marker.
        looks = [(first, "")]
        looks += [((first + k) % len(DASHES), markers[1 + k % 7]) for k in range(1, 43)]
        fresh = (look for look in looks if (colour, *look) not in taken)
        dash, marker = next(fresh, looks[0])
        taken.add((colour, dash, marker))
        width = STRONG_WIDTH if method.label in strong else WIDTH
        styles[method.label] = Style(colour, DASHES[dash], marker, width)
    return styles


def leaders(results: Results, quantity: str) -> list[str]:
    """The author's rule and the best of the others, by their last means.

    Methods that know the truth, and those that diverged, are neither.
    """
    own = author_rule(results.spec.methods, results.yardsticks)
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    ends = {k: sign * final_values(results, k, quantity).mean() for k in results.labels}
    ends = {k: end for k, end in ends.items() if np.isfinite(end)}
    others = [k for k in ends if k != own and k not in results.yardsticks]
    best = [min(others, key=ends.__getitem__)] if others else []
    return [k for k in (own, *best) if k in ends]


def draw_curves(
    axes: Any,
    results: Results,
    quantity: str,
    *,
    axis: Axis = "scalars",
    styles: Mapping[str, Style] | None = None,
    focus: Sequence[str] | None = None,
) -> None:
    """Draw a quantity of each method on axes of matplotlib.

    Gaps are on a logarithmic scale. Where participation is random, seeds differ in what
    they send, and a point is at the mean of that.

    Args:
        axes: to draw on.
        results: of a run.
        quantity: as in `Results.curve`.
        axis: horizontal axis.
        styles: of the methods, to be the same in several panels.
        focus: methods with a thick line and a band; `leaders` by default.
    """
    styles = styles or styles_of(results.spec.methods, results.yardsticks)
    focus = leaders(results, quantity) if focus is None else focus
    means = {}
    drawn = [label for label in results.labels if results.measures(label, quantity)]
    if not drawn:
        raise invalid("quantity", "one that was measured", repr(quantity))
    for label in drawn:
        x = mean_axis_values(results, label, axis)
        mean, spread = mean_and_spread(results.curve(label, quantity))
        if quantity in GAPS:  # rounding may put an optimal method below the optimum
            mean = np.where(mean > 0, mean, np.nan)
        means[label] = mean
        is_leader = label in focus
        _draw_line(axes, x, mean, (label, styles[label]), is_leader=is_leader)
        if is_leader:
            ink = styles[label].ink
            low, high = mean - spread, mean + spread
            axes.fill_between(x, low, high, color=ink, alpha=0.18, linewidth=0)
    axes.set(xlabel=AXES[axis], ylabel=QUANTITIES.get(quantity, quantity))
    if quantity in GAPS:
        axes.set_yscale("log", nonpositive="clip")  # a band may reach below zero
    axes.set_ylim(*panel_limits(means, results, quantity, focus))
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))


def draw_difference(
    axes: Any,
    results: Results,
    pair: tuple[str, str],
    quantity: str,
    *,
    axis: Axis = "scalars",
    ink: str,
) -> None:
    """Draw one method against another over an axis, with its 95 % interval.

    As in verdicts: losses by their ratio, accuracies (and losses that are not positive)
    by their difference, paired by seed and taken at equal values of the axis, by linear
    interpolation between evaluations; the axis ends where the shorter of the two does.

    Args:
        axes: to draw on.
        results: of a run.
        pair: labels of the two.
        quantity: of the model that is evaluated.
        axis: horizontal axis; the two are compared at equal values of it.
        ink: colour of the line.
    """
    at = [axis_values(results, label, axis) for label in pair]
    values = [results.values(k, results.evaluated_quantity(k, quantity)) for k in pair]
    ends = np.min([sent[:, -1] for sent in at], axis=0)
    share = np.linspace(0.0, 1.0, 2 * len(results.rounds) - 1)
    curves = (
        [np.interp(share * end, *row) for end, *row in zip(ends, x, y, strict=True)]
        for x, y in zip(at, values, strict=True)
    )
    first, second = (np.array(curve) for curve in curves)
    larger = quantity in LARGER_IS_BETTER
    is_ratio = scale_of((first, second), larger_is_better=larger) == "ratio"
    if is_ratio:
        first, second = np.log(first), np.log(second)
    differences, x = first - second, share * ends.mean()
    level = np.exp if is_ratio else np.asarray
    mean, equal = differences.mean(axis=0), float(is_ratio)
    if len(differences) > 1:
        half = np.array([half_width(column) for column in differences.T])
        band = level(mean - half), level(mean + half)
        axes.fill_between(x, *band, color=ink, alpha=0.2, lw=0)
    mean = level(mean)
    axes.plot(x, mean, color=ink, linewidth=1.6)
    axes.axhline(equal, color="0.25", linewidth=0.8)
    late = share >= WARM_UP  # the first rounds differ much, and mean little
    shown = mean[late & np.isfinite(mean)]
    if shown.size and np.ptp(shown) > 0:
        low, high = min(equal, shown.min()), max(equal, shown.max())
        axes.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
    axes.set(xlabel=AXES[axis])
    axes.ticklabel_format(axis="both", style="sci", scilimits=(-3, 4))


def mean_and_spread(
    values: Float64[Array, "seeds points"],
) -> tuple[Float64[Array, " points"], Float64[Array, " points"]]:
    """Mean and standard deviation over seeds; NaN where a seed has no finite value."""
    kept = np.where(np.isfinite(values).all(axis=0), values, np.nan)
    if len(kept) == 1:
        return kept[0], np.zeros(kept.shape[1])
    return kept.mean(axis=0), kept.std(axis=0, ddof=1)


def _draw_line(
    axes: Any,
    x: Float64[Array, " points"],
    mean: Float64[Array, " points"],
    named: tuple[str, Style],
    *,
    is_leader: bool,
) -> None:
    label, style = named
    axes.plot(
        x,
        mean,
        color=style.ink,
        linestyle=(0, style.dash) if style.dash else "-",
        linewidth=max(style.width, 1.6) if is_leader else 0.8,
        marker=MARKERS[style.marker],
        markersize=3,
        markevery=max(1, len(x) // 6),
        alpha=1.0 if is_leader else 0.8,
        zorder=3 if is_leader else 2,
        label=plain_text(label),
    )


def panel_limits(
    means: Mapping[str, Float64[Array, " points"]],
    results: Results,
    quantity: str,
    focus: Sequence[str],
) -> tuple[float | None, float | None]:
    """Ends of the vertical axis: lines far behind the others do not fit in."""
    every = np.stack(list(means.values()))
    is_log, sign = quantity in GAPS, -1 if quantity in LARGER_IS_BETTER else 1
    start = np.nanmax(every[:, 0], initial=-np.inf)
    every = every[:, results.rounds >= WARM_UP * results.spec.rounds]
    ends = sign * (np.log(every[:, -1]) if is_log else every[:, -1])
    if np.isfinite(ends).sum() > FEW:
        middle, high = np.nanquantile(ends, [0.5, 0.75])
        near = ends <= middle + FENCE * max(high - middle, 1e-3)
        every = every[near | [label in focus for label in means]]
    if start > 0 and sign > 0:
        every = np.where(every > HEADROOM * start, np.nan, every)
    inside = every[np.isfinite(every) & ((every > 0) | (not is_log))]
    if inside.size == 0 or inside.min() == inside.max():
        return None, None
    low, high = float(inside.min()), float(inside.max())
    if is_log:
        margin = (high / low) ** 0.04
        return low / margin, high * margin
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def main_quantity(results: Results) -> str:
    """What a run is about: its accuracy, or its objective where there is none."""
    kinds = ("test_accuracy", "validation_accuracy", "objective", "test_loss")
    return [*measured(results, kinds), "objective"][0]


def figure_curves(
    panels: Mapping[str, Results],
    quantity: str,
    path: Path,
    *,
    axis: Axis = "rounds",
    width: float = COLUMN,
) -> None:
    """Draw one quantity of one or several runs for a paper: PDF, PNG or SVG.

    Panels are side by side, with one legend below them. Up to five methods have bands
    of one standard deviation of the seeds; of more, the leaders.

    Args:
        panels: results by the titles of their panels; one panel has no title.
        quantity: as in `Results.curve`.
        path: of the file; its ending is its type.
        axis: horizontal axis.
        width: inches.

    Raises:
        InvalidInputError: no method of a panel has measured the quantity.
    """
    runs = list(panels.values())
    methods = {m.label: m for results in runs for m in results.spec.methods}
    limits = [label for results in runs for label in results.yardsticks]
    rules = [author_rule(r.spec.methods, r.yardsticks) for r in runs]
    strong = tuple(dict.fromkeys(rules))
    styles = styles_of(tuple(methods.values()), limits, strong)
    rows = -(-len(panels) // PANELS_IN_ROW)
    across = min(len(panels), PANELS_IN_ROW)

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(rows, across)
        for k, (name, results) in enumerate(panels.items()):
            panel = figure.add_subplot(grid[k // across, k % across])
            focus = results.labels if len(results.labels) <= FEW else None
            look: Any = {"styles": styles, "focus": focus}
            draw_curves(panel, results, quantity, axis=axis, **look)
            if len(panels) > 1:
                panel.set_title(plain_text(name.replace(", ", "\n")))
            if k % across:
                panel.set_ylabel("")
        legend(figure, figure.axes, columns=6)

    high = 0.62 * width if len(panels) == 1 else 0.8 * width / across
    save_as(draw, (width, rows * max(high, 1.4)), path)


def draw_mass(axes: Any, results: Results, label: str, ink: str) -> None:
    """Bars of the weight of each group, points for seeds, lines for equal weights."""
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
    _label_groups(axes, results, list(mass))
    axes.grid(visible=False, axis="x")


def _share_of_clients(results: Results, label: str) -> dict[Group, float]:
    """Share of the clients with each horizon in the last round, mean over seeds."""
    entry = results.labels.index(label)
    last = [
        results.groups(k, by_entry[entry][-1])
        for k, by_entry in enumerate(results.records)
    ]
    rows = [groups for groups in last if len(groups)]
    return {
        h: float(np.mean([np.mean(np.array(groups) == h) for groups in rows]))
        for h in sorted({h for groups in rows for h in groups})
    }


def _label_groups(axes: Any, results: Results, horizons: Sequence[Group]) -> None:
    """Ticks at groups, as many as fit."""
    step = -(-len(horizons) // MOST_TICKS)
    at = range(0, len(horizons), step)
    axes.set_xticks(at, [str(horizons[k]) for k in at])
    axes.set_xlabel("local epochs H" if results.counts_epochs else "local steps H")
