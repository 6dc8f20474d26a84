"""The study on paper: tables, the figure and all trials in one folder."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_json, write_text
from hewfl.experiments.statistics import interval_text
from hewfl.plotting import COLOURS, save
from reproduce.byzantine.byzantine_cells import (
    CLIENTS,
    ORACLE,
    PANELS,
    RULES,
    SHARES,
)
from reproduce.byzantine.byzantine_scores import Column, Scores
from reproduce.byzantine.trials import write_trials

MAJORITY = 12
"""Attackers with which no rule without a root can work."""
LOST = 1000.0
"""Ratios that are not worth a number."""
NEAR = 1.1
"""Ratio to the oracle that counts as near."""
LINES = {
    ORACLE: ("grey", "--", "honest clients alone"),
    "RootWeights, root of 100": ("blue", "-", "RootWeights (server owns 100 samples)"),
    "AngleMix + geometric median": ("vermilion", "-", "AngleMix + geometric median"),
    "clip + NNM + geometric median (f)": ("sky", "-.", "clip + NNM + geometric median"),
    "geometric median": ("purple", ":", "geometric median"),
    "Sieve": ("amber", "-", "Sieve (Flower default here)"),
    "mean": ("olive", ":", "mean"),
}
"""Of the figure: colour, dash and name."""
HEAD = (
    "Worst case over the attacks. Accuracy: per cent of the test part, the least mean "
    "over seeds of the judged attacks. Ratio: loss of the honest clients over that of "
    "the honest oracle, which averages the honest updates; geometric mean over the "
    "seeds, under the attack with the largest one. **Bold**: the best rule of the "
    "column, and those not shown to be behind it (log ratios paired by seed, Student's "
    "t, Holm's correction in the column, 5 %), apart for rules with a root and without "
    "one. (f): the rule is told the number of attackers."
)


def publish_byzantine(scores: Scores, output: Path) -> None:
    """Write tables, figure, numbers and trials of the cells that are done.

    Args:
        scores: of the study.
        output: folder to write to.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    write_text(output / "results.md", results_text(scores))
    write_trials(scores.known, output / "trials.csv")
    write_json(output / "summary.json", numbers_of(scores))
    draw_worst_accuracy(scores, output / "worst_accuracy")


def results_text(scores: Scores) -> str:
    """All tables."""
    lines = ["# Attacks and defences, tables", "", HEAD, ""]
    if scores.missing:
        cells = (
            f"{PANELS[c.panel].title}, {c.f} attackers"
            + ("" if c.group == "main" else f" ({c.group})")
            for c in scores.missing
        )
        lines += ["Not run: " + "; ".join(cells) + ".", ""]
    lines += ["![Worst accuracy by share of attackers](worst_accuracy.png)", ""]
    lines += [*_summary(scores), ""]
    for panel in PANELS:
        columns = sorted(c for c in scores.table if c[0] == panel)
        if not columns:
            continue
        lines += [f"## {PANELS[panel].title}", ""]
        lines += ["Worst accuracy, %:", "", *_accuracies(scores, columns), ""]
        lines += ["Worst ratio to the honest oracle:", "", *_ratios(scores, columns)]
        lines += ["", "Ratio to the best rule of its kind, 95 % interval:", ""]
        lines += [*_intervals(scores, columns), ""]
        lines += ["Worst attack, and tuned total step in units of 1/L:", ""]
        lines += [*_attacks(scores, columns), ""]
    return "\n".join([*lines, *_edges(scores), ""])


def _summary(scores: Scores) -> list[str]:
    """Worst ratios over all columns: attackers below one half, and above."""
    few = [c for c in scores.table if 0 < c[1] < MAJORITY]
    lines = [
        "## Worst ratio over all columns",
        "",
        f"With attackers below one half ({len(few)} columns), and 60 % attackers; how "
        f"many columns lie within {NEAR:g} of the oracle.",
        "",
        "| rule | needs | worst, below one half | where | near oracle | worst, 60 % |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    rows = [(rule, scores.worst(rule, few)) for rule in RULES if rule != ORACLE]
    known = [(rule, worst) for rule, worst in rows if worst is not None]
    for rule, (ratio, column) in sorted(known, key=lambda row: row[1][0]):
        there = [c for c in few if rule in scores.table[c]]
        near = sum(scores.ratio(c, rule) <= NEAR for c in there)
        many = [c for c in scores.table if c[1] == MAJORITY]
        beyond = scores.worst(rule, many)
        where = f"{PANELS[column[0]].title}, {_share(column[1])}"
        last = "-" if beyond is None else _ratio(beyond[0])
        lines.append(
            f"| {rule} | {_needs(rule)} | {_ratio(ratio)} | {where} | "
            f"{near} of {len(there)} | {last} |"
        )
    return lines


def _needs(rule: str) -> str:
    about = RULES[rule]
    if about.root is not None:
        return "a root"
    return "f" if about.is_told else "-"


def _table(scores: Scores, columns: Sequence[Column], cell: Any) -> list[str]:
    """Rules down, attackers across."""
    lines = [
        "| attackers | " + " | ".join(_share(f) for _, f in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for rule in RULES:
        if not any(rule in scores.table[c] for c in columns):
            continue
        cells = (cell(c, rule) if rule in scores.table[c] else "-" for c in columns)
        name = f"*{rule}*" if rule == ORACLE else rule
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _bold(scores: Scores, column: Column, rule: str, text: str) -> str:
    is_level = rule != ORACLE and scores.is_level(column, rule)
    return f"**{text}**" if is_level else text


def _accuracies(scores: Scores, columns: Sequence[Column]) -> list[str]:
    return _table(
        scores, columns, lambda c, rule: f"{100 * scores.accuracy(c, rule):.1f}"
    )


def _ratios(scores: Scores, columns: Sequence[Column]) -> list[str]:
    def cell(c: Column, rule: str) -> str:
        if rule == ORACLE:
            return "1"
        return _bold(scores, c, rule, _ratio(scores.ratio(c, rule)))

    return _table(scores, columns, cell)


def _intervals(scores: Scores, columns: Sequence[Column]) -> list[str]:
    def cell(c: Column, rule: str) -> str:
        if rule == ORACLE:
            return "limit"
        compared = scores.against_best(c, rule)
        if compared is None:
            return "best"
        if not scores.ratio(c, rule) < LOST:
            return "lost"
        return interval_text(compared).replace(" times", "")

    return _table(scores, columns, cell)


def _attacks(scores: Scores, columns: Sequence[Column]) -> list[str]:
    def cell(c: Column, rule: str) -> str:
        score = scores.table[c][rule]
        return f"{score.attack}; {score.amplitude:g}"

    return _table(scores, columns, cell)


def _edges(scores: Scores) -> list[str]:
    """Choices of tuning at the end of a list."""
    all_scores = [(c, r, s) for c, row in scores.table.items() for r, s in row.items()]
    edges = [
        f"{PANELS[c[0]].title}, {_share(c[1])}: {r} ({s.amplitude:g})"
        for c, r, s in all_scores
        if s.is_at_edge
    ]
    head = f"At the end of their list lie {len(edges)} of {len(all_scores)} step sizes"
    return [head + (":" if edges else "."), "", *(f"- {line}" for line in edges)]


def _share(f: int) -> str:
    return f"{f} of {CLIENTS}"


def _ratio(value: float) -> str:
    if not value < LOST:
        return "lost"
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def numbers_of(scores: Scores) -> dict[str, Any]:
    """Worst cases of every rule, seed by seed."""
    return {
        f"{panel}, {f}": {
            rule: {
                "attack": score.attack,
                "amplitude": score.amplitude,
                "accuracy": float(f"{score.accuracy:.5g}"),
                "ratio": _finite(scores.ratio((panel, f), rule)),
                "losses": [_finite(v) for v in score.losses.tolist()],
            }
            for rule, score in row.items()
        }
        for (panel, f), row in scores.table.items()
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


# ------------------ figure


def draw_worst_accuracy(scores: Scores, path: Path) -> tuple[Path, Path]:
    """Draw the worst accuracy over the share of attackers, for a few rules.

    Panels with Dirichlet 0.2 whose columns are there, side by side.

    Args:
        scores: of the study.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    skewed = [name for name in PANELS if name.endswith("-0.2")]
    shown = [p for p in skewed if any((p, f) in scores.table for f in SHARES)]

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, panel in zip(panels, shown, strict=True):
            _draw_panel(axes, scores, panel)
        panels[0].set_ylabel("test accuracy under the worst attack, %")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8)

    return save(draw, (3.4 * len(shown) + 0.6, 4.2), path)


def _draw_panel(axes: Any, scores: Scores, panel: str) -> None:
    """One line for each rule."""
    axes.axvspan(50, 64, color="0.93", linewidth=0)
    for rule, (colour, dash, name) in LINES.items():
        there = [f for f in SHARES if rule in scores.table.get((panel, f), {})]
        axes.plot(
            [100 * f / CLIENTS for f in there],
            [100 * scores.accuracy((panel, f), rule) for f in there],
            color=COLOURS[colour][0],
            linestyle=dash,
            marker="o",
            markersize=3,
            linewidth=1.8,
            label=name,
        )
    axes.set_title(PANELS[panel].title)
    axes.set_xlabel("clients that attack, %")
    axes.set_xlim(-2, 64)
    axes.set_ylim(0, 100)
    axes.text(57, 96, "majority", ha="center", va="top", fontsize=7, color="0.35")
