"""From bounds to decisions: rounds to a target, amplitudes that certify it.

A bound that falls with the rounds is inverted exactly; the amplitude, and Λ for rules
that have one, is then searched for the fewest rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.core.checks import Array, ArrayLike, Mask, invalid, positives, wholes
from hewfl.core.shapes import broadcasting
from hewfl.theory.case import Case
from hewfl.theory.post_local import PostLocal, above_smoothness
from hewfl.theory.statement import Hypothesis, Rate
from hewfl.theory.theorems import THEOREMS, Form, find_theorem, theorem_curve

SEARCHED = (1e-12, 1.0)
"""Amplitudes that are searched; no statement holds beyond the upper end (E-03)."""
_MARGINS = (1e-3, 1.0)
"""Λ/L − 1 that are searched."""
MOST_ROUNDS = 2.0**48
"""More rounds than this count as infinitely many."""
_COARSE, _FINE, _ZOOMS, _CUTS = (61, 9), (33, 9), 4, 10


@broadcasting
def rounds_to(
    rate: Callable[[ArrayLike], Rate], target: ArrayLike, *, least: int = 0
) -> Float64[Array, "..."]:
    """The fewest rounds after which a bound is at most a target.

    The bound must not rise with the rounds. The last number of rounds with the bound
    still above the target is found digit by digit, to the base 16, so that the answer
    was itself evaluated.

    Args:
        rate: the bound; hypotheses are not looked at.
        target: ε > 0, shape (*c).
        least: the fewest rounds the bound is defined for.

    Returns:
        Whole numbers; infinite where the floor is not below the target, or where
        `MOST_ROUNDS` do not suffice.

    Examples:
        >>> from hewfl.theory import linear_rate
        >>> float(rounds_to(lambda T: linear_rate(1.0, 0.5, 0.0, T), 0.1))
        4.0

    Raises:
        InvalidInputError: ε ≤ 0, or what the bound itself refuses.
    """
    goal, least = positives("target", target), int(wholes("least", least))
    first = rate(least).value
    shape = np.broadcast_shapes(first.shape, goal.shape)
    powers, digits = 16.0 ** np.arange(12, -1, -1), _tail(np.arange(1.0, 16.0), shape)
    reached = rate(least + _tail(powers, shape)).value <= goal
    late = np.full(shape, float(least))
    for power, soon in zip(powers, reached, strict=True):
        if (reached[0] & ~soon).any():  # else this digit is zero, or does not matter
            late = late + power * (rate(late + power * digits).value > goal).sum(0)
    found = np.where(reached[0], late + 1, np.inf)
    return np.where(first <= goal, float(least), found)


# ------------------------------------------------------------------ search


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
        rounds: the fewest rounds to the target.
        value: the bound after these rounds.
        floor: what the bound tends to.
        least_target: the lowest floor of all amplitudes: a target above it is reached
            in the end; infinite where the hypotheses hold for no amplitude.
        certified: whether the target is reached, within `MOST_ROUNDS`.
        hypotheses: at these controls.
    """

    theorem: str
    variant: Form
    amplitude: Float64[Array, "..."]
    curvature: Float64[Array, "..."]
    rounds: Float64[Array, "..."]
    value: Float64[Array, "..."]
    floor: Float64[Array, "..."]
    least_target: Float64[Array, "..."]
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
    lowest floor, then from there for the fewest rounds. Bounds are valleys in log ϑ, so
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
    goal, cap = positives("target", target), case.system.cap
    if (goal >= cap).any():
        high = np.broadcast_to(goal, np.broadcast_shapes(goal.shape, cap.shape))
        rule = f"below the cap f̄ = {cap.max():g}, which needs no theorem"
        raise invalid("target", rule, high[high >= cap].flat[0])
    statement = find_theorem(theorem, variant)
    least = statement.least

    def rounds(x: Array) -> Array:
        rate = theorem_curve(theorem, case, _controls(x, case, curvature), variant).rate
        needed = rounds_to(rate, goal, least=least)
        return np.where(rate(least).holds, needed, np.inf)

    shape = np.broadcast_shapes(goal.shape, _shape(case, curvature))
    wide = statement.has_curvature and curvature is None
    floors = _floors(theorem, case, curvature, variant)
    lowest = _least(floors, shape, wide=wide)
    best = _least(rounds, shape, wide=wide, start=lowest)
    found, controls = rounds(best), _controls(best, case, curvature)
    certified = np.asarray(np.isfinite(found))
    curve = theorem_curve(theorem, case, controls, variant)
    rate = curve.rate(np.where(certified, found, least))
    return Design(
        theorem,
        variant,
        amplitude=np.asarray(controls.amplitude),
        curvature=np.broadcast_to(np.asarray(controls.curvature), shape),
        rounds=found,
        value=np.where(certified, rate.value, rate.floor),
        floor=rate.floor,
        least_target=floors(lowest),
        certified=certified,
        hypotheses=rate.hypotheses,
    )


@broadcasting
def certified_amplitudes(
    theorem: str,
    case: Case,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """The least and the largest ϑ at which a theorem holds and is not vacuous (E-09).

    Between them it says something: floors are valleys in log ϑ. Noise may end the range
    below, for a floor that grows as ϑ falls.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        curvature: Λ > L; by default 2L, the largest that is allowed.
        variant: which constants.

    Returns:
        Both ends, within `SEARCHED`; zero where there is no such amplitude.

    Raises:
        InvalidInputError: an unknown name, or a constant the theorem needs is missing.
    """

    def speaks(x: Array) -> Mask:
        controls = _controls(x, case, curvature)
        rate = theorem_curve(theorem, case, controls, variant).rate(statement.least)
        return np.asarray(rate.holds & ~rate.vacuous)

    statement, shape = find_theorem(theorem, variant), _shape(case, curvature)
    floors = _floors(theorem, case, curvature, variant)
    centre = _least(floors, shape, wide=False)[:, None]
    ends = np.broadcast_to(_tail(np.log(SEARCHED), shape), (2, *shape))
    inside = np.broadcast_to(centre, (2, 2, *shape))
    outside = np.stack([ends, inside[1]])
    parts = np.arange(1.0, 17.0).reshape(-1, *[1] * ends.ndim) / 16
    for _ in range(_CUTS):
        whole = outside - inside
        met = speaks(inside[:, None] + parts * whole[:, None])
        met = np.logical_and.accumulate(met).mean(0)
        inside, outside = (
            inside + met * whole,
            inside + np.minimum(met + 1 / 16, 1) * whole,
        )
    low, high = np.where(speaks(centre), np.exp(inside[0]), 0.0)
    return np.asarray(low), np.asarray(high)


def _floors(
    theorem: str, case: Case, curvature: ArrayLike | None, variant: Form
) -> Callable[[Array], Array]:
    """The floor at a point of the search, infinite where a hypothesis fails."""

    def floors(x: Array) -> Array:
        controls = _controls(x, case, curvature)
        curve = theorem_curve(theorem, case, controls, variant)
        rate = curve.rate(THEOREMS[theorem].least)
        return np.where(rate.holds, rate.floor, np.inf)

    return floors


def _controls(x: Array, case: Case, curvature: ArrayLike | None) -> PostLocal:
    """The controls at a point (log ϑ, log(Λ/L − 1)); a given Λ stands."""
    free = case.system.L * (1 + np.exp(x[1]))
    return PostLocal(np.exp(x[0]), free if curvature is None else curvature)


def _least(
    score: Callable[[Array], Array],
    shape: tuple[int, ...],
    *,
    wide: bool,
    start: Array | None = None,
) -> Float64[Array, "2 ..."]:
    """The point of least score, by grids that close in on the best point so far.

    Args:
        score: of points, coordinates first.
        shape: of the configurations, each with a search of its own.
        wide: whether the second coordinate is searched; else it is zero, Λ = 2L.
        start: a point to begin with, which stays unless another is better.
    """
    box = np.log([SEARCHED, _MARGINS if wide else (1.0, 1.0)])
    low, high = (np.broadcast_to(_tail(end, shape), (2, *shape)) for end in box.T)
    centre = start
    for along, across in (_COARSE, *[_FINE] * _ZOOMS):
        sizes = np.array([along, across if wide else 1])
        axes = [np.linspace(0, 1, size) for size in sizes]
        fractions = np.stack(np.meshgrid(*axes)).reshape(2, -1)
        x = low[:, None] + _tail(fractions, shape) * (high - low)[:, None]
        if centre is not None:
            x = np.concatenate([centre[:, None], x], axis=1)
        place = score(x).argmin(0)
        centre = np.take_along_axis(x, place[None, None], axis=1)[:, 0]
        step = (high - low) / _tail(np.maximum(sizes - 1, 1), shape)
        low, high = np.maximum(low, centre - step), np.minimum(high, centre + step)
    assert centre is not None
    return centre


def _tail(values: Array, shape: tuple[int, ...]) -> Array:
    """The values with an axis of length one for each of the configurations'."""
    return values.reshape(*values.shape, *[1] * len(shape))


def _shape(case: Case, curvature: ArrayLike | None) -> tuple[int, ...]:
    """The shape of all that is known; a given Λ must be above L."""
    if curvature is not None:
        above_smoothness(curvature, case.system.L)
    known = (case.pl_constant, case.similarity, case.hessian_lipschitz, curvature)
    shapes = [np.shape(x) for x in (*case.start, *known) if x is not None]
    return np.broadcast_shapes(case.system.cap.shape, *shapes)
