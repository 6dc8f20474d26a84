"""Comparisons beyond the paper, on paper: long lists, outer momentum, averaging."""

from collections.abc import Mapping
from typing import Literal

from hewfl.experiments.compare import Comparison
from hewfl.experiments.folder import Folder
from hewfl.paper.claims import Panels, against_others
from hewfl.paper.specs import TITLES, hew_of

Key = tuple[str, str]
Answer = Literal["ahead of all", "behind some", "undecided"]
WORDS = {
    "better": "lower than",
    "undecided": "undecided against",
    "worse": "higher than",
}


def extended_text(panels: Panels) -> str:
    """What the panels say of HEW once every method has what it needs."""
    (results, *_) = panels.values()
    model = "averaged model" if results.spec.judge == "averaged" else "last model"
    lines = [
        "The paper has no claims about these lists. The question is ours: is HEW ahead "
        f"of every other method in the objective of the {model}, at equal rounds, by "
        "95 % paired intervals?",
        "",
        "| panel | HEW is | because |",
        "| --- | --- | --- |",
    ]
    for (data, regime), found in panels.items():
        outcomes = against_others(found, hew_of(regime), "objective")
        told = f"{hew_of(regime)}: {_because(outcomes)}"
        answer = _answer(outcomes)
        lines.append(f"| {data}, {TITLES[regime]} | **{answer}** | {told} |")
    return "\n".join(lines) + "\n"


def edges_text(folders: Mapping[Key, Folder]) -> str:
    """How many choices of hyper-parameters lie at an end of a list, and which."""
    choices = [(key, c) for key, folder in folders.items() for c in folder.choices]
    ends = [(key, choice) for key, choice in choices if choice.at_edge]
    told = (
        f"{len(ends)} of {len(choices)} choices lie at an end of a list that is no "
        "bound of the parameter itself"
    )
    if not ends or len(ends) > len(choices) // 4:
        return f"{told}.\n"
    named = (
        f"{choice.label} on {data}, {regime} ({', '.join(choice.at_edge)})"
        for (data, regime), choice in ends
    )
    return f"{told}: {'; '.join(named)}.\n"


def _answer(outcomes: Mapping[str, Comparison]) -> Answer:
    verdicts = {outcome.verdict for outcome in outcomes.values()}
    if "worse" in verdicts:
        return "behind some"
    return "undecided" if "undecided" in verdicts else "ahead of all"


def _because(outcomes: Mapping[str, Comparison]) -> str:
    by = {
        verdict: [label for label, o in outcomes.items() if o.verdict == verdict]
        for verdict in WORDS
    }
    told = (f"{WORDS[v]} {', '.join(labels)}" for v, labels in by.items() if labels)
    return "; ".join(told)
