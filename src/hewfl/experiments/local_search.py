"""Local search on long grids: from a few points to the neighbours of the best.

A grid that holds its optimum well inside has too many points to try them all. So the
lists are only the lattice: every third value of the first list is tried with two of
each of the others, then the neighbours of the best point, until all neighbours of the
best point were tried. The chosen point is then better than its neighbours on every
side. At the end of a list that is not known, and lists are extended there up to
`tune.max_extensions` places.

Neighbours are one place up or down in one list, or up in one and down in another: step
size and momentum compensate for each other, so valleys run across the axes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.experiments.candidates import Candidates, Scores, reduce_seeds, value_at
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec

Point = tuple[int, ...]
"""An index into each list of a grid, in their order."""
STRIDE = 3
"""Of the first list, in the first trial."""


@final
@dataclass(frozen=True, slots=True)
class LocalSearch:
    """The state of the search of one run.

    Attributes:
        spec: with grids.
        methods: those with a grid.
        tried: the scores of the points of each method, one row per seed.
    """

    spec: Spec
    methods: tuple[MethodSpec, ...]
    tried: tuple[Mapping[Point, Scores], ...]

    @staticmethod
    def start(spec: Spec) -> "LocalSearch":
        """A search that has tried nothing yet."""
        methods = tuple(method for method in spec.methods if method.grid)
        return LocalSearch(spec, methods, tuple({} for _ in methods))

    def next_candidates(self) -> Candidates:
        """What to try next, method by method; the search is over when all are empty."""
        return tuple(
            tuple(candidate_at(method, point) for point in points)
            for method, points in zip(self.methods, self._next_points(), strict=True)
        )

    def with_scores(
        self, trials: Candidates, scores: Sequence[Scores]
    ) -> "LocalSearch":
        """The search after the trials of `next_candidates`.

        Args:
            trials: the candidates.
            scores: of each seed, all candidates in their order.
        """
        by_candidate = np.stack(scores, axis=1)  # candidates seeds k
        ends = np.cumsum([len(part) for part in trials])
        parts = np.split(by_candidate, ends[:-1])
        tried = tuple(
            {**known, **dict(zip(points, rows, strict=True))}
            for known, points, rows in zip(
                self.tried, self._next_points(), parts, strict=True
            )
        )
        return LocalSearch(self.spec, self.methods, tried)

    def all_tried(self) -> tuple[Candidates, list[Scores]]:
        """All candidates, in the order of the lists, and their scores by seed."""
        points = [sorted(known) for known in self.tried]
        candidates = tuple(
            tuple(candidate_at(method, point) for point in part)
            for method, part in zip(self.methods, points, strict=True)
        )
        pairs = zip(self.tried, points, strict=True)
        rows = np.stack([known[point] for known, part in pairs for point in part])
        return candidates, list(np.swapaxes(rows, 0, 1))

    def _next_points(self) -> list[list[Point]]:
        how = self.spec.tune
        scores = (
            {p: float(reduce_seeds(how, rows)[0]) for p, rows in known.items()}
            for known in self.tried
        )
        pairs = zip(self.methods, scores, strict=True)
        return [
            next_points(method, known, how.max_extensions) for method, known in pairs
        ]


def first_points(method: MethodSpec) -> list[Point]:
    """Every third value of the first list, with two values of each of the others."""
    first, *others = (len(values) for values in method.grid.values())
    steps = range(min(1, first - 1), first, STRIDE)
    starts = [sorted({n // STRIDE, 2 * n // STRIDE}) for n in others]
    return list(itertools.product(steps, *starts))


def next_points(
    method: MethodSpec, tried: Mapping[Point, float], extend: int = 0
) -> list[Point]:
    """The points to try next; none where all neighbours of the best were tried.

    Args:
        method: with its grid.
        tried: scores of points, less is better; infinite where they diverged.
        extend: places by which a list may be extended beyond its ends.
    """
    if not tried:
        return first_points(method)
    best = min(tried, key=lambda point: tried[point])
    return [p for p in neighbours(method, best, extend) if p not in tried]


def neighbours(method: MethodSpec, point: Point, extend: int = 0) -> list[Point]:
    """The points next to one: up or down in one list, or up in one and down in one."""
    lists = list(method.grid.items())
    axes = range(len(lists))
    moves = [{k: step} for k in axes for step in (1, -1)]
    moves += [{j: 1, k: -1} for j, k in itertools.permutations(axes, 2)]
    points = [tuple(p + move.get(k, 0) for k, p in enumerate(point)) for move in moves]
    return [
        each
        for each in points
        if all(
            -extend <= p < len(values) + extend
            and value_at(name, values, p) is not None
            for p, (name, values) in zip(each, lists, strict=True)
        )
    ]


def candidate_at(method: MethodSpec, point: Point) -> MethodSpec:
    """The method at one point of its grid."""
    lists = zip(method.grid.items(), point, strict=True)
    chosen = {name: value_at(name, values, k) for (name, values), k in lists}
    return MethodSpec(method.method, method.label, dict(method.parameters) | chosen)
