"""The study on paper: tables, figure and verdicts in one folder."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_bytes, write_json, write_text
from hewfl.core.checks import invalid
from hewfl.experiments.folder import Folder, open_folder
from hewfl.paper.quality.figure import LOST, survival_figure
from hewfl.paper.quality.scores import LEVEL, Scores, is_deep, quantity_of, ranked
from hewfl.paper.quality.specs import (
    MOMENTA,
    ORACLE,
    PANELS,
    WORLDS,
    Key,
    name_of_run,
    study_keys,
    under_momentum,
)
from hewfl.paper.quality.verdicts import Verdict, name_of, verdicts

KEPT = ("spec.toml", "tuned.toml", "times.json")
"""Files of a run that are published beside its numbers."""
QUANTITIES = (
    *("objective", "averaged_objective", "test_loss", "averaged_test_loss"),
    *("test_accuracy", "averaged_test_accuracy"),
)
"""Of a method in the published summary, seed by seed."""
HEAD = (
    "Mean over the seeds of the last round, averaged model, every rule under its own "
    "best momentum and step size. Convex panels: objective of the honest clients; CNN: "
    "test loss. **Bold**: the best rule of the column, and those that are not shown to "
    "be behind it (paired t-test by seed, Holm-corrected within the column, 5 %). "
    f"*{ORACLE}* is a yardstick that no server has: weights by the true quality of "
    "clients. Step sizes were tuned on a seed that is not judged here, by the honest "
    "objective (CNN: validation loss), so every rule is helped alike by knowing what "
    "to aim for; the momentum is the one with the lowest mean over these same seeds."
)


def finished(root: Path, *, is_quick: bool = False) -> dict[Key, Folder]:
    """The runs of the study that are done under a root, whatever device they ran on.

    Raises:
        InvalidInputError: there is none.
    """
    names = {name_of_run(key, is_quick=is_quick): key for key in study_keys()}
    found: dict[Key, Folder] = {}
    for file in sorted(root.glob("quality-*/spec.toml")):
        if not (file.parent / "summary.json").exists():
            continue
        folder = open_folder(file.parent)
        if folder.spec.name in names:
            found[names[folder.spec.name]] = folder
    if not found:
        raise invalid("root", "a folder with finished runs of the study", str(root))
    return {key: found[key] for key in names.values() if key in found}


def publish_quality(folders: Mapping[Key, Folder], output: Path) -> list[Verdict]:
    """Write figure, tables, verdicts and numbers of the runs that are done.

    Args:
        folders: finished runs, by panel and world.
        output: folder to write to.

    Returns:
        The verdicts.

    Raises:
        DataError: files of a run are missing or damaged.
        MissingExtraError: matplotlib is not installed.
    """
    scores = Scores({key: folder.summary for key, folder in folders.items()})
    judged = verdicts(scores)
    survival_figure(scores, output / "survival")
    write_text(output / "results.md", _results_text(scores, folders))
    write_text(output / "verdicts.md", _verdicts_text(scores, judged))
    write_json(output / "summary.json", _numbers(scores))
    for (panel, world), folder in folders.items():
        for name in KEPT:
            place = folder.path / name
            if place.exists():
                target = output / "panels" / f"{panel}-{world}" / name
                write_bytes(target, place.read_bytes())
    return judged


def _numbers(scores: Scores) -> dict[str, Any]:
    """Last values of every method, seed by seed."""
    return {
        f"{panel}, {world}": {
            "seeds": summary["seeds"],
            "rounds": summary["rounds"],
            "methods": {
                method["label"]: {
                    "parameters": method["parameters"],
                    **{
                        name: [_digits(v) for v in method["final"][name]["seeds"]]
                        for name in QUANTITIES
                        if name in method["final"]
                    },
                    "weight_on_bad": _digits(
                        method.get("weight_on_bad", {}).get("mean")
                    ),
                }
                for method in summary["methods"]
            },
        }
        for (panel, world), summary in scores.summaries.items()
    }


def _verdicts_text(scores: Scores, judged: Sequence[Verdict]) -> str:
    (summary, *_) = scores.summaries.values()
    lines = [
        f"{len(scores.keys)} pairs of panel and world, {len(summary['seeds'])} seeds. "
        f"A rule is *among the best* of a world when it is not shown to be behind the "
        f"best one there (paired t-test by seed, Holm-corrected, {LEVEL:.0%}).",
        "",
        "| statement | verdict | because |",
        "| --- | --- | --- |",
        *(f"| {v.statement} | **{v.answer}** | {v.because} |" for v in judged),
    ]
    return "\n".join(lines) + "\n"


def _results_text(scores: Scores, folders: Mapping[Key, Folder]) -> str:
    lines = [HEAD, "", "![Who survives which world](survival.png)", ""]
    missing = [key for key in study_keys() if key not in folders]
    if missing:
        lines += ["Not run: " + "; ".join(map(name_of, missing)) + ".", ""]
    for deep in (False, True):
        panels = [p for p in scores.panels() if is_deep(p) == deep]
        if panels:
            lines += [*_worst_table(scores, panels, deep=deep), ""]
    for panel in scores.panels():
        lines += [f"## {PANELS[panel].title}", ""]
        lines += [*_values_table(scores, panel), ""]
        if is_deep(panel):
            lines += [*_accuracy_table(scores, panel), ""]
        lines += [*_weights_table(scores, panel), ""]
        lines += [*_momentum_table(scores, panel), ""]
    lines += [*_edges(folders), ""]
    return "\n".join(lines)


def _worst_table(scores: Scores, panels: Sequence[str], *, deep: bool) -> list[str]:
    kind = "CNN" if deep else "convex"
    lines = [
        f"## Worst ratio to the best rule of a world, {kind}",
        "",
        "| rule | worst ratio | where | mean ratio |",
        "| --- | ---: | --- | ---: |",
    ]
    keys = [key for key in scores.keys if key[0] in panels]
    for rule, ratio, key in ranked(scores, panels):
        mean = sum(scores.ratio(key, rule) for key in keys) / len(keys)
        lines.append(f"| {rule} | {_ratio(ratio)} | {name_of(key)} | {_ratio(mean)} |")
    return lines


def _columns(scores: Scores, panel: str) -> list[Key]:
    return [key for key in scores.keys if key[0] == panel]


def _head(first: str, keys: Sequence[Key]) -> list[str]:
    titles = " | ".join(WORLDS[world].title for _, world in keys)
    return [f"| {first} | {titles} |", "| --- |" + " ---: |" * len(keys)]


def _values_table(scores: Scores, panel: str) -> list[str]:
    keys = _columns(scores, panel)
    lines = _head(quantity_of(panel).replace("_", " "), keys)
    behind = {key: scores.behind(key) for key in keys}
    for rule in scores.rules(panel):
        cells = []
        for key in keys:
            value = scores.value(key, rule)
            text = f"{value:.4f}" if value < LOST else "lost"
            level = behind[key].get(rule, 0.0) >= LEVEL
            cells.append(f"**{text}**" if level else text)
        name = f"*{rule}*" if rule == ORACLE else rule
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _accuracy_table(scores: Scores, panel: str) -> list[str]:
    keys = _columns(scores, panel)
    lines = _head("test accuracy", keys)
    for rule in scores.rules(panel):
        cells = []
        for key in keys:
            found = scores.seeds(key, scores.best(key, rule), "test_accuracy")
            cells.append(f"{found.mean():.4f}")
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return lines


def _weights_table(scores: Scores, panel: str) -> list[str]:
    """How much weight bad clients had, mean over rounds and seeds."""
    keys = [k for k in _columns(scores, panel) if WORLDS[k[1]].faults]
    keys = [k for k in keys if scores.weight_on_bad(k, ORACLE) is not None]
    if not keys:
        return []
    lines = _head("weight on bad clients", keys)
    for rule in scores.rules(panel):
        cells = [_share(scores.weight_on_bad(key, rule)) for key in keys]
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return lines


def _momentum_table(scores: Scores, panel: str) -> list[str]:
    """Every momentum, iterate / averaged model, mean ratio over the worlds.

    To the best rule of each world, as in the other tables.
    """
    betas = MOMENTA[is_deep(panel)]
    titles = " | ".join(f"momentum {beta:g}" for beta in betas)
    lines = [
        "Geometric mean over the worlds of the ratio to the best rule, iterate / "
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
        math.exp(sum(map(math.log, found)) / len(found))
        if (found := list(ratios))
        else math.nan
    )


def _edges(folders: Mapping[Key, Folder]) -> list[str]:
    """Choices of tuning at the end of a list, where a wider one might help."""
    total, found = 0, []
    for key, folder in folders.items():
        for choice in folder.choices:
            total += 1
            if choice.at_edge:
                given = ", ".join(
                    f"{n} = {choice.parameters[n]:g}" for n in choice.at_edge
                )
                found.append(f"{name_of(key)}: {choice.label} ({given})")
    head = f"At the end of their list lie {len(found)} of {total} tuned step sizes"
    return [head + (":" if found else "."), "", *(f"- {line}" for line in found)]


def _digits(value: float | None) -> float | None:
    """Six digits, which is more than seeds share."""
    return None if value is None else float(f"{value:.6g}")


def _ratio(value: float) -> str:
    if not value < LOST:
        return "lost"
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
