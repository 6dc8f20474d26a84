"""The table of rules in docs/results/torch.md, from the numbers of `torch_rules.py`.

    python -m reproduce rules-table \\
        reproduce/results/torch_rules.json docs/results/torch.md

Every number is a difference to equal weights on the same seeds, with the half width of
its 95 % interval. Test losses: less is better. A job that diverged counts with the loss
`DIVERGED`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.experiments.statistics import Comparison, compare

BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"
HELD_OUT = "<!-- held-out rules: begin -->", "<!-- held-out rules: end -->"
EQUAL, DEFAULT = "equal", "sieve, relative"
DIVERGED = 10.0
"""Losses above, and those that are not finite, count as this one."""
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
    scenario: dict[str, Any], rule: str, server_step: str, score: str
) -> Any:
    """How a rule compares with equal weights in one scenario."""
    first, second = (
        losses(scenario, name, server_step, score) for name in (rule, EQUAL)
    )
    return compare(first, second, scale="difference")


def losses(scenario: dict[str, Any], rule: str, server_step: str, score: str) -> Any:
    """Of the seeds, at most `DIVERGED`."""
    values = np.array(scenario[f"{rule} | {server_step}"][score], dtype=float)
    return np.where(values < DIVERGED, values, DIVERGED)


def shown(one: Comparison) -> str:
    """Mean difference and half width, bold where it is worse, marked where better."""
    text = f"{one.mean:+.3f} ± {one.high - one.mean:.3f}".replace("-", "−")
    return {"better": f"{text} ✓", "worse": f"**{text}**", "undecided": text}[
        one.verdict
    ]


def lines_of(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    ruler = "|".join(["| --- ", *[" ---: "] * (len(heads) - 1)]) + "|"
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return [lines[0], ruler, *lines[1:]]


def one_table(
    cells: dict[str, dict[str, Any]], server_step: str, score: str
) -> list[str]:
    """One model and one server step: scenarios down, rules across."""
    scenarios, rules, _ = split({"": cells})
    rows = []
    for scenario in scenarios:
        median = np.median(losses(cells[scenario], EQUAL, server_step, score))
        comparisons = [
            against_equal(cells[scenario], rule, server_step, score)
            for rule in rules[1:]
        ]
        rows.append([scenario, f"{median:.3f}", *map(shown, comparisons)])
    return lines_of(["scenario", f"{EQUAL} (its median)", *rules[1:]], rows)


def kind_of(scenario: str) -> str:
    """What is wrong in a scenario."""
    return scenario.split(", ", maxsplit=1)[0]


def summary(cells: Cells, score: str) -> list[str]:
    """Over models, speeds and server step: how often better and worse, by fault."""
    scenarios, rules, outers = split(cells)
    kinds = list(dict.fromkeys(map(kind_of, scenarios)))
    rows, count = [], 0
    for rule in rules[1:]:
        row = [rule]
        for kind in kinds:
            comparisons = [
                against_equal(of_model[scenario], rule, server_step, score)
                for of_model in cells.values()
                for scenario in scenarios
                for server_step in outers
                if kind_of(scenario) == kind
            ]
            better, worse = (
                sum(one.verdict == verdict for one in comparisons)
                for verdict in ("better", "worse")
            )
            count = len(comparisons)
            row.append(f"{better} / {worse}")
        rows.append(row)
    return lines_of([f"better / worse of {count}", *kinds], rows)


def worse_cells(cells: Cells, rule: str, score: str) -> list[str]:
    """Where a rule is significantly worse, in words."""
    scenarios, _, outers = split(cells)
    return [
        f"{model}, {server_step}, {scenario}: {shown(comparison)}"
        for model, of_model in cells.items()
        for server_step in outers
        for scenario in scenarios
        for comparison in [against_equal(of_model[scenario], rule, server_step, score)]
        if comparison.verdict == "worse"
    ]


def weights_table(cells: Cells) -> list[str]:
    """Mean weight of the bad rank, the first, by fault; of all ranks by speed."""
    scenarios, rules, outers = split(cells)
    clean = [scenario for scenario in scenarios if kind_of(scenario) == "clean"]
    kinds = list(dict.fromkeys(map(kind_of, scenarios)))[1:]
    rows = []
    for rule in rules:

        def mean(chosen: list[str], rule: str = rule) -> Any:
            weights = [
                of_model[scenario][f"{rule} | {server_step}"]["weights"]
                for of_model in cells.values()
                for scenario in chosen
                for server_step in outers
            ]
            return np.mean([one for one in weights if one], axis=0)

        row = [rule]
        row += [" ".join(f"{w:.2f}" for w in mean([scenario])) for scenario in clean]
        for kind in kinds:
            bad = mean(
                [scenario for scenario in scenarios if kind_of(scenario) == kind]
            )
            row.append(f"{bad[0]:.2f}")
        rows.append(row)
    return lines_of(["rule", *clean, *kinds], rows)


def render_table(numbers: dict[str, Any]) -> str:
    """Everything between the marks."""
    cells, seeds = numbers["cells"], numbers["seeds"]
    _, rules, outers = split(cells)
    rounds = ", ".join(f"{model} {n} rounds" for model, n in numbers["rounds"].items())
    lines = [BEGIN, "", f"{seeds} seeds; {rounds}; {numbers['device']}.", ""]
    for score, name in SCORES.items():
        lines += [f"**Against equal weights, {name}**: significant differences.", ""]
        lines += [*summary(cells, score), ""]
    if DEFAULT in rules:
        lines += [f"**Where `{DEFAULT}` is worse** (the iterate):", ""]
        lines += [f"- {text}" for text in worse_cells(cells, DEFAULT, "loss")]
        lines += [""]
    lines += ["**Mean weights**: of all ranks when all is well, of the bad one.", ""]
    lines += [*weights_table(cells), ""]
    for model, of_model in cells.items():
        for server_step in outers:
            lines += [f"**{model}, {server_step}**: test loss of the iterate.", ""]
            lines += [*one_table(of_model, server_step, "loss"), ""]
    return "\n".join([*lines, END])


def render_held_out(numbers: dict[str, Any]) -> str:
    """The same in short, for the second grid."""
    cells, (begin, end) = numbers["cells"], HELD_OUT
    rounds = ", ".join(f"{model} {n} rounds" for model, n in numbers["rounds"].items())
    lines = [begin, "", f"{numbers['seeds']} seeds; {rounds}; {numbers['device']}.", ""]
    lines += ["**Against equal weights, the iterate**: significant differences.", ""]
    lines += [*summary(cells, "loss"), ""]
    for rule in (DEFAULT, "sieve, per step", "agreement"):
        lines += [f"**Where `{rule}` is worse** (the iterate):", ""]
        lines += [f"- {text}" for text in worse_cells(cells, rule, "loss")] + [""]
    return "\n".join([*lines, end])


def main() -> None:
    """Write the table of some numbers into a page."""
    source, page = map(Path, sys.argv[1:])
    write(source, page)


def write(source: Path, page: Path) -> None:
    """Put the table of a JSON file between its marks of a page."""
    numbers = json.loads(source.read_text())
    is_held_out = "skewed" in map(kind_of, split(numbers["cells"])[0])
    begin, end = HELD_OUT if is_held_out else (BEGIN, END)
    render = render_held_out if is_held_out else render_table
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(before + render(numbers) + after)
