"""A search of long grids: from a few points to the neighbours of the best.

A grid that holds its optimum well inside is long, and all its points are many. So the
lists are only the lattice: every third value of the first list is tried with two of
each of the others, then the neighbours of the best point, and again, until all
neighbours of the best point were tried. What is chosen is then better than its
neighbours on every side, which a point at the end of a list is not known to be: there
lists go on where the spec says so (`tune.max_extensions`).

Neighbours are one place up or down in one list, or up in one and down in another: step
size and momentum make up for each other, and valleys run across the axes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.tune import (
    LEAST,
    MOST,
    Candidates,
    Scores,
    best_of,
    edges_of,
    lists_of,
    over_seeds,
)

Point = tuple[int, ...]
"""A place in each list of a grid, in their order."""
STRIDE = 3
"""Of the first list, in the first trial."""


def first_points(method: MethodSpec) -> list[Point]:
    """Every third value of the first list, with two values of each of the others."""
    first, *others = (len(values) for values in method.grid.values())
    steps = range(min(1, first - 1), first, STRIDE)
    starts = [sorted({n // STRIDE, 2 * n // STRIDE}) for n in others]
    return list(itertools.product(steps, *starts))


def neighbours(method: MethodSpec, point: Point, extend: int = 0) -> list[Point]:
    """The points next to one: up or down in one list, or up in one and down in one.

    Lists may go on `extend` places beyond their ends.
    """
    lists = list(method.grid.items())
    places = range(len(lists))
    moves = [{k: step} for k in places for step in (1, -1)]
    moves += [{j: 1, k: -1} for j, k in itertools.permutations(places, 2)]
    found = [tuple(p + move.get(k, 0) for k, p in enumerate(point)) for move in moves]
    return [
        each
        for each in found
        if all(
            -extend <= p < len(values) + extend
            and value_at(name, values, p) is not None
            for p, (name, values) in zip(each, lists, strict=True)
        )
    ]


def next_points(
    method: MethodSpec, tried: Mapping[Point, float], extend: int = 0
) -> list[Point]:
    """What to try next; nothing where the best point has no untried neighbour.

    Args:
        method: with its grid.
        tried: scores of points over the seeds, less is better; infinite where they
            diverged.
        extend: places that a list may go on beyond its ends.
    """
    if not tried:
        return first_points(method)
    best = min(tried, key=lambda point: tried[point])
    around = neighbours(method, best, extend)
    return [point for point in around if point not in tried]


def candidate(method: MethodSpec, point: Point) -> MethodSpec:
    """The method at one point of its grid."""
    lists = zip(method.grid.items(), point, strict=True)
    chosen = {name: value_at(name, values, k) for (name, values), k in lists}
    return MethodSpec(method.method, method.label, dict(method.parameters) | chosen)


@final
@dataclass(frozen=True, slots=True)
class Climb:
    """Where the search of one run stands."""

    spec: Spec
    methods: tuple[MethodSpec, ...]
    tried: tuple[Mapping[Point, Scores], ...]

    @staticmethod
    def of(spec: Spec) -> "Climb":
        """A search that has tried nothing yet."""
        methods = tuple(method for method in spec.methods if method.grid)
        return Climb(spec, methods, tuple({} for _ in methods))

    def next(self) -> Candidates:
        """What to try next, method by method; nothing is left when all are empty."""
        return tuple(
            tuple(candidate(method, point) for point in points)
            for method, points in zip(self.methods, self._points(), strict=True)
        )

    def after(self, trials: Candidates, scores: Sequence[Scores]) -> "Climb":
        """The search after the trials that `next` asked for.

        Args:
            trials: what was asked for.
            scores: of each seed, all candidates in their order.
        """
        by_candidate = np.stack(scores, axis=1)  # candidates seeds k
        ends = np.cumsum([len(part) for part in trials])
        parts = np.split(by_candidate, ends[:-1])
        every = zip(self.tried, self._points(), parts, strict=True)
        tried = tuple(
            {**known, **dict(zip(points, rows, strict=True))}
            for known, points, rows in every
        )
        return Climb(self.spec, self.methods, tried)

    def found(self) -> tuple[Candidates, list[Scores]]:
        """All that was tried, in the order of the lists, and the scores by seed."""
        points = [sorted(known) for known in self.tried]
        candidates = tuple(
            tuple(candidate(method, point) for point in own)
            for method, own in zip(self.methods, points, strict=True)
        )
        pairs = zip(self.tried, points, strict=True)
        rows = np.stack([known[point] for known, own in pairs for point in own])
        return candidates, list(np.swapaxes(rows, 0, 1))

    def _points(self) -> list[list[Point]]:
        how = self.spec.tune
        means = (
            {p: float(over_seeds(how, rows)[0]) for p, rows in known.items()}
            for known in self.tried
        )
        pairs = zip(self.methods, means, strict=True)
        return [
            next_points(method, known, how.max_extensions) for method, known in pairs
        ]


# ------------------ Lists of hyper-parameters that grow at the end where the best

# The best value of a list may be its last: a longer list might hold a better one. Where a
# spec says `tune.max_extensions`, lists of positive numbers go on by the ratio of their last two
# values, and what is new is tried, until the best lies inside or the list was made longer
# so often. All that was tried is written down, so that the same spec tries the same.


def value_at(name: str, values: Sequence[Any], place: int) -> Any:
    """What stands at a place of a list, or would beyond its ends; None for nothing.

    Args:
        name: of the parameter, whose own bounds end every list.
        values: the list.
        place: from 0; negative ones lie before the list.
    """
    if 0 <= place < len(values):
        return values[place]
    if len(values) < 2 or isinstance(values[0], str | bool) or min(values) <= 0:
        return None
    last, before, more = values[-1], values[-2], place - len(values) + 1
    if place < 0:
        last, before, more = values[0], values[1], -place
    found = float(f"{last * (last / before) ** more:.4g}")
    inside = LEAST.get(name, 0.0) <= found <= MOST.get(name, math.inf)
    return found if inside else None


def beyond(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores], *, whole: bool
) -> Candidates:
    """What to try where the best candidate of a method lies at the end of a list.

    Args:
        spec: with grids.
        candidates: that were tried.
        scores: of them, one table per seed.
        whole: with all values of the other lists, rather than with those of the best.

    Returns:
        New candidates of each method, nothing where the best lies inside.
    """
    methods = [method for method in spec.methods if method.grid]
    winners = best_of(spec, candidates, scores, 1)
    return tuple(
        _beyond(method, own, own[best], whole=whole)
        for method, own, (best,) in zip(methods, candidates, winners, strict=True)
    )


def _beyond(
    method: MethodSpec, tried: Sequence[MethodSpec], best: MethodSpec, *, whole: bool
) -> tuple[MethodSpec, ...]:
    given = [dict(each.parameters) for each in tried]
    lists = lists_of(method, given)
    new = []
    for name in edges_of(lists, best.parameters):
        values = lists[name]
        upper = best.parameters[name] == values[-1]
        value = value_at(name, values, len(values) if upper else -1)
        if value is None:
            continue
        others = {
            k: values if whole else (best.parameters[k],)
            for k, values in method.grid.items()
        }
        grid = MethodSpec(
            method.method, method.label, method.parameters, others | {name: (value,)}
        )
        new += [c for c in grid.candidates() if dict(c.parameters) not in given]
    return tuple(new)


Tried = tuple[Candidates, Sequence[Any]]
"""Candidates and the scores of all of them, one table per seed."""


def joined(old: Tried, new: Tried) -> tuple[Candidates, list[Scores]]:
    """Candidates of two trials and their scores, method by method, old ones first."""
    parts = [_by_method(*each) for each in (old, new)]
    candidates = tuple(a + b for a, b in zip(old[0], new[0], strict=True))
    rows = [np.concatenate(pair, axis=1) for pair in zip(*parts, strict=True)]
    return candidates, list(np.concatenate(rows, axis=1))


def _by_method(candidates: Candidates, scores: Sequence[Scores]) -> list[Any]:
    """Scores as (seeds, candidates, k), one array for each method."""
    ends = np.cumsum([len(part) for part in candidates])
    return np.split(np.stack(scores), ends[:-1], axis=1)
