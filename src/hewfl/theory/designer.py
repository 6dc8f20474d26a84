"""From bounds to decisions: the amplitude that certifies a target soonest.

A grid over log ϑ, and over log(Λ/L − 1) for the rules with Λ, closes in on its best
point: first for the lowest floor, then for the fewest rounds. A call is about one
configuration; all points of a grid are evaluated at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Mask, invalid, positives
from hewfl.theory.post_local import PostLocal, above_smoothness
from hewfl.theory.rounds_to_target import (
    first_round_at,
    real_rounds_to,
    rounds_in_stages,
    rounds_needed,
)
from hewfl.theory.statement import Hypothesis, Rate
from hewfl.theory.systems import Case, coarsen, group_clients
from hewfl.theory.theorem_table import Curve, Form, Theorem, find_theorem, theorem_curve

SEARCHED = (1e-12, 1.0)
"""Amplitudes that are searched; no statement holds beyond the upper end (E-03)."""
_MARGINS = (1e-3, 1.0)
"""Λ/L − 1 that are searched."""
_GRIDS = ((61, 13), (25, 9), (25, 9), (25, 9))
"""Points along both axes, from grid to grid."""
_CUTS = 10
_POLISHED = 400
"""Rounds iterated to compare neighbours of the best point."""
_SEARCHED_KINDS = 128
"""Kinds of client in a search; the answer is evaluated with all of them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The amplitude that certifies a target soonest.

    Where `certified` is false no amplitude certifies it; the fields then describe the
    amplitude of the lowest floor, with infinitely many rounds.
    """

    theorem: str  # label of the statement
    variant: Form
    amplitude: float  # ϑ
    curvature: float  # Λ; of no effect for rules without one
    rounds: float  # the fewest to the target, by the better of rate and recursion
    value: float  # the bound after them; the floor where the target is not reached
    floor: float  # the limit of the better of the two
    least_target: float  # the lowest floor of all ϑ; infinite where none is allowed
    certified: bool  # whether the target is reached
    amplitudes: tuple[float, float]  # as `certified_amplitudes`
    hypotheses: tuple[Hypothesis, ...]  # at these controls


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

    The search counts rounds as real numbers: whole ones have plateaus, on which it
    would stop. Bounds are valleys in log ϑ, so the narrow range of amplitudes that
    certify a hard target is not missed.

    Args:
        theorem: label or word of a statement.
        case: what is known, of one configuration.
        target: ε, below the cap f̄, which needs no theorem.
        curvature: Λ > L; by default it is searched too, in (L, 2L].
        variant: the set of constants.

    Returns:
        The best controls, what they certify, and the lowest floor of all.
    """
    goal = target_below_cap(target, case)
    search = make_search(theorem, case, curvature, variant)
    lowest = search.minimise(search.floors)
    best = search.minimise(lambda x: search.rounds(x, goal), start=lowest)
    controls = search.controls(search.polish(best, goal))
    least, label = search.theorem.least, search.theorem.label
    curve, bottom = (
        theorem_curve(label, search.exact, at, variant)
        for at in (controls, search.controls(lowest))
    )
    rounds = float(rounds_needed(curve, goal, least=least).fewest)
    certified = bool(np.isfinite(rounds))
    closed = curve.rate(rounds if certified else least)
    floor = float(curve.floor_beside(closed))
    return Design(
        label,
        variant,
        amplitude=float(np.asarray(controls.amplitude)),
        curvature=float(np.asarray(controls.curvature)),
        rounds=rounds,
        value=min(float(closed.value), float(goal)) if certified else floor,
        floor=floor,
        least_target=float(_floor_where_true(bottom, bottom.rate(least))),
        certified=certified,
        amplitudes=search.amplitudes(lowest),
        hypotheses=closed.hypotheses,
    )


@broadcasting
def certified_amplitudes(
    theorem: str,
    case: Case,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> tuple[float, float]:
    """The least and the largest ϑ at which a theorem holds and is not vacuous (E-09).

    Between them it is not vacuous either: floors are valleys in log ϑ. Noise may end
    the range below, for a floor that grows as ϑ falls. Λ is the best one in (L, 2L] for
    each ϑ, unless given. Both ends are within `SEARCHED`; zero where there is no such
    amplitude.
    """
    search = make_search(theorem, case, curvature, variant)
    return search.amplitudes(search.minimise(search.floors))


def one_positive(name: str, value: ArrayLike) -> float:
    """Validated single number above zero."""
    number = positives(name, value)
    if number.ndim:
        raise invalid(name, "one number", f"shape {number.shape}")
    return float(number)


def target_below_cap(target: ArrayLike, case: Case) -> Array:
    """Validated ε with 0 < ε < f̄, one number for one configuration."""
    goal, cap = np.asarray(one_positive("target", target)), case.system.cap
    require_one_configuration(case)
    if goal >= cap:
        raise invalid(
            "target", f"below the cap f̄ = {cap:g}, which needs no theorem", goal
        )
    return goal


def require_one_configuration(case: Case) -> None:
    """Require constants without leading axes."""
    known = (case.pl_constant, case.similarity, case.hessian_lipschitz)
    shapes = [np.shape(x) for x in (*case.start, *known) if x is not None]
    shape = np.broadcast_shapes(case.system.cap.shape, *shapes)
    if shape:
        raise invalid("case", "of one configuration", f"shape {shape}")


def _floor_where_true(curve: Curve, rate: Rate) -> Array:
    """The floor, infinite where a hypothesis fails."""
    return np.where(rate.holds, curve.floor_beside(rate), np.inf)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Scores of points (log ϑ, log(Λ/L − 1)) for one theorem; a given Λ is fixed.

    `exact` has all kinds of client, `case` few, none of them better than those they
    replace. Points have their coordinates first. For a rule with Λ the first one is
    that of ϑ over the largest amplitude Λϑ ≤ L/2 allows: the best point often lies on
    this edge, and a grid finds an edge along its axes, not a slanted one.
    """

    theorem: Theorem
    exact: Case
    case: Case
    curvature: ArrayLike | None
    variant: Form

    @property
    def searches_curvature(self) -> bool:
        """Whether Λ is searched."""
        return self.theorem.has_curvature and self.curvature is None

    def controls(self, x: Array) -> PostLocal:
        """ϑ and Λ at a point."""
        L = self.case.system.L
        free = L * (1 + np.exp(x[1]))
        Lambda = np.asarray(free if self.curvature is None else self.curvature)
        theta = np.exp(x[0])
        if self.theorem.has_curvature:
            # the factor keeps Λϑ ≤ L/2 in spite of three roundings
            edge = L / Lambda / 2 * (1 - 2.0**-50)
            theta = np.maximum(theta * edge, SEARCHED[0])
        return PostLocal(theta, Lambda)

    def curve(self, controls: PostLocal) -> Curve:
        """The curve of the theorem, with few kinds of client."""
        return theorem_curve(self.theorem.label, self.case, controls, self.variant)

    def floors(self, x: Array) -> Array:
        """The floor, infinite where a hypothesis fails."""
        curve = self.curve(self.controls(x))
        return _floor_where_true(curve, curve.rate(self.theorem.least))

    def rounds(self, x: Array, goal: Array) -> Array:
        """Rounds to a target as real numbers, infinite where a hypothesis fails."""
        curve, least = self.curve(self.controls(x)), self.theorem.least
        holds = curve.rate(least).holds
        if not holds.any():
            return np.full(x.shape[1:], np.inf)
        if curve.recursion is not None:
            needed = rounds_in_stages(curve.recursion, curve.start, goal)[0]
        else:
            needed = real_rounds_to(curve.rate, goal, least)
        return np.where(holds, needed, np.inf)

    def minimise(
        self, score: Callable[[Array], Array], start: Array | None = None
    ) -> Array:
        """The point of least score, by grids that close in on the best point so far.

        `start` is kept unless another point is better.
        """
        box = np.log([SEARCHED, _MARGINS if self.searches_curvature else (1.0, 1.0)]).T
        (low, high), centre = box, start
        for along, across in _GRIDS:
            sizes = np.array([along, across if self.searches_curvature else 1])
            axes = [np.linspace(0, 1, size) for size in sizes]
            shares = np.stack(np.meshgrid(*axes)).reshape(2, -1)
            x = low[:, None] + shares * (high - low)[:, None]
            if centre is not None:
                x = np.concatenate([centre[:, None], x], axis=1)
            centre = x[:, score(x).argmin()]
            # two steps to either side: a valley that runs aslant may leave the cell
            step = 2 * (high - low) / np.maximum(sizes - 1, 1)
            low, high = (
                np.maximum(box[0], centre - step),
                np.minimum(box[1], centre + step),
            )
        assert centre is not None
        return centre

    def polish(self, x: Array, goal: Array) -> Array:
        """The point with the fewest whole rounds among neighbours of a point.

        A stage counts as if steps were small. For a target a few dozen rounds away they
        are not, and the best amplitude of the recursion is another one.
        """
        first = np.minimum(x[0] + np.linspace(-0.35, 0.35, 15), np.log(SEARCHED[1]))
        near = np.stack([np.r_[x[0], first], np.full(16, x[1])])
        curve = self.curve(self.controls(near))
        if curve.recursion is None:
            return x
        holds = curve.rate(self.theorem.least).holds
        limit = holds * np.float64(_POLISHED)
        whole = first_round_at(curve.recursion, curve.start, goal, most=limit)
        # the point itself, which comes first, where nothing is better
        return np.asarray(near[:, np.where(holds, whole, np.inf).argmin()])

    def amplitudes(self, lowest: Array) -> tuple[float, float]:
        """Both ends of the amplitudes at which the theorem is not vacuous."""
        middle = np.asarray(np.log(np.asarray(self.controls(lowest).amplitude)))
        if not self._is_informative(middle):
            return 0.0, 0.0
        low, high = (self._end(float(middle), np.log(end)) for end in SEARCHED)
        return low, high

    def _end(self, inside: float, outside: float) -> float:
        """The end of the informative amplitudes between two on a log scale."""
        for _ in range(_CUTS):
            whole = outside - inside
            met = self._is_informative(inside + np.arange(1.0, 17.0) / 16 * whole)
            share = np.logical_and.accumulate(met).mean()
            outside = inside + np.minimum(share + 1 / 16, 1) * whole
            inside = inside + share * whole
        return float(np.exp(inside))

    def _is_informative(self, log_theta: Array) -> Mask:
        """Whether the theorem holds and is not vacuous, at the best Λ for each ϑ."""
        theta, L = np.exp(log_theta), self.case.system.L
        if not self.searches_curvature:
            given = 2 * L if self.curvature is None else self.curvature
            return self._is_informative_at(PostLocal(theta, given))
        # Λ = L/(2ϑ) where that is allowed, the largest Λ a ϑ above 1/4 can have, and a
        # few smaller ones
        margins = (np.minimum(2.0, 0.5 / theta * (1 - 2.0**-50)) - 1) * np.reshape(
            [1.0, 0.5, 0.1, 0.01], (-1, *[1] * theta.ndim)
        )
        Lambda = L * (1 + np.maximum(margins, 2.0**-40))
        met = (margins > 0) & self._is_informative_at(PostLocal(theta, Lambda))
        return np.asarray(met.any(0))

    def _is_informative_at(self, controls: PostLocal) -> Mask:
        curve = self.curve(controls)
        floor = _floor_where_true(curve, curve.rate(self.theorem.least))
        return np.asarray(floor < self.case.system.cap)


def make_search(
    theorem: str, case: Case, curvature: ArrayLike | None, variant: Form
) -> Search:
    """The search of a theorem, for which a given Λ must be above L.

    The start keeps its exact tracking error, which is a largest value over clients.
    """
    require_one_configuration(case)
    if curvature is not None:
        above_smoothness(one_positive("curvature", curvature), case.system.L)
    exact = replace(case, system=group_clients(case.system))
    few = coarsen(exact.system, _SEARCHED_KINDS)
    sketch = replace(exact, system=few, tracking=exact.start[1])
    return Search(find_theorem(theorem, variant), exact, sketch, curvature, variant)
