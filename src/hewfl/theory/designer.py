"""From bounds to decisions: the amplitude that certifies a target soonest.

A grid over log ϑ, and over log(Λ/L − 1) for the rules with Λ, closes in on its best
point: first for the lowest floor, then for the fewest rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from hewfl.core.array_types import Bool, Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import Array, ArrayLike, Mask, Reals, invalid, positives
from hewfl.theory.post_local import PostLocal, above_smoothness
from hewfl.theory.rounds_to_target import (
    expand_axes,
    first_round_at,
    real_rounds_to,
    rounds_in_stages,
    rounds_needed,
)
from hewfl.theory.statement import Hypothesis
from hewfl.theory.systems import Case, coarsen, group_clients
from hewfl.theory.theorem_table import Curve, Form, Theorem, find_theorem, theorem_curve

SEARCHED = (1e-12, 1.0)
"""Amplitudes that are searched; no statement holds beyond the upper end (E-03)."""
_MARGINS = (1e-3, 1.0)
"""Λ/L − 1 that are searched."""
_COARSE, _FINE, _ZOOMS, _CUTS = (61, 13), (25, 9), 3, 10
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

    Attributes:
        theorem: label of the statement.
        variant: the set of constants.
        amplitude: ϑ.
        curvature: Λ; of no effect for rules without one.
        rounds: the fewest rounds to the target, by the better of closed rate and
            recursion.
        value: the bound after these rounds, at most the target; the floor where the
            target is not reached.
        floor: the limit of the better of the two.
        least_target: the lowest floor of all amplitudes: any target above it is
            reached; infinite where the hypotheses hold for no amplitude.
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

    The search counts rounds as real numbers: whole ones have plateaus, on which it
    would stop. Bounds are valleys in log ϑ, so the narrow range of amplitudes that
    certify a hard target is not missed.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        target: ε, below the cap f̄, which needs no theorem.
        curvature: Λ > L; by default it is searched too, in (L, 2L].
        variant: the set of constants.

    Returns:
        The best controls, what they certify, and the lowest floor of all.
    """
    goal = _below_cap(target, case)
    search, shape = make_search(theorem, case, curvature, variant)
    wide = np.broadcast_shapes(goal.shape, shape)
    return _best_design(search, goal, wide, search.minimise(search.floors, wide))


@broadcasting
def certified_amplitudes(
    theorem: str,
    case: Case,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> tuple[Reals, Reals]:
    """The least and the largest ϑ at which a theorem holds and is not vacuous (E-09).

    Between them it is not vacuous either: floors are valleys in log ϑ. Noise may end
    the range below, for a floor that grows as ϑ falls.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        curvature: Λ > L; by default the best one in (L, 2L] for each ϑ.
        variant: the set of constants.

    Returns:
        Both ends, within `SEARCHED`; zero where there is no such amplitude.

    Raises:
        InvalidInputError: an unknown name, or a constant the theorem needs is missing.
    """
    search, shape = make_search(theorem, case, curvature, variant)
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
    search, shape = make_search(theorem, case, curvature, variant)
    lowest = search.minimise(search.floors, shape)
    wide = np.broadcast_shapes(goal.shape, shape)
    start = np.broadcast_to(
        lowest.reshape(2, *[1] * (len(wide) - len(shape)), *shape), (2, *wide)
    )
    return _best_design(search, goal, wide, start), search.amplitudes(shape, lowest)


def fewest_rounds(
    theorem: str,
    case: Case,
    target: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> Reals:
    """The rounds of `design` alone, in about half the time.

    Where the first grid has no amplitude that certifies the target, the valley between
    its points is not searched, and the answer is infinite; `design` searches it.
    """
    goal = _below_cap(target, case)
    search, shape = make_search(theorem, case, curvature, variant)
    wide = np.broadcast_shapes(goal.shape, shape)
    best = search.minimise(lambda x: search.rounds(x, goal), wide)
    controls = search.controls(search.polish(best, goal))
    curve = theorem_curve(theorem, search.exact, controls, variant)
    return rounds_needed(curve, goal, least=search.theorem.least).fewest


def _below_cap(target: ArrayLike, case: Case) -> Reals:
    """Validated ε with 0 < ε < f̄."""
    goal, cap = positives("target", target), case.system.cap
    if (goal >= cap).any():
        high = np.broadcast_to(goal, np.broadcast_shapes(goal.shape, cap.shape))
        rule = f"below the cap f̄ = {cap.max():g}, which needs no theorem"
        raise invalid("target", rule, high[high >= cap].flat[0])
    return goal


@final
@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Scores of points (log ϑ, log(Λ/L − 1)) for one theorem; a given Λ is fixed.

    `exact` has all kinds of client, `case` few, for the search.

    For a rule with Λ the first coordinate is that of ϑ over the largest amplitude
    Λϑ ≤ L/2 allows: the best point often lies on this edge, and a grid finds an edge
    along its axes, not a slanted one.
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
        free = self.case.system.L * (1 + np.exp(x[1]))
        Lambda = np.asarray(free if self.curvature is None else self.curvature)
        theta = np.exp(x[0])
        if self.theorem.has_curvature:
            # the factor keeps Λϑ ≤ L/2 in spite of three roundings
            edge = self.case.system.L / Lambda / 2 * (1 - 2.0**-50)
            theta = np.maximum(theta * edge, SEARCHED[0])
        return PostLocal(theta, Lambda)

    def curve(self, controls: PostLocal) -> Curve:
        """The curve of the theorem, with few kinds of client."""
        return theorem_curve(self.theorem.label, self.case, controls, self.variant)

    def floors(self, x: Array) -> Array:
        """The floor, infinite where a hypothesis fails."""
        curve = self.curve(self.controls(x))
        rate = curve.rate(self.theorem.least)
        return np.where(rate.holds, curve.floor_beside(rate), np.inf)

    def rounds(self, x: Array, goal: Array) -> Array:
        """Rounds to a target as real numbers, infinite where a hypothesis fails."""
        curve, least = self.curve(self.controls(x)), self.theorem.least
        holds = curve.rate(least).holds
        if not holds.any():
            return np.full(np.broadcast_shapes(holds.shape, x.shape[1:]), np.inf)
        if curve.recursion is not None:
            needed = rounds_in_stages(curve.recursion, curve.start, goal)[0]
        else:
            needed = real_rounds_to(curve.rate, goal, least)
        return np.where(holds, needed, np.inf)

    def is_informative(self, log_theta: Array) -> Mask:
        """Whether the theorem holds and is not vacuous, at the best Λ for each ϑ."""
        theta = np.exp(log_theta)
        if not self.searches_curvature:
            given = 2 * self.case.system.L if self.curvature is None else self.curvature
            return self._is_informative_at(PostLocal(theta, given))
        L = self.case.system.L
        # Λ = L/(2ϑ) where that is allowed, the largest Λ a ϑ above 1/4 can have, and a
        # few smaller ones
        edge = np.minimum(2.0, 0.5 / theta * (1 - 2.0**-50)) - 1
        met = np.zeros(theta.shape, dtype=np.bool_)
        for share in (1.0, 0.5, 0.1, 0.01):
            margin = edge * share
            Lambda = L * (1 + np.maximum(margin, 2.0**-40))
            met = met | (
                (margin > 0) & self._is_informative_at(PostLocal(theta, Lambda))
            )
        return met

    def _is_informative_at(self, controls: PostLocal) -> Mask:
        curve = self.curve(controls)
        rate = curve.rate(self.theorem.least)
        floor = curve.floor_beside(rate)
        return np.asarray(rate.holds & (floor < self.case.system.cap))

    def amplitudes(
        self, shape: tuple[int, ...], lowest: Array | None = None
    ) -> tuple[Reals, Reals]:
        """Both ends of the amplitudes at which the theorem is not vacuous."""
        if lowest is None:
            lowest = self.minimise(self.floors, shape)
        middle = np.log(np.asarray(self.controls(lowest).amplitude))[None]
        outside = np.broadcast_to(expand_axes(np.log(SEARCHED), shape), (2, *shape))
        inside = np.broadcast_to(middle, (2, *shape))
        parts = np.arange(1.0, 17.0).reshape(-1, *[1] * outside.ndim) / 16
        for _ in range(_CUTS):
            whole = outside - inside
            met = self.is_informative(inside + parts * whole)
            met = np.logical_and.accumulate(met).mean(0)
            inside, outside = (
                inside + met * whole,
                inside + np.minimum(met + 1 / 16, 1) * whole,
            )
        low, high = np.where(self.is_informative(middle), np.exp(inside), 0.0)
        return np.asarray(low), np.asarray(high)

    def minimise(
        self,
        score: Callable[[Array], Array],
        shape: tuple[int, ...],
        start: Array | None = None,
    ) -> Float64[Array, "2 ..."]:
        """The point of least score, by grids that close in on the best point so far.

        Points have their coordinates first; every configuration has its own search.
        `start` is kept unless another point is better.
        """
        box = np.log([SEARCHED, _MARGINS if self.searches_curvature else (1.0, 1.0)])
        low, high = (
            np.broadcast_to(expand_axes(end, shape), (2, *shape)) for end in box.T
        )
        edges, centre = (low, high), start
        for along, across in (_COARSE, *[_FINE] * _ZOOMS):
            sizes = np.array([along, across if self.searches_curvature else 1])
            axes = [np.linspace(0, 1, size) for size in sizes]
            fractions = np.stack(np.meshgrid(*axes)).reshape(2, -1)
            x = low[:, None] + expand_axes(fractions, shape) * (high - low)[:, None]
            if centre is not None:
                x = np.concatenate([centre[:, None], x], axis=1)
            place = score(x).argmin(0)
            centre = np.take_along_axis(x, place[None, None], axis=1)[:, 0]
            # two steps to either side: a valley that runs aslant may leave the cell
            step = 2 * (high - low) / expand_axes(np.maximum(sizes - 1, 1), shape)
            low = np.maximum(edges[0], centre - step)
            high = np.minimum(edges[1], centre + step)
        assert centre is not None
        return centre

    def polish(self, x: Array, goal: Array) -> Array:
        """The point with the fewest whole rounds among neighbours of a point.

        A stage counts as if steps were small. For a target a few dozen rounds away they
        are not, and the best amplitude of the recursion is another one.
        """
        shift = np.linspace(-0.35, 0.35, 15).reshape(-1, *[1] * (x.ndim - 1))
        first = np.minimum(x[0] + shift, np.log(SEARCHED[1]))
        near = np.stack([first, np.broadcast_to(x[1], first.shape)])
        near = np.concatenate([x[:, None], near], axis=1)
        curve = self.curve(self.controls(near))
        if curve.recursion is None:
            return x
        holds = curve.rate(self.theorem.least).holds
        limit = holds * np.float64(_POLISHED)
        whole = first_round_at(curve.recursion, curve.start, goal, most=limit)
        whole = np.where(holds, whole, np.inf)
        place = whole.argmin(0)  # the point itself where nothing is better
        return np.take_along_axis(near, place[None, None], axis=1)[:, 0]


def make_search(
    theorem: str, case: Case, curvature: ArrayLike | None, variant: Form
) -> tuple[Search, tuple[int, ...]]:
    """The search of a theorem, and the shape of all that is known.

    A search has few kinds of client, none of them better than those they replace; the
    start keeps its exact tracking error, which is a largest value over clients.
    """
    statement, shape = find_theorem(theorem, variant), _shape(case, curvature)
    exact = replace(case, system=group_clients(case.system))
    few = coarsen(exact.system, _SEARCHED_KINDS)
    sketch = replace(exact, system=few, tracking=exact.start[1])
    return Search(statement, exact, sketch, curvature, variant), shape


def _shape(case: Case, curvature: ArrayLike | None) -> tuple[int, ...]:
    """The shape of all that is known; a given Λ must be above L."""
    if curvature is not None:
        above_smoothness(curvature, case.system.L)
    known = (case.pl_constant, case.similarity, case.hessian_lipschitz, curvature)
    shapes = [np.shape(x) for x in (*case.start, *known) if x is not None]
    return np.broadcast_shapes(case.system.cap.shape, *shapes)


def _best_design(
    search: Search, goal: Array, shape: tuple[int, ...], lowest: Array
) -> Design:
    """The best controls, evaluated with all kinds of client."""
    least, label = search.theorem.least, search.theorem.label
    best = search.minimise(lambda x: search.rounds(x, goal), shape, start=lowest)
    controls = search.controls(search.polish(best, goal))
    curve, bottom = (
        theorem_curve(label, search.exact, at, search.variant)
        for at in (controls, search.controls(lowest))
    )
    rounds = rounds_needed(curve, goal, least=least).fewest
    certified = np.asarray(np.isfinite(rounds))
    closed = curve.rate(np.where(certified, rounds, least))
    floor, at_least = curve.floor_beside(closed), bottom.rate(least)
    lowest_gap = np.where(at_least.holds, bottom.floor_beside(at_least), np.inf)
    value = np.where(certified, np.minimum(closed.value, goal), floor)
    return Design(
        label,
        search.variant,
        amplitude=np.asarray(controls.amplitude),
        curvature=np.broadcast_to(np.asarray(controls.curvature), shape),
        rounds=np.broadcast_to(rounds, shape),
        value=np.broadcast_to(value, shape),
        floor=np.broadcast_to(floor, shape),
        least_target=np.broadcast_to(lowest_gap, shape),
        certified=np.broadcast_to(certified, shape),
        hypotheses=closed.hypotheses,
    )
