"""The README: its table is what the study published, its first screen is whole."""

import json
import re
from math import inf
from statistics import mean

import pytest
from docs_tools.pages import ROOT

README = (ROOT / "README.md").read_text("utf-8")
RULES = ("FedAvg", "geometric median", "multi-Krum", "Trust")
SCENARIOS = {
    "all are honest": "clean",
    "25 % have random labels": "labels",
    "40 % have random labels": "many",
    "15 % send flipped updates, ten times as long": "loud",
    "25 % send stale updates": "stale",
}
PANELS = ("mnist-hom", "mnist-het", "covertype-hom")
PANELS_0_2 = ("mnist", "covertype")


def worst_ratios(scenario: str) -> dict[str, float]:
    """Loss over that of the best rule, each rule at its best momentum, worst panel."""
    text = (ROOT / "docs/results/robustness/summary.json").read_text("utf-8")
    published, worst = json.loads(text), dict.fromkeys(RULES, 0.0)
    for panel in PANELS:
        losses: dict[str, float] = {}
        for name, run in published[f"{panel}, {scenario}"]["methods"].items():
            rule = name.split(", momentum")[0]
            if rule != "knows who is bad" and None not in run["averaged_objective"]:
                loss = mean(run["averaged_objective"])
                losses[rule] = min(loss, losses.get(rule, loss))
        for rule in RULES:
            worst[rule] = max(worst[rule], losses[rule] / min(losses.values()))
    return worst


@pytest.mark.parametrize("words", SCENARIOS)
def test_the_table_is_what_was_measured(words: str) -> None:
    (row,) = re.findall(rf"^\| {words} \|(.+)\|$", README, re.MULTILINE)
    shown = [cell.strip(" *") for cell in row.split("|")]
    ratios = worst_ratios(SCENARIOS[words])
    said = [
        f"{ratios[rule]:.2f}" if ratios[rule] < 10 else f"{ratios[rule]:.0f}"
        for rule in RULES
    ]
    assert shown == said


HOSTILE = {"none is hostile": 0, "20 % are hostile": 4, "40 % are hostile": 8}
COLUMNS = (
    ("mean", "ratio"),
    ("geometric median", "ratio"),
    ("AngleMix + geometric median", "ratio"),
    ("RootWeights, root of 100", "secret_ratio"),
    ("RootWeights, root of 100", "ratio"),
    ("root of 100 alone", "ratio"),
)


def worst_of(f: int, rule: str, key: str) -> str:
    """Worst ratios of a rule on the two non-IID panels, as the table writes them."""
    text = (ROOT / "docs/results/byzantine/summary.json").read_text("utf-8")
    rows = [json.loads(text)[f"{data}-0.2, {f}"][rule] for data in PANELS_0_2]
    ratios = [inf if row[key] is None else row[key] for row in rows]
    if min(ratios) > 100:
        return "> 100"
    return " / ".join(f"{r:.0f}" if r >= 10 else f"{r:.1f}" for r in ratios)


@pytest.mark.parametrize("words", HOSTILE)
def test_the_hostile_table_is_what_was_measured(words: str) -> None:
    (row,) = re.findall(rf"^\| {words} \|(.+)\|$", README, re.MULTILINE)
    shown = [cell.replace("*", "").strip() for cell in row.split("|")]
    assert shown == [worst_of(HOSTILE[words], *column) for column in COLUMNS]


def test_the_first_screen_has_a_picture_and_two_commands() -> None:
    screen = README.split("\n## ")[0]
    (picture,) = re.findall(r"!\[.+\]\((.+)\)", screen)
    assert (ROOT / picture).exists()
    (commands,) = re.findall(r"```sh\n(.*?)```", screen, re.DOTALL)
    assert len(commands.splitlines()) == 2
