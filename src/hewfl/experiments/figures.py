"""Figures of runs, drawn by matplotlib, saved as PDF and PNG.

Lines are means over seeds, bands one standard deviation of the seeds to each side. A
line ends where one of its seeds diverged. No clock and no global state enters: the same
results give the same bytes.
"""

import importlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid
from hewfl.errors import InvalidInputError, MissingExtraError
from hewfl.experiments.files import write_bytes
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.paper import DATA, FIGURE_1, FIGURE_2, TITLES
from hewfl.experiments.results import GAPS, Group, Results
from hewfl.experiments.styles import Style, styles_of
from hewfl.experiments.tune import LARGER_IS_BETTER

Axis = Literal["rounds", "scalars", "paper_scalars"]
Panels = Mapping[tuple[str, str], Results]
"""Results by data set and regime."""

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
"""What a page and its figures call them, in the order in which they are offered."""
NAMES = {"covertype": "Covertype", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}

HEADROOM = 3.0
"""Lines that rise above this many times the common start leave the panel."""
WARM_UP = 0.1
"""Share of the rounds whose accuracies need not fit in: all methods start at chance."""
_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,  # long enough to show a dash
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
}


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
    for label in _chosen(results, labels):
        x = positions(results, label, axis)
        mean, spread = mean_and_spread(results.curve(label, quantity))
        if quantity in GAPS:  # rounding may put an optimal method below the optimum
            mean = np.where(mean > 0, mean, np.nan)
        style, means[label] = styles[label], mean
        line = {"color": style.ink, "linewidth": style.width, "label": _text(label)}
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


def figure_1(
    panels: Panels, path: Path, *, labels: Sequence[str] | None = None
) -> tuple[Path, Path]:
    """Figure 1: what accuracy and training gap cost in scalars (fig:main-exp-grid).

    Columns are regimes: the paper's three, and heterogeneous data with equal horizons
    if it is given; for each data set a row of accuracies and one of gaps.

    Args:
        panels: results by data set and regime; a panel not given stays empty.
        path: of the files, without the ending.
        labels: methods to show; all by default.

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
                draw_curves(axes, results, quantity, labels=labels, styles=styles)
            _label_outside(row, _text(f"{NAMES.get(d, d)}\n{QUANTITIES[quantity]}"))
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
            axes.set_title(_text(f"{NAMES.get(d, d)}\n{title}\n{label}"))
        row[0].set(ylabel="weight, last round", ylim=(0, None))
        legend(figure, row[:1], columns=3)

    return save(draw, (1.9 * len(keys) + 0.5, 2.7), path)


def figure_run(results: Results, path: Path) -> tuple[Path, Path]:
    """Any run on one sheet: training, accuracy, and final weights by horizon.

    Args:
        results: of the run.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    kinds = (("gap", "objective"), ("test_accuracy", "test_loss"))
    offered = [measured(results, kind)[:1] for kind in kinds]
    quantities = [found[0] for found in offered if found]

    def draw(figure: Any) -> None:
        grid = figure.add_gridspec(2, len(quantities) + 1)
        ways: tuple[Axis, Axis] = ("rounds", "scalars")
        for i, axis in enumerate(ways):
            for j, quantity in enumerate(quantities):
                panel = figure.add_subplot(grid[i, j])
                draw_curves(panel, results, quantity, axis=axis)
        _draw_weight_table(figure.add_subplot(grid[:, -1]), results)
        figure.suptitle(_text(results.spec.name))
        legend(figure, figure.axes[:1], columns=5)

    height = 4.6 + 0.16 * (len(results.labels) // 5)
    return save(draw, (3.1 * len(quantities) + 3.3, height), path)


def measured(results: Results, quantities: Iterable[str]) -> list[str]:
    """Those of some quantities that a run has."""
    found = []
    for quantity in quantities:
        try:
            results.curve(results.labels[0], quantity)
        except InvalidInputError:
            continue
        found.append(quantity)
    return found


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


# ------------------------------------------------------------------ parts of figures


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


def _draw_weight_table(axes: Any, results: Results) -> None:
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


def legend(figure: Any, panels: Iterable[Any], *, columns: int) -> None:
    """One legend for all panels, each name once, below."""
    known: dict[str, Any] = {}
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        known |= dict(zip(names, handles, strict=True))
    figure.legend(
        known.values(), known.keys(), loc="outside lower center", ncols=columns
    )


def _label_outside(row: Any, text: str) -> None:
    for axes in row:
        axes.set_ylabel("")
    row[0].set_ylabel(text)


def _leave_empty(axes: Any) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no run", ha="center", color="gray", transform=axes.transAxes)


# ------------------------------------------------------------------ the rest


def _text(name: str) -> str:
    """A name that matplotlib takes as it is: neither formula nor hidden."""
    plain = name.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def _short(name: str) -> str:
    return _text(name if len(name) <= 26 else f"{name[:25]}…")


def _chosen(results: Results, labels: Sequence[str] | None) -> list[str]:
    kept = [k for k in results.labels if labels is None or k in labels]
    if not kept:
        known = ", ".join(results.labels)
        raise invalid("labels", f"some of {known}", list(labels or ()))
    return kept


def _common_styles(panels: Panels) -> dict[str, Style]:
    methods: dict[str, MethodSpec] = {}
    for results in panels.values():
        methods |= {m.label: m for m in results.spec.methods if m.label not in methods}
    return styles_of(tuple(methods.values()))


def _in_order(given: Iterable[str], known: Sequence[str]) -> list[str]:
    """What is given, each once, in a known order; the unknown come last."""
    names = list(dict.fromkeys(given))
    return [*(k for k in known if k in names), *(k for k in names if k not in known)]


def save(draw: Any, size: tuple[float, float], path: Path) -> tuple[Path, Path]:
    """Draw a figure and write both files."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        text = "figures need matplotlib: pip install 'hewfl[report]'"
        raise MissingExtraError(text) from error
    stem = path.with_suffix("") if path.suffix in (".pdf", ".png") else path
    files = tuple(stem.with_name(stem.name + ending) for ending in (".pdf", ".png"))
    with matplotlib.rc_context(_RC):
        figure = figures.Figure(figsize=size, layout="constrained")
        draw(figure)
        _settle(figure)
        for file in files:
            stream = io.BytesIO()
            kind = file.suffix[1:]
            undated = {"CreationDate": None} if kind == "pdf" else {}
            figure.savefig(stream, format=kind, dpi=200, metadata=undated)
            write_bytes(file, stream.getvalue())
    return files[0], files[1]


def _settle(figure: Any) -> None:
    """Fix the layout: its solver's last digits change from one call to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(v, 4) for v in axes.get_position().bounds])
