"""Hyper-parameters by short trials of the candidates, all in lockstep."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.files import read_json, write_json
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.workers import Task
from hewfl.experiments.world import (
    build_federation,
    build_problem,
    find_smoothness,
    lanes_of,
    start_of,
)
from hewfl.sim.engine import simulate
from hewfl.sim.trace import RoundRecord

LARGER_IS_BETTER = ("test_accuracy", "validation_accuracy")
Candidates = tuple[tuple[MethodSpec, ...], ...]
"""Those of every method with a grid, method by method."""
Scores = Float64[Array, "candidates 2"]
"""The quantity that decides and the one that decides between equals; less is better."""


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """What tuning found for one method.

    Attributes:
        label: of the method.
        parameters: the best point of its grid.
        at_edge: those of them at the end of their list, where a wider list might help.
        table: every candidate of the last trial with its score for each seed.
    """

    label: str
    parameters: Mapping[str, Any]
    at_edge: tuple[str, ...]
    table: tuple[Mapping[str, Any], ...]


def candidates_of(spec: Spec) -> Candidates:
    """All points of all grids."""
    return tuple(method.candidates() for method in spec.methods if method.grid)


def trial_tasks(
    spec: Spec, candidates: Candidates, rounds: int, seeds: Sequence[int], place: Path
) -> list[Task]:
    """A trial of the candidates for each seed.

    Args:
        spec: with grids.
        candidates: to try.
        rounds: of each trial.
        seeds: of the trials.
        place: how the names of the files begin that keep the scores of each trial.
    """
    lanes = sum(map(len, candidates))
    tasks = []
    for seed in seeds:
        file = place.with_name(f"{place.name}-{seed}.json")
        name, given = f"{spec.name}, seed {seed}", (spec, candidates, rounds, seed)
        done = rounds if file.exists() else 0
        call = (*given, file)
        tasks.append(Task("tuning", name, rounds, kept_trial, call, done, lanes))
    return tasks


def kept_trial(
    spec: Spec,
    candidates: Candidates,
    rounds: int,
    seed: int,
    file: Path,
    on_round: Callable[[int], None],
) -> Scores:
    """Scores of a trial, from its file if it was done before."""
    found = read_json(file, missing=True)
    if found is None:
        scores = try_candidates(spec, candidates, rounds, seed, on_round)
        found = [[s if math.isfinite(s) else None for s in row] for row in scores]
        write_json(file, found)
    rows = [[math.inf if s is None else s for s in row] for row in found]
    return np.array(rows, dtype=np.float64)


def try_candidates(
    spec: Spec,
    candidates: Candidates,
    rounds: int,
    seed: int,
    on_round: Callable[[int], None],
) -> Scores:
    """Scores after a trial; infinite where a candidate diverged."""
    problem = build_problem(spec, seed)
    L = find_smoothness(spec, seed, problem)
    lanes = lanes_of(spec, [c for part in candidates for c in part], L)
    trace = simulate(
        problem,
        build_federation(spec),
        lanes,
        rounds=rounds,
        seed=seed,
        start=start_of(problem),
        dtype=spec.dtype,
        evaluate_every=rounds,
        on_round=on_round,
    )
    last = [trace.of(k)[-1] for k in range(len(lanes))]
    wanted = (spec.tune.by, spec.tune.tie_by)
    return np.array([[_score(record, name) for name in wanted] for record in last])


def best_of(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores], keep: int
) -> list[tuple[int, ...]]:
    """Indices of the best candidates of each method, best first."""
    means = np.mean(np.stack(scores), axis=0)
    found, first = [], 0
    for part in candidates:
        own = means[first : first + len(part)]
        first += len(part)
        least = own[:, 0].min()
        level = np.where(own[:, 0] <= least + spec.tune.tie, least, own[:, 0])
        order = (
            np.lexsort((own[:, 1], level))
            if spec.tune.tie
            else np.argsort(own[:, 0], kind="stable")
        )
        found.append(tuple(int(k) for k in order[:keep]))
    return found


def choose(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores]
) -> tuple[Spec, tuple[Choice, ...]]:
    """The spec with the best candidate of each method, by the mean over the seeds.

    Args:
        spec: with grids.
        candidates: that were tried.
        scores: of `try_candidates`, one table per seed.
    """
    table = np.stack([score[:, 0] for score in scores])
    grids = [method for method in spec.methods if method.grid]
    choices, first = {}, 0
    winners = best_of(spec, candidates, scores, 1)
    for method, part, (best,) in zip(grids, candidates, winners, strict=True):
        own = table[:, first : first + len(part)]
        first += len(part)
        choices[method.label] = _choice(method, part, own, part[best])
    methods = tuple(
        MethodSpec(m.method, m.label, choices[m.label].parameters)
        if m.label in choices
        else m
        for m in spec.methods
    )
    return spec.with_methods(methods), tuple(choices.values())


def _choice(
    method: MethodSpec,
    candidates: Sequence[MethodSpec],
    scores: Float64[Array, "seeds candidates"],
    best: MethodSpec,
) -> Choice:
    edges = tuple(
        name
        for name, values in method.grid.items()
        if len(values) > 1
        and not isinstance(values[0], str)
        and best.parameters[name] in (values[0], values[-1])
    )
    table = tuple(
        {
            "parameters": dict(candidate.parameters),
            "scores": [s if math.isfinite(s) else None for s in column.tolist()],
        }
        for candidate, column in zip(candidates, scores.T, strict=True)
    )
    return Choice(method.label, best.parameters, edges, table)


def _score(record: RoundRecord, quantity: str) -> float:
    value = record.metrics.get(quantity, getattr(record, quantity, None))
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if quantity in LARGER_IS_BETTER else value
