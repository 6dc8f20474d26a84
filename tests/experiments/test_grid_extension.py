"""Lists grow until the best lies inside, and what is known is not tried again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hewfl.experiments.candidates import (
    Candidates,
    choose,
    extended_candidates,
    join_trials,
    value_at,
)
from hewfl.experiments.local_search import LocalSearch
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from tests.experiments.runs import small

RATES = (0.5, 1.0, 2.0)


def spec_with(grid: dict[str, tuple[Any, ...]], **how: Any) -> Spec:
    plain = small()
    method = MethodSpec("FedAvg", "FedAvg", {}, grid)
    return replace(plain, methods=(method,), tune=replace(plain.tune, **how))


def scored(candidates: Any, best: float) -> list[Any]:
    """Scores of two seeds: the distance to the best step, by factors."""
    away = [abs(np.log2(c.parameters["step_scale"] / best)) for c in candidates]
    return [np.array([[a, 0.0] for a in away]) + seed for seed in (0.0, 0.1)]


@pytest.mark.parametrize(
    ("name", "values", "place", "found"),
    [
        ("step_scale", RATES, 1, 1.0),
        ("step_scale", RATES, 3, 4.0),
        ("step_scale", RATES, 5, 16.0),
        ("step_scale", RATES, -2, 0.125),
        ("kappa", (1.0, 1.75), 2, 3.062),
        ("curvature_ratio", (1.1, 2.0), -1, None),  # its bound is 1.01
        ("momentum", (0.0, 0.5), 2, None),  # no ratio from zero
        ("average", ("none", "ema"), 2, None),
        ("step_scale", (1.0,), 1, None),
    ],
)
def test_lists_go_on_by_the_ratio_of_their_last_two(
    name: str, values: Any, place: int, found: Any
) -> None:
    assert value_at(name, values, place) == found


@pytest.mark.parametrize("best", [0.1, 1.0, 30.0])
def test_a_list_grows_until_the_best_lies_inside(best: float) -> None:
    spec = spec_with({"step_scale": RATES, "momentum": (0.0, 0.5)}, max_extensions=9)
    tried: Candidates = (spec.methods[0].candidates(),)
    scores = scored(tried[0], best)
    while any(new := extended_candidates(spec, tried, scores, is_full=True)):
        assert len(new[0]) == 2  # with both momenta
        tried, scores = join_trials((tried, scores), (new, scored(new[0], best)))
    _, (choice,) = choose(spec, tried, scores)
    assert choice.at_edge == ()
    assert abs(np.log2(choice.parameters["step_scale"] / best)) <= 0.5
    (narrow,) = extended_candidates(spec, tried, scored(tried[0], 1e9), is_full=False)
    assert len(narrow) == 1  # beyond the list, with the best momentum alone


def test_a_climb_goes_on_beyond_its_lists() -> None:
    for extend, found, edges in ((0, 2.0, ("step_scale",)), (9, 32.0, ())):
        search = LocalSearch.start(
            spec_with({"step_scale": RATES}, max_extensions=extend)
        )
        while any(trials := search.next_candidates()):
            search = search.with_scores(trials, scored(trials[0], 30.0))
        _, (choice,) = choose(search.spec, *search.all_tried())
        assert choice.parameters["step_scale"] == found
        assert choice.at_edge == edges


def test_the_worst_seed_may_decide() -> None:
    spec = spec_with({"step_scale": RATES})
    tried = (spec.methods[0].candidates(),)
    scores = [np.array([[v, 0.0] for v in row]) for row in ((3, 1, 0), (3, 2, 2.5))]
    for over, found in (("mean", 2.0), ("worst", 1.0)):
        how = spec_with({"step_scale": RATES}, seed_reduction=over)
        _, (choice,) = choose(how, tried, scores)
        assert choice.parameters["step_scale"] == found
