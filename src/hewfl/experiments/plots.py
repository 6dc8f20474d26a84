"""Figures of a run by matplotlib: styles of methods, curves, final weights.

The algorithm gives a method its colour, in every figure and page; variants of one
algorithm differ in dashes and markers. If another algorithm of the comparison has the
colour already, a free one is taken as long as there are any.

Lines are means over seeds; a line ends where one of its seeds diverged. The leaders,
HEW and its best rival, have bands of one standard deviation of the seeds to each side
and their names at the ends of their lines; the others are thin lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, invalid
from hewfl.experiments.method_spec import MethodSpec
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
from hewfl.plotting import COLOURS, legend, name_ends, plain_text, save, save_as
from hewfl.server.trace import AVERAGED

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

ADAPTIVE = ("HewHom", "HewHet", "exact", "HewControl")
"""The methods with exact weights."""

_FAMILIES = {
    "HewHom": ("vermilion", 0),
    "HewHet": ("blue", 0),
    "HewFixed": ("green", 1),
    "HewControl": ("sky", 0),
    "UniformLocalSGD": ("grey", 1),
    "FedAvg": ("amber", 2),
    "FedNova": ("purple", 3),
    "Scaffold": ("sky", 4),
    "FedProx": ("pink", 5),
    "MinibatchSGD": ("grey", 2),
    "fedmgda": ("vermilion", 2),
    "fedaware": ("blue", 2),
    "fedexp": ("green", 3),
    "fedadp": ("amber", 4),
    "qfedavg": ("purple", 1),
    "StepWeighted": ("pink", 3),
    "exact": ("vermilion", 1),
    "disagreement": ("green", 0),
    "agreement": ("purple", 0),
    "geometric-median": ("amber", 0),
    "coordinate-median": ("amber", 5),
    "trimmed-mean": ("amber", 3),
    "krum": ("pink", 1),
    "multi-krum": ("pink", 0),
    "centered-clipping": ("sky", 2),
}
"""Colour and first dash of each algorithm."""
LIMIT = (1.0, 2.0)
"""Dashes of methods that know the truth, which are limits and no rivals."""
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
POINTS_PER_INCH, LEGEND_LINE, LEGEND_LETTER = 72.0, 50.0, 4.6
"""The line and the spaces of an entry of a legend, and a letter, at 8 points."""
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


def is_hew(method: MethodSpec) -> bool:
    """Whether a method is the paper's own and not a baseline."""
    return method.method.startswith("Hew")


def styles_of(
    methods: Sequence[MethodSpec], limits: Sequence[str] = ()
) -> dict[str, Style]:
    """A style for each label; variants of one algorithm share the colour alone.

    Args:
        methods: of all panels.
        limits: labels of methods that know the truth, beside those of hewfl: their
            lines are dotted.
    """
    styles: dict[str, Style] = {}
    colours: dict[str, str] = {}
    taken: set[tuple[str, int, str]] = set()
    markers = tuple(MARKERS)
    for method in methods:
        preferred, first = _FAMILIES.get(method.method, ("grey", 3))
        free = [name for name in (preferred, *COLOURS) if name not in colours.values()]
        colour = colours.setdefault(method.method, free[0] if free else preferred)
        # 6 dashes and 7 markers have no common divisor: 42 different looks. The first
        # variant has no marker.
        looks = [(first, "")]
        looks += [((first + k) % len(DASHES), markers[1 + k % 7]) for k in range(1, 43)]
        fresh = (look for look in looks if (colour, *look) not in taken)
        dash, marker = next(fresh, looks[0])
        taken.add((colour, dash, marker))
        width = 2.0 if method.method in ADAPTIVE else 1.3
        is_limit = method.is_yardstick or method.label in limits
        strokes = LIMIT if is_limit else DASHES[dash]
        styles[method.label] = Style(colour, strokes, marker, width)
    return styles


def leaders(results: Results, quantity: str) -> list[str]:
    """The best method with exact weights and the best without, by their last means.

    Methods that know the truth are neither.
    """
    adaptive = {m.label for m in results.spec.methods if m.method in ADAPTIVE}
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    ends = {k: sign * final_values(results, k, quantity).mean() for k in results.labels}
    ends = {k: end for k, end in ends.items() if np.isfinite(end)}
    ends = {k: end for k, end in ends.items() if k not in results.yardsticks}
    sides = ([k for k in ends if (k in adaptive) is own] for own in (True, False))
    return [min(side, key=ends.__getitem__) for side in sides if side]


def draw_curves(  # noqa: PLR0913 - all but three are optional
    axes: Any,
    results: Results,
    quantity: str,
    *,
    axis: Axis = "scalars",
    styles: Mapping[str, Style] | None = None,
    focus: Sequence[str] | None = None,
    names: bool = True,
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
        focus: methods with a band and a name at their line; `leaders` by default.
        names: whether these names are written.
    """
    styles = styles or styles_of(results.spec.methods)
    focus = leaders(results, quantity) if focus is None else focus
    means, ends = {}, {}
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
            known = np.flatnonzero(np.isfinite(mean))
            if known.size:
                ends[label] = (float(x[known[-1]]), float(mean[known[-1]]), ink)
    axes.set(xlabel=AXES[axis], ylabel=QUANTITIES.get(quantity, quantity))
    if quantity in GAPS:
        axes.set_yscale("log", nonpositive="clip")  # a band may reach below zero
    axes.set_ylim(*_limits(means, results, quantity, focus))
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))
    name_ends(axes, ends if names else {})


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
        linewidth=style.width if is_leader else 0.8,
        marker=MARKERS[style.marker],
        markersize=3,
        markevery=max(1, len(x) // 6),
        alpha=1.0 if is_leader else 0.8,
        zorder=3 if is_leader else 2,
        label=plain_text(label),
    )


def _limits(
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
    quantities = [names[0] for names in offered if names]

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


def figure_curves(
    panels: Mapping[str, Results],
    quantity: str,
    path: Path,
    *,
    axis: Axis = "rounds",
    width: float = COLUMN,
) -> None:
    """Draw one quantity of one or several runs for a paper: PDF, PNG or SVG.

    Panels are side by side, with one legend below them and no names on the lines. Up to
    five methods have bands of one standard deviation of the seeds.

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
    styles = styles_of(tuple(methods.values()), limits)
    entry = (LEGEND_LINE + max(map(len, methods)) * LEGEND_LETTER) / POINTS_PER_INCH
    columns = min(max(1, int(width / entry)), len(methods))
    rows = -(-len(panels) // PANELS_IN_ROW)
    across = min(len(panels), PANELS_IN_ROW)

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(rows, across)
        for k, (name, results) in enumerate(panels.items()):
            panel = figure.add_subplot(grid[k // across, k % across])
            focus = results.labels if len(results.labels) <= FEW else ()
            look: Any = {"styles": styles, "focus": focus, "names": False}
            draw_curves(panel, results, quantity, axis=axis, **look)
            if len(panels) > 1:
                panel.set_title(plain_text(name.replace(", ", "\n")))
            if k % across:
                panel.set_ylabel("")
        legend(figure, figure.axes, columns=columns)

    high = 0.62 * width if len(panels) == 1 else 0.8 * width / across
    lines = -(-len(methods) // columns)
    save_as(draw, (width, rows * max(high, 1.4) + 0.17 * lines), path)


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


def _draw_weight_map(axes: Any, results: Results) -> None:
    """Final weights as a map: methods by horizons, the mean over seeds in each cell."""
    mass = {label: results.mass(label) for label in results.labels}
    horizons = sorted({h for groups in mass.values() for h in groups})
    rows = [
        [float(groups[h].mean()) if h in groups else np.nan for h in horizons]
        for groups in mass.values()
    ]
    shares = [_share_of_clients(results, label) for label in results.labels]
    equal = {h: value for share in shares for h, value in share.items()}
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
    _label_groups(axes, results, horizons)
    axes.set_yticks(
        range(len(values)), ["(equal weights)", *map(_short, results.labels)]
    )
    axes.set_title("weight by horizon, last round")
    axes.grid(visible=False)


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


def _short(name: str) -> str:
    return plain_text(name if len(name) <= 26 else f"{name[:25]}…")
