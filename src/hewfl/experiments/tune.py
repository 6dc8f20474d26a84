"""Hyper-parameters by a short trial of every candidate, all in lockstep."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.workers import Task
from hewfl.experiments.world import build_federation, build_problem, find_constants
from hewfl.sim.engine import simulate

LARGER_IS_BETTER = ("test_accuracy",)


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """What tuning found for one method.

    Attributes:
        label: of the method.
        parameters: the best point of its grid.
        at_edge: those of them at the end of their list, where a wider list might help.
        table: every candidate with its score for each seed.
    """

    label: str
    parameters: Mapping[str, Any]
    at_edge: tuple[str, ...]
    table: tuple[Mapping[str, Any], ...]


def tuning_tasks(spec: Spec) -> list[Task]:
    """One trial of all candidates for each seed of the tuning; none without grids."""
    if spec.is_tuned:
        return []
    rounds = spec.tune.rounds
    return [
        Task(
            "tuning", f"{spec.name}, seed {seed}", rounds, try_candidates, (spec, seed)
        )
        for seed in spec.tune.seeds
    ]


def try_candidates(
    spec: Spec, seed: int, on_round: Callable[[int], None]
) -> Float64[Array, " candidates"]:
    """The quantity that decides, for every candidate; infinite where it diverged."""
    problem, federation = build_problem(spec, seed), build_federation(spec)
    known = find_constants(_without_optimum(spec), seed, problem)
    lanes = [c.lane(known.smoothness) for m in _tunable(spec) for c in m.candidates()]
    trace = simulate(
        problem,
        federation,
        lanes,
        rounds=spec.tune.rounds,
        seed=seed,
        dtype=spec.dtype,
        evaluate_every=spec.tune.rounds,
        on_round=on_round,
    )
    last = [trace.of(k)[-1] for k in range(len(lanes))]
    values = [r.metrics.get(spec.tune.by, getattr(r, spec.tune.by, None)) for r in last]
    sign = -1 if spec.tune.by in LARGER_IS_BETTER else 1
    return np.array([_score(value, sign) for value in values])


def choose(
    spec: Spec, scores: Sequence[Float64[Array, " candidates"]]
) -> tuple[Spec, tuple[Choice, ...]]:
    """The spec with the best candidate of each method, by the mean over the seeds.

    Args:
        spec: with grids.
        scores: of `try_candidates`, one vector per seed; less is better.
    """
    table = np.stack(scores)
    choices: dict[str, Choice] = {}
    first = 0
    for method in _tunable(spec):
        candidates = method.candidates()
        part = table[:, first : first + len(candidates)]
        choices[method.label] = _choice(method, candidates, part)
        first += len(candidates)
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
) -> Choice:
    with np.errstate(invalid="ignore"):
        best = candidates[int(np.argmin(scores.mean(axis=0)))]
    edges = tuple(
        name
        for name, values in method.grid.items()
        if len(values) > 1 and best.parameters[name] in (values[0], values[-1])
    )
    table = tuple(
        {
            "parameters": dict(candidate.parameters),
            "scores": [s if math.isfinite(s) else None for s in column.tolist()],
        }
        for candidate, column in zip(candidates, scores.T, strict=True)
    )
    return Choice(method.label, best.parameters, edges, table)


def _tunable(spec: Spec) -> list[MethodSpec]:
    return [method for method in spec.methods if method.grid]


def _without_optimum(spec: Spec) -> Spec:
    return replace(spec, problem=replace(spec.problem, optimum=False))


def _score(value: float | None, sign: int) -> float:
    return sign * value if value is not None and math.isfinite(value) else math.inf
