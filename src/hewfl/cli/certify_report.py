"""A certificate as text in a terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from hewfl.cli.certify_words import (
    UNITS,
    Rows,
    asked,
    best_row,
    change_rows,
    client_note,
    client_rows,
    headline,
    short,
    theorem_rows,
    verdict,
)
from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.whatif import Improvement

_KINDS = 12
"""Kinds of client listed."""


def show(c: Certificate, tried: Sequence[Improvement], console: Console) -> None:
    """Print the report: the answer, what was asked, theorem by theorem, the rest."""
    console.print()
    for line in (*headline(c, tried), "", asked(c), UNITS, ""):
        console.print(line, highlight=False)
    for label in dict.fromkeys(p.label for p in c.promises):
        _theorem(c, [p for p in c.promises if p.label == label], console)
    for label, names in c.unasked:
        text = f"{label} was not asked: it needs {' and '.join(names)}."
        console.print(text, highlight=False)
    changes = _filled("what one change would do", 2, change_rows(c, tried))
    kinds = _filled("noise and weight by kind of client", 0, client_rows(c, _KINDS))
    kinds.caption = client_note(c, _KINDS)
    tables = [changes, _first_rounds(c), kinds]
    for table in [*tables, *([_sent(c)] if c.sent else [])]:
        console.print(table)


def _theorem(c: Certificate, rows: list[Promise], console: Console) -> None:
    """A theorem: its title, whom it is about, a verdict, and its numbers."""
    p = best_row(rows)
    console.print(f"[bold]{p.label}[/bold]  {p.title}.", highlight=False)
    about = f"For {p.iterate}; {p.weights}."
    which = f" ({p.variant} constants)" if len(rows) > 1 and p.holds else ""
    for line in (about, verdict(c, p).removesuffix(".") + which + "."):
        console.print(Padding(line, (0, 0, 0, 2)), highlight=False)
    if any(x.holds for x in rows):
        console.print(Padding(_filled(None, 1, theorem_rows(c, rows)), (0, 0, 0, 2)))
    else:
        console.print()


def _first_rounds(c: Certificate) -> Table:
    names = ("largest θ at 1/n", "largest θ at a*", "θ", "gap after it")
    title = "one round at uniform weights (th:predictive-majorant)"
    table = _table(title, ("constants",), names)
    for r in c.first_round:
        numbers = (r.uniform, r.noise_optimal, r.amplitude, r.value)
        table.add_row(r.variant, *map(short, numbers))
    return table


def _sent(c: Certificate) -> Table:
    S, d = c.case.participants, c.case.dimension
    title = f"numbers sent, {S:,} clients in a round, d = {d:,}"
    table = _table(title, ("algorithm",), ("a round", "paper's count", "to target"))
    for s in c.sent:
        table.add_row(s.algorithm, *map(short, (s.lean, s.printed, s.to_target)))
    return table


def _filled(title: str | None, texts: int, rows: Rows) -> Table:
    """A table whose first columns are texts."""
    names, body = rows
    table = _table(title, names[:texts], names[texts:])
    for cells in body:
        table.add_row(*cells)
    return table


def _table(
    title: str | None, texts: tuple[str, ...], numbers: tuple[str, ...]
) -> Table:
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    table.caption_justify = "left"
    return table
