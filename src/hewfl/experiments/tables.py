"""Tables of results for a terminal, a README or a paper.

Of one run: methods by quantities. Of several: methods by panels, in one quantity.
Numbers are mean ± deviation over the seeds, with the same digits.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from hewfl.core.toml_records import one_of
from hewfl.core.validation import invalid
from hewfl.experiments.plots import QUANTITIES
from hewfl.experiments.results import LARGER_IS_BETTER, Results
from hewfl.experiments.statistics import rounds_to_target, short_number, target_text

COUNTED = {"scalars": "numbers sent", "paper_scalars": "numbers sent, paper's count"}
"""Quantities that are sums over the rounds."""
SHOWN = ("objective", "gap", "test_accuracy", "scalars")
"""Quantities of one run that are shown where nothing else is asked."""
OF_PANELS = ("test_accuracy", "objective")
"""The first of these that all panels have is shown where nothing else is asked."""

MOST_PLACES = 7
"""Decimal places from which on numbers have an exponent."""


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Text cells, the best of each column marked.

    Attributes:
        title: one line.
        head: names of the columns.
        rows: a name and its values.
        best: row and column of cells to print bold.
        note: what bold means; empty if nothing is bold.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    note: str = ""

    @property
    def transposed(self) -> "Table":
        """The table with its columns as rows."""
        first, *heads = zip(self.head, *self.rows, strict=True)
        best = frozenset((j - 1, i + 1) for i, j in self.best)
        return Table(self.title, ("", *first[1:]), tuple(heads), best, self.note)


BOLD = "bold: the best mean, and means that the paired test does not tell from it"


def run_table(
    summary: Mapping[str, Any], quantities: Sequence[str] | None = None
) -> Table:
    """Methods by quantities, after the last round of one run.

    Args:
        summary: of the run (`hewfl.experiments.summary.summarise`).
        quantities: columns; those of `SHOWN` that were measured if absent.

    Raises:
        InvalidInputError: a quantity was not measured.
    """
    names = _checked([summary], quantities) or [
        name for name in SHOWN if name in _measured(summary)
    ]
    columns = [_column(summary, name) for name in names]
    title = f"{summary['name']}: {_length(summary)}"
    head = ("method", *map(quantity_name, names))
    return _table(title, head, _labels([summary]), columns)


def panel_table(
    panels: Mapping[str, Mapping[str, Any]], quantity: str | None = None
) -> Table:
    """Methods by panels, in one quantity, after the last rounds.

    Args:
        panels: summaries of runs, by the names of their columns.
        quantity: the first of `OF_PANELS` that all panels have if absent.

    Raises:
        InvalidInputError: a panel has not measured the quantity.
    """
    runs = list(panels.values())
    shared = [q for q in OF_PANELS if all(q in _measured(run) for run in runs)]
    (name,) = _checked(runs, None if quantity is None else [quantity]) or shared[:1]
    labels = _labels(runs)
    places = _places(runs, name)
    columns = [_column(run, name, labels, places) for run in runs]
    lengths = dict.fromkeys(map(_length, runs))
    title = f"{quantity_name(name)} {'; '.join(lengths)}"
    return _table(title, ("method", *panels), labels, columns)


def target_table(results: Mapping[str, Results], quantity: str, target: float) -> Table:
    """Methods by panels: rounds until a quantity reaches a target.

    Raises:
        InvalidInputError: a panel has not measured the quantity.
    """
    labels = list(dict.fromkeys(k for each in results.values() for k in each.labels))
    rows = [
        (
            label,
            *(
                target_text(rounds_to_target(each, label, quantity, target))
                if label in each.labels and each.measures(label, quantity)
                else "-"
                for each in results.values()
            ),
        )
        for label in labels
    ]
    if all(cell == "-" for row in rows for cell in row[1:]):
        raise invalid("--target", "of a quantity that was measured", repr(quantity))
    title = f"rounds to {quantity_name(quantity)} {target:g}, mean [95 % interval]"
    return Table(title, ("method", *results), tuple(rows))


def quantity_name(quantity: str) -> str:
    """The heading of a column."""
    return COUNTED.get(quantity, QUANTITIES.get(quantity, quantity))


def as_markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""
    head = [_escape(name, "|") for name in table.head]
    lines = [f"**{table.title}**", "", _pipes(head)]
    lines += [_pipes(["---", *["--:"] * (len(table.head) - 1)])]
    lines += [
        _pipes([_bold(_escape(c, "|"), "**{}**", (i, j) in table.best) for j, c in row])
        for i, row in _cells(table)
    ]
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


def as_latex(table: Table) -> str:
    r"""The table in LaTeX, with the rules of the package `booktabs`."""
    lines = [
        r"\begin{tabular}{l" + "r" * (len(table.head) - 1) + "}",
        r"\toprule",
        " & ".join(map(_latex, table.head)) + r" \\",
        r"\midrule",
    ]
    lines += [
        " & ".join(
            _bold(_latex(c), r"\textbf{{{}}}", (i, j) in table.best) for j, c in row
        )
        + r" \\"
        for i, row in _cells(table)
    ]
    lines += [r"\bottomrule", r"\end{tabular}"]
    comments = [f"% {text}" for text in (table.title, table.note) if text]
    return "\n".join([*comments, *lines]) + "\n"


def mean_and_deviation(value: Mapping[str, Any], places: int) -> str:
    """A value of `summary.statistics`, both numbers with so many decimal places.

    >>> mean_and_deviation({"mean": 0.9124, "std": 0.0123, "seeds": [0.9, 0.92]}, 3)
    '0.912 ± 0.012'
    """
    mean, std = value["mean"], value["std"]
    if mean is None:
        return "diverged"
    text = f"{mean:.{places}f}" + ("" if std is None else f" ± {std:.{places}f}")
    if places == MOST_PLACES or abs(mean) >= 1e6:
        text = f"{mean:.3e}" + ("" if std is None else f" ± {std:.0e}")
    lost = sum(seed is None for seed in value["seeds"])
    note = f" ({lost} of {len(value['seeds'])} seeds diverged)" if lost else ""
    return text + note


def _places(summaries: Iterable[Mapping[str, Any]], quantity: str) -> int:
    """Decimal places of a quantity: two digits of its median deviation."""
    values = [m["final"].get(quantity) for run in summaries for m in run["methods"]]
    spread = sorted(value["std"] for value in values if value and value["std"])
    if not spread:
        return 4
    digits = 1 - math.floor(math.log10(spread[len(spread) // 2]))
    return min(max(digits, 0), MOST_PLACES)


def _table(
    title: str,
    head: tuple[str, ...],
    labels: Sequence[str],
    columns: Sequence[tuple[Sequence[str], set[str]]],
) -> Table:
    rows = tuple(
        (label, *(cells[k] for cells, _ in columns)) for k, label in enumerate(labels)
    )
    best = frozenset(
        (i, 1 + j)
        for j, (_, names) in enumerate(columns)
        for i, label in enumerate(labels)
        if label in names
    )
    return Table(title, head, rows, best, BOLD if best else "")


def _column(
    summary: Mapping[str, Any],
    quantity: str,
    labels: Sequence[str] | None = None,
    places: int | None = None,
) -> tuple[list[str], set[str]]:
    """The cells of a quantity, one for each method, and the labels of the best."""
    methods = {m["label"]: m for m in summary["methods"]}
    final = {k: m["final"].get(quantity) for k, m in methods.items()}
    places = _places([summary], quantity) if places is None else places
    cells = [
        "-" if final.get(k) is None else _cell(quantity, final[k], places)
        for k in labels or methods
    ]
    pairs = [p for p in summary["pairs"] if p["quantity"] == quantity]
    ranked = {k: final[k]["mean"] for p in pairs for k in (p["first"], p["second"])}
    ranked = {k: mean for k, mean in ranked.items() if None not in final[k]["seeds"]}
    if (
        not ranked or summary.get("evaluate_model") == "averaged"
    ):  # pairs are of averages
        return cells, set()
    choose = max if quantity in LARGER_IS_BETTER else min
    best = choose(ranked, key=ranked.__getitem__)
    undecided = [
        {p["first"], p["second"]} for p in pairs if p["verdict"] == "undecided"
    ]
    return cells, {best}.union(*(pair for pair in undecided if best in pair))


def _cell(quantity: str, value: Mapping[str, Any], places: int) -> str:
    if quantity in COUNTED and value["mean"] is not None:
        return short_number(value["mean"])
    return mean_and_deviation(value, places)


def _measured(summary: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(q for m in summary["methods"] for q in m["final"]))


def _checked(
    runs: Iterable[Mapping[str, Any]], quantities: Sequence[str] | None
) -> list[str]:
    """The quantities asked for, which every run has measured."""
    for run in runs:
        known = _measured(run)
        for name in quantities or ():
            if name not in known:
                raise invalid("--quantity", one_of(known, name), repr(name))
    return list(quantities or ())


def _labels(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(m["label"] for run in runs for m in run["methods"]))


def _length(summary: Mapping[str, Any]) -> str:
    return f"after {summary['rounds']} rounds, {len(summary['seeds'])} seeds"


def _cells(table: Table) -> Iterable[tuple[int, Iterable[tuple[int, str]]]]:
    return enumerate(list(enumerate(row)) for row in table.rows)


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold(text: str, form: str, is_best: bool) -> str:
    return form.format(text) if is_best else text


def _escape(text: str, signs: str) -> str:
    return "".join(f"\\{c}" if c in signs else c for c in text)


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
    special |= {"±": r"$\pm$"}
    return "".join(special.get(c) or _escape(c, "&%$#_{}") for c in text)
