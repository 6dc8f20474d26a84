"""Lists of hyper-parameters that grow at the end where the best value lies.

The best value of a list may be its last: a longer list might hold a better one. Where a
spec says `tune.extend`, lists of positive numbers go on by the ratio of their last two
values, and what is new is tried, until the best lies inside or the list was made longer
so often. All that was tried is written down, so that the same spec tries the same.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.tune import (
    LEAST,
    MOST,
    Candidates,
    Scores,
    best_of,
    edges_of,
    lists_of,
)


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
