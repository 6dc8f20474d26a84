"""From bounds to decisions: rounds to a target, amplitudes that certify it.

A bound that falls with the rounds is inverted exactly, a recursion is iterated; the
amplitude, and Λ for rules that have one, is then searched for the fewest rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.core.checks import Array, ArrayLike, Mask, invalid, positives
from hewfl.core.shapes import broadcasting
from hewfl.theory.arrival import MOST_STEPS, first_round_at, staged_arrival
from hewfl.theory.case import Case
from hewfl.theory.curves import Curve
from hewfl.theory.post_local import PostLocal, above_smoothness
from hewfl.theory.statement import Hypothesis, Rate
from hewfl.theory.systems import coarser, grouped
from hewfl.theory.theorems import Form, Theorem, find_theorem, theorem_curve
from hewfl.theory.trajectories import one_whole

SEARCHED = (1e-12, 1.0)
"""Amplitudes that are searched; no statement holds beyond the upper end (E-03)."""
_MARGINS = (1e-3, 1.0)
"""Λ/L − 1 that are searched."""
MOST_ROUNDS = 2.0**48
"""More rounds than this count as infinitely many."""
_COARSE, _FINE, _ZOOMS, _CUTS = (61, 13), (25, 9), 3, 10
_POLISHED, _DIP = 400, 2000
"""Rounds iterated to compare neighbours of the best point, and below a floor."""
_SEARCHED_KINDS = 128
"""Kinds of client in a search; the answer is evaluated with all of them."""


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
    goal, least = positives("target", target), one_whole("least", least)
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """Rounds to a target by the two roads, and by the better one.

    Attributes:
        fewest: the least of all that follow.
        closed: by the closed rate.
        iterated: by the recursion, iterated as far as `arrival.MOST_STEPS` and bounded
            in stages beyond; infinite where there is no recursion.
    """

    fewest: Float64[Array, "..."]
    closed: Float64[Array, "..."]
    iterated: Float64[Array, "..."]


@broadcasting
def rounds_needed(curve: Curve, target: ArrayLike, *, least: int = 0) -> Needed:
    """The fewest rounds to a target that a theorem certifies, by whichever road.

    Args:
        curve: of one theorem.
        target: ε > 0, shape (*c).
        least: the fewest rounds the closed bound is defined for.

    Returns:
        Whole numbers; 0 where the start meets the target, infinite for never, and where
        a hypothesis fails.

    Raises:
        InvalidInputError: ε ≤ 0.
    """
    goal, holds = positives("target", target), curve.rate(least).holds
    closed = rounds_to(curve.rate, goal, least=least)
    met = (
        np.asarray(curve.start[0]) <= goal
    )  # no round is needed, whatever the bound says
    closed = np.where(holds, np.where(met, 0.0, closed), np.inf)
    iterated = np.full(closed.shape, np.inf)
    if curve.law is not None:
        staged = staged_arrival(curve.law, curve.start, goal)[1]
        # no more rounds than the stages certify; a transient dip may be found below a
        # floor, where they certify nothing
        most = np.where(np.isfinite(staged), np.minimum(staged, MOST_STEPS), _DIP)
        exact = first_round_at(curve.law, curve.start, goal, most=holds * most)
        iterated = np.where(holds, np.minimum(staged, exact), np.inf)
    return Needed(np.asarray(np.minimum(closed, iterated)), closed, iterated)


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
    search, shape = _search(theorem, case, curvature, variant)
    return search.design(goal, np.broadcast_shapes(goal.shape, shape))


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
        curvature: Λ > L; by default the best one in (L, 2L] for each ϑ.
        variant: which constants.

    Returns:
        Both ends, within `SEARCHED`; zero where there is no such amplitude.

    Raises:
        InvalidInputError: an unknown name, or a constant the theorem needs is missing.
    """
    search, shape = _search(theorem, case, curvature, variant)
    return search.amplitudes(shape)


@broadcasting
def design_and_range(
    theorem: str,
    case: Case,
    target: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> tuple[Design, tuple[Float64[Array, "..."], Float64[Array, "..."]]]:
    """`design` and `certified_amplitudes` with one search for the lowest floor.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        target: ε, below the cap f̄.
        curvature: Λ > L; by default it is searched.
        variant: which constants.

    Returns:
        What the two return.

    Raises:
        InvalidInputError: what the two refuse.
    """
    goal = _below_cap(target, case)
    search, shape = _search(theorem, case, curvature, variant)
    lowest = search.least(search.floors, shape)
    wide = np.broadcast_shapes(goal.shape, shape)
    start = np.broadcast_to(
        lowest.reshape(2, *[1] * (len(wide) - len(shape)), *shape), (2, *wide)
    )
    return search.design(goal, wide, start), search.amplitudes(shape, lowest)


def fewest_rounds(
    theorem: str,
    case: Case,
    target: ArrayLike,
    *,
    curvature: ArrayLike | None = None,
    variant: Form = "paper",
) -> Float64[Array, "..."]:
    """The rounds of `design` alone, in about half the time.

    Where the first grid meets no amplitude that certifies the target, none is looked
    for in the valley between its points; `design` does that.

    Args:
        theorem: label, a key of `THEOREMS`.
        case: what is known.
        target: ε, below the cap f̄.
        curvature: Λ > L; by default it is searched.
        variant: which constants.

    Returns:
        Whole numbers; infinite where none was found.
    """
    goal = _below_cap(target, case)
    search, shape = _search(theorem, case, curvature, variant)
    wide = np.broadcast_shapes(goal.shape, shape)
    best = search.least(lambda x: search.rounds(x, goal), wide)
    controls = search.controls(search.polished(best, goal))
    curve = theorem_curve(theorem, search.exact, controls, variant)
    return rounds_needed(curve, goal, least=search.statement.least).fewest


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Scores of points (log ϑ, log(Λ/L − 1)) for one theorem; a given Λ stands.

    `exact` has all kinds of client, `case` few, for the search.

    For a rule with Λ the first coordinate is that of ϑ over the largest amplitude
    Λϑ ≤ L/2 allows: the best point often lies on this edge, and a grid finds an edge
    along its axes, not a slanted one.
    """

    statement: Theorem
    exact: Case
    case: Case
    curvature: ArrayLike | None
    variant: Form

    @property
    def wide(self) -> bool:
        """Whether Λ is searched."""
        return self.statement.has_curvature and self.curvature is None

    def controls(self, x: Array) -> PostLocal:
        """ϑ and Λ at a point."""
        free = self.case.system.L * (1 + np.exp(x[1]))
        Lambda = np.asarray(free if self.curvature is None else self.curvature)
        theta = np.exp(x[0])
        if self.statement.has_curvature:
            # the factor keeps Λϑ ≤ L/2 in spite of three roundings
            edge = self.case.system.L / Lambda / 2 * (1 - 2.0**-50)
            theta = np.maximum(theta * edge, SEARCHED[0])
        return PostLocal(theta, Lambda)

    def curve(self, controls: PostLocal) -> Curve:
        return theorem_curve(self.statement.label, self.case, controls, self.variant)

    def floors(self, x: Array) -> Array:
        """The floor, infinite where a hypothesis fails."""
        curve = self.curve(self.controls(x))
        rate = curve.rate(self.statement.least)
        return np.where(rate.holds, curve.floor_beside(rate), np.inf)

    def rounds(self, x: Array, goal: Array) -> Array:
        """Rounds to a target as real numbers, infinite where a hypothesis fails."""
        curve, least = self.curve(self.controls(x)), self.statement.least
        holds = curve.rate(least).holds
        if not holds.any():
            return np.full(np.broadcast_shapes(holds.shape, x.shape[1:]), np.inf)
        if curve.law is not None:
            needed = staged_arrival(curve.law, curve.start, goal)[0]
        else:
            needed = _between(curve.rate, goal, least)
        return np.where(holds, needed, np.inf)

    def speaks(self, log_theta: Array) -> Mask:
        """Whether the theorem holds and says something, at the best Λ for each ϑ."""
        theta = np.exp(log_theta)
        if not self.wide:
            given = 2 * self.case.system.L if self.curvature is None else self.curvature
            return self._says(PostLocal(theta, given))
        L = self.case.system.L
        # Λ = L/(2ϑ) where that is allowed, the largest Λ a ϑ above 1/4 can have, and a
        # few smaller ones
        edge = np.minimum(2.0, 0.5 / theta * (1 - 2.0**-50)) - 1
        met = np.zeros(theta.shape, dtype=np.bool_)
        for share in (1.0, 0.5, 0.1, 0.01):
            margin = edge * share
            Lambda = L * (1 + np.maximum(margin, 2.0**-40))
            met = met | ((margin > 0) & self._says(PostLocal(theta, Lambda)))
        return met

    def _says(self, controls: PostLocal) -> Mask:
        curve = self.curve(controls)
        rate = curve.rate(self.statement.least)
        floor = curve.floor_beside(rate)
        return np.asarray(rate.holds & (floor < self.case.system.cap))

    def design(
        self, goal: Array, shape: tuple[int, ...], lowest: Array | None = None
    ) -> Design:
        """The best controls, evaluated with all kinds of client."""
        least, label = self.statement.least, self.statement.label
        if lowest is None:
            lowest = self.least(self.floors, shape)
        best = self.least(lambda x: self.rounds(x, goal), shape, start=lowest)
        controls = self.controls(self.polished(best, goal))
        curve, bottom = (
            theorem_curve(label, self.exact, at, self.variant)
            for at in (controls, self.controls(lowest))
        )
        found = rounds_needed(curve, goal, least=least).fewest
        certified = np.asarray(np.isfinite(found))
        closed = curve.rate(np.where(certified, found, least))
        floor, at_least = curve.floor_beside(closed), bottom.rate(least)
        lowest_gap = np.where(at_least.holds, bottom.floor_beside(at_least), np.inf)
        value = np.where(certified, np.minimum(closed.value, goal), floor)
        return Design(
            label,
            self.variant,
            amplitude=np.asarray(controls.amplitude),
            curvature=np.broadcast_to(np.asarray(controls.curvature), shape),
            rounds=np.broadcast_to(found, shape),
            value=np.broadcast_to(value, shape),
            floor=np.broadcast_to(floor, shape),
            least_target=np.broadcast_to(lowest_gap, shape),
            certified=np.broadcast_to(certified, shape),
            hypotheses=closed.hypotheses,
        )

    def amplitudes(
        self, shape: tuple[int, ...], lowest: Array | None = None
    ) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
        """Both ends of the amplitudes at which the theorem says something."""
        if lowest is None:
            lowest = self.least(self.floors, shape)
        middle = np.log(np.asarray(self.controls(lowest).amplitude))[None]
        outside = np.broadcast_to(_tail(np.log(SEARCHED), shape), (2, *shape))
        inside = np.broadcast_to(middle, (2, *shape))
        parts = np.arange(1.0, 17.0).reshape(-1, *[1] * outside.ndim) / 16
        for _ in range(_CUTS):
            whole = outside - inside
            met = self.speaks(inside + parts * whole)
            met = np.logical_and.accumulate(met).mean(0)
            inside, outside = (
                inside + met * whole,
                inside + np.minimum(met + 1 / 16, 1) * whole,
            )
        low, high = np.where(self.speaks(middle), np.exp(inside), 0.0)
        return np.asarray(low), np.asarray(high)

    def least(
        self,
        score: Callable[[Array], Array],
        shape: tuple[int, ...],
        start: Array | None = None,
    ) -> Float64[Array, "2 ..."]:
        """The point of least score, by grids that close in on the best point so far.

        Args:
            score: of points, coordinates first.
            shape: of the configurations, each with a search of its own.
            start: a point to begin with, which stays unless another is better.
        """
        box = np.log([SEARCHED, _MARGINS if self.wide else (1.0, 1.0)])
        low, high = (np.broadcast_to(_tail(end, shape), (2, *shape)) for end in box.T)
        edges, centre = (low, high), start
        for along, across in (_COARSE, *[_FINE] * _ZOOMS):
            sizes = np.array([along, across if self.wide else 1])
            axes = [np.linspace(0, 1, size) for size in sizes]
            fractions = np.stack(np.meshgrid(*axes)).reshape(2, -1)
            x = low[:, None] + _tail(fractions, shape) * (high - low)[:, None]
            if centre is not None:
                x = np.concatenate([centre[:, None], x], axis=1)
            place = score(x).argmin(0)
            centre = np.take_along_axis(x, place[None, None], axis=1)[:, 0]
            # two steps to either side: a valley that runs aslant may leave the cell
            step = 2 * (high - low) / _tail(np.maximum(sizes - 1, 1), shape)
            low = np.maximum(edges[0], centre - step)
            high = np.minimum(edges[1], centre + step)
        assert centre is not None
        return centre

    def polished(self, x: Array, goal: Array) -> Array:
        """The point with the fewest whole rounds among neighbours of a point.

        A stage counts as if steps were small. For a target a few dozen rounds away they
        are not, and the best amplitude of the recursion is another one.
        """
        shift = np.linspace(-0.35, 0.35, 15).reshape(-1, *[1] * (x.ndim - 1))
        first = np.minimum(x[0] + shift, np.log(SEARCHED[1]))
        near = np.stack([first, np.broadcast_to(x[1], first.shape)])
        near = np.concatenate([x[:, None], near], axis=1)
        curve = self.curve(self.controls(near))
        if curve.law is None:
            return x
        holds = curve.rate(self.statement.least).holds
        limit = holds * np.float64(_POLISHED)
        whole = first_round_at(curve.law, curve.start, goal, most=limit)
        whole = np.where(holds, whole, np.inf)
        place = whole.argmin(0)  # the point itself where nothing is better
        return np.take_along_axis(near, place[None, None], axis=1)[:, 0]


def _between(rate: Callable[[ArrayLike], Rate], goal: Array, least: int) -> Array:
    """`rounds_to` as a real number, on a line between two rounds."""
    whole = rounds_to(rate, goal, least=least)
    last = np.where(np.isfinite(whole), whole, least + 1.0)
    before, after = rate(np.maximum(last - 1, least)).value, rate(last).value
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (goal - after) / (before - after)
    inside = np.where((whole > least) & (share > 0) & (share < 1), share, 0.0)
    return np.asarray(whole - inside)


def _search(
    theorem: str, case: Case, curvature: ArrayLike | None, variant: Form
) -> tuple[_Search, tuple[int, ...]]:
    """The search of a theorem, and the shape of all that is known.

    A search has few kinds of client, none of them better than those they replace; the
    start keeps its exact tracking error, which is a largest value over clients.
    """
    statement, shape = find_theorem(theorem, variant), _shape(case, curvature)
    exact = replace(case, system=grouped(case.system))
    few = coarser(exact.system, _SEARCHED_KINDS)
    sketch = replace(exact, system=few, tracking=exact.start[1])
    return _Search(statement, exact, sketch, curvature, variant), shape


def _below_cap(target: ArrayLike, case: Case) -> Float64[Array, "..."]:
    """Checked ε with 0 < ε < f̄."""
    goal, cap = positives("target", target), case.system.cap
    if (goal >= cap).any():
        high = np.broadcast_to(goal, np.broadcast_shapes(goal.shape, cap.shape))
        rule = f"below the cap f̄ = {cap.max():g}, which needs no theorem"
        raise invalid("target", rule, high[high >= cap].flat[0])
    return goal


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
