"""The study on paper: tables, figure and verdicts in one folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.atomic import read_json, write_json, write_text
from hewfl.core.validation import invalid
from hewfl.experiments.run_folder import Folder, open_folder
from reproduce.publish import KEPT, copy_files
from reproduce.robustness.heatmap import draw_loss_ratios
from reproduce.robustness.robustness_specs import (
    ORACLE,
    PANELS,
    Key,
    name_of_run,
    study_keys,
)
from reproduce.robustness.scores import Scores, is_deep
from reproduce.robustness.tables import (
    accuracy_table,
    momentum_table,
    pairs_table,
    unsteady,
    values_table,
    weights_table,
    worst_table,
)
from reproduce.robustness.verdicts import Verdict, as_trial, name_of, verdicts

QUANTITIES = (
    *("objective", "averaged_objective", "test_loss", "averaged_test_loss"),
    *("test_accuracy", "averaged_test_accuracy"),
)
"""Of a method in the published summary, seed by seed."""
HEAD = (
    "Mean over the seeds of the last round, averaged model, every rule under its own "
    "best momentum and step size. Convex panels: objective of the honest clients; CNN: "
    "test loss. **Bold**: the best rule of the column, and those that are not shown to "
    "be behind it (log ratios paired by seed, Student's t with Holm's correction in "
    "the column, 5 %; how small a ratio would have been shown stands in the next "
    "table). "
    f"*{ORACLE}* is a yardstick that no server has: weights by the true quality of "
    "clients. Step sizes were tuned on seeds that are not judged here, by the honest "
    "objective (CNN: the worst validation loss of three seeds), so every rule is "
    "helped alike by knowing what to aim for; the momentum is the one with the lowest "
    "mean over these same seeds."
)


def finished_runs(root: Path, *, is_quick: bool = False) -> dict[Key, Folder]:
    """The runs of the study that are done under a root, whatever device they ran on.

    Raises:
        InvalidInputError: there is none.
    """
    names = {name_of_run(key, is_quick=is_quick): key for key in study_keys()}
    folders: dict[Key, Folder] = {}
    for file in sorted(root.glob("robustness-*/spec.toml")):
        if not (file.parent / "summary.json").exists():
            continue
        folder = open_folder(file.parent)
        if folder.spec.name in names:
            folders[names[folder.spec.name]] = folder
    if not folders:
        raise invalid("root", "a folder with finished runs of the study", str(root))
    return {key: folders[key] for key in names.values() if key in folders}


def publish_robustness(
    folders: Mapping[Key, Folder], output: Path, *, is_quick: bool = False
) -> list[Verdict]:
    """Write figure, tables, verdicts and numbers of the runs that are done.

    Args:
        folders: finished runs, by panel and scenario.
        output: folder to write to.
        is_quick: whether the runs are a trial, which gives no verdicts.

    Returns:
        The verdicts.

    Raises:
        DataError: files of a run are missing or damaged.
        MissingExtraError: matplotlib is not installed.
    """
    scores = Scores({key: folder.summary for key, folder in folders.items()})
    write_json(output / "summary.json", numbers_of(scores))
    for (panel, scenario), folder in folders.items():
        copy_files(folder, output / "panels" / f"{panel}-{scenario}", KEPT)
    return judge_study(scores, folders, output, is_quick=is_quick)


def judge_study(
    scores: Scores,
    folders: Mapping[Key, Folder],
    output: Path,
    *,
    is_quick: bool = False,
) -> list[Verdict]:
    """Draw the figure, write tables and verdicts; return these."""
    draw_loss_ratios(scores, output / "loss_ratios")
    answers = as_trial(verdicts(scores)) if is_quick else verdicts(scores)
    write_text(output / "results.md", _results_text(scores, folders))
    text = _verdicts_text(scores, answers, is_quick=is_quick)
    write_text(output / "verdicts.md", text)
    return answers


def published_study(output: Path) -> tuple[Scores, dict[Key, Folder]]:
    """The numbers of a published study, and the folders with its specs and tuning."""
    numbers = read_json(output / "summary.json")
    summaries = {}
    for key in study_keys():
        if (known := numbers.get(", ".join(key))) is not None:
            methods = [_summary_of(k, v) for k, v in known["methods"].items()]
            summaries[key] = {**known, "methods": methods}
    panels = output / "panels"
    folders = {key: open_folder(panels / "-".join(key)) for key in summaries}
    return Scores(summaries), folders


def _summary_of(label: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """A method in the form of a run's summary."""
    final = {name: {"seeds": known[name]} for name in QUANTITIES if name in known}
    bad = known["weight_on_bad"]
    return {
        "label": label,
        "parameters": known["parameters"],
        "final": final,
        **({} if bad is None else {"weight_on_bad": {"mean": bad}}),
    }


def numbers_of(scores: Scores) -> dict[str, Any]:
    """Last values of every method, seed by seed."""
    return {
        f"{panel}, {scenario}": {
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
        for (panel, scenario), summary in scores.summaries.items()
    }


def _verdicts_text(
    scores: Scores, answers: Sequence[Verdict], *, is_quick: bool
) -> str:
    (summary, *_) = scores.summaries.values()
    lines = [
        f"{len(scores.keys)} pairs of panel and scenario, {len(summary['seeds'])} "
        "seeds."
        + (" They are a trial, which gives no verdicts." if is_quick else "")
        + " A rule is *among the best* of a scenario when it is not shown to be "
        "behind the best one there: log ratios paired by seed, Student's t, Holm's "
        "correction over the rules of the scenario, 5 %. That may be for want of "
        "seeds: in brackets stands the ratio that they would have shown, in four cases "
        "of five, in each of these cases. The yardstick, which knows who is bad, is "
        "never ranked.",
        "",
        "| statement | verdict | because |",
        "| --- | --- | --- |",
        *(f"| {v.statement} | **{v.answer}** | {v.because} |" for v in answers),
    ]
    return "\n".join(lines) + "\n"


def _results_text(scores: Scores, folders: Mapping[Key, Folder]) -> str:
    lines = [
        HEAD,
        "",
        "![Loss relative to the best rule, by type of faulty client](loss_ratios.png)",
        "",
    ]
    missing = [key for key in study_keys() if key not in folders]
    if missing:
        lines += ["Not run: " + "; ".join(map(name_of, missing)) + ".", ""]
    for deep in (False, True):
        panels = [p for p in scores.panels() if is_deep(p) == deep]
        if panels:
            lines += [*worst_table(scores, panels, deep=deep), ""]
    for panel in scores.panels():
        lines += [f"## {PANELS[panel].title}", ""]
        lines += [*values_table(scores, panel), ""]
        lines += [*pairs_table(scores, panel), ""]
        if is_deep(panel):
            lines += [*unsteady(scores, panel), ""]
            lines += [*accuracy_table(scores, panel), ""]
        lines += [*weights_table(scores, panel), ""]
        lines += [*momentum_table(scores, panel), ""]
    lines += [*_edges(folders), ""]
    return "\n".join(lines)


def _edges(folders: Mapping[Key, Folder]) -> list[str]:
    """Choices of tuning at the end of a list, where a wider one might help."""
    total, edges = 0, []
    for key, folder in folders.items():
        for choice in folder.choices:
            total += 1
            if choice.at_edge:
                given = ", ".join(
                    f"{n} = {choice.parameters[n]:g}" for n in choice.at_edge
                )
                edges.append(f"{name_of(key)}: {choice.label} ({given})")
    head = f"At the end of their list lie {len(edges)} of {total} tuned step sizes"
    return [head + (":" if edges else "."), "", *(f"- {line}" for line in edges)]


def _digits(value: float | None) -> float | None:
    """Six digits, which is more than seeds share."""
    return None if value is None else float(f"{value:.6g}")
