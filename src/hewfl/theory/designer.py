"""From bounds to decisions: which amplitude certifies a target soonest."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool

from hewfl.core.checks import Array, ArrayLike, Mask, Reals, invalid, positives
from hewfl.core.shapes import broadcasting
from hewfl.theory.amplitude_search import Search, search_of
from hewfl.theory.case import Case
from hewfl.theory.needed import rounds_needed
from hewfl.theory.statement import Hypothesis
from hewfl.theory.theorems import Form, theorem_curve


@final
@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The amplitude that certifies a target soonest.

    Where `certified` is false the search found none; the fields then describe the
    amplitude of the lowest floor, with infinitely many rounds.

    Attributes:
        theorem: label of the statement.
        variant: which constants.
        amplitude: ϑ.
        curvature: Λ; of no effect for rules without one.
        rounds: the fewest rounds to the target, by the better of closed rate and
            recursion.
        value: the bound after these rounds, at most the target; the floor where the
            target is not reached.
        floor: what the better of the two tends to.
        least_target: the lowest floor of all amplitudes: a target above it is reached
            in the end; infinite where the hypotheses hold for no amplitude.
        certified: whether the target is reached, within `MOST_ROUNDS`.
        hypotheses: at these controls.
    """

    theorem: str
    variant: Form
    amplitude: Reals
    curvature: Reals
    rounds: Reals
    value: Reals
    floor: Reals
    least_target: Reals
    certified: Bool[Mask, "..."]
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def design(
    theorem: str,
    case: Case,
    target: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> Design:
    """Minimise the certified rounds over ϑ, and over Λ where the rule has one.

    A grid of logarithms over `SEARCHED` closes in on its best point, first for the
    lowest floor, then from there for the fewest rounds, counted as real numbers: whole
    ones have plateaus, on which a search stands still. Bounds are valleys in log ϑ, so
    the narrow range of amplitudes that certify a hard target is not missed.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        target: ε, below the cap f̄, which nobody needs to certify.
        curvature: Λ > L; by default it is searched too, in (L, 2L].
        variant: which constants.

    Returns:
        The best controls, what they certify, and the lowest floor of all.

    Raises:
        InvalidInputError: a target that is not between 0 and f̄, or an unknown name.
    """
    goal = _below_cap(target, case)
    search, shape = search_of(theorem, case, curvature, variant)
    wide = np.broadcast_shapes(goal.shape, shape)
    return _designed(search, goal, wide, search.least(search.floors, wide))


@broadcasting
def certified_amplitudes(
    theorem: str,
    case: Case,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> tuple[Reals, Reals]:
    """The least and the largest ϑ at which a theorem holds and is not vacuous (E-09).

    Between them it says something: floors are valleys in log ϑ. Noise may end the range
    below, for a floor that grows as ϑ falls.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        curvature: Λ > L; by default the best one in (L, 2L] for each ϑ.
        variant: which constants.

    Returns:
        Both ends, within `SEARCHED`; zero where there is no such amplitude.

    Raises:
        InvalidInputError: an unknown name, or a constant the theorem needs is missing.
    """
    search, shape = search_of(theorem, case, curvature, variant)
    return search.amplitudes(shape)


@broadcasting
def design_and_range(
    theorem: str,
    case: Case,
    target: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> tuple[Design, tuple[Reals, Reals]]:
    """`design` and `certified_amplitudes` with one search for the lowest floor."""
    goal = _below_cap(target, case)
    search, shape = search_of(theorem, case, curvature, variant)
    lowest = search.least(search.floors, shape)
    wide = np.broadcast_shapes(goal.shape, shape)
    start = np.broadcast_to(
        lowest.reshape(2, *[1] * (len(wide) - len(shape)), *shape), (2, *wide)
    )
    return _designed(search, goal, wide, start), search.amplitudes(shape, lowest)


def fewest_rounds(
    theorem: str,
    case: Case,
    target: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> Reals:
    """The rounds of `design` alone, in about half the time.

    Where the first grid meets no amplitude that certifies the target, none is looked
    for in the valley between its points; `design` does that.

    Returns:
        Whole numbers; infinite where none was found.
    """
    goal = _below_cap(target, case)
    search, shape = search_of(theorem, case, curvature, variant)
    wide = np.broadcast_shapes(goal.shape, shape)
    best = search.least(lambda x: search.rounds(x, goal), wide)
    controls = search.controls(search.polished(best, goal))
    curve = theorem_curve(theorem, search.exact, controls, variant)
    return rounds_needed(curve, goal, least=search.theorem.least).fewest


def _designed(
    search: Search, goal: Array, shape: tuple[int, ...], lowest: Array
) -> Design:
    """The best controls, evaluated with all kinds of client."""
    least, label = search.theorem.least, search.theorem.label
    best = search.least(lambda x: search.rounds(x, goal), shape, start=lowest)
    controls = search.controls(search.polished(best, goal))
    curve, bottom = (
        theorem_curve(label, search.exact, at, search.variant)
        for at in (controls, search.controls(lowest))
    )
    found = rounds_needed(curve, goal, least=least).fewest
    certified = np.asarray(np.isfinite(found))
    closed = curve.rate(np.where(certified, found, least))
    floor, at_least = curve.floor_beside(closed), bottom.rate(least)
    lowest_gap = np.where(at_least.holds, bottom.floor_beside(at_least), np.inf)
    value = np.where(certified, np.minimum(closed.value, goal), floor)
    return Design(
        label,
        search.variant,
        amplitude=np.asarray(controls.amplitude),
        curvature=np.broadcast_to(np.asarray(controls.curvature), shape),
        rounds=np.broadcast_to(found, shape),
        value=np.broadcast_to(value, shape),
        floor=np.broadcast_to(floor, shape),
        least_target=np.broadcast_to(lowest_gap, shape),
        certified=np.broadcast_to(certified, shape),
        hypotheses=closed.hypotheses,
    )


def _below_cap(target: ArrayLike, case: Case) -> Reals:
    """Checked ε with 0 < ε < f̄."""
    goal, cap = positives("target", target), case.system.cap
    if (goal >= cap).any():
        high = np.broadcast_to(goal, np.broadcast_shapes(goal.shape, cap.shape))
        rule = f"below the cap f̄ = {cap.max():g}, which needs no theorem"
        raise invalid("target", rule, high[high >= cap].flat[0])
    return goal
