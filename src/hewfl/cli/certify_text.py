"""A certificate in words: numbers, verdicts, and what to say first."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.sensitivity import Improvement

_HELPS = 0.99
"""A change that saves less than a hundredth is not worth a sentence."""
UNITS = (
    "Gaps are in units of the objective; ϑ, L times the length of all local steps of a "
    "round, has no unit."
)


def short(number: Any) -> str:
    """Three digits; whole numbers in full up to seven, so that columns stay narrow."""
    x = float(number)
    if math.isnan(x):
        return "-"
    if math.isinf(x):
        return "never"
    if x.is_integer() and abs(x) < 1e7:
        return f"{int(x):,}"
    return f"{x:.3g}"


def rounds_text(number: Any) -> str:
    """A number of rounds with its unit."""
    return f"{short(number)} round{'' if float(number) == 1 else 's'}"


def asked(c: Certificate) -> str:
    """The federation, the start and the target."""
    system, (gap, tracking), who = c.case.system, c.case.start, c.participation
    return (
        f"{system.n:,} clients, L = {short(system.L)}, R = {short(system.R)}: no gap "
        f"exceeds LR²/2 = {short(system.cap)}. Start: gap at most {short(gap)}, "
        f"squared tracking errors at most {short(tracking)}. "
        f"Target: {short(c.target)}. {who[0].upper()}{who[1:]}."
    )


def verdict(c: Certificate, p: Promise) -> str:
    """What a theorem says about this federation, in one sentence."""
    cap, target = short(c.case.system.cap), short(c.target)
    if not p.holds:
        return f"Does not apply: {reasons(p)}."
    if p.rounds_to_target == 0:
        return f"Certified: the start is at most {target} already."
    if np.isfinite(p.rounds_to_target):
        return (
            f"Certified: the expected gap is at most {target} after "
            f"{rounds_text(p.rounds_to_target)} at {controls(c, p)}."
        )
    if p.vacuous:
        return (
            f"Says nothing: its bound never falls below LR²/2 = {cap}, which is known "
            "without it."
        )
    least = min(float(p.floor), float(p.design.least_target))
    more = "" if least >= float(p.floor) else f", and below {short(least)} at any ϑ"
    return (
        f"Holds, but does not certify {target}: at {controls(c, p)} its bound never "
        f"falls below {short(p.floor)}{more}."
    )


def reasons(p: Promise) -> str:
    """The hypotheses that fail, each with the two numbers compared."""
    broken = [h for h in p.hypotheses if not h.holds and not np.isnan(h.left)]
    return "; ".join(
        f"it needs {h.name}, here {short(h.left)} against {short(h.right)}"
        for h in broken
    )


def controls(c: Certificate, p: Promise) -> str:
    """ϑ, and Λ for rules that have one."""
    text = f"ϑ = {short(p.amplitude)}"
    if p.algorithm == "control":
        return text
    return f"{text}, Λ = {short(p.curvature / c.case.system.L)} L"


def best_promise(c: Certificate) -> Promise | None:
    """The promise with the fewest rounds; else the lowest floor; else none."""
    held = [p for p in c.promises if p.holds and not p.vacuous]
    return best_row(held) if held else None


def best_row(rows: Sequence[Promise]) -> Promise:
    """The promise that holds with the fewest rounds, else with the lowest floor."""
    return min(
        rows,
        key=lambda p: (not p.holds, float(p.rounds_to_target), float(p.floor)),
    )


def headline(c: Certificate, tried: Sequence[Improvement]) -> list[str]:
    """Which guarantee is best here, and what would improve it most."""
    best, target = best_promise(c), short(c.target)
    if best is None:
        first = "No theorem says anything about many rounds of this federation."
    elif np.isfinite(best.rounds_to_target):
        first = (
            f"Best guarantee: {best.label} ({best.about}; {best.variant} constants). "
            f"The expected gap of {best.iterate} is at most {target} after "
            f"{rounds_text(best.rounds_to_target)} at {controls(c, best)}."
        )
    else:
        near = min(c.promises, key=lambda p: float(p.design.least_target))
        least = near.design.least_target
        first = (
            f"No theorem certifies a gap of {target}; the lowest any does is "
            f"{short(least)}, by {near.label} ({near.about}; {near.variant} constants)."
        )
    return [first, _advice(best, tried)]


def _advice(best: Promise | None, tried: Sequence[Improvement]) -> str:
    helpful = [x for x in tried if x.factor < _HELPS][:2]
    if best is not None and best.rounds_to_target == 0:
        return "The start meets the target: nothing needs to improve."
    if not helpful:
        names = "; ".join(x.change for x in tried)
        return f"None of the changes tried helps by a hundredth: {names}."
    told = [f"{x.change} ({_effect(x)})" for x in helpful]
    return "What would help most: " + "; then ".join(told) + "."


def _effect(x: Improvement) -> str:
    if math.isfinite(x.rounds):
        return f"{rounds_text(x.rounds)}, by {x.theorem}"
    return f"lowest certified gap {short(x.least_gap)}, by {x.theorem}"


# ------------------ rows of tables

Rows = tuple[tuple[str, ...], list[list[str]]]
"""The names of the columns, and the cells."""


def theorem_rows(c: Certificate, rows: Sequence[Promise]) -> Rows:
    """The numbers of one theorem, a row for each set of constants."""
    goal, after_T = f"rounds to {short(c.target)}", f"gap after {c.rounds:,} rounds"
    names = ("constants", "ϑ", "largest ϑ", goal, "by closed form", after_T)
    body = []
    for p in rows:
        after = np.fmin(np.fmin(p.value, p.iterated), c.case.system.cap)
        numbers = (p.amplitude, p.amplitudes[1], p.rounds_to_target, p.closed_rounds)
        shown = [short(x) for x in (*numbers, after, p.floor)]
        if not p.holds:
            shown = ["does not apply", *["-"] * 5]
        elif p.vacuous:
            shown[2:] = ["says nothing", "-", "-", "-"]
        body.append([p.variant, *shown])
    return (*names, "lowest gap"), body


def change_rows(c: Certificate, tried: Sequence[Improvement]) -> Rows:
    """What each change would do."""
    names = ("change", "then best", f"rounds to {short(c.target)}")
    cells = [[x.change, x.theorem, short(x.rounds), short(x.least_gap)] for x in tried]
    return (*names, "lowest certified gap"), cells


def client_rows(c: Certificate, most: int) -> Rows:
    """Noise and weight of the first kinds of client, in the order of H, b and v²."""
    system, noise = c.case.system, c.noise
    names = ("clients", "H", "b", "v²", "v²/(Hb)", "a*", "best a")
    given = (system.multiplicity, system.horizon, system.batch_size, system.variance)
    columns = (*given, noise.levels, noise.optimal, noise.comparator)
    wide = [np.broadcast_to(np.asarray(x), (system.kinds,)) for x in columns]
    rows = np.stack(wide, axis=-1)
    order = np.lexsort(rows[:, 1:4].T[::-1])
    return names, [[short(x) for x in row] for row in rows[order][:most]]


def client_note(c: Certificate, most: int) -> str:
    """What is not in the rows of the clients."""
    noise, hidden = c.noise, c.case.system.kinds - most
    more = f"and {hidden:,} kinds more; " if hidden > 0 else ""
    return (
        f"{more}mean level {short(noise.mean)}; noise of the uniform mean "
        f"{short(noise.of_mean)}, at a* {short(noise.optimal_level)}"
    )


# ------------------ A certificate as text in a terminal

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
