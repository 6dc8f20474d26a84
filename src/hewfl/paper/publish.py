"""Finished runs on paper: all that a published result needs, in one folder."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_bytes, write_json, write_text
from hewfl.experiments.folder import Folder
from hewfl.experiments.spec import Spec
from hewfl.experiments.summary import mean_text
from hewfl.experiments.tune import LARGER_IS_BETTER
from hewfl.paper.claims import EQUAL, Claim, Panels, against_others, judge
from hewfl.paper.curves_file import write_curves
from hewfl.paper.extended import edges_text, extended_text
from hewfl.paper.specs import TITLES, hew_of

COLUMNS = (
    *("objective", "gap", "pooled", "pooled_gap"),
    *("averaged_objective", "averaged_test_accuracy"),
    *("validation_accuracy", "test_accuracy", "validation_loss", "test_loss"),
    *("scalars", "paper_scalars"),
)
"""Of table.csv, where they were measured."""
SHOWN = {
    True: ("validation_accuracy", "test_accuracy", "validation_loss", "test_loss"),
    False: ("objective", "pooled_gap", "test_accuracy"),
}
"""Of results.md, for modules and for the rest; rows are sorted by the first."""
SHOWN_AVERAGED = (
    *("averaged_objective", "averaged_test_accuracy"),
    *("objective", "test_accuracy"),
)
"""Of results.md, where methods are judged by their averaged model."""
KEPT = ("spec.toml", "tuned.toml", "tuning.json", "times.json")
"""Files of a run that a published result needs beside its numbers."""
Key = tuple[str, str]
GRID_RULES = (
    "The paper compares «under matched communication budgets», cumulative transmitted "
    "scalars by its own count: each method is taken when both have sent as much as the "
    "cheaper one sends in all rounds. That is what its text means; every claim is "
    "judged so, at equal scalars by our count (control variates need no second vector "
    "up, erratum E-17), and at equal rounds. "
    "A claim of an advantage agrees when HEW has a lower objective than every other "
    "method and a lower accuracy than none, by 95 % paired intervals over the seeds. "
    "It does not agree when HEW's objective is clearly higher than that of one of "
    "them. A claim of no clear advantage agrees when HEW is not ahead of all of them, "
    "which little data makes easy: few seeds or rounds leave most comparisons "
    "undecided. "
    "Weights are not uniform when those of one horizon group are clearly not 1/n."
)
"""What verdicts mean, at the head of claims.md."""


def panels_of(folders: Mapping[Key, Folder]) -> Panels:
    """The results of finished runs, by data set and regime."""
    return {key: folder.results for key, folder in folders.items()}


def publish_grid(
    folders: Mapping[Key, Folder], panels: Panels, output: Path, *, is_quick: bool
) -> list[Claim]:
    """Write all that a result of the main grid needs; return the claims, judged.

    That is table.csv, pairs.csv, summary.json, results.md and claims.md, and for each
    panel its spec, the tuned spec, the tuning table and the times, in a folder of its
    own.
    """
    claims = judge(panels)
    _write_numbers(folders, panels, output, without=())
    (spec, *_) = (folder.spec for folder in folders.values())
    head = f"{GRID_RULES}\n\n{amount(spec, is_quick=is_quick)}"
    write_text(output / "claims.md", claims_text(head, claims))
    tables = f"{edges_text(folders)}\n{tables_text(folders)}"
    write_text(output / "results.md", tables)
    write_text(output / "pairs.csv", _pairs_text(panels))
    return claims


def publish_extended(
    folders: Mapping[Key, Folder], panels: Panels, output: Path, *, is_quick: bool
) -> None:
    """Write all that a result of the wide grid or the extended comparison needs.

    The paper claims nothing about them. Summaries leave out the comparisons of all
    pairs, which are many.
    """
    _write_numbers(folders, panels, output, without=("pairs",))
    (spec, *_) = (folder.spec for folder in folders.values())
    head = f"{amount(spec, is_quick=is_quick)}\n\n"
    write_text(output / "claims.md", head + extended_text(panels))
    tables = f"{edges_text(folders)}\n{tables_text(folders)}"
    write_text(output / "results.md", tables)


def _write_numbers(
    folders: Mapping[Key, Folder],
    panels: Panels,
    output: Path,
    *,
    without: Sequence[str],
) -> None:
    """The table, the curves, the summaries but for some fields, and the kept files."""
    summaries = {}
    for (data, regime), folder in folders.items():
        found = folder.summary
        kept = {key: value for key, value in found.items() if key not in without}
        summaries[f"{data}, {regime}"] = kept
    write_table(folders, output)
    write_json(output / "summary.json", summaries)
    write_curves(panels, output)
    for (data, regime), folder in folders.items():
        copy_files(folder, output / "panels" / f"{data}-{regime}", KEPT)


def _pairs_text(panels: Panels) -> str:
    """HEW less every other method, at equal rounds and scalars, with intervals."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = ("mean", "low", "high", "verdict")
    writer.writerow(["data", "regime", "equal", "quantity", "first", "second", *names])
    for (data, regime), results in panels.items():
        hew = hew_of(regime)
        if hew not in results.labels:
            continue
        for axis in EQUAL:
            for quantity in ("objective", "test_accuracy"):
                found = against_others(results, hew, quantity, axis)
                for label, o in found.items():
                    numbers = [f"{value:+.6f}" for value in (o.mean, o.low, o.high)]
                    row = [data, regime, axis, quantity, hew, label, *numbers]
                    writer.writerow([*row, o.verdict])
    return stream.getvalue()


def copy_files(folder: Folder, output: Path, names: Sequence[str]) -> None:
    """Files of a run as they are; a spec without grids has no tuning to copy."""
    for name in names:
        if (folder.path / name).exists():
            write_bytes(output / name, (folder.path / name).read_bytes())


def write_table(folders: Mapping[Key, Folder], output: Path) -> None:
    """The last values of all methods of some runs, as table.csv."""
    found = {key: folder.summary["methods"] for key, folder in folders.items()}
    every = [method for methods in found.values() for method in methods]
    columns = [c for c in COLUMNS if any(c in method["final"] for method in every)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = ["data", "regime", "method", "parameters"]
    writer.writerow(head + [f"{c} {s}" for c in columns for s in ("mean", "std")])
    for key, methods in found.items():
        for m in methods:
            writer.writerow(
                [*key, m["label"], _parameters(m), *_numbers(m["final"], columns)]
            )
    write_text(output / "table.csv", stream.getvalue())


def _parameters(method: Mapping[str, Any]) -> str:
    return "; ".join(f"{k} = {v}" for k, v in method["parameters"].items())


def _numbers(final: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    cells = []
    for column in columns:
        for part in ("mean", "std"):
            value = final.get(column, {}).get(part)
            cells.append("" if value is None else f"{value:.6g}")
    return cells


def amount(spec: Spec, *, is_quick: bool) -> str:
    """How much the verdicts rest on."""
    told = f"These runs: {len(spec.seeds)} seeds, {spec.rounds} rounds."
    if is_quick:
        told += " They are of `--quick`, a first look that decides nothing."
    return told


def claims_text(head: str, claims: Sequence[Claim]) -> str:
    """What claims.md says: what verdicts mean, and the claims."""
    lines = [head, ""]
    lines += ["| the paper's claim | our runs | because |", "| --- | --- | --- |"]
    lines += [f"| {c.statement} | **{c.verdict}** | {c.because} |" for c in claims]
    return "\n".join(lines) + "\n"


def tables_text(folders: Mapping[Key, Folder]) -> str:
    """One table per panel: the last round, mean ± deviation over the seeds."""
    lines = []
    for (data, regime), folder in folders.items():
        summary = folder.summary
        shown = SHOWN[folder.spec.problem.is_module]
        if folder.spec.judge == "averaged":
            shown = SHOWN_AVERAGED
        heads = [quantity.replace("_", " ") for quantity in shown]
        lines += [f"### {data}, {TITLES.get(regime, regime)}", ""]
        lines += [
            "| method | hyper-parameters | " + " | ".join(heads) + " |",
            "| --- | --- |" + " ---: |" * len(shown),
        ]
        for method in sorted(summary["methods"], key=lambda m: _rank(m, shown[0])):
            cells = [mean_text(method["final"].get(quantity)) for quantity in shown]
            row = [method["label"], _parameters(method), *cells]
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


def _rank(method: Mapping[str, Any], quantity: str) -> float:
    """Best first, by the first column; those that diverged last."""
    value = method["final"].get(quantity, {}).get("mean")
    if value is None:
        return float("inf")
    return -value if quantity in LARGER_IS_BETTER else float(value)
