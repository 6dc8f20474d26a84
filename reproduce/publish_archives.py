"""Publish deep-learning lines and the robustness study from archives or run folders.

    python -m reproduce publish cnn.tar.gz head.tar.gz runs --output docs/results
    python -m reproduce publish

Without a source all verdicts in the output are made again from the published values of
every seed: claims, pairs, comparisons in summary.json, tables of the studies, figures,
and the scoreboard of README.md. Nothing is run.

Sources are archives of `python -m reproduce pieces`, or folders of runs. Of runs of the
same name those of the last source count: the CNN may come from another machine than the
convex panels. Each finished line goes into a folder of its own (cnn, cnn-equal-ground,
head, head-equal-ground, head-printed) with tables, claims, curves, figures, spec,
tuning and times; README.md of the output gets its tables anew, between their marks.
Finished runs of the study go into `robustness`.
"""

import argparse
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hewfl.core.atomic import read_json, write_json
from hewfl.experiments.results import Results
from hewfl.experiments.run_folder import open_folder
from hewfl.experiments.summary import all_pairs
from reproduce import rules_table, server_steps, stock_table
from reproduce.claims import Claim, Moment, judge_cnn, judge_equal, judge_head
from reproduce.curves_file import read_curves, read_finals
from reproduce.figures import draw_cnn, draw_head
from reproduce.parts import Part, draw
from reproduce.publish import (
    judge_deep,
    judge_extended,
    judge_grid,
    publish_deep,
    put_rows,
    put_table,
)
from reproduce.robustness.publish_robustness import (
    finished_runs,
    judge_study,
    publish_robustness,
    published_study,
)
from reproduce.scoreboard import scoreboard

LINES = {
    "fashion-cnn": ("cnn", judge_cnn, draw_cnn),
    "fashion-cnn-equal-ground": ("cnn-equal-ground", judge_cnn, draw_cnn),
    "agnews-head": ("head", judge_head, draw_head),
    "agnews-head-equal-ground": ("head-equal-ground", judge_equal, draw_head),
    "agnews-head-printed": ("head-printed", judge_head, draw_head),
}
"""Folder, claims and figures of each line, by the name of its spec."""
EARLIER = {"cnn-sgd": judge_cnn, "head-sgd": judge_head}
"""Lines of another set-up, of which the last round alone is published."""
LATE = "last quarter: "
"""How claims about the late rounds begin."""
RULES = [
    Path(__file__).with_name("results") / f"{name}.json"
    for name in ("torch_rules", "torch_rules_held_out")
]


def main() -> None:
    """Gather finished runs in one folder and publish what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path, nargs="*", help="folders or archives")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    parser.add_argument("--quick", action="store_true", help="runs of a first look")
    asked = parser.parse_args()
    if not asked.sources:
        judge_again(asked.output)
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "all"
        for k, source in enumerate(asked.sources):
            folder = source
            if source.is_file():
                folder = Path(name) / str(k)
                with tarfile.open(source) as packed:
                    packed.extractall(folder, filter="data")
            for file in sorted(folder.rglob("summary.json")):
                _gather(file.parent, root)
        publish_lines(root, asked.output)
        if any(root.glob("robustness-*")):
            runs = finished_runs(root, is_quick=asked.quick)
            place = asked.output / "robustness"
            for verdict in publish_robustness(runs, place, is_quick=asked.quick):
                print(f"  {verdict.statement}: {verdict.answer} ({verdict.because})")


def publish_lines(root: Path, output: Path) -> None:
    """Publish every deep-learning line among some finished runs."""
    for file in sorted(root.glob("*/spec.toml")):
        folder = open_folder(file.parent)
        name = folder.spec.name.removesuffix("-quick")
        if name not in LINES:
            continue
        place, judge, draw = LINES[name]
        is_quick = name != folder.spec.name
        claims = publish_deep(folder, output / place, judge, is_quick=is_quick)
        draw(folder.results, output / place)
        if (page := output / "README.md").exists() and not is_quick:
            put_table(page, place, folder)
        print(f"{folder.spec.name}: {output / place}")
        for claim in claims:
            print(f"  {claim.statement}: {claim.verdict} ({claim.because})")


def judge_again(output: Path) -> None:
    """Make every verdict in a published folder again, from the values in it."""
    grids = {name: read_curves(output / name) for name in ("main", "wide", "extended")}
    judge_grid(grids["main"], output / "main")
    _put_pairs(output / "main", grids["main"])
    for name in ("wide", "extended"):
        judge_extended(grids[name], output / name)
    for part, name in (
        (Part.all, "main"),
        (Part.wide, "wide"),
        (Part.extended, "extended"),
    ):
        draw(part, grids[name], output / name)
    lines = {}
    for place, judge, draw_line in LINES.values():
        if not (output / place).exists():
            continue
        (key, results), *_ = read_curves(output / place).items()
        lines[place] = results
        draw_line(results, output / place)
        judge_deep(results, output / place, partial(_keep_late, output / place, judge))
        _put_pairs(output / place, {key: results})
    for place, judge in EARLIER.items():
        results = read_finals(output / place)
        judge_deep(results, output / place, partial(_judge_last, judge))
        _put_pairs(output / place, {("", ""): results})
    study = published_study(output / "robustness")
    judge_study(*study, output / "robustness")
    server_steps.judge_again(output / "server_step")
    for rules in RULES:
        rules_table.write(rules, output / "torch.md")
    stock_table.publish(output / stock_table.PAGE.name)
    rows = scoreboard(
        {
            "its grid": grids["main"],
            "wide grid": grids["wide"],
            "with momentum": grids["extended"],
        },
        {"its grid": lines["head-printed"], "wide grid": lines["head"]}
        if "head-printed" in lines
        else {"wide grid": lines["head"]},
        lines["cnn"],
    )
    put_rows(output / "README.md", "scoreboard", rows)


def _keep_late(
    place: Path, judge: Callable[[Results], list[Claim]], results: Results
) -> list[Claim]:
    """Claims with those about the last quarter as they stand in claims.md.

    Curves have the weights of the last round alone: these claims are judged when a run
    is published, and cannot be made again.
    """
    text = (place / "claims.md").read_text(encoding="utf-8")
    known = {}
    for line in text.splitlines():
        if line.startswith(f"| {LATE}"):
            statement, verdict, because = line[2:-2].split(" | ")
            known[statement] = Claim(statement, verdict.strip("*"), because)  # type: ignore[arg-type]  # as it was written
    return [
        known[c.statement] if c.statement.startswith(LATE) else c
        for c in judge(results)
    ]


def _judge_last(
    judge: Callable[[Results], list[Claim]], results: Results
) -> list[Claim]:
    """Claims about the last round alone, which is all that is left."""
    others = (*(f"{moment}: " for moment in tuple(Moment)[1:]), LATE)
    left = [c for c in judge(results) if not c.statement.startswith(others)]
    return [c for c in left if "most of the run" not in c.statement]


def _put_pairs(place: Path, panels: Mapping[tuple[str, str], Results]) -> None:
    """Make the comparisons in a summary.json again."""
    file = place / "summary.json"
    summary = read_json(file)
    for key, results in panels.items():
        known = summary.get(", ".join(key), summary)
        known["pairs"] = all_pairs(results)
        for method in known["methods"]:
            method["is_limit"] = method["label"] in results.yardsticks
    write_json(file, summary)


def _gather(run: Path, root: Path) -> None:
    """Copy a finished run in place of an earlier one of the same name."""
    name, _, _ = run.name.rpartition("-")  # behind it the digest of the spec
    shutil.rmtree(root / name, ignore_errors=True)
    shutil.copytree(run, root / name, ignore=shutil.ignore_patterns("*.safetensors"))
