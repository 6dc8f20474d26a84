"""The study on paper: tables, the figure and the numbers in one folder."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_json, write_text
from hewfl.experiments.statistics import interval_text
from hewfl.plotting import COLOURS, save
from reproduce.byzantine.byzantine_cells import (
    CLIENTS,
    GROUPS,
    ORACLE,
    PANELS,
    SHARES,
)
from reproduce.byzantine.byzantine_scores import Column, Scores

LOST = 1000.0
"""Ratios that are not worth a number."""
NEAR = 1.1
"""A ratio to the oracle above this one is a miss of a rule that is recommended."""
RECOMMENDED = ("AngleMix + geometric median", "RootWeights, root of 100")
SHOWN = {
    "RootWeights, root of 100": "RootWeights*",
    "FLTrust, root of 100": "FLTrust*",
    "clip + ExactWeights, root of 100": "clip + ExactWeights*",
    "AngleMix + geometric median": "AngleMix + geometric median",
    "SoftMix + geometric median": "SoftMix + geometric median",
    "clip + NNM + geometric median (f)": "clip + NNM + geometric median",
    "ARC + NNM + trimmed mean (f)": "ARC + NNM + trimmed mean",
    "geometric median": "geometric median",
    "multi-Krum (f)": "multi-Krum",
    "centred clipping": "centred clipping",
    "Trust": "Trust",
    "Sieve": "Sieve",
    "mean": "mean",
}
"""Rules of the figure, and their names there."""
HEAD = (
    "Worst case over the attacks: loss of the honest clients over that of the honest "
    "oracle, which averages the honest updates alone; geometric mean over the seeds, "
    "under the attack with the largest one, which is named. 1 is as good as training "
    "without attackers. **Bold**: the best rule of the column, and those not shown to "
    "be behind it (log ratios paired by seed, Student's t, Holm's correction in the "
    "column, 5 %), apart for rules with a root and without one. (f): the rule is told "
    "the number of attackers."
)


def publish_byzantine(scores: Scores, output: Path) -> None:
    """Write tables, figure and numbers of the cells that are done.

    Args:
        scores: of the study.
        output: folder to write to.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    write_text(output / "results.md", results_text(scores))
    write_json(output / "summary.json", numbers_of(scores))
    if scores.table:
        draw_worst_ratios(scores, output / "worst_ratios")


# ------------------ tables


def results_text(scores: Scores) -> str:
    """All tables."""
    seeds = ", ".join(map(str, scores.sizes.seeds))
    lines = ["# Attacks and defences, tables", "", HEAD, ""]
    lines += [f"{scores.sizes.rounds} rounds; seeds {seeds}.", ""]
    lines += [*_runs(scores), ""]
    if scores.table:
        lines += ["![Worst ratio to the honest oracle](worst_ratios.png)", ""]
    for group, title in (
        ("main", "Worst ratio to the honest oracle"),
        ("roots", "Other roots"),
        ("others", "Other rules"),
    ):
        lines += _section(scores, group, title, _ratio_cell(scores))
    lines += _misses(scores)
    main = (
        ("Worst accuracy on the test part, %", _accuracy_cell(scores)),
        ("Ratio to the best rule of its kind, 95 % interval", _interval_cell(scores)),
        ("Tuned total step in units of 1/L", _step_cell(scores)),
    )
    for title, cell in main:
        lines += _section(scores, "main", title, cell)
    return "\n".join([*lines, *_edges(scores), ""])


def _runs(scores: Scores) -> Iterator[str]:
    """Which cells were run, and which were not."""
    for title, is_done in (("Run", True), ("Not run", False)):
        cells = [
            f"{PANELS[c.panel].title}, {_share(c.f)}"
            + ("" if c.group == "main" else f" ({c.group})")
            for c in scores.cells
            if (c not in scores.missing) == is_done
        ]
        if cells:
            yield f"- {title}: {'; '.join(cells)}."


Cell = Callable[[Column, str], str]


def _section(scores: Scores, group: str, title: str, cell: Cell) -> list[str]:
    """Rules of a group down, cells across; nothing where no cell has them."""
    rules = GROUPS[group]
    columns = [c for c, row in scores.table.items() if any(r in row for r in rules)]
    if not columns:
        return []
    columns.sort(key=lambda c: (list(PANELS).index(c[0]), c[1]))
    heads = (f"{PANELS[panel].title}, {_share(f)}" for panel, f in columns)
    lines = [
        *(f"## {title}", ""),
        "| rule | " + " | ".join(heads) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for rule in rules:
        if not any(rule in scores.table[c] for c in columns):
            continue
        cells = (cell(c, rule) if rule in scores.table[c] else "-" for c in columns)
        name = f"*{rule}*" if rule == ORACLE else rule
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _ratio_cell(scores: Scores) -> Cell:
    """The worst ratio, and its attack."""

    def cell(c: Column, rule: str) -> str:
        if rule == ORACLE:
            return "1"
        text = _ratio(scores.ratio(c, rule))
        text = f"**{text}**" if scores.is_level(c, rule) else text
        return text if c[1] == 0 else f"{text} {scores.table[c][rule].attack}"

    return cell


def _accuracy_cell(scores: Scores) -> Cell:
    return lambda c, rule: f"{100 * scores.accuracy(c, rule):.1f}"


def _interval_cell(scores: Scores) -> Cell:
    def cell(c: Column, rule: str) -> str:
        if rule == ORACLE:
            return "limit"
        compared = scores.against_best(c, rule)
        if compared is None:
            return "best"
        if not scores.ratio(c, rule) < LOST:
            return "lost"
        return interval_text(compared).replace(" times", "")

    return cell


def _step_cell(scores: Scores) -> Cell:
    return lambda c, rule: f"{scores.table[c][rule].amplitude:g}"


def _misses(scores: Scores) -> list[str]:
    """Where a rule that is recommended is far from the oracle."""
    lines = [f"## Misses: above {NEAR:g} times the oracle", ""]
    for rule in RECOMMENDED:
        there = [c for c, row in scores.table.items() if rule in row]
        missed = [
            f"{scores.ratio(c, rule):.3f} in {PANELS[c[0]].title}, {_share(c[1])} "
            f"({scores.table[c][rule].attack})"
            for c in there
            if not scores.ratio(c, rule) <= NEAR
        ]
        rest = f": {'; '.join(missed)}" if missed else ""
        lines.append(f"- {rule}: {len(missed)} of {len(there)} cells{rest}.")
    return [*lines, ""]


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


def draw_worst_ratios(scores: Scores, path: Path) -> tuple[Path, Path]:
    """Draw the worst ratios as bars, for the panel with most columns.

    One part for every share of attackers; the dashed line is the model before training.

    Args:
        scores: of the study.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    counts = {p: sum((p, f) in scores.table for f in SHARES) for p in PANELS}
    panel = max(counts, key=lambda p: counts[p])
    columns = [(panel, f) for f in SHARES if (panel, f) in scores.table]
    rules = [r for r in SHOWN if any(r in scores.table[c] for c in columns)]

    def draw(figure: Any) -> None:
        parts = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, column in zip(parts, columns, strict=True):
            _draw_bars(axes, scores, column, rules)
        parts[0].set_yticks(range(len(rules)), [SHOWN[r] for r in rules], fontsize=8)
        parts[0].set_ylim(len(rules) - 0.4, -0.6)
        figure.suptitle(
            f"Loss under the worst attack ({PANELS[panel].title}), times that of "
            "honest clients alone\n"
            "* the server owns 100 clean samples; dashed: the model before training",
            fontsize=9,
        )

    return save(draw, (1.7 * len(columns) + 2.4, 3.6), path)


WIDEST = 10.0
"""Ratios are drawn up to here."""


def _draw_bars(axes: Any, scores: Scores, column: Column, rules: Sequence[str]) -> None:
    """One bar for each rule: ours, the rest of those with a root, the rest."""
    panel, f = column
    for place, rule in enumerate(rules):
        if rule not in scores.table[column]:
            axes.text(1.03, place, "not possible", fontsize=6, va="center", color="0.4")
            continue
        ratio = scores.ratio(column, rule)
        end = min(max(ratio, 1.0), WIDEST)
        is_ours = rule in RECOMMENDED
        axes.barh(
            place,
            end - 1.0,
            left=1.0,
            height=0.72,
            color=COLOURS["blue" if is_ours else "grey"][0],
            hatch=None if is_ours else "////",
            edgecolor="white",
            linewidth=0,
        )
        text = f"{ratio:.2f}" if ratio < WIDEST else f"> {WIDEST:g}"
        is_long = end > 0.4 * WIDEST
        axes.text(
            end / 1.05 if is_long else end * 1.05,
            place,
            text,
            ha="right" if is_long else "left",
            va="center",
            fontsize=6.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    untrained = math.log(PANELS[panel].classes)
    axes.axvline(
        untrained / scores.oracle_loss(column), color="0.2", linestyle="--", linewidth=1
    )
    axes.set_xscale("log")
    axes.set_xlim(0.97, WIDEST)
    axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.set_title("no attackers" if f == 0 else f"{100 * f // CLIENTS} % attack")
