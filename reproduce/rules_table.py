"""The table of rules in docs/results/torch.md, from the numbers of `torch_rules.py`.

    python -m reproduce rules-table \\
        reproduce/results/torch_rules.json docs/results/torch.md

Every number is a ratio to equal weights on the same seeds, with its 95 % interval. Test
losses: less is better. The rules of one model, scenario and server step are a family.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.experiments.statistics import Comparison, compare_pairs, interval_text

BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"
EQUAL = "equal"
SCORES = {"loss": "the iterate", "average loss": "the averaged model"}
Cells = dict[str, dict[str, dict[str, Any]]]
"""Lists of scores over seeds, by model, scenario and entry (`rule | outer`)."""


def split(cells: Cells) -> tuple[list[str], list[str], list[str]]:
    """Worlds, rules and server step, in the order of the run."""
    scenarios = list(next(iter(cells.values())))
    entries = [entry.split(" | ") for entry in next(iter(cells.values()))[scenarios[0]]]
    rules, outers = (list(dict.fromkeys(part)) for part in zip(*entries, strict=True))
    return scenarios, rules, outers


def against_equal(
    scenario: dict[str, Any], server_step: str, score: str
) -> dict[str, Comparison]:
    """How the rules compare with equal weights in one scenario: one family."""
    values = {
        entry.partition(" | ")[0]: np.array(scores[score], dtype=float)
        for entry, scores in scenario.items()
        if entry.partition(" | ")[2] == server_step
    }
    rules = [rule for rule in values if rule != EQUAL]
    pairs = compare_pairs(values, [(rule, EQUAL) for rule in rules], "test_loss")
    return {rule: comparison for (rule, _), comparison in pairs.items()}


def shown(one: Comparison) -> str:
    """Ratio and interval, bold where it is worse, ticked where better."""
    if one.reason:
        return "diverged" if one.verdict == "worse" else "—"
    if not np.isfinite(one.half):  # a mean of one seed is no mean
        return "—"
    text = interval_text(one).replace(" times", "")
    return {"better": f"{text} ✓", "worse": f"**{text}**", "undecided": text}[
        one.verdict
    ]


def lines_of(heads: list[str], rows: list[list[str]]) -> list[str]:
    ruler = "|".join(["| --- ", *[" ---: "] * (len(heads) - 1)]) + "|"
    return [f"| {' | '.join(row)} |" for row in (heads,)] + [
        ruler,
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def one_table(
    cells: dict[str, dict[str, Any]], server_step: str, score: str
) -> list[str]:
    """One model and one server step: rules down, scenarios across."""
    scenarios, rules, _ = split({"": cells})
    means = [
        np.nanmean(cells[scenario][f"{EQUAL} | {server_step}"][score])
        for scenario in scenarios
    ]
    rows = [[f"{EQUAL} (its loss)", *(f"{mean:.3f}" for mean in means)]]
    columns = [against_equal(cells[k], server_step, score) for k in scenarios]
    rows += [[rule, *(shown(column[rule]) for column in columns)] for rule in rules[1:]]
    return lines_of(["rule", *scenarios], rows)


def summary(cells: Cells, score: str) -> list[str]:
    """Over models and server step: how often better and worse, by kind of scenario."""
    scenarios, rules, outers = split(cells)
    kinds = list(dict.fromkeys(scenario.split()[0] for scenario in scenarios))
    rows = []
    for rule in rules[1:]:
        row = [rule]
        for kind in kinds:
            comparisons = [
                against_equal(of_model[scenario], server_step, score)[rule]
                for of_model in cells.values()
                for scenario in scenarios
                for server_step in outers
                if scenario.split()[0] == kind
            ]
            better, worse = (
                sum(one.verdict == verdict for one in comparisons)
                for verdict in ("better", "worse")
            )
            row.append(f"{better} better, {worse} worse of {len(comparisons)}")
        rows.append(row)
    return lines_of(["rule", *kinds], rows)


def weights_table(cells: Cells) -> list[str]:
    """Mean weight of the bad rank in its scenarios, and of all in the clean one."""
    scenarios, rules, outers = split(cells)
    bad = [scenario for scenario in scenarios if scenario.startswith("bad")]
    rows = []
    for rule in rules:
        row = [rule]
        for scenario in [scenarios[0], *bad]:
            weights = [
                of_model[scenario][f"{rule} | {server_step}"]["weights"]
                for of_model in cells.values()
                for server_step in outers
            ]
            mean = np.mean([one for one in weights if one], axis=0)
            each = (
                mean if scenario == scenarios[0] else [mean[int(scenario.split()[1])]]
            )
            row.append(" ".join(f"{w:.2f}" for w in each))
        rows.append(row)
    return lines_of(["rule", scenarios[0], *bad], rows)


def render_table(numbers: dict[str, Any]) -> str:
    """Everything between the marks."""
    cells, seeds = numbers["cells"], numbers["seeds"]
    _, _, outers = split(cells)
    rounds = ", ".join(f"{model} {n} rounds" for model, n in numbers["rounds"].items())
    lines = [BEGIN, "", f"{seeds} seeds; {rounds}; {numbers['device']}.", ""]
    for score, name in SCORES.items():
        lines += [
            f"**Against equal weights, {name}**: significant differences over models "
            "and server step.",
            "",
            *summary(cells, score),
            "",
        ]
    lines += ["**Mean weights**: of all ranks when all is well, of the bad one.", ""]
    lines += [*weights_table(cells), ""]
    for model, of_model in cells.items():
        for server_step in outers:
            lines += [f"**{model}, {server_step}**: test loss of the iterate.", ""]
            lines += [*one_table(of_model, server_step, "loss"), ""]
    return "\n".join([*lines, END])


def main() -> None:
    """Write the table of some numbers into a page."""
    source, page = map(Path, sys.argv[1:])
    write(source, page)


def write(source: Path, page: Path) -> None:
    """Put the table of a JSON file between the marks of a page."""
    text = page.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(before + render_table(json.loads(source.read_text())) + after)
