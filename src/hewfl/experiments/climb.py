"""A search of long grids: from a few points to the neighbours of the best.

A grid that holds its optimum well inside is long, and all its points are many. So the
lists are only the lattice: every third value of the first list is tried with two of
each of the others, then the neighbours of the best point, and again, until all
neighbours of the best point were tried. What is chosen is then better than its
neighbours on every side, which a point at the end of a list is not known to be: there
lists go on where the spec says so (`tune.extend`).

Neighbours are one place up or down in one list, or up in one and down in another: step
size and momentum make up for each other, and valleys run across the axes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.stretch import value_at
from hewfl.experiments.tune import Candidates, Scores, over_seeds

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
        return [next_points(method, known, how.extend or 0) for method, known in pairs]
