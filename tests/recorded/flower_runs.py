"""Flower runs on a grid inside one process, kept in folders and resumed from them."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord

from hewfl import (
    ChoiceSteps,
    FedNova,
    HewHet,
    HewHom,
    LocalSGD,
    Method,
    RandomParticipation,
    SampledParticipation,
    Scaffold,
    ServerStep,
)
from hewfl.aggregators import FedAdp, FedAWARE
from hewfl.flower import AlgorithmStrategy, ClientObjective, StepContext, client_app
from hewfl.problems import random_quadratic
from tests.flower.federation import StubGrid
from tests.recorded.files import Files, Scenario, described, line

N, L, SEED = 4, 1.0, 31
PROBLEM = random_quadratic(5, N, 6, samples=[5, 6, 7, 8], noise=0.4)
Fault = Callable[[int, StepContext], Any]
"""From a client and a moment to what is multiplied with its gradient."""


def no_fault(client: int, moment: StepContext) -> float:
    del client, moment
    return 1.0


def some_faults(client: int, moment: StepContext) -> float:
    """Client 1 is not finite in round 2, client 2 raises in round 3, all in round 4."""
    if (client, moment.round) == (2, 2):
        text = "out of memory"
        raise RuntimeError(text)
    lost = (client, moment.round) == (1, 1) or moment.round == 3
    return np.nan if lost else 1.0


def grid_of(fault: Fault, arrivals: int) -> StubGrid:
    """A federation whose client i is client i of the problem, two samples a step."""

    def build(context: Context) -> ClientObjective:
        i = int(context.node_config["partition-id"])
        size, offset = int(PROBLEM.data_sizes[i]), int(PROBLEM.offsets[i])
        one = np.ones(1, dtype=np.int64)

        def gradient(x: Any, moment: StepContext) -> Any:
            rng = np.random.default_rng([SEED, i, abs(moment.round), moment.step])
            drawn = offset + rng.integers(size, size=(1, 2))
            every = np.tile(x.astype(np.float64), (1, N, 1))
            samples = np.repeat(drawn, N, axis=0)
            found = PROBLEM.minibatch_gradients(every, samples, 2 * one.repeat(N))
            return (fault(i, moment) * found[0, i]).astype(x.dtype)

        return ClientObjective(gradient, size, 2)

    return StubGrid(client_app(build), N, seed=arrivals)


def model() -> ArrayRecord:
    """Parameters of two precisions, and a counter that is none."""
    arrays = {
        "w": np.zeros((2, 2), dtype=np.float32),
        "count": np.array(7),
        "b": np.full(2, 0.25),
    }
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    parts = [arrays[name].numpy().astype(np.float64).reshape(-1) for name in "wb"]
    found = PROBLEM.objectives(np.concatenate(parts)[None])[0]
    known = {"objective": float(found[0]), "pooled": float(found[1])}
    return MetricRecord(known | {"seen": server_round})


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "population": N,
        "horizons": ChoiceSteps((1, 3), every_round=True),
        "participation": SampledParticipation(3),
        "server_step": ServerStep(0.9, momentum=0.3),
        "seed": SEED,
        "fraction_evaluate": 0.0,
        "folder": folder,
    }
    return {**told, **changes}


def outcome(
    strategy: AlgorithmStrategy,
    rounds: int,
    *,
    fault: Fault = no_fault,
    arrivals: int = 0,
) -> Files:
    """Run to a number of rounds; the folder's trace and constants, and the model."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    folder = strategy.folder
    assert folder is not None
    grid = grid_of(fault, arrivals)
    result = strategy.start(grid, model(), rounds, evaluate_fn=evaluate)
    kept = folder / f"seed-{SEED}"
    arrays = {name: result.arrays[name].numpy() for name in ("w", "count", "b")}
    models = [line({"array": name, **described(a)}) for name, a in arrays.items()]
    return {
        "trace.jsonl": (kept / "trace.jsonl").read_bytes(),
        "models.jsonl": b"".join(models),
    }


METHODS: dict[str, Any] = {
    "hew_plain": HewHom(L, 0.8),
    "hew_corrected": HewHet(L, 0.8),
    "scaffold": Scaffold(("zero") / (1.0 / 0.3)),
    "fednova": FedNova(0.3),
    "fedadp": Method(LocalSGD(0.3 / L), FedAdp()),
    "fedaware": Method(LocalSGD(0.3 / L), FedAWARE()),
}


def interrupted_of(name: str) -> Callable[[Path, int], Files]:
    """Begin a run in an empty folder, or go on with the one found there."""

    def run(folder: Path, rounds: int) -> Files:
        arrivals = int(any(folder.glob("seed-*")))
        strategy = AlgorithmStrategy(METHODS[name], **options(folder))
        return outcome(strategy, rounds, arrivals=arrivals)

    return run


def faults_of(name: str) -> Scenario:
    """Nodes that are not finite, that raise, rounds that nobody answers well."""

    def scenario(folder: Path) -> Files:
        told = options(folder, participation=RandomParticipation(0.8))
        method = METHODS[f"hew_{name}"]
        return outcome(AlgorithmStrategy(method, **told), 6, fault=some_faults)

    return scenario


FLOWER: dict[str, Scenario] = {
    "flower_faults_plain": faults_of("plain"),
    "flower_faults_corrected": faults_of("corrected"),
}
FLOWER_RESUMED = {f"flower_{name}": interrupted_of(name) for name in METHODS}
