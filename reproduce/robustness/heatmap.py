"""Loss relative to the best rule, by type of faulty client, on one sheet."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.plotting import save
from reproduce.robustness.robustness_specs import ORACLE, SCENARIOS
from reproduce.robustness.scores import Scores, is_deep

RUINED, LOST = 2.0, 1000.0
"""Ratios from here on have the darkest colour, and are not worth a number."""


def draw_loss_ratios(scores: Scores, path: Path) -> tuple[Path, Path]:
    """Draw a heat map: rules × scenarios, the worst ratio to the best rule over panels.

    Args:
        scores: of the runs that are done.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    convex = [p for p in scores.panels() if not is_deep(p)]
    deep = [p for p in scores.panels() if is_deep(p)]
    groups = [group for group in (convex, deep) if group]
    rules = _order(scores, groups[0])

    def draw(figure: Any) -> None:
        widths = [len(_scenarios(scores, group)) for group in groups]
        axes = figure.subplots(
            1, len(groups), sharey=True, squeeze=False, width_ratios=widths
        )[0]
        for panel, group in zip(axes, groups, strict=True):
            _draw_group(panel, scores, group, rules)
        figure.suptitle(
            "Loss relative to the best rule, by type of faulty client (1.00 = best)",
            fontsize=11,
        )

    columns = sum(len(_scenarios(scores, group)) for group in groups)
    return save(draw, (2.6 + 0.62 * columns, 2.4 + 0.27 * len(rules)), path)


def _scenarios(scores: Scores, group: list[str]) -> list[str]:
    return [w for w in SCENARIOS if any((p, w) in scores.keys for p in group)]


def _order(scores: Scores, group: list[str]) -> list[str]:
    """The yardstick, then rules by their worst ratio."""
    rest = [rule for rule in scores.rules(group[0]) if rule != ORACLE]
    rest.sort(key=lambda rule: scores.worst(rule, group)[0])
    return [ORACLE, *rest]


def _draw_group(axes: Any, scores: Scores, group: list[str], rules: list[str]) -> None:
    """One block of columns; rules that were not run there stay white."""
    scenarios = _scenarios(scores, group)
    table = np.full((len(rules), len(scenarios)), np.nan)
    for i, rule in enumerate(rules):
        for j, scenario in enumerate(scenarios):
            keys = [(p, scenario) for p in group if (p, scenario) in scores.keys]
            if rule in scores.rules(group[0]):
                table[i, j] = max(scores.ratio(key, rule) for key in keys)
    shown = np.log2(np.clip(table, 1.0, RUINED))
    shown[np.isinf(table)] = math.log2(RUINED)
    axes.imshow(shown, cmap="cividis_r", vmin=0, vmax=math.log2(RUINED), aspect="auto")
    for i in range(len(rules)):
        for j in range(len(scenarios)):
            axes.text(
                j, i, _text(table[i, j]), ha="center", va="center", fontsize=6.5,
                color="white" if shown[i, j] > 0.5 else "black",
            )  # fmt: skip
    axes.set_xticks(
        range(len(scenarios)),
        [SCENARIOS[w].title for w in scenarios],
        rotation=40,
        ha="right",
        rotation_mode="anchor",
    )
    axes.set_yticks(range(len(rules)), rules)
    axes.axhline(0.5, color="black", linewidth=1.2)
    axes.set_title("CNN" if is_deep(group[0]) else "convex: the worst of the panels")
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _text(ratio: float) -> str:
    if math.isnan(ratio):
        return ""
    if ratio >= LOST:
        return "lost"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
