"""The pictures of docs/concepts.md and docs/index.md, drawn from what hewfl computes.

`python -m docs_tools.pictures` writes them to docs/figures. Each picture has a function
that computes its numbers, which tests check, and one that draws them.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl import combine, post_local_weights
from hewfl.aggregators import Agreement, GeometricMedian, Mean, MultiKrum, Trust
from hewfl.cli.demo import (
    AVERAGE,
    LIMIT,
    MIXED,
    ROOTED,
    TRUST,
    careless_spec,
    hostile_spec,
)
from hewfl.experiments import MethodSpec, Results, Spec, run
from hewfl.plotting import COLOURS
from hewfl.problems import random_quadratic

Array = NDArray[np.float64]
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
BLUE, RED, GREY, GREEN = "#3367b0", "#c23b30", "#8a8a8a", "#2a8a4a"


# ------------------------------------------------------------------ the projection


@dataclass(frozen=True)
class Projection:
    """Six displacements in the plane and the exact step for some κ.

    Attributes:
        points: the displacements.
        kappas: values of κ.
        targets: mean/κ, what is projected.
        steps: its projections onto the hull: the exact steps.
        weights: of the six, one row for each κ.
    """

    points: Array
    kappas: tuple[float, ...]
    targets: Array
    steps: Array
    weights: Array


def projection() -> Projection:
    """Four displacements that agree and two that deviate to either side."""
    points = np.array(
        [[2.2, 0.6], [2.6, 0.3], [2.4, -0.1], [2.9, 0.5], [2.7, 1.9], [2.5, -1.3]]
    )
    mean, kappas = points.mean(axis=0), (1.0, 1.1, 2.0)
    # with g = −mean and Λ = κ the model is ½κ‖d − mean/κ‖², up to a constant
    weights = np.array([post_local_weights(points, -mean, k).weights for k in kappas])
    steps = np.array([combine(points, w) for w in weights])
    return Projection(points, kappas, mean / np.array(kappas)[:, None], steps, weights)


def draw_projection(axes: Any) -> None:
    """The hull, the mean over κ and its projections; then the weights as bars."""
    from scipy.spatial import ConvexHull  # noqa: PLC0415 - only to draw

    shown, (plane, bars) = projection(), axes
    corners = shown.points[ConvexHull(shown.points).vertices]
    plane.fill(*corners.T, color="#dfe8f5", zorder=0)
    for i, point in enumerate(shown.points):
        plane.annotate(
            "", point, (0, 0), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1}
        )
        plane.annotate(f"Δ{i + 1}", point, (4, 4), textcoords="offset points")
    colours = (GREEN, BLUE, RED)
    for kappa, target, step, colour in zip(
        shown.kappas, shown.targets, shown.steps, colours, strict=True
    ):
        plane.plot(*np.array([target, step]).T, ":", color=colour)
        plane.plot(*target, "x", color=colour, ms=8)
        plane.plot(*step, "o", color=colour, label=f"step for κ = {kappa:g}")
    plane.plot(0, 0, "k.", ms=8)
    plane.annotate("x", (0, 0), (-10, -10), textcoords="offset points")
    plane.set(aspect="equal", title="the step: the point of the hull nearest to mean/κ")
    plane.legend(loc="upper left")
    at = np.arange(len(shown.points))
    for k, (kappa, row) in enumerate(zip(shown.kappas, shown.weights, strict=True)):
        bars.bar(
            at + 0.27 * (k - 1), row, 0.25, color=colours[k], label=f"κ = {kappa:g}"
        )
    bars.set(xticks=at, title="the weights")
    bars.set_xticklabels([f"Δ{i + 1}" for i in at])


# ------------------------------------------------------------------ unequal horizons


@dataclass(frozen=True)
class UnequalSteps:
    """Final points of many branches of 1, 2, 4 and 8 steps, and their weights.

    Attributes:
        horizons: H_i.
        one_rate: final points with one step size, one array for each H.
        equal_totals: final points with η_i = ϑ/(L H_i).
        weights: mean exact weights of clients with these H, with equal totals.
    """

    horizons: tuple[int, ...]
    one_rate: list[Array]
    equal_totals: list[Array]
    weights: Array


def unequal_steps(repetitions: int = 60) -> UnequalSteps:
    """Branches of unequal length on one noisy quadratic, with two kinds of steps."""
    rng, horizons = np.random.default_rng(0), (1, 2, 4, 8)
    start, curvature = np.array([3.0, 1.0]), np.array([1.0, 0.4])

    def ends(horizon: int, step: float) -> Array:
        points = np.tile(start, (repetitions, 1))
        for _ in range(horizon):
            noise = 2.5 * rng.standard_normal(points.shape)
            points = points - step * (curvature * points + noise)
        return points

    equal = [ends(h, 0.4 / h) for h in horizons]
    moved = np.stack(equal, axis=1) - start  # repetitions, clients, 2
    rows = [post_local_weights(m, -m.mean(axis=0), 1.5).weights for m in moved]
    weights = np.mean(rows, axis=0)
    return UnequalSteps(horizons, [ends(h, 0.12) for h in horizons], equal, weights)


def draw_unequal_steps(axes: Any) -> None:
    """Final points with both kinds of steps; then mean weights by horizon."""
    shown = unequal_steps()
    colours = ("#c9d8ee", "#8fb0dc", "#4f80c2", "#1d4a8a")
    for panel, ends, title in zip(
        axes[:2],
        (shown.one_rate, shown.equal_totals),
        (
            "one step size for all",
            "equal total step size",
        ),
        strict=True,
    ):
        for points, h, colour in zip(ends, shown.horizons, colours, strict=True):
            panel.scatter(*points.T, s=9, color=colour, label=f"H = {h}")
        panel.plot(3, 1, "k.", ms=9)
        panel.annotate("x", (3, 1), (6, -2), textcoords="offset points")
        panel.plot(0, 0, "k*", ms=9)
        panel.set(title=title, xlim=(-1.2, 5.5), ylim=(-2.2, 4.2))
    axes[0].legend(loc="upper left", markerscale=2)
    axes[2].bar([f"H = {h}" for h in shown.horizons], shown.weights, color=colours)
    axes[2].set(title="mean exact weight, equal totals")


# ------------------------------------------------------------------ the certificate


@dataclass(frozen=True)
class Certificate:
    """The objective along a step and the model that bounds it.

    Attributes:
        lengths: t, the fraction of the step.
        objective: F(x + td).
        bound: F(x) + t⟨g, d⟩ + (Λ/2)t²‖d‖² + mismatch, never below F(x + td).
    """

    lengths: Array
    objective: Array
    bound: Array


def certificate() -> Certificate:
    """A step of exact weights on a quadratic whose constants are known."""
    problem = random_quadratic(seed=3, n=8, d=20)
    rng, L = np.random.default_rng(3), float(problem.smoothness)
    x = 2 * rng.standard_normal(20)
    gradients = np.asarray(problem.full_gradients(x[None]))[0]
    noisy = gradients + 0.8 * rng.standard_normal(gradients.shape)
    rate, curvature = 0.5 / L, 2 * L
    moves, g = -rate * noisy, noisy.mean(axis=0)
    d = combine(moves, post_local_weights(moves, g, curvature).weights)
    mismatch = ((gradients.mean(axis=0) - g) ** 2).sum() / (2 * (curvature - L))
    lengths = np.linspace(0, 2.5, 60)
    models = x + lengths[:, None] * d
    objective = np.asarray(problem.objectives(models))[:, 0]
    bound = objective[0] + lengths * (g @ d) + 0.5 * curvature * lengths**2 * (d @ d)
    return Certificate(lengths, objective, bound + mismatch)


def draw_certificate(axes: Any) -> None:
    """The objective along the step, and the bound above it."""
    shown = certificate()
    axes.plot(shown.lengths, shown.bound, color=RED, label="bound: model + mismatch")
    axes.plot(
        shown.lengths, shown.objective, color=BLUE, label="objective F(x + t·step)"
    )
    axes.axvline(1, color=GREY, ls=":")
    axes.annotate(
        "the step taken", (1, shown.bound.max()), (5, -8), textcoords="offset points"
    )
    axes.set(xlabel="t, fraction of the step", title="the objective and its bound")
    axes.legend()


# ------------------------------------------------------------------ faulty clients


@dataclass(frozen=True)
class RobustWeights:
    """Weights of ten clients under several rules; three of them are faulty.

    Attributes:
        names: of the rules.
        weights: one row for each rule; the last three clients are faulty.
    """

    names: list[str]
    weights: Array


def robust_weights() -> RobustWeights:
    """One round of ten clients: seven share a direction, three send noise as long."""
    rng = np.random.default_rng(5)
    moves = 0.1 * (np.ones(30) + 1.2 * rng.standard_normal((10, 30)))
    moves[7:] = 0.16 * rng.standard_normal((3, 30))
    rows: list[Array] = []
    names = ["Mean", "Agreement", "Geometric median", "Multi-Krum", "Trust"]
    for rule in (Mean(), Agreement(), GeometricMedian(), MultiKrum(), Trust()):
        state = None
        for _ in range(5):  # rules with a memory see five such rounds
            decision, state = rule(moves, state)
        rows.append(decision.weights / decision.weights.sum())
    return RobustWeights(names, np.array(rows))


def draw_robust_weights(axes: Any) -> None:
    """The weights as a table of colours."""
    shown = robust_weights()
    axes.imshow(shown.weights, cmap="Blues", vmin=0, aspect="auto")
    for (i, j), value in np.ndenumerate(shown.weights):
        colour = "white" if value > 0.12 else "black"
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(10), [f"client {j + 1}" for j in range(10)], rotation=30)
    axes.set_yticks(range(len(shown.names)), shown.names)
    for j in (7, 8, 9):
        axes.get_xticklabels()[j].set_color(RED)
    axes.set(title="weights of ten clients; the last three (red) send noise")


# ------------------------------------------------------------------ the home page


@dataclass(frozen=True)
class ClientWeights:
    """Weights of twenty clients over forty rounds, as in `hewfl demo`.

    Attributes:
        faulty: the clients with random labels.
        weights: of FedAvg and Trust, clients by rounds.
    """

    faulty: tuple[int, ...]
    weights: Mapping[str, Array]


def client_weights() -> ClientWeights:
    """One seed of the demo's first comparison, with the step sizes that it chooses."""
    results = _one_seed(careless_spec(), {AVERAGE: 12.8, TRUST: 64.0})
    weights = {}
    for label, records in zip(results.labels, results.records[0], strict=True):
        rows = np.zeros((20, len(records) - 1))
        for t, record in enumerate(records[1:]):
            rows[list(record.clients), t] = record.weights
        weights[label] = rows
    faulty = results.records[0][0][0].scenario["faulty"]
    return ClientWeights(tuple(sorted(faulty)), weights)


def accuracies_under_attack() -> tuple[Array, Mapping[str, Array]]:
    """Rounds and test accuracies of one seed of the demo's second comparison."""
    steps = {AVERAGE: 3.2, TRUST: 4.0, MIXED: 16.0, ROOTED: 64.0, LIMIT: 64.0}
    results = _one_seed(hostile_spec(), steps)
    curves = {k: results.values(k, "test_accuracy")[0] for k in results.labels}
    return results.rounds.astype(np.float64), curves


def _one_seed(spec: Spec, steps: Mapping[str, float]) -> Results:
    """A spec of the demo with given step sizes, for its first seed."""
    methods = tuple(
        MethodSpec(m.method, m.label, {next(iter(m.grid)): steps[m.label]}, {})
        for m in spec.methods
        if m.label in steps
    )
    with tempfile.TemporaryDirectory() as folder:
        return run(replace(spec, methods=methods, seeds=(0,)), runs_dir=folder)


def draw_client_weights(axes: Any) -> None:
    """Two maps, clients by rounds; the faulty clients are on top and marked."""
    shown = client_weights()
    rest = [i for i in range(20) if i not in shown.faulty]
    most = max(rows.max() for rows in shown.weights.values())
    for panel, name in zip(axes, (AVERAGE, TRUST), strict=True):
        rows = shown.weights[name][[*shown.faulty, *rest]]
        panel.imshow(rows, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        panel.axhline(len(shown.faulty) - 0.5, color="black", lw=1)
        panel.set(title=name, xlabel="round", yticks=[1, 11], xticks=[0, 19, 39])
        panel.set_xticklabels(["1", "20", "40"])
        panel.set_yticklabels(["random labels", "good"], rotation=90, va="center")
        panel.tick_params(length=0)
        panel.get_yticklabels()[0].set(color=COLOURS["vermilion"][0], fontsize=7)


def draw_speeds(axes: Any) -> None:
    """Local steps of four machines until the exchange: nobody waits for the slowest."""
    inks = ("#1d4a8a", "#4f80c2", "#8fb0dc", "#c9d8ee")
    for row, (steps, ink) in enumerate(zip((8, 4, 2, 1), inks, strict=True)):
        for start in (0.0, 1.15):
            width = 1 / steps
            at = start + width * np.arange(steps)
            axes.barh([row] * steps, width - 0.02, left=at, height=0.6, color=ink)
    for end in (1.07, 2.22):
        axes.plot([end, end], [-0.45, 3.45], color=COLOURS["vermilion"][0], lw=4)
    axes.set_yticks(range(4), [f"H = {h}" for h in (8, 4, 2, 1)])
    axes.set_xticks([1.07, 2.22], ["exchange", "exchange"])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(title="local steps of four machines")


def draw_attack(axes: Any) -> None:
    """Test accuracy over rounds while eight of twenty clients collude."""
    rounds, curves = accuracies_under_attack()
    looks = {
        LIMIT: ("grey", "--"),
        ROOTED: ("green", "-"),
        MIXED: ("olive", "-"),
        TRUST: ("blue", "-"),
        AVERAGE: ("amber", "-"),
    }
    for name, (colour, dash) in looks.items():
        ink = COLOURS[colour][0]
        axes.plot(rounds, 100 * curves[name], dash, color=ink, label=name)
    axes.set(ylim=(70, 100), xlabel="round", title="test accuracy (%), 8 of 20 collude")
    axes.legend(loc="lower right", fontsize=7)


def draw_all(folder: Path = FIGURES) -> None:
    """Write the pictures as SVG.

    Args:
        folder: where to.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("svg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    # the same bytes every time: no date, no random names of elements
    mpl.rcParams |= {
        "svg.hashsalt": "hewfl",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "legend.frameon": False,
    }
    for name, draw, size, columns in (
        ("concepts-projection", draw_projection, (9, 4), 2),
        ("concepts-steps", draw_unequal_steps, (11, 3.6), 3),
        ("concepts-certificate", draw_certificate, (6, 3.4), 1),
        ("concepts-robust", draw_robust_weights, (9, 2.8), 1),
        ("home-weights", draw_client_weights, (4, 2.7), 2),
        ("home-speeds", draw_speeds, (4, 2.7), 1),
        ("home-attack", draw_attack, (4, 2.7), 1),
    ):
        figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained")
        for panel in np.atleast_1d(axes):
            panel.spines[["top", "right"]].set_visible(False)
        draw(axes)
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw_all()
