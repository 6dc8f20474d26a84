"""Hyper-parameters by short trials of the candidates, all in lockstep."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.atomic import read_json, write_json
from hewfl.core.validation import Array
from hewfl.errors import DataError
from hewfl.experiments.build_problem import (
    build_federation,
    build_problem,
    entries_of,
    naming_run,
    samples_of,
    start_of,
)
from hewfl.experiments.executor import Task
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.reference_optima import find_smoothness
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import TuneSpec
from hewfl.server.trace import AVERAGED, RoundRecord
from hewfl.simulation.engine import simulate

LEAST = {"momentum": 0.0, "proximal": 0.0, "power": 0.0, "curvature_ratio": 1.01}
MOST = {"curvature_ratio": 1e4}
"""Natural bounds: no list need go beyond. Λ/L has to be above 1, and a hundredth more
is next to it; where it is huge, weights are those of the shortest combination."""
MODULE_LANES = 12
"""Candidates of a module in one trial."""
CHECKPOINT_EVERY = 20
"""Rounds of a module's trial; a trial loses less than this by being killed."""
_ACCURACIES = ("test_accuracy", "validation_accuracy")
LARGER_IS_BETTER = (*_ACCURACIES, *(f"{AVERAGED}{name}" for name in _ACCURACIES))
Candidates = tuple[tuple[MethodSpec, ...], ...]
"""Those of every method with a grid, method by method."""
Scores = Float64[Array, "candidates k"]
"""`tune.metric` and the `tune.tie_metrics`, one column each; less is better."""
Trials = tuple[Mapping[str, Any], ...]
"""Those of one method: `parameters`, and `scores` and `tie_scores` seed by seed."""


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """What tuning found for one method.

    Attributes:
        label: of the method.
        parameters: the best point of its grid.
        at_edge: those of them at the end of their list, where a wider list might help.
        screen: every candidate of the first, shorter trial; empty if there was none.
        table: every candidate of the last trial: for each seed, its `scores` in the
            quantity that decides and its `tie_scores` in the one that decides between
            equals, as measured; None where it diverged.
    """

    label: str
    parameters: Mapping[str, Any]
    at_edge: tuple[str, ...]
    screen: Trials
    table: Trials


def candidates_of(spec: Spec) -> Candidates:
    """All points of all grids."""
    return tuple(method.candidates() for method in spec.methods if method.grid)


def trial_tasks(
    spec: Spec, candidates: Candidates, rounds: int, seed: int, place: Path
) -> list[Task]:
    """Trials of the candidates for one seed, in the order of `parts_of`.

    Args:
        spec: with grids.
        candidates: to try.
        rounds: of each trial.
        seed: of the trials.
        place: how the names of the files begin that keep the scores of each trial.
    """
    tasks, parts = [], parts_of(spec, candidates)
    for j, part in enumerate(parts):
        which = "" if len(parts) == 1 else f"-{j}"
        file = place.with_name(f"{place.name}-{seed}{which}.json")
        name, entries = f"{spec.name}, seed {seed}", sum(map(len, part))
        done = rounds if file.exists() else 0
        call, shares = (spec, part, rounds, seed, file), samples_of(spec, seed)
        what = (name, rounds, kept_trial, call, done, entries, shares)
        tasks.append(Task("tuning", *what, writes=file))
    return tasks


def parts_of(spec: Spec, candidates: Candidates) -> list[Candidates]:
    """Candidates in parts, in order, whose trials run side by side.

    Softmax entries share the products of a round and stay together. Lanes of a module
    share nothing but their draws: in parts they keep more processes busy beside the one
    that waits for the GPU, and less is lost when a trial is stopped.
    """
    if not spec.problem.is_module:
        return [candidates]
    flat = [(k, each) for k, part in enumerate(candidates) for each in part]
    parts = []
    for lo in range(0, len(flat), MODULE_LANES):
        some = flat[lo : lo + MODULE_LANES]
        methods = dict.fromkeys(k for k, _ in some)
        parts.append(tuple(tuple(c for j, c in some if j == k) for k in methods))
    return parts


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
        is_long = spec.problem.is_module and rounds > CHECKPOINT_EVERY
        rest = file.with_suffix("") if is_long else None
        scores = try_candidates(spec, candidates, rounds, seed, on_round, rest)
        found = [[s if math.isfinite(s) else None for s in row] for row in scores]
        write_json(file, found)
        if rest is not None:
            shutil.rmtree(rest, ignore_errors=True)
    rows = [[math.inf if s is None else s for s in row] for row in found]
    return np.array(rows, dtype=np.float64)


def try_candidates(
    spec: Spec,
    candidates: Candidates,
    rounds: int,
    seed: int,
    on_round: Callable[[int], None],
    checkpoint: Path | None = None,
) -> Scores:
    """Scores after a trial; infinite where a candidate diverged.

    Args:
        spec: with grids.
        candidates: to try.
        rounds: of the trial.
        seed: of the trial.
        on_round: told of the rounds done.
        checkpoint: folder that a stopped trial goes on from, None for none.
    """
    problem = build_problem(spec, seed)
    wanted = (spec.tune.metric, *spec.tune.tie_metrics)
    if spec.problem.is_softmax and not any(q.startswith("test_") for q in wanted):
        problem = replace(problem, test=None)  # nobody will look at it
    L = find_smoothness(spec, seed, problem)
    entries = entries_of(spec, [c for part in candidates for c in part], L, rounds)
    with naming_run(spec, seed):
        trace = simulate(
            problem,
            build_federation(spec),
            entries,
            rounds=rounds,
            seed=seed,
            start=start_of(problem),
            dtype=spec.dtype,
            evaluate_every=rounds,
            checkpoint=checkpoint,
            checkpoint_every=CHECKPOINT_EVERY,
            on_round=on_round,
        )
    own = [trace.of(k) for k in range(len(entries))]
    rows = [[_score(spec, records, name) for name in wanted] for records in own]
    return np.array(rows)


def best_of(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores], keep: int
) -> list[tuple[int, ...]]:
    """Indices of the best candidates of each method, best first."""
    means = over_seeds(spec.tune, np.stack(scores))
    found, first = [], 0
    for part in candidates:
        own = means[first : first + len(part)]
        first += len(part)
        least = own[:, 0].min()
        level = np.where(own[:, 0] <= least + spec.tune.tie_tolerance, least, own[:, 0])
        order = (
            np.lexsort((*own[:, :0:-1].T, level))
            if spec.tune.tie_tolerance
            else np.argsort(own[:, 0], kind="stable")
        )
        found.append(tuple(int(k) for k in order[:keep]))
    return found


def over_seeds(
    how: TuneSpec, rows: Float64[Array, "seeds *candidates k"]
) -> Float64[Array, "*candidates k"]:
    """What decides of the scores of all seeds: their mean, or the worst of them."""
    found = rows.max(axis=0) if how.seed_reduction == "worst" else rows.mean(axis=0)
    return np.asarray(found)


def choose(
    spec: Spec,
    candidates: Candidates,
    scores: Sequence[Scores],
    screen: Sequence[Trials] = (),
) -> tuple[Spec, tuple[Choice, ...]]:
    """The spec with the best candidate of each method over the seeds.

    Args:
        spec: with grids.
        candidates: that were tried.
        scores: of `try_candidates`, one table per seed.
        screen: `trial_tables` of the first trial, if there was one.
    """
    grids = [method for method in spec.methods if method.grid]
    last = trial_tables(spec, candidates, scores)
    first = screen or [()] * len(grids)
    winners = best_of(spec, candidates, scores, 1)
    choices = {}
    for k, (method, (best,)) in enumerate(zip(grids, winners, strict=True)):
        given = candidates[k][best].parameters
        tried = [trial["parameters"] for trial in (*first[k], *last[k])]
        edges = edges_of(lists_of(method, tried), given)
        choices[method.label] = Choice(method.label, given, edges, first[k], last[k])
    methods = tuple(
        MethodSpec(m.method, m.label, choices[m.label].parameters)
        if m.label in choices
        else m
        for m in spec.methods
    )
    return replace(spec, methods=methods), tuple(choices.values())


def read_choices(file: Path) -> tuple[Choice, ...]:
    """What a `tuning.json` says; nothing if there is none.

    Raises:
        DataError: the file is damaged.
    """
    found = read_json(file, missing=True) or []
    try:
        return tuple(
            Choice(
                entry["label"],
                entry["parameters"],
                *(tuple(entry[name]) for name in ("at_edge", "screen", "table")),
            )
            for entry in found
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error!r}; delete it") from error


def lists_of(
    method: MethodSpec, tried: Sequence[Mapping[str, Any]]
) -> dict[str, list[float]]:
    """The method's lists of numbers, with what was tried beyond their ends.

    Words, true and false have no order, and a list of one value was not searched.
    """
    return {
        name: sorted({*values, *(each[name] for each in tried)})
        for name, values in method.grid.items()
        if len(values) > 1 and not isinstance(values[0], str | bool)
    }


def edges_of(
    lists: Mapping[str, Sequence[float]], chosen: Mapping[str, Any]
) -> tuple[str, ...]:
    """Parameters at the end of their list, unless the parameter itself ends there."""
    return tuple(
        name
        for name, values in lists.items()
        if chosen[name] in (values[0], values[-1])
        and LEAST.get(name, -math.inf) < chosen[name] < MOST.get(name, math.inf)
    )


def trial_tables(
    spec: Spec, candidates: Candidates, scores: Sequence[Scores]
) -> list[Trials]:
    """The trials of each method as they are written down, with their own sign."""
    names = (spec.tune.metric, spec.tune.tie_metrics[0])
    signs = np.array([-1.0 if name in LARGER_IS_BETTER else 1.0 for name in names])
    by_candidate = np.stack(scores, axis=1)[..., :2] * signs  # candidates seeds 2
    ends = np.cumsum([len(part) for part in candidates])
    return [
        tuple(
            {
                "parameters": dict(candidate.parameters),
                "scores": _finite(row[:, 0]),
                "tie_scores": _finite(row[:, 1]),
            }
            for candidate, row in zip(part, rows, strict=True)
        )
        for part, rows in zip(
            candidates, np.split(by_candidate, ends[:-1]), strict=True
        )
    ]


def _finite(values: Float64[Array, " seeds"]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _score(spec: Spec, records: Sequence[RoundRecord], quantity: str) -> float:
    """What a candidate is judged by, after the last round; less is better."""
    record = records[-1]
    if quantity == "local_steps":
        return float(sum(sum(each.horizons) for each in records))
    if spec.evaluate_model == "averaged" and f"{AVERAGED}{quantity}" in record.metrics:
        quantity = f"{AVERAGED}{quantity}"
    value = record.metrics.get(quantity, getattr(record, quantity, None))
    if value is None or not math.isfinite(value):
        return math.inf
    return float(-value if quantity in LARGER_IS_BETTER else value)
