"""Publish finished runs: tables, claims, curves and specs in one folder.

The main grid, the grids beyond the paper (long lists, server momentum, averaging), and
the deep-learning lines.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hewfl.core.atomic import write_bytes, write_json, write_text
from hewfl.experiments.results import LARGER_IS_BETTER, Results
from hewfl.experiments.run_folder import Folder
from hewfl.experiments.spec import Spec
from hewfl.experiments.statistics import Comparison
from hewfl.experiments.summary import mean_text, statistics
from reproduce.claims import (
    ACCURACY,
    EQUAL,
    LOSS,
    Claim,
    Moment,
    Panels,
    against_others,
    at_moment,
    judge,
)
from reproduce.curves_file import write_curves
from reproduce.specs import TITLES, hew_of

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
DEEP_RULES = (
    "A claim agrees when each of its comparisons does, by 95 % paired intervals over "
    "the seeds; it does not agree when one is clearly the other way round, and is "
    "undecided otherwise. One about methods that were not run is not judged. Moments: "
    "the last round; of each method and seed the evaluated round with the best "
    "validation accuracy; equal scalars, the last evaluated round within what the "
    "thriftiest method sent in all, in our count and in the paper's. Weights by local "
    "work are those of the last round, and means over the last quarter of the rounds. "
    "A claim about most of the run looks at means over seeds in the evaluated rounds "
    "after the first tenth, and has no interval."
)
"""What verdicts mean, at the head of claims.md."""
MEASURED = (*ACCURACY, *LOSS)
SYMBOLS = {"step_scale": "rate", "amplitude": "rate", "kappa": "κ", "prox": "μ"}
"""What the page calls hyper-parameters."""
Answer = Literal["ahead of all", "behind some", "undecided"]
WORDS = {
    "better": "lower than",
    "undecided": "undecided against",
    "worse": "higher than",
}


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
    """The table, the curves, the summaries without some fields, the run files."""
    summaries = {}
    for (data, regime), folder in folders.items():
        summary = folder.summary
        fields = {key: value for key, value in summary.items() if key not in without}
        summaries[f"{data}, {regime}"] = fields
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
                comparisons = against_others(results, hew, quantity, axis)
                for label, o in comparisons.items():
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
    by_panel = {key: folder.summary["methods"] for key, folder in folders.items()}
    every = [method for methods in by_panel.values() for method in methods]
    columns = [c for c in COLUMNS if any(c in method["final"] for method in every)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = ["data", "regime", "method", "parameters"]
    writer.writerow(head + [f"{c} {s}" for c in columns for s in ("mean", "std")])
    for key, methods in by_panel.items():
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
    text = f"These runs: {len(spec.seeds)} seeds, {spec.rounds} rounds."
    if is_quick:
        text += " They are of `--quick`, a first look that decides nothing."
    return text


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
        if folder.spec.evaluate_model == "averaged":
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


def publish_deep(
    folder: Folder,
    output: Path,
    judge_line: Callable[[Results], list[Claim]],
    *,
    is_quick: bool,
) -> list[Claim]:
    """Write all that a result of a deep-learning line needs; return its claims.

    Args:
        folder: of the finished run.
        output: folder of the tables; spec, tuning and times go beside them.
        judge_line: holds the paper's claims against the results.
        is_quick: whether the run is a first look.

    Returns:
        The claims, judge_line.
    """
    results, key = folder.results, (folder.spec.data.name, folder.spec.name)
    claims = judge_line(results)
    write_table({key: folder}, output)
    copy_files(folder, output, (*KEPT, "summary.json"))
    head = f"{DEEP_RULES}\n\n{amount(folder.spec, is_quick=is_quick)}"
    write_text(output / "claims.md", claims_text(head, claims))
    tables = [tables_text({key: folder}).rstrip(), ""]
    for moment in tuple(Moment)[1:]:
        tables += [f"### {moment}", "", *_table(results, moment), ""]
    write_text(output / "results.md", "\n".join(tables))
    write_curves({key: results}, output)
    return claims


def put_table(page: Path, name: str, folder: Folder) -> None:
    """Write the table of a line into a page, between its two marks.

    A page without the marks is left as it is.

    Args:
        page: a Markdown file.
        name: of the table; its marks are comments, `table: name` and `end: name`.
        folder: of the finished run.
    """
    first, last = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
    text = page.read_text(encoding="utf-8")
    if first in text and last in text:
        head, _, rest = text.partition(first)
        _, _, tail = rest.partition(last)
        rows = "\n".join([first, *_page_rows(folder), last])
        write_text(page, head + rows + tail)


def _page_rows(folder: Folder) -> list[str]:
    """What was chosen, the last round, and the best validation round; best first."""
    results, columns = folder.results, (*ACCURACY, LOSS[-1])
    grids = {method.label: method.grid for method in folder.spec.methods}
    tuned = folder.tuned
    assert tuned is not None, "a finished run is tuned"
    heads = " | ".join(quantity.replace("_", " ") for quantity in columns)
    lines = [f"| method | chosen | {heads} | test accuracy, best round |"]
    lines += ["| --- | --- |" + " ---: |" * (len(columns) + 1)]
    for label in _ranked(results, Moment.last):
        (method,) = (m for m in tuned.methods if m.label == label)
        chosen = ", ".join(
            f"{SYMBOLS.get(k, k)} {method.parameters[k]:g}" for k in grids[label]
        )
        asked = [(quantity, Moment.last) for quantity in columns]
        asked += [(ACCURACY[1], Moment.best)]
        values = (at_moment(results, label, *each) for each in asked)
        cells = " | ".join(mean_text(statistics(value)) for value in values)
        lines.append(f"| {label} | {chosen} | {cells} |")
    return lines


def _table(results: Results, moment: Moment) -> list[str]:
    """Accuracies and losses of all methods at a moment, best validation first."""
    heads = " | ".join(quantity.replace("_", " ") for quantity in MEASURED)
    lines = [f"| method | {heads} |", "| --- |" + " ---: |" * len(MEASURED)]

    for label in _ranked(results, moment):
        values = [at_moment(results, label, q, moment) for q in MEASURED]
        cells = " | ".join(mean_text(statistics(value)) for value in values)
        lines.append(f"| {label} | {cells} |")
    return lines


def _ranked(results: Results, moment: Moment) -> list[str]:
    """Methods by their validation accuracy, best first; those that diverged last."""

    def validated(label: str) -> float:
        accuracies = at_moment(results, label, ACCURACY[0], moment)
        return (
            -float(np.nanmean(accuracies)) if np.isfinite(accuracies).any() else np.inf
        )

    return sorted(results.labels, key=validated)


def extended_text(panels: Panels) -> str:
    """What the panels say of HEW once every method has what it needs."""
    (results, *_) = panels.values()
    model = (
        "averaged model" if results.spec.evaluate_model == "averaged" else "last model"
    )
    lines = [
        "The paper has no claims about these lists. The question is ours: is HEW ahead "
        f"of every other method in the objective of the {model}, at equal rounds, by "
        "95 % paired intervals?",
        "",
        "| panel | HEW is | because |",
        "| --- | --- | --- |",
    ]
    for (data, regime), results in panels.items():
        outcomes = against_others(results, hew_of(regime), "objective")
        because = f"{hew_of(regime)}: {_because(outcomes)}"
        answer = _answer(outcomes)
        lines.append(f"| {data}, {TITLES[regime]} | **{answer}** | {because} |")
    return "\n".join(lines) + "\n"


def edges_text(folders: Mapping[Key, Folder]) -> str:
    """How many choices of hyper-parameters lie at an end of a list, and which."""
    choices = [(key, c) for key, folder in folders.items() for c in folder.choices]
    ends = [(key, choice) for key, choice in choices if choice.at_edge]
    text = (
        f"{len(ends)} of {len(choices)} choices lie at an end of a list that is no "
        "bound of the parameter itself"
    )
    if not ends or len(ends) > len(choices) // 4:
        return f"{text}.\n"
    named = (
        f"{choice.label} on {data}, {regime} ({', '.join(choice.at_edge)})"
        for (data, regime), choice in ends
    )
    return f"{text}: {'; '.join(named)}.\n"


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
    parts = (f"{WORDS[v]} {', '.join(labels)}" for v, labels in by.items() if labels)
    return "; ".join(parts)
