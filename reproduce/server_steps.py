"""Averages and measured steps against tuned momentum: four panels, two ways to judge.

    python -m reproduce server-steps [--seeds 7] [--jobs 2] [--runs-dir runs]

Runs docs/results/server_step/*/spec.toml, which look for their data in HEWFL_DATA, with
that many seeds. Finished parts under --runs-dir are kept: a stopped command resumes.
Written into docs/results/server_step: results.md, curves.png and curves.pdf, and of
each run tuned.toml and summary.json. The first table of results.md is also put between
the two marks of the page in docs that has them.
"""

import argparse
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from hewfl.core.atomic import read_json, write_json
from hewfl.experiments.executor import Progress
from hewfl.experiments.results import Results
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for
from hewfl.experiments.spec import read_spec
from hewfl.experiments.statistics import decide, interval_text, measure
from hewfl.experiments.summary import all_pairs
from hewfl.plotting import legend, save
from reproduce.curves_file import read_finals

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "server_step"
PANELS = ("mnist-het", "mnist-hom", "covertype-het", "covertype-hom")
HORIZON = "horizon, tuned"
ROWS = (
    ("iterate", HORIZON, "objective", "tuned, iterate"),
    ("iterate", HORIZON, "averaged_objective", "the same run, average"),
    ("averaged", HORIZON, "averaged_objective", "tuned by the average"),
    ("averaged", "uniform, tuned", "averaged_objective", "uniform weights, the same"),
    ("averaged", "horizon, measured", "objective", "measured, iterate"),
    ("averaged", "horizon, measured", "averaged_objective", "measured, average"),
    (
        "averaged",
        "horizon, measured, momentum 0.7",
        "averaged_objective",
        "measured, momentum 0.7, average",
    ),
    (
        "averaged",
        "horizon, measured, no momentum",
        "averaged_objective",
        "measured, no momentum, average",
    ),
    ("averaged", "FedAdam", "averaged_objective", "FedAdam, average"),
)
DRAWN = {0: "-", 2: "-", 5: "--", 8: ":"}
"""Rows of the figure, and their lines."""
BEGIN, END = "<!-- table: server-steps -->", "<!-- end of the table -->"
"""What stands around the table in a page of docs."""
Runs = Mapping[tuple[str, str], Results]


def run_panels(seeds: int, jobs: int, root: Path) -> dict[tuple[str, str], Folder]:
    folders = {}
    for panel in PANELS:
        for judge in ("iterate", "averaged"):
            spec = read_spec(OUT / f"{panel}-{judge}" / "spec.toml")
            spec = replace(spec, seeds=tuple(range(seeds)))
            folders[panel, judge] = folder_for(spec, root)
    run_all(list(folders.values()), jobs=jobs, progress=Progress())
    return folders


def table_of(runs: Runs) -> str:
    """Final values, mean over seeds."""
    first = next(iter(runs.values())).spec
    many = len(first.seeds)
    lines = [f"Objective after {first.rounds} rounds, mean over {many} seeds.", ""]
    lines += head("horizon weights")
    for judge, label, quantity, name in ROWS:
        values = [runs[p, judge].final(label, quantity).mean() for p in PANELS]
        lines += [f"| {name} |" + "".join(f" {value:.4f} |" for value in values)]
    return "\n".join(lines) + "\n"


def head(corner: str) -> list[str]:
    return [f"| {corner} |" + "".join(f" {p} |" for p in PANELS), "|---|" + "--:|" * 4]


def differences_of(runs: Runs, base: int) -> str:
    """Each row against one of them, paired by seed; a column is a family of pairs."""
    judge_of, label_of, quantity_of, name_of = ROWS[base]
    about = "95 % intervals; ▲ lower and ▼ higher by Holm's correction over a column"
    lines = [f"Divided by '{name_of}', paired by seed, with {about}:", "", *head("")]
    others = [row for k, row in enumerate(ROWS) if k != base]
    marks = {"better": " ▲", "worse": " ▼", "undecided": ""}
    columns = []
    for panel in PANELS:
        divisor = runs[panel, judge_of].final(label_of, quantity_of)
        pairs = decide(
            {
                name: measure(runs[panel, judge].final(label, quantity), divisor)
                for judge, label, quantity, name in others
            }
        )
        columns.append(
            {k: interval_text(c) + marks[c.verdict] for k, c in pairs.items()}
        )
    for *_, name in others:
        cells = (column[name].replace(" times", "") for column in columns)
        lines += [f"| {name} | " + " | ".join(cells) + " |"]
    return "\n".join(lines) + "\n"


def judge_again(output: Path) -> None:
    """Make the comparisons of the published study again, from its summaries."""
    runs, text = {}, (output / "results.md").read_text(encoding="utf-8")
    for panel in PANELS:
        for judge in ("iterate", "averaged"):
            place = output / f"{panel}-{judge}"
            runs[panel, judge] = results = read_finals(place)
            summary = read_json(place / "summary.json")
            summary["pairs"] = all_pairs(results)
            for method in summary["methods"]:
                method["is_limit"] = method["label"] in results.yardsticks
            write_json(place / "summary.json", summary)
    title, _, _ = text.partition("Objective after")
    _, rounds, rest = text.partition("Rounds of 'measured'")
    tables = [table_of(runs), differences_of(runs, 0), differences_of(runs, 2)]
    whole = title + "\n".join([*tables, rounds + rest])
    (output / "results.md").write_text(whole, encoding="utf-8")


def intervals_of(runs: Runs) -> str:
    """How often the measured interval was above zero, and how often nothing moved."""
    lines = [
        "Rounds of 'measured' whose interval lay above zero, and that stood still:"
    ]
    lines += ["", *head("")]
    above, still = [], []
    for panel in PANELS:
        results = runs[panel, "averaged"]
        entry = results.labels.index("horizon, measured")
        rounds = [r.observed for by_entry in results.records for r in by_entry[entry]]
        searches = [r for r in rounds if "measured_low" in r]
        above.append(
            f" {sum(r['measured_low'] > 0 for r in searches)} of {len(searches)} |"
        )
        still.append(f" {sum(r['measured_step'] == 0 for r in searches)} |")
    lines += ["| above zero |" + "".join(above), "| stood still |" + "".join(still)]
    return "\n".join(lines) + "\n"


def edges_of(folders: Mapping[tuple[str, str], Folder]) -> str:
    """Choices at the end of their lists."""
    edges = [
        f"- {panel}, {judge}: {choice.label} ({', '.join(choice.at_edge)})"
        for (panel, judge), folder in folders.items()
        for choice in folder.choices
        if choice.at_edge
    ]
    text = "\n".join(edges) if edges else "None."
    return f"Choices at the end of their lists:\n\n{text}\n"


def into_page(table: str) -> None:
    """Put the table between the marks of the page that has them."""
    pages = OUT.parent.glob("*.md")
    page = next(p for p in pages if BEGIN in p.read_text(encoding="utf-8"))
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def figure(runs: Runs) -> None:
    def draw(figure_: object) -> None:
        for k, panel in enumerate(PANELS):
            axes = figure_.add_subplot(1, 4, k + 1)  # type: ignore[attr-defined]  # of matplotlib
            for row, dash in DRAWN.items():
                judge, label, quantity, name = ROWS[row]
                results = runs[panel, judge]
                mean = results.curve(label, quantity).mean(axis=0)
                ink = f"C{list(DRAWN).index(row)}"
                axes.plot(results.rounds[1:], mean[1:], dash, color=ink, label=name)
            low = min(line.get_ydata().min() for line in axes.get_lines())
            axes.set_ylim(0.985 * low, 1.25 * low)
            axes.set(title=panel, xlabel="rounds")
            if k == 0:
                axes.set_ylabel("training objective")
        legend(figure_, figure_.axes[:1], columns=4)  # type: ignore[attr-defined]  # of matplotlib

    save(draw, (11.0, 2.9), OUT / "curves")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    given = parser.parse_args()
    folders = run_panels(given.seeds, given.jobs, given.runs_dir)
    runs = {key: folder.results for key, folder in folders.items()}
    np.seterr(all="ignore")
    for (panel, judge), folder in folders.items():
        for name in ("tuned.toml", "summary.json"):
            shutil.copy(folder.path / name, OUT / f"{panel}-{judge}" / name)
    table = table_of(runs)
    into_page(table)
    parts = [table, differences_of(runs, 0), differences_of(runs, 2)]
    parts += [intervals_of(runs), edges_of(folders)]
    text = "# Averages and measured steps\n\n" + "\n".join(parts)
    (OUT / "results.md").write_text(text, encoding="utf-8")
    print(text)
    figure(runs)
