"""Tables of the study: rules down, scenarios across."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hewfl.experiments.statistics import interval_text
from reproduce.robustness.heatmap import LOST
from reproduce.robustness.robustness_specs import (
    MOMENTA,
    ORACLE,
    SCENARIOS,
    Key,
    under_momentum,
)
from reproduce.robustness.scores import (
    Scores,
    is_deep,
    quantity_of,
    rank_by_worst,
)
from reproduce.robustness.verdicts import name_of

UNSTEADY = 1.5
"""Times the median of its rule and scenario: a run above it went astray."""


def worst_table(scores: Scores, panels: Sequence[str], *, deep: bool) -> list[str]:
    """Rules by their worst ratio to the best rule of a scenario, least first."""
    kind = "CNN" if deep else "convex"
    lines = [
        f"## Worst ratio to the best rule of a scenario, {kind}",
        "",
        "| rule | worst ratio | where | mean ratio |",
        "| --- | ---: | --- | ---: |",
    ]
    keys = [key for key in scores.keys if key[0] in panels]
    for rule, ratio, key in rank_by_worst(scores, panels):
        mean = sum(scores.ratio(key, rule) for key in keys) / len(keys)
        lines.append(f"| {rule} | {_ratio(ratio)} | {name_of(key)} | {_ratio(mean)} |")
    return lines


def _columns(scores: Scores, panel: str) -> list[Key]:
    return [key for key in scores.keys if key[0] == panel]


def _table(
    first: str,
    rules: Sequence[str],
    keys: Sequence[Key],
    cell: Callable[[Key, str], str],
) -> list[str]:
    """Rules down, scenarios across."""
    titles = " | ".join(SCENARIOS[scenario].title for _, scenario in keys)
    lines = [f"| {first} | {titles} |", "| --- |" + " ---: |" * len(keys)]
    for rule in rules:
        name = f"*{rule}*" if rule == ORACLE else rule
        lines.append(f"| {name} | " + " | ".join(cell(k, rule) for k in keys) + " |")
    return lines


def values_table(scores: Scores, panel: str) -> list[str]:
    """What rules reached; bold those that are not shown to be behind the best."""

    def cell(key: Key, rule: str) -> str:
        value = scores.value(key, rule)
        text = f"{value:.4f}" if value < LOST else "lost"
        return f"**{text}**" if scores.is_level(key, rule) else text

    first = quantity_of(panel).replace("_", " ")
    return _table(first, scores.rules(panel), _columns(scores, panel), cell)


def pairs_table(scores: Scores, panel: str) -> list[str]:
    """How far behind, with intervals, and what undecided pairs would have shown."""

    def cell(key: Key, rule: str) -> str:
        winner = scores.winner(key)
        if rule == winner:
            return "best"
        if not scores.value(key, rule) < LOST:
            return "lost"
        if rule == ORACLE:
            return "limit"
        c = scores.against_best(key)[rule]
        text = interval_text(c).replace(" times", "")
        if c.verdict == "undecided" and math.isfinite(c.detectable):
            text += f"; would show {c.detectable:.3f}"
        return text

    return [
        "Ratio to the best rule of the scenario, paired by seed, with 95 % intervals, "
        "each for itself; where the pair is undecided, the ratio that the seeds would "
        "have shown in four cases of five:",
        "",
        *_table("ratio", scores.rules(panel), _columns(scores, panel), cell),
    ]


def accuracy_table(scores: Scores, panel: str) -> list[str]:
    """Test accuracy of the averaged model, of a network."""

    def cell(key: Key, rule: str) -> str:
        accuracies = scores.seeds(key, scores.best(key, rule), "test_accuracy")
        return f"{accuracies.mean():.4f}"

    keys = _columns(scores, panel)
    return _table("test accuracy", scores.rules(panel), keys, cell)


def unsteady(scores: Scores, panel: str) -> list[str]:
    """Runs that did not end where the others of their rule did."""
    total, counts = 0, {False: 0, True: 0}
    for key in _columns(scores, panel):
        for rule in scores.rules(panel):
            for averaged in counts:
                values = scores.seeds(key, scores.best(key, rule), averaged=averaged)
                ends = np.nan_to_num(values, nan=np.inf, posinf=np.inf)
                steady = np.isfinite(ends) & (ends <= UNSTEADY * np.median(ends))
                counts[averaged] += int((~steady).sum())
            total += len(values)
    return [
        f"Of {total} runs {counts[False]} end with more than {UNSTEADY:g} times the "
        "median test loss of their rule and scenario, or diverged; by the averaged "
        f"model {counts[True]}.",
    ]


def weights_table(scores: Scores, panel: str) -> list[str]:
    """How much weight bad clients had, mean over rounds and seeds."""
    keys = [k for k in _columns(scores, panel) if SCENARIOS[k[1]].faults]
    keys = [k for k in keys if scores.weight_on_bad(k, ORACLE) is not None]
    if not keys:
        return []
    return _table(
        "weight on bad clients",
        scores.rules(panel),
        keys,
        lambda key, rule: _share(scores.weight_on_bad(key, rule)),
    )


def momentum_table(scores: Scores, panel: str) -> list[str]:
    """Every momentum, iterate / averaged model, mean ratio over the scenarios.

    To the best rule of each scenario, as in the other tables.
    """
    betas = MOMENTA[is_deep(panel)]
    titles = " | ".join(f"momentum {beta:g}" for beta in betas)
    lines = [
        "Geometric mean over the scenarios of the ratio to the best rule, iterate / "
        "averaged model:",
        "",
        f"| rule | {titles} |",
        "| --- |" + " ---: |" * len(betas),
    ]
    keys = _columns(scores, panel)
    for rule in scores.rules(panel):
        cells = []
        for beta in betas:
            label = under_momentum(rule, beta)
            pair = (
                _geometric(
                    scores.mean(key, label, averaged=averaged)
                    / scores.value(key, scores.winner(key))
                    for key in keys
                )
                for averaged in (False, True)
            )
            cells.append(" / ".join(map(_ratio, pair)))
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return lines


def _geometric(ratios: Any) -> float:
    return (
        math.exp(sum(map(math.log, values)) / len(values))
        if (values := list(ratios))
        else math.nan
    )


def _ratio(value: float) -> str:
    if not value < LOST:
        return "lost"
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
