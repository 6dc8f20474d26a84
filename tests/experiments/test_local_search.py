"""A search ends at a point that is better than its neighbours, and tries few."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hewfl.experiments.candidates import Candidates, Scores, choose
from hewfl.experiments.local_search import LocalSearch, first_points, neighbours
from hewfl.experiments.method_spec import MethodSpec
from tests.experiments.runs import small

STEPS = tuple(0.2 * 2.0**k for k in range(-5, 9))
MOMENTA = (0.0, 0.5, 0.75, 0.875, 0.9375, 0.96875)
"""A step of half the size makes up for the next of them."""
Law = Callable[[MethodSpec], float]


def method(**grid: tuple[float, ...]) -> MethodSpec:
    return MethodSpec("FedAvg", "FedAvg", {}, grid)


def search_all(given: MethodSpec, law: Law) -> tuple[Candidates, list[Scores]]:
    """All that a search tries of one method whose scores follow a law."""
    search = LocalSearch.start(replace(small(), methods=(given,)))
    while any(trials := search.next_candidates()):
        rows = np.array([[law(each), 0.0] for each in trials[0]])
        search = search.with_scores(trials, [rows, rows + 0.5])
    return search.all_tried()


def valley(at: float) -> Law:
    """Least where step/(1 − momentum) is 3, and of those at one momentum."""

    def law(candidate: MethodSpec) -> float:
        s, beta = (candidate.parameters[k] for k in ("step_scale", "momentum"))
        return float(np.log(s / (1 - beta) / 3) ** 2 + 0.1 * abs(beta - at))

    return law


@pytest.mark.parametrize("at", MOMENTA)
def test_it_ends_at_the_bottom_of_a_slanted_valley(at: float) -> None:
    grid = method(step_scale=STEPS, momentum=MOMENTA)
    law = valley(at)
    (tried,), scores = search_all(grid, law)
    best = min(tried, key=law)
    assert best.parameters["momentum"] == at
    assert len(tried) < len(grid.candidates()) / 2
    np.testing.assert_allclose(scores[1] - scores[0], 0.5)
    assert scores[0][:, 0].tolist() == [law(each) for each in tried]


def test_what_diverges_is_left_behind() -> None:
    def law(candidate: MethodSpec) -> float:
        s = candidate.parameters["step_scale"]
        return float("inf") if s > 0.1 else 1 / s

    (tried,), _ = search_all(method(step_scale=STEPS), law)
    assert min(tried, key=law).parameters["step_scale"] == 0.1


def test_neighbours_stay_inside_and_lie_across_too() -> None:
    grid = method(step_scale=STEPS, momentum=MOMENTA)
    inside = {(2, 1), (0, 1), (1, 2), (1, 0), (2, 0), (0, 2)}
    assert set(neighbours(grid, (1, 1))) == inside
    assert set(neighbours(grid, (0, 0))) == {(1, 0), (0, 1)}
    assert first_points(method(momentum=(0.5,))) == [(0,)]
    every = itertools.product(range(14), range(6))
    assert all((0, 0) <= p < (14, 6) for q in every for p in neighbours(grid, q))


@pytest.mark.parametrize(
    ("best", "edges"),
    [
        ({"step_scale": 0.4, "momentum": 0.0}, ()),
        ({"step_scale": 0.4, "momentum": 0.9}, ("momentum",)),
        ({"step_scale": 0.2, "momentum": 0.5}, ("step_scale",)),
    ],
)
def test_a_natural_bound_is_no_edge(
    best: dict[str, float], edges: tuple[str, ...]
) -> None:
    grid = method(step_scale=(0.2, 0.4, 0.8), momentum=(0.0, 0.5, 0.9))
    spec = replace(small(), methods=(grid,))
    candidates = grid.candidates()
    scores = np.array([[float(c.parameters != best), 0.0] for c in candidates])
    _, (choice,) = choose(spec, (candidates,), [scores])
    assert choice.parameters == best
    assert choice.at_edge == edges
