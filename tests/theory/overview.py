"""Which rates say something, and up to which amplitude: the tables of docs/theory.md.

Reference systems have L = R = b = 1, so that f̄ = 1/2, and ten clients alike. Runs start
at the gap f̄ with exact control variates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.validation import Array, Mask
from hewfl.theory.appendix.lemmas import safe_rate
from hewfl.theory.comparators import comparator_coefficients
from hewfl.theory.one_step_bound import largest_descent_amplitude, situation
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
    homogeneous_pl_rate,
)
from hewfl.theory.statement import Constants, Rate
from hewfl.theory.systems import System
from hewfl.theory.uniform import (
    best_iterate_rate,
    higher_order,
    pl_rate,
    uniform_coefficients,
)

CLIENTS = 10
UNIFORM = np.full(CLIENTS, 1 / CLIENTS)
SYSTEMS = tuple((H, v2) for v2 in (0.0, 0.01) for H in (1, 4))
"""Horizon H and variance v² of all clients."""
AMPLITUDES = (1e-4, 1e-3, 1e-2, 1e-1)
CURVATURE = 2.0
"""Λ = 2L, the largest that the post-local theorems allow and the best for them."""
PL_CONSTANT = 0.1
SIMILARITY = 0.1
"""How far the clients' Hessians differ; their Lipschitz constant is zero."""
START = (0.5, 0.0)
REACHES: tuple[Constants, ...] = (*VARIANTS, "joint")
_GRID = np.geomspace(1e-9, 1, 91)

Statement = Callable[[System, Array, Any, bool], Rate]
"""A rate of a system at amplitudes ϑ, in a variant or as printed."""
Form = tuple[Constants, bool]
"""Variant, and whether as printed."""
PRINTED: Form = ("paper", True)
PAPER: Form = ("paper", False)
SHARP: Form = ("sharp", False)
ABSORBED: Form = ("absorbed", False)
JOINT: Form = ("joint", False)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One statement in one form on one reference system.

    Attributes:
        label: LaTeX label of the statement.
        form: "printed" as in the paper, "paper" its constants with false parts mended,
            or the other variants.
        horizon: H.
        variance: v².
        floor: floor over f̄ at each of `AMPLITUDES`, NaN where it is undefined.
        vacuous: whether it is 1 or more, or undefined.
        holds: whether the hypotheses are met there.
        largest: largest ϑ ≤ 1 with hypotheses met and a floor below f̄, to three
            digits; 0 where there is none.
    """

    label: str
    form: str
    horizon: int
    variance: float
    floor: Float64[Array, " amplitudes"]
    vacuous: Bool[Mask, " amplitudes"]
    holds: Bool[Mask, " amplitudes"]
    largest: float


def overview() -> list[Row]:
    """Every closed rate in every form on every reference system, systems together."""
    return [
        _row(label, form, H, v2)
        for label, (_, forms) in _STATEMENTS.items()
        for form in forms
        for H, v2 in SYSTEMS
    ]


def markdown(rows: list[Row]) -> str:
    """The overview as two tables: largest amplitudes of use, and floors at H = 4."""
    groups = [rows[k : k + len(SYSTEMS)] for k in range(0, len(rows), len(SYSTEMS))]
    reach = [
        [
            "`th:predictive-majorant`",
            form,
            *(_amplitude(_reach(*x, form)) for x in SYSTEMS),
        ]
        for form in REACHES
    ]
    reach += [
        [*_name(group[0]), *(_amplitude(row.largest) for row in group)]
        for group in groups
    ]
    floors = [
        [
            *_name(g[0]),
            *(cell for row in g if row.horizon == 4 for cell in _floors(row)),
        ]
        for g in groups
    ]
    systems = [f"H = {H}, v² = {v2:g}" for H, v2 in SYSTEMS]
    points = [
        f"v² = {v2:g}, ϑ = {x:g}" for H, v2 in SYSTEMS if H == 4 for x in AMPLITUDES
    ]
    return f"{_table(systems, reach)}\n\n{_table(points, floors)}"


def _row(label: str, form: Form, H: int, v2: float) -> Row:
    statement, system = _STATEMENTS[label][0], _system(H, v2)
    theta, largest = _GRID, 0.0
    for _ in range(4):  # the grid, then ever finer the step in which the last one lies
        floor, holds = _evaluate(statement, system, theta, form)
        useful = np.flatnonzero(holds & (floor < 1))
        if not useful.size:
            break
        last = int(useful[-1])
        largest = float(theta[last])
        theta = np.geomspace(theta[last], theta[min(last + 1, theta.size - 1)], 31)
    floor, holds = _evaluate(statement, system, np.asarray(AMPLITUDES), form)
    name = "printed" if form == PRINTED else form[0]
    return Row(label, name, H, v2, floor, ~(floor < 1), holds, largest)


def _evaluate(
    statement: Statement, system: System, theta: Array, form: Form
) -> tuple[Array, Mask]:
    """Floors over f̄, NaN where they are undefined, and whether hypotheses hold."""
    rate = statement(system, theta, *form)
    floor = np.where(np.isfinite(rate.floor), rate.floor / system.cap, np.nan)
    return floor, np.broadcast_to(rate.holds, theta.shape)


def _reach(H: int, v2: float, variant: Constants) -> float:
    """Largest amplitude that certifies descent in one round from the start."""
    at = situation(_system(H, v2), *START)
    return float(largest_descent_amplitude(UNIFORM, at, variant=variant))


def _system(H: int, v2: float) -> System:
    return System(1.0, 1.0, np.full(CLIENTS, H), 1, v2)


# the statements


def _fixed(system: System, theta: Array, variant: Variant, printed: bool) -> Rate:
    k = comparator_coefficients(
        system, UNIFORM, theta[:, None], variant=variant, printed=printed
    )
    return k.rate(START, 1, printed=printed)


def _pl(system: System, theta: Array, variant: Constants, printed: bool) -> Rate:
    k = uniform_coefficients(system, theta, variant=variant)
    return pl_rate(k, PL_CONSTANT, START, 1, printed=printed)


def _safe(system: System, theta: Array, variant: Variant, printed: bool) -> Rate:
    k = uniform_coefficients(system, theta, variant=variant)
    return safe_rate(k, PL_CONSTANT, START, 1, printed=printed)


def _similar(system: System, theta: Array, variant: Variant, printed: bool) -> Rate:
    k = uniform_coefficients(system, theta, variant=variant)
    law = higher_order(k, SIMILARITY, 0.0, printed=printed)
    return best_iterate_rate(law, START, 1, printed=printed)


def _corrected(system: System, theta: Array, variant: Variant, printed: bool) -> Rate:
    controls = PostLocal(theta, CURVATURE)
    k = heterogeneous_coefficients(
        system, controls, comparator=UNIFORM, variant=variant, printed=printed
    )
    return k.rate(START, 1, printed=printed)


def _plain(system: System, theta: Array, variant: Constants, printed: bool) -> Rate:
    k = homogeneous_coefficients(system, PostLocal(theta, CURVATURE), variant=variant)
    return k.rate((START[0], 0.0), 1, printed=printed)


def _plain_pl(system: System, theta: Array, variant: Constants, printed: bool) -> Rate:
    k = homogeneous_coefficients(system, PostLocal(theta, CURVATURE), variant=variant)
    return homogeneous_pl_rate(k, PL_CONSTANT, START[0], 1, printed=printed)


_STATEMENTS: dict[str, tuple[Statement, tuple[Form, ...]]] = {
    "th:sur-cvx": (_fixed, (PRINTED, PAPER, SHARP, ABSORBED)),
    "th:pl-global": (_pl, (PAPER, SHARP, ABSORBED, JOINT)),
    "cor:pl-safe": (_safe, (PAPER,)),
    "th:ho-main": (_similar, (PRINTED, PAPER, SHARP)),
    "cor:realized-het-rate": (_corrected, (PRINTED, PAPER, SHARP)),
    "cor:realized-hom-rate": (_plain, (PAPER, SHARP, JOINT)),
    "cor:realized-hom-PL": (_plain_pl, (PAPER, SHARP, JOINT)),
}


# the page


def _table(head: list[str], body: list[list[str]]) -> str:
    rule = ["---", "---", *("---:" for _ in head)]
    lines = [["statement", "form", *head], rule, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _name(row: Row) -> tuple[str, str]:
    return f"`{row.label}`", row.form


def _amplitude(value: float) -> str:
    return f"{value:.3g}" if value > 0 else "none"


def _floors(row: Row) -> list[str]:
    """Two digits; empty where undefined, in brackets where hypotheses fail."""
    cells = []
    for value, met in zip(row.floor, row.holds, strict=True):
        text = f"{value:.2g}" if np.isfinite(value) else ""
        cells.append(text if met or not text else f"({text})")
    return cells
