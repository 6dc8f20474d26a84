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
from hewfl.experiments.statistics import Comparison, detectable_text
from hewfl.experiments.summary import mean_text, statistics
from reproduce.claims import (
    ACCURACY,
    EQUAL,
    LOSS,
    Claim,
    Moment,
    Panels,
    against_others,
    as_trial,
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
    "Methods are compared seed by seed: objectives by their ratios (tested as "
    "logarithms), accuracies by their differences, by Student's t with Holm's "
    "correction over the pairs of the claim, at 5 %. Intervals are of 95 %, each for "
    "itself; exact p is that of all sign flips. Where a pair is undecided, there "
    "stands what these seeds would have shown in four cases of five. "
    "Each claim is judged on the paper's own methods (HEW-Fixed, Uniform, FedAvg, "
    "FedNova; with equal horizons SCAFFOLD, FedProx and minibatch SGD too) and with "
    "fair rivals added (those three everywhere, HEW-Fixed with the control variates of "
    "Algorithm 2, FedNova with equal p_i). "
    "A claim of an advantage agrees when HEW has a lower objective than every other "
    "method and a lower accuracy than none. "
    "It does not agree when HEW's objective is higher than that of one of "
    "them. A claim of no clear advantage agrees when HEW is not ahead of all of them, "
    "which little data makes easy: few seeds or rounds leave most comparisons "
    "undecided. "
    "Weights are not uniform when those of one horizon group are clearly not 1/n."
)
"""What verdicts mean, at the head of claims.md."""
DEEP_RULES = (
    "A claim agrees when each of its comparisons does; it does not agree when one is "
    "the other way round, and is undecided otherwise. Comparisons are paired by seed: "
    "losses by their ratios (tested as logarithms), accuracies by their differences, "
    "by Student's t with Holm's correction over all comparisons of the claim, at 5 %; "
    "intervals are of 95 %, each for itself. A claim about methods that were not run "
    "is not judged. Moments: the last round; of each method and seed the evaluated "
    "round with the best "
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
    _write_numbers(folders, panels, output, without=())
    tables = f"{edges_text(folders)}\n{tables_text(folders)}"
    write_text(output / "results.md", tables)
    return judge_grid(panels, output, is_quick=is_quick)


def judge_grid(panels: Panels, output: Path, *, is_quick: bool = False) -> list[Claim]:
    """Write claims.md and, but of a trial, pairs.csv of the grid; return the claims."""
    claims = as_trial(judge(panels)) if is_quick else judge(panels)
    (results, *_) = panels.values()
    head = f"{GRID_RULES}\n\n{amount(results.spec, is_quick=is_quick)}"
    write_text(output / "claims.md", claims_text(head, claims))
    if not is_quick:
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
    tables = f"{edges_text(folders)}\n{tables_text(folders)}"
    write_text(output / "results.md", tables)
    judge_extended(panels, output, is_quick=is_quick)


def judge_extended(panels: Panels, output: Path, *, is_quick: bool = False) -> None:
    """Write claims.md of the wide grid or of the extended comparison."""
    (results, *_) = panels.values()
    text = amount(results.spec, is_quick=is_quick) + "\n"
    if not is_quick:
        text += f"\n{extended_text(panels)}"
        write_text(output / "pairs.csv", _pairs_text(panels))
    write_text(output / "claims.md", text)


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
    """HEW against every other method, at equal rounds and scalars, with intervals.

    The pairs of a panel, a measure and a quantity are one family.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = ["data", "regime", "equal", "quantity", "first", "second", "scale"]
    names += ["mean", "low", "high", "seeds", "ahead", "exact p", "p, Holm"]
    writer.writerow([*names, "detectable", "verdict"])
    for (data, regime), results in panels.items():
        hew = hew_of(regime)
        if hew not in results.labels:
            continue
        for axis in EQUAL:
            for quantity in ("objective", "test_accuracy"):
                comparisons = against_others(results, hew, quantity, axis)
                for label, o in comparisons.items():
                    row = [data, regime, axis, quantity, hew, label, o.scale]
                    row += [f"{value:.6f}" for value in (o.mean, o.low, o.high)]
                    row += [str(o.seeds), str(o.ahead), f"{o.exact_p:.4g}"]
                    row += [f"{o.corrected_p:.3g}", f"{o.detectable:.6f}", o.verdict]
                    writer.writerow(row)
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
        text += " They are a trial (`--quick`), which gives no verdicts."
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
    write_table({key: folder}, output)
    copy_files(folder, output, (*KEPT, "summary.json"))
    claims = judge_deep(results, output, judge_line, is_quick=is_quick)
    tables = [tables_text({key: folder}).rstrip(), ""]
    for moment in tuple(Moment)[1:]:
        tables += [f"### {moment}", "", *_table(results, moment), ""]
    write_text(output / "results.md", "\n".join(tables))
    write_curves({key: results}, output)
    return claims


def judge_deep(
    results: Results,
    output: Path,
    judge_line: Callable[[Results], list[Claim]],
    *,
    is_quick: bool = False,
) -> list[Claim]:
    """Write claims.md of a deep-learning line; return the claims."""
    claims = judge_line(results)
    claims = as_trial(claims) if is_quick else claims
    head = f"{DEEP_RULES}\n\n{amount(results.spec, is_quick=is_quick)}"
    write_text(output / "claims.md", claims_text(head, claims))
    return claims


def put_table(page: Path, name: str, folder: Folder) -> None:
    """Write the table of a line into a page, between its two marks.

    A page without the marks is left as it is.

    Args:
        page: a Markdown file.
        name: of the table; its marks are comments, `table: name` and `end: name`.
        folder: of the finished run.
    """
    put_rows(page, name, _page_rows(folder))


def put_rows(page: Path, name: str, rows: Sequence[str]) -> None:
    """Write rows into a page, between the two marks of a table, if it has them."""
    first, last = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
    text = page.read_text(encoding="utf-8")
    if first in text and last in text:
        head, _, rest = text.partition(first)
        _, _, tail = rest.partition(last)
        write_text(page, head + "\n".join([first, *rows, last]) + tail)


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
            f"{SYMBOLS.get(k, k)} {method.parameters[k]:g}"
            for k in grids[label] or (*SYMBOLS, "power")
            if k in method.parameters
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
        f"of every other method in the objective of the {model}, at equal rounds? "
        "Objectives are compared by their ratios, seed by seed, with Holm's correction "
        "over the pairs of a panel; where pairs are undecided, there stands what these "
        "seeds would have shown against all of them.",
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
    parts = [f"{WORDS[v]} {', '.join(labels)}" for v, labels in by.items() if labels]
    if doubt := [outcomes[label] for label in by["undecided"]]:
        parts.append(detectable_text(max(doubt, key=lambda c: c.detectable)))
    return "; ".join(parts)
