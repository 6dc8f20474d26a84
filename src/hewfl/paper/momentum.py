"""The extended comparison on paper: every method under every outer momentum."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hewfl.experiments.compare import pair
from hewfl.experiments.folder import Folder
from hewfl.experiments.results import Results
from hewfl.experiments.summary import mean_text
from hewfl.paper.claims import Panels
from hewfl.paper.specs import MOMENTA, TITLES, hew_of, under_momentum

Key = tuple[str, str]
Answer = Literal["ahead of all", "behind some", "undecided"]
SHOWN = {"objective": "objective", "test_accuracy": "test accuracy"}


def momentum_text(folders: Mapping[Key, Folder]) -> str:
    """Tables of the last round, one row per method, one column per momentum."""
    lines = []
    for (data, regime), folder in folders.items():
        summary = folder.summary
        lines += [f"### {data}, {TITLES[regime]}", ""]
        for quantity, title in SHOWN.items():
            lines += [*_table(summary, quantity, title), ""]
    return "\n".join(lines)


def extended_text(panels: Panels) -> str:
    """What the panels say of HEW once every method has its best momentum."""
    lines = [
        "The paper has no claims about momentum, wider grids or the adaptive rivals. "
        "The question here is ours: is HEW ahead of every other method in the "
        "objective, each under its own best momentum? The momentum with the lowest "
        "mean over these same seeds counts as best, which favours nobody but makes "
        "every number a little too good.",
        "",
        "| panel | HEW is | because |",
        "| --- | --- | --- |",
    ]
    for (data, regime), results in panels.items():
        answer, because = _answer(results, hew_of(regime))
        lines.append(f"| {data}, {TITLES[regime]} | **{answer}** | {because} |")
    return "\n".join(lines) + "\n"


def _answer(results: Results, hew: str) -> tuple[Answer, str]:
    best = {family: _best(results, family) for family in families(results.labels)}
    own = best[hew]
    others = {f: label for f, label in best.items() if not f.startswith("HEW (")}
    outcomes = {
        label: pair(results, own, label, "objective") for label in others.values()
    }
    by = {
        verdict: [label for label, o in outcomes.items() if o.verdict == verdict]
        for verdict in ("better", "undecided", "worse")
    }
    answer: Answer = "undecided"
    if by["worse"]:
        answer = "behind some"
    elif not by["undecided"]:
        answer = "ahead of all"
    words = {"better": "lower than", "undecided": "undecided against"}
    words["worse"] = "higher than"
    told = (f"{words[v]} {', '.join(labels)}" for v, labels in by.items() if labels)
    return answer, f"objective of {own}: {'; '.join(told)}"


def families(labels: Sequence[str]) -> list[str]:
    """Methods without their momentum, in order."""
    return list(dict.fromkeys(label.split(", momentum ")[0] for label in labels))


def _best(results: Results, family: str) -> str:
    """The family's label with the lowest mean objective; the first if none is left."""
    found = {
        label: value
        for label in (under_momentum(family, beta) for beta in MOMENTA)
        if (value := _mean(results, label)) is not None
    }
    return min(found, key=lambda label: found[label]) if found else family


def _mean(results: Results, label: str) -> float | None:
    """Mean objective over all seeds; None if one of them diverged."""
    lane = results.labels.index(label)
    values = [by_lane[lane][-1].objective for by_lane in results.records]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _table(summary: Mapping[str, Any], quantity: str, title: str) -> list[str]:
    finals = {m["label"]: m["final"].get(quantity) for m in summary["methods"]}
    heads = [f"momentum {beta:g}" for beta in MOMENTA]
    lines = [
        f"| {title} | " + " | ".join(heads) + " |",
        "| --- |" + " ---: |" * len(heads),
    ]
    for family in families(list(finals)):
        cells = [_cell(finals[under_momentum(family, beta)]) for beta in MOMENTA]
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return lines


def _cell(value: Mapping[str, Any] | None) -> str:
    """Mean over the seeds; a run that diverged for some is said to."""
    return mean_text(None if value is None or None in value["seeds"] else value)
