"""One seed of a run, in a worker: its constants, then its rounds."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hewfl.core.atomic import read_json, write_json
from hewfl.errors import DataError
from hewfl.experiments.constants import find_constants
from hewfl.experiments.problem import (
    build_federation,
    build_problem,
    lanes_of,
    naming_run,
    start_of,
)
from hewfl.experiments.spec import Spec
from hewfl.sim.audit import pathwise_audit_of_all
from hewfl.sim.engine import simulate
from hewfl.sim.lanes import Observer, Step

CHECKPOINT_EVERY = 10
"""Rounds; a run loses less than this by being killed."""


def run_seed(
    spec: Spec, seed: int, folder: Path, on_round: Callable[[int], None]
) -> None:
    """Run one seed of a tuned spec, from where its folder says it is."""
    has_trace = (folder / "trace.jsonl").exists()
    is_over = has_trace and rounds_done(folder) == spec.rounds
    if is_over and constants_file(folder).exists():
        on_round(spec.rounds)
        return
    _drop_half_checkpoint(folder)
    problem = build_problem(spec, seed)
    smoothness = _settled_smoothness(spec, seed, problem, folder)
    observers: list[Observer] = []
    if spec.audit_every:
        observers.append(_every(spec.audit_every, pathwise_audit_of_all()))
    with naming_run(spec, seed):
        simulate(
            problem,
            build_federation(spec),
            lanes_of(spec, spec.methods, smoothness),
            rounds=spec.rounds,
            seed=seed,
            start=start_of(problem),
            dtype=spec.dtype,
            evaluate_every=spec.evaluate_every,
            observers=observers,
            checkpoint=folder,
            checkpoint_every=CHECKPOINT_EVERY,
            on_round=on_round,
        )


def _drop_half_checkpoint(folder: Path) -> None:
    """Begin a seed anew whose trace or state was deleted; a damaged one is refused."""
    known = read_json(folder / "manifest.json", missing=True)
    if isinstance(known, dict):
        parts = (folder / "trace.jsonl", folder / str(known.get("state")))
        if not all(part.exists() for part in parts):
            (folder / "manifest.json").unlink()


def _settled_smoothness(spec: Spec, seed: int, problem: Any, folder: Path) -> float:
    """The L of a seed, settled with all its constants before its first round.

    They stay in the seed's folder: another L, if only by a bit, is another run.
    """
    file = constants_file(folder)
    found = read_json(file, missing=True)
    if found is None:
        known = asdict(find_constants(spec, seed, problem))
        sizes = {"n": problem.n, "d": problem.d, "samples": problem.data_sizes.tolist()}
        found = known | sizes
        write_json(file, found)
    try:
        return float(found["smoothness"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} is damaged: it has no L; delete {folder}") from error


def constants_file(folder: Path) -> Path:
    """Where the constants of a seed are kept."""
    return folder / "constants.json"


def rounds_done(folder: Path) -> int:
    """Count the rounds that the checkpoint of a seed holds.

    Raises:
        DataError: the checkpoint is damaged.
    """
    file = folder / "manifest.json"
    found = read_json(file, missing=True)
    try:
        return 0 if found is None else int(found["round"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} is damaged: {error!r}; delete {folder}") from error


def _every(rounds: int, observer: Observer) -> Observer:
    def observe(step: Step) -> Any:
        return observer(step) if step.round_number % rounds == 0 else {}

    return observe
