"""Sensitivity: the certificate of a case after one change at a time.

Every change is evaluated: all theorems are searched anew for the fewest rounds to the
target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.control.certificate import VARIANTS
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import ArrayLike, invalid, positives
from hewfl.theory.certificates import MOST_KINDS, partial_guarantee
from hewfl.theory.designer import design, fewest_rounds
from hewfl.theory.post_local import PostLocal
from hewfl.theory.rounds_to_target import rounds_needed
from hewfl.theory.systems import Case, coarsen, group_clients
from hewfl.theory.theorem_table import THEOREMS, Form, theorem_curve


@final
@dataclass(frozen=True, slots=True)
class Improvement:
    """The best guarantee after one change.

    Attributes:
        change: the change, in words.
        rounds: the fewest rounds to the target after it; infinite for never.
        least_gap: the lowest gap any theorem certifies after it; NaN where the target
            is reached.
        theorem: label of the theorem behind it.
        factor: rounds after over rounds before; where the target is out of reach before
            or after, least gap after over before. Below 1 it helps.
    """

    change: str
    rounds: float
    least_gap: float
    theorem: str
    factor: float


@broadcasting
def improvements(
    case: Case,
    target: ArrayLike,
    *,
    amplitude: float | None = None,
    curvature: ArrayLike | None = None,
    variants: Sequence[Form] = ("absorbed", "sharp"),
) -> tuple[Improvement, ...]:
    """Evaluate one change at a time, the most helpful first.

    The changes are twice the clients, twice the batch, twice and half the local steps,
    one number of local steps for all, all clients in every round, batches from a common
    pool; and, where an amplitude is given, half of it and the best one.

    Args:
        case: of one configuration.
        target: ε.
        amplitude: ϑ; by default the best one for each theorem.
        curvature: Λ; by default it is searched.
        variants: constants to use; a theorem takes the first it has.

    Returns:
        One record for each change.

    Raises:
        InvalidInputError: several configurations or targets at once, or ε ≤ 0.
    """
    goal = positives("target", target)
    if case.rotation is None:
        case = replace(case, system=coarsen(group_clients(case.system), MOST_KINDS))
    if case.system.cap.ndim or goal.ndim:
        shape = (*case.system.cap.shape, *goal.shape)
        raise invalid("case", "of one configuration", f"shape {shape}")
    eps = float(goal)
    now = _best(case, eps, (amplitude, curvature), variants)
    changed = [
        (change, _best(other, eps, (amplitude, curvature), variants))
        for change, other in _changes(case)
    ]
    if amplitude is not None:
        half = _best(case, eps, (amplitude / 2, curvature), variants)
        free = _best(case, eps, (None, curvature), variants)
        changed += [("half the amplitude ϑ", half), ("the best amplitude ϑ", free)]
    rows = [_compare(change, now, then) for change, then in changed]
    return tuple(sorted(rows, key=lambda x: x.factor))


_Best = tuple[float, float, str]
"""Fewest rounds, lowest gap, and the theorem."""


def _best(
    case: Case,
    target: float,
    given: tuple[float | None, ArrayLike | None],
    variants: Sequence[Form],
) -> _Best:
    """The best guarantee; no lowest gap is above f̄, which holds without a theorem."""
    rounds, least, label = _best_theorem(case, target, given, variants)
    return rounds, float(np.minimum(least, case.system.cap)), label


def _best_theorem(
    case: Case,
    target: float,
    given: tuple[float | None, ArrayLike | None],
    variants: Sequence[Form],
) -> _Best:
    amplitude, curvature = given
    if case.is_partial:  # the other bounds need all clients
        known = [v for v in variants if v in VARIANTS] or list(VARIANTS)
        bound = partial_guarantee(case, target, 1, amplitude, known[0])
        least = float(bound.design.least_target)
        return float(bound.rounds_to_target), least, bound.label
    rows = [
        (label, variant)
        for label, theorem in THEOREMS.items()
        for variant in [next((v for v in variants if v in theorem.variants), None)]
        if variant is not None and not theorem.missing(case)
    ]
    if amplitude is not None:
        return min(
            _guarantee_at(case, target, (amplitude, curvature), row) for row in rows
        )
    quick = [
        (float(fewest_rounds(t, case, target, curvature=curvature, variant=v)), 0.0, t)
        for t, v in rows
    ]
    rounds, _, label = min(quick)
    if np.isfinite(rounds):
        return rounds, np.nan, label
    designs = [design(t, case, target, curvature=curvature, variant=v) for t, v in rows]
    return min((float(d.rounds), float(d.least_target), d.theorem) for d in designs)


def _guarantee_at(
    case: Case,
    target: float,
    given: tuple[float, ArrayLike | None],
    row: tuple[str, Form],
) -> _Best:
    """The guarantee of a theorem at a given amplitude."""
    amplitude, curvature = given
    Lambda = 2 * case.system.L if curvature is None else curvature
    curve = theorem_curve(row[0], case, PostLocal(amplitude, Lambda), row[1])
    least = THEOREMS[row[0]].least
    rate = curve.rate(least)
    rounds = rounds_needed(curve, target, least=least).fewest
    floor = np.where(rate.holds, curve.floor_beside(rate), np.inf)
    return float(rounds), float(floor), row[0]


def _compare(change: str, now: _Best, then: _Best) -> Improvement:
    rounds, least, label = then
    if np.isfinite(now[0]):
        factor = rounds / now[0] if now[0] > 0 else 1.0
    elif np.isfinite(rounds) and not np.isfinite(now[0]):
        factor = 0.0
    else:
        factor = least / now[1] if 0 < now[1] < np.inf else float(not least < now[1])
    return Improvement(change, rounds, least, label, float(factor))


def _changes(case: Case) -> Iterator[tuple[str, Case]]:
    s = case.system
    H, b, m = np.asarray(s.horizon), np.asarray(s.batch_size), s.multiplicity
    m = np.broadcast_to(m, H.shape)
    active = None if case.active is None else 2 * case.active
    if case.rotation is None:
        yield (
            "twice as many clients of each kind",
            replace(case, system=replace(s, count=2 * m), active=active),
        )
    yield "twice the batch size", replace(case, system=replace(s, batch_size=2 * b))
    yield "twice the local steps", replace(case, system=replace(s, horizon=2 * H))
    if H.max() > 1:
        half = np.ceil(H / 2)
        yield "half the local steps", replace(case, system=replace(s, horizon=half))
    if H.max() > H.min() or b.max() > b.min():
        mean, size = np.round(np.average(H, weights=m)), np.floor(np.median(b))
        even = replace(s, horizon=mean, batch_size=size)
        text = f"the same H = {mean:g} and b = {size:g} for all clients"
        yield text, replace(case, system=even)
    if case.is_partial:
        everyone = replace(case, active=None, rotation=None, absence=None)
        yield "all clients in every round", everyone
    if case.sampling == "fixed shards":
        text = "batches drawn afresh from one common pool"
        yield text, replace(case, sampling="fresh draws")
