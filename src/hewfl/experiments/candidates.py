"""Candidates of grids: which are tried, how they are ranked, which one is chosen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.atomic import read_json
from hewfl.core.validation import Array
from hewfl.errors import DataError
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.results import LARGER_IS_BETTER
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import TuneSpec

LEAST = {"momentum": 0.0, "prox": 0.0, "power": 0.0, "curvature_ratio": 1.01}
MOST = {"curvature_ratio": 1e4}
"""Natural bounds of parameters: a list never extends beyond them. Λ/L has to be above
1, and 1.01 is close to it; for a huge ratio the weights are those of the shortest
combination."""
Candidates = tuple[tuple[MethodSpec, ...], ...]
"""The candidates of every method with a grid, method by method."""
Scores = Float64[Array, "candidates k"]
"""`tune.metric` and the `tune.tie_metrics`, one column each; less is better."""
Trials = tuple[Mapping[str, Any], ...]
"""The trials of one method: `parameters`, and `scores` and `tie_scores` by seed."""
Tried = tuple[Candidates, Sequence[Any]]
"""Candidates and the scores of all of them, one table per seed."""


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """The result of tuning for one method.

    Attributes:
        label: of the method.
        parameters: the chosen point of its grid.
        at_edge: parameters at the end of their list, where a wider list might help.
        screen: every candidate of the first, shorter trial; empty if there was none.
        table: every candidate of the last trial: for each seed, its `scores` in
            `tune.metric` and its `tie_scores` in the first of `tune.tie_metrics`, as
            measured; None where it diverged.
    """

    label: str
    parameters: Mapping[str, Any]
    at_edge: tuple[str, ...]
    screen: Trials
    table: Trials


def read_choices(file: Path) -> tuple[Choice, ...]:
    """The choices in a `tuning.json`; none if there is no file.

    Raises:
        DataError: the file is damaged.
    """
    entries = read_json(file, missing=True) or []
    try:
        return tuple(
            Choice(
                entry["label"],
                entry["parameters"],
                *(tuple(entry[name]) for name in ("at_edge", "screen", "table")),
            )
            for entry in entries
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error!r}; delete it") from error


def all_candidates(spec: Spec) -> Candidates:
    """All points of all grids."""
    return tuple(method.candidates() for method in spec.methods if method.grid)


def reduce_seeds(
    how: TuneSpec, rows: Float64[Array, "seeds *candidates k"]
) -> Float64[Array, "*candidates k"]:
    """The scores that decide: the mean over seeds, or the worst seed."""
    is_worst = how.seed_reduction == "worst"
    return np.asarray(rows.max(axis=0) if is_worst else rows.mean(axis=0))


def best_candidates(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores], count: int
) -> list[tuple[int, ...]]:
    """Indices of the best candidates of each method, best first."""
    reduced = reduce_seeds(spec.tune, np.stack(scores))
    best, first = [], 0
    for part in candidates:
        rows = reduced[first : first + len(part)]
        first += len(part)
        least = rows[:, 0].min()
        is_tied = rows[:, 0] <= least + spec.tune.tie_tolerance
        order = (
            np.lexsort((*rows[:, :0:-1].T, np.where(is_tied, least, rows[:, 0])))
            if spec.tune.tie_tolerance
            else np.argsort(rows[:, 0], kind="stable")
        )
        best.append(tuple(int(k) for k in order[:count]))
    return best


def choose(
    spec: Spec,
    candidates: Candidates,
    scores: Sequence[Scores],
    screen: Sequence[Trials] = (),
) -> tuple[Spec, tuple[Choice, ...]]:
    """The spec with the best candidate of each method.

    Args:
        spec: with grids.
        candidates: that were tried.
        scores: of them, one table per seed.
        screen: `trial_tables` of the first trial, if there was one.
    """
    methods = [method for method in spec.methods if method.grid]
    last = trial_tables(spec, candidates, scores)
    first = screen or [()] * len(methods)
    winners = best_candidates(spec, candidates, scores, 1)
    choices = {}
    for k, (method, (best,)) in enumerate(zip(methods, winners, strict=True)):
        parameters = candidates[k][best].parameters
        tried = [trial["parameters"] for trial in (*first[k], *last[k])]
        edges = edge_parameters(tried_lists(method, tried), parameters)
        choices[method.label] = Choice(
            method.label, parameters, edges, first[k], last[k]
        )
    tuned = tuple(
        MethodSpec(m.method, m.label, choices[m.label].parameters)
        if m.label in choices
        else m
        for m in spec.methods
    )
    return replace(spec, methods=tuned), tuple(choices.values())


def trial_tables(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores]
) -> list[Trials]:
    """The trials of each method for `tuning.json`, in their original sign."""
    names = (spec.tune.metric, spec.tune.tie_metrics[0])
    signs = np.array([-1.0 if name in LARGER_IS_BETTER else 1.0 for name in names])
    by_candidate = np.stack(scores, axis=1)[..., :2] * signs  # candidates seeds 2
    ends = np.cumsum([len(part) for part in candidates])
    return [
        tuple(
            {
                "parameters": dict(candidate.parameters),
                "scores": _none_if_infinite(row[:, 0]),
                "tie_scores": _none_if_infinite(row[:, 1]),
            }
            for candidate, row in zip(part, rows, strict=True)
        )
        for part, rows in zip(
            candidates, np.split(by_candidate, ends[:-1]), strict=True
        )
    ]


def _none_if_infinite(values: Float64[Array, " seeds"]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def tried_lists(
    method: MethodSpec, tried: Sequence[Mapping[str, Any]]
) -> dict[str, list[float]]:
    """The method's lists of numbers, with the values tried beyond their ends.

    Text and booleans have no order, and a list of one value was not searched.
    """
    return {
        name: sorted({*values, *(each[name] for each in tried)})
        for name, values in method.grid.items()
        if len(values) > 1 and not isinstance(values[0], str | bool)
    }


def edge_parameters(
    lists: Mapping[str, Sequence[float]], chosen: Mapping[str, Any]
) -> tuple[str, ...]:
    """Parameters at the end of their list, unless it is their natural bound."""
    return tuple(
        name
        for name, values in lists.items()
        if chosen[name] in (values[0], values[-1])
        and LEAST.get(name, -math.inf) < chosen[name] < MOST.get(name, math.inf)
    )


def value_at(name: str, values: Sequence[Any], index: int) -> Any:
    """The value of a list at an index, or of its geometric extension beyond its ends.

    Args:
        name: of the parameter, whose natural bounds end every list.
        values: the list.
        index: from 0; negative ones lie before the list.

    Returns:
        The value; None where the list cannot be extended.
    """
    if 0 <= index < len(values):
        return values[index]
    if len(values) < 2 or isinstance(values[0], str | bool) or min(values) <= 0:
        return None
    last, before, more = values[-1], values[-2], index - len(values) + 1
    if index < 0:
        last, before, more = values[0], values[1], -index
    value = float(f"{last * (last / before) ** more:.4g}")
    return value if LEAST.get(name, 0.0) <= value <= MOST.get(name, math.inf) else None


def extended_candidates(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores], *, is_full: bool
) -> Candidates:
    """New candidates where the best one of a method lies at the end of a list.

    Args:
        spec: with grids.
        candidates: that were tried.
        scores: of them, one table per seed.
        is_full: combine new values with all values of the other lists, rather than
            with those of the best candidate.

    Returns:
        New candidates of each method; none where the best lies inside.
    """
    methods = [method for method in spec.methods if method.grid]
    winners = best_candidates(spec, candidates, scores, 1)
    return tuple(
        _extended(method, part, part[best], is_full=is_full)
        for method, part, (best,) in zip(methods, candidates, winners, strict=True)
    )


def _extended(
    method: MethodSpec, tried: Sequence[MethodSpec], best: MethodSpec, *, is_full: bool
) -> tuple[MethodSpec, ...]:
    known = [dict(each.parameters) for each in tried]
    lists = tried_lists(method, known)
    new = []
    for name in edge_parameters(lists, best.parameters):
        values = lists[name]
        is_upper = best.parameters[name] == values[-1]
        value = value_at(name, values, len(values) if is_upper else -1)
        if value is None:
            continue
        others = {
            k: values if is_full else (best.parameters[k],)
            for k, values in method.grid.items()
        }
        grid = MethodSpec(
            method.method, method.label, method.parameters, others | {name: (value,)}
        )
        new += [c for c in grid.candidates() if dict(c.parameters) not in known]
    return tuple(new)


def join_trials(old: Tried, new: Tried) -> tuple[Candidates, list[Scores]]:
    """Candidates of two trials and their scores, method by method, old ones first."""
    parts = [_scores_by_method(*each) for each in (old, new)]
    candidates = tuple(a + b for a, b in zip(old[0], new[0], strict=True))
    rows = [np.concatenate(pair, axis=1) for pair in zip(*parts, strict=True)]
    return candidates, list(np.concatenate(rows, axis=1))


def _scores_by_method(candidates: Candidates, scores: Sequence[Scores]) -> list[Any]:
    """Scores as (seeds, candidates, k), one array for each method."""
    ends = np.cumsum([len(part) for part in candidates])
    return np.split(np.stack(scores), ends[:-1], axis=1)
