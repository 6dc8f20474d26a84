"""The table of rules in docs/torch.md, from the numbers of `torch_rules.py`.

    python benchmarks/rules_table.py benchmarks/results/torch_rules.json docs/torch.md

Every number is a difference to equal weights on the same seeds, with the half width of
its 95 % interval. Test losses: less is better.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from hewfl.experiments.compare import Comparison, compare_finals

BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"
EQUAL = "equal"
SCORES = {"loss": "the iterate", "average loss": "the averaged model"}
Cells = dict[str, dict[str, dict[str, Any]]]
"""Lists of scores over seeds, by model, world and lane (`rule | outer`)."""


def split(cells: Cells) -> tuple[list[str], list[str], list[str]]:
    """Worlds, rules and outer steps, in the order of the run."""
    worlds = list(next(iter(cells.values())))
    lanes = [lane.split(" | ") for lane in next(iter(cells.values()))[worlds[0]]]
    rules, outers = (list(dict.fromkeys(part)) for part in zip(*lanes, strict=True))
    return worlds, rules, outers


def against_equal(world: dict[str, Any], rule: str, outer: str, score: str) -> Any:
    """How a rule compares with equal weights in one world."""
    first, second = (
        np.array(world[f"{name} | {outer}"][score], dtype=float)
        for name in (rule, EQUAL)
    )
    return compare_finals(first, second, "objective")


def shown(one: Comparison) -> str:
    """Mean difference and half width, bold where it is worse, starred where better."""
    if not np.isfinite(one.high):  # a mean of one seed is no mean
        return "diverged" if one.verdict == "worse" else "—"
    text = f"{one.mean:+.3f} ± {one.high - one.mean:.3f}".replace("-", "−")
    return {"better": f"{text} ✓", "worse": f"**{text}**", "undecided": text}[
        one.verdict
    ]


def lines_of(heads: list[str], rows: list[list[str]]) -> list[str]:
    ruler = "|".join(["| --- ", *[" ---: "] * (len(heads) - 1)]) + "|"
    return [f"| {' | '.join(row)} |" for row in (heads,)] + [
        ruler,
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def one_table(cells: dict[str, dict[str, Any]], outer: str, score: str) -> list[str]:
    """One model and one outer step: a row for each rule, a column for each world."""
    worlds, rules, _ = split({"": cells})
    means = [np.nanmean(cells[world][f"{EQUAL} | {outer}"][score]) for world in worlds]
    rows = [[f"{EQUAL} (its loss)", *(f"{mean:.3f}" for mean in means)]]
    for rule in rules[1:]:
        told = [against_equal(cells[world], rule, outer, score) for world in worlds]
        rows.append([rule, *map(shown, told)])
    return lines_of(["rule", *worlds], rows)


def summary(cells: Cells, score: str) -> list[str]:
    """Over models and outer steps: how often better and worse, by kind of world."""
    worlds, rules, outers = split(cells)
    kinds = list(dict.fromkeys(world.split()[0] for world in worlds))
    rows = []
    for rule in rules[1:]:
        row = [rule]
        for kind in kinds:
            told = [
                against_equal(of_model[world], rule, outer, score)
                for of_model in cells.values()
                for world in worlds
                for outer in outers
                if world.split()[0] == kind
            ]
            better, worse = (
                sum(one.verdict == verdict for one in told)
                for verdict in ("better", "worse")
            )
            row.append(f"{better} better, {worse} worse of {len(told)}")
        rows.append(row)
    return lines_of(["rule", *kinds], rows)


def weights_table(cells: Cells) -> list[str]:
    """Mean weight of the bad rank in its worlds, and of every rank in the clean one."""
    worlds, rules, outers = split(cells)
    bad = [world for world in worlds if world.startswith("bad")]
    rows = []
    for rule in rules:
        row = [rule]
        for world in [worlds[0], *bad]:
            told = [
                of_model[world][f"{rule} | {outer}"]["weights"]
                for of_model in cells.values()
                for outer in outers
            ]
            mean = np.mean([one for one in told if one], axis=0)
            each = mean if world == worlds[0] else [mean[int(world.split()[1])]]
            row.append(" ".join(f"{w:.2f}" for w in each))
        rows.append(row)
    return lines_of(["rule", worlds[0], *bad], rows)


def rendered(found: dict[str, Any]) -> str:
    """Everything between the marks."""
    cells, seeds = found["cells"], found["seeds"]
    _, _, outers = split(cells)
    told = ", ".join(f"{model} {n} rounds" for model, n in found["rounds"].items())
    lines = [BEGIN, "", f"{seeds} seeds; {told}; {found['device']}.", ""]
    for score, name in SCORES.items():
        lines += [
            f"**Against equal weights, {name}**: significant differences over models "
            "and outer steps.",
            "",
            *summary(cells, score),
            "",
        ]
    lines += ["**Mean weights**: of all ranks when all is well, of the bad one.", ""]
    lines += [*weights_table(cells), ""]
    for model, of_model in cells.items():
        for outer in outers:
            lines += [f"**{model}, {outer}**: test loss of the iterate.", ""]
            lines += [*one_table(of_model, outer, "loss"), ""]
    return "\n".join([*lines, END])


def write(source: Path, page: Path) -> None:
    """Put the table of a JSON file between the marks of a page."""
    text = page.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(before + rendered(json.loads(source.read_text())) + after)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
