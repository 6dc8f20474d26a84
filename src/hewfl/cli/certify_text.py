"""A certificate as text in a terminal: the answer, its reasons, and tables."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from hewfl.core.rounding import format_lower, format_upper
from hewfl.theory.certificates import (
    Certificate,
    Guarantee,
    Improvement,
    best_guarantee,
)
from hewfl.theory.post_local import PostLocal
from hewfl.theory.statement import Hypothesis
from hewfl.theory.theorem_table import (
    FULL_PARTICIPATION,
    HOMOGENEOUS_ORACLE,
    THEOREMS,
    theorem_curve,
)

_HELPS = 0.99
"""A change that saves less than a hundredth is not mentioned."""
_KINDS = 12
"""Kinds of client listed."""
_UNITS = (
    "Gaps are in units of the objective; ϑ, L times the length of all local steps of a "
    "round, has no unit."
)
_NEEDS = {
    FULL_PARTICIPATION: "full participation: {right} of {left} clients take part",
    HOMOGENEOUS_ORACLE: "a homogeneous oracle: the clients draw from fixed shards",
    "H_i = H": "equal local steps: here {right} to {left}",
    "b_i = b": "equal batch sizes: here {right} to {left}",
    "v² ≤ 0": "gradients without noise",
}
"""Hypotheses in words; the others are shown with both sides."""


def print_certificate(
    c: Certificate, changes: Sequence[Improvement], console: Console
) -> None:
    """Print the answer, the question, each theorem, and tables of the rest."""
    console.print()
    for line in (*headline(c, changes), "", _question(c), _UNITS, ""):
        console.print(line, highlight=False)
    for label in dict.fromkeys(p.label for p in c.guarantees):
        _print_theorem(c, [p for p in c.guarantees if p.label == label], console)
    for label, names in c.not_evaluated:
        text = f"{label} was not evaluated: it needs {' and '.join(names)}."
        console.print(text, highlight=False)
    tables = [_first_round_table(c), _literature_table(c), _client_table(c)]
    if any(x.factor < _HELPS for x in changes):  # else the headline has said it
        tables.insert(0, _change_table(c, changes))
    for table in [*tables, *([_communication_table(c)] if c.communication else [])]:
        console.print(table)


def certificate_latex(c: Certificate) -> str:
    """The recursion of each guarantee that holds, with its numbers, in LaTeX."""
    parts = []
    for p in c.guarantees:
        controls = PostLocal(p.amplitude, p.curvature)
        known = p.label in THEOREMS and p.variant != "printed" and bool(p.holds)
        if not known:
            continue
        recursion = theorem_curve(p.label, c.case, controls, p.variant).recursion
        assert recursion is not None
        title = f"% {p.label}, {p.variant} constants, {_controls(c, p)}: {p.title}"
        parts.append(f"{title}\n{recursion.latex()}")
    return "\n\n".join(parts) or "% no theorem holds"


def headline(c: Certificate, changes: Sequence[Improvement]) -> list[str]:
    """The best guarantee, and the changes that would improve it most."""
    best, target = _best_guarantee(c), _upper(c.target)
    if best is None:
        first = "No theorem gives a bound over many rounds for this federation."
    elif np.isfinite(best.rounds_to_target):
        first = (
            f"Best guarantee: {best.label} ({best.about}; {best.variant} constants). "
            f"The expected gap of {best.iterate} is at most {target} after "
            f"{_rounds(best.rounds_to_target)} at {_controls(c, best)}."
        )
    else:
        near = min(c.guarantees, key=lambda p: float(p.design.least_target))
        least = near.design.least_target
        first = (
            f"No theorem certifies a gap of {_lower(c.target)}; the lowest certified "
            f"gap is {_upper(least)}, by {near.label} ({near.about}; {near.variant} "
            "constants)."
        )
    return [first, _advice(best, changes)]


def verdict(c: Certificate, p: Guarantee) -> str:
    """The guarantee of a theorem for this federation, in one sentence."""
    target = _upper(c.target)
    if not p.holds:
        return f"Does not apply: {_unmet(p.hypotheses)}."
    if p.rounds_to_target == 0:
        return f"Certified: the start is at most {target} already."
    if np.isfinite(p.rounds_to_target):
        return (
            f"Certified: the expected gap is at most {target} after "
            f"{_rounds(p.rounds_to_target)} at {_controls(c, p)}."
        )
    if p.vacuous:
        return "Vacuous: its bound never falls below LR²/2, which holds without it."
    least = min(float(p.floor), float(p.design.least_target))
    more = "" if least >= float(p.floor) else f", and below {_lower(least)} at any ϑ"
    return (
        f"Holds, but does not certify {_lower(c.target)}: at {_controls(c, p)} its "
        f"bound never falls below {_lower(p.floor)}{more}."
    )


def _unmet(hypotheses: Sequence[Hypothesis]) -> str:
    """The hypotheses that fail, each with its numbers."""
    failed = [h for h in hypotheses if not h.holds and not np.isnan(h.left)]
    return "; ".join(
        "it needs "
        + _NEEDS.get(h.name, f"{h.name}, but {{left}} exceeds {{right}}").format(
            **_sides(h)
        )
        for h in failed
    )


def _sides(h: Hypothesis) -> dict[str, str]:
    """Both sides of a hypothesis that fails, with the digits that show it."""
    for digits in range(3, 18):
        sides = {"left": _lower(h.left, digits), "right": _upper(h.right, digits)}
        if sides["left"] != sides["right"]:
            break
    return sides


def _question(c: Certificate) -> str:
    """The federation, the start and the target."""
    system, (gap, tracking) = c.case.system, c.case.start
    return (
        f"{system.n:,} clients, L = {_value(system.L)}, R = {_value(system.R)}: no gap "
        f"exceeds LR²/2 = {_upper(system.cap)}. Start: gap at most {_upper(gap)}, "
        f"squared tracking errors at most {_upper(tracking)}. "
        f"Target: {_upper(c.target)}. {c.participation}"
    )


def _controls(c: Certificate, p: Guarantee) -> str:
    """ϑ, and Λ for rules that have one."""
    text = f"ϑ = {_value(p.amplitude)}"
    if p.algorithm == "control":
        return text
    return f"{text}, Λ = {_value(p.curvature / c.case.system.L)} L"


def _best_guarantee(c: Certificate) -> Guarantee | None:
    """The guarantee with the fewest rounds, else the lowest floor; None if vacuous."""
    held = [p for p in c.guarantees if p.holds and not p.vacuous]
    return best_guarantee(held) if held else None


def _advice(best: Guarantee | None, changes: Sequence[Improvement]) -> str:
    if best is not None and best.rounds_to_target == 0:
        return "The start meets the target: nothing needs to improve."
    helpful = [x for x in changes if x.factor < _HELPS][:2]
    if not helpful:
        names = "; ".join(x.change for x in changes)
        return f"None of these changes helps by a hundredth: {names}."
    effects = [f"{x.change} ({_effect(x)})" for x in helpful]
    return "What would help most: " + "; then ".join(effects) + "."


def _effect(x: Improvement) -> str:
    if math.isfinite(x.rounds):
        return f"{_rounds(x.rounds)}, by {x.theorem}"
    return f"lowest certified gap {_upper(x.least_gap)}, by {x.theorem}"


def _print_theorem(c: Certificate, rows: list[Guarantee], console: Console) -> None:
    """The title of a theorem, its subject, a verdict, and its numbers."""
    p = best_guarantee(rows)
    console.print(f"[bold]{p.label}[/bold]  {p.title}.", highlight=False)
    subject = f"For {p.iterate}; {p.weights}."
    which = f" ({p.variant} constants)" if len(rows) > 1 and p.holds else ""
    for line in (subject, verdict(c, p).removesuffix(".") + which + "."):
        console.print(Padding(line, (0, 0, 0, 2)), highlight=False)
    if any(x.holds and not x.vacuous for x in rows):
        console.print(Padding(_theorem_table(c, rows), (0, 0, 0, 2)))
    else:
        console.print()


def _theorem_table(c: Certificate, rows: Sequence[Guarantee]) -> Table:
    """The numbers of one theorem, a row for each set of constants."""
    goal, after_T = f"rounds to {_upper(c.target)}", f"gap after {c.rounds:,} rounds"
    names = ("ϑ", "largest ϑ", goal, "by closed form", after_T, "lowest gap")
    table = _table(None, ("constants",), names)
    for p in rows:
        after = np.fmin(np.fmin(p.value, p.iterated), c.case.system.cap)
        bounds = (p.rounds_to_target, p.closed_rounds, after, p.floor)
        cells = [_value(p.amplitude), _lower(p.amplitudes[1]), *map(_upper, bounds)]
        if not p.holds:
            cells = ["does not apply", *["-"] * 5]
        elif p.vacuous:
            cells[2:] = ["vacuous", "-", "-", "-"]
        table.add_row(p.variant, *cells)
    return table


def _change_table(c: Certificate, changes: Sequence[Improvement]) -> Table:
    numbers = (f"rounds to {_upper(c.target)}", "lowest certified gap")
    table = _table("effect of one change", ("change", "then best"), numbers)
    for x in changes:
        table.add_row(x.change, x.theorem, _upper(x.rounds), _upper(x.least_gap))
    return table


def _first_round_table(c: Certificate) -> Table:
    names = ("largest θ at 1/n", "largest θ at a*", "θ", "gap after it")
    title = "one round at uniform weights (th:predictive-majorant)"
    table = _table(title, ("constants",), names)
    for r in c.first_round:
        largest = map(_lower, (r.uniform, r.noise_optimal))
        table.add_row(r.variant, *largest, _value(r.amplitude), _upper(r.value))
    return table


def _literature_table(c: Certificate) -> Table:
    """Other methods beside the paper; the last row is a lower bound."""
    numbers = (f"rounds to {_upper(c.target)}", f"gap after {c.rounds:,} rounds")
    table = _table("other methods at the same constants", ("method",), numbers)
    *methods, least = c.literature
    for x in methods:
        unmet = _unmet(x.hypotheses).replace("it needs ", "needs ")
        name = f"{x.method}: {unmet}" if unmet else f"{x.method}; {x.iterate}"
        after = np.minimum(x.value, c.case.system.cap)
        table.add_row(name, _upper(x.rounds_to_target), _upper(after))
    table.add_row(least.method, _lower(least.rounds_to_target), _lower(least.value))
    return table


def _client_table(c: Certificate) -> Table:
    """Noise and weight of the first kinds of client, in the order of H, b and v²."""
    system, noise = c.case.system, c.noise
    names = ("clients", "H", "b", "v²", "v²/(Hb)", "a*", "best a")
    table = _table("noise and weight by kind of client", (), names)
    given = (system.multiplicity, system.horizon, system.batch_size, system.variance)
    columns = (*given, noise.levels, noise.optimal, noise.comparator)
    wide = [np.broadcast_to(np.asarray(x), (system.kinds,)) for x in columns]
    rows = np.stack(wide, axis=-1)
    order = np.lexsort(rows[:, 1:4].T[::-1])
    for row in rows[order][:_KINDS]:
        table.add_row(*map(_value, row))
    hidden = system.kinds - _KINDS
    more = f"and {hidden:,} kinds more; " if hidden > 0 else ""
    table.caption = (
        f"{more}mean level {_value(noise.mean)}; noise of the uniform mean "
        f"{_value(noise.of_mean)}, at a* {_value(noise.optimal_level)}"
    )
    return table


def _communication_table(c: Certificate) -> Table:
    S, d = c.case.participants, c.case.dimension
    title = f"numbers sent, {S:,} clients in a round, d = {d:,}"
    table = _table(title, ("algorithm",), ("a round", "paper's count", "to target"))
    for s in c.communication:
        sent = _value(s.per_round), _value(s.printed), _upper(s.to_target)
        table.add_row(s.algorithm, *sent)
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


def _upper(number: Any, digits: int = 3) -> str:
    """An upper bound, such as a gap or a number of rounds, rounded up."""
    return _text(number, lambda x: format_upper(x, digits))


def _lower(number: Any, digits: int = 3) -> str:
    """A lower bound, such as a floor or a largest amplitude, rounded down."""
    return _text(number, lambda x: format_lower(x, digits))


def _value(number: Any) -> str:
    """A number that bounds nothing, rounded to nearest."""
    return _text(number, lambda x: f"{x:.3g}")


def _text(number: Any, rounded: Callable[[float], str]) -> str:
    """Whole numbers in full up to seven digits, so that columns stay narrow."""
    x = float(number)
    if math.isnan(x):
        return "-"
    if math.isinf(x):
        return "never"
    if x.is_integer() and abs(x) < 1e7:
        return f"{int(x):,}"
    return rounded(x)


def _rounds(number: Any) -> str:
    """A number of rounds with its unit."""
    return f"{_upper(number)} round{'' if float(number) == 1 else 's'}"
