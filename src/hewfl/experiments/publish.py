"""The paper's grid on paper: tables, claims and figures in one folder."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.experiments.claims import Claim, Panels, judge
from hewfl.experiments.files import read_json, write_json, write_text
from hewfl.experiments.paper import TITLES
from hewfl.experiments.results import read_results
from hewfl.experiments.run import Folder

COLUMNS = (
    *("objective", "gap", "pooled", "pooled_gap", "test_accuracy"),
    *("scalars", "paper_scalars"),
)
Key = tuple[str, str]


def panels_of(folders: Mapping[Key, Folder]) -> Panels:
    """The results of finished runs, by data set and regime."""
    found = {}
    for key, folder in folders.items():
        spec = folder.tuned
        assert spec is not None
        seeds = {seed: folder.of_seed(seed) for seed in spec.seeds}
        found[key] = read_results(spec, seeds)
    return found


def publish(folders: Mapping[Key, Folder], output: Path) -> list[Claim]:
    """Write table.csv, summary.json, claims.md and results.md; return the claims."""
    summaries = {
        f"{data}, {regime}": read_json(folder.path / "summary.json")
        for (data, regime), folder in folders.items()
    }
    rows = [row for key, folder in folders.items() for row in _rows(key, folder)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = ["data", "regime", "method", "parameters"]
    writer.writerow(head + [f"{c} {s}" for c in COLUMNS for s in ("mean", "std")])
    writer.writerows(rows)
    write_text(output / "table.csv", stream.getvalue())
    write_json(output / "summary.json", summaries)
    claims = judge(panels_of(folders))
    write_text(output / "claims.md", _claims_text(claims))
    write_text(output / "results.md", _tables_text(folders))
    return claims


def _rows(key: Key, folder: Folder) -> list[list[Any]]:
    summary = read_json(folder.path / "summary.json")
    return [
        [*key, method["label"], _parameters(method), *_numbers(method)]
        for method in summary["methods"]
    ]


def _parameters(method: Mapping[str, Any]) -> str:
    return "; ".join(f"{k} = {v}" for k, v in method["parameters"].items())


def _numbers(method: Mapping[str, Any]) -> list[str]:
    cells = []
    for column in COLUMNS:
        found = method["final"].get(column)
        for part in ("mean", "std"):
            value = None if found is None else found[part]
            cells.append("" if value is None else f"{value:.6g}")
    return cells


def _claims_text(claims: Sequence[Claim]) -> str:
    lines = ["| the paper's claim | our runs | because |", "| --- | --- | --- |"]
    lines += [f"| {c.statement} | **{c.verdict}** | {c.because} |" for c in claims]
    return "\n".join(lines) + "\n"


def _tables_text(folders: Mapping[Key, Folder]) -> str:
    """One table per panel: the last round, mean ± deviation over the seeds."""
    lines = []
    for (data, regime), folder in folders.items():
        summary = read_json(folder.path / "summary.json")
        lines += [f"### {data}, {TITLES[regime]}", ""]
        lines += [
            "| method | hyper-parameters | objective | pooled gap | test accuracy |",
            "| --- | --- | ---: | ---: | ---: |",
        ]
        for method in sorted(summary["methods"], key=_objective):
            final = method["final"]
            cells = [
                _mean(final.get(key))
                for key in ("objective", "pooled_gap", "test_accuracy")
            ]
            row = [method["label"], _parameters(method), *cells]
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


def _objective(method: Mapping[str, Any]) -> float:
    value = method["final"].get("objective", {}).get("mean")
    return float("inf") if value is None else float(value)


def _mean(value: Mapping[str, Any] | None) -> str:
    if value is None or value["mean"] is None:
        return "diverged"
    spread = "" if value["std"] is None else f" ± {value['std']:.1g}"
    return f"{value['mean']:.4f}{spread}"
