"""Random quadratics on the engine's own draws, so that `simulate` knows the answer."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from hewfl import Cohort, FixedSteps, HewHet, HewHom, Scaffold
from hewfl.flower import AlgorithmStrategy, ClientObjective, StepContext, client_app
from hewfl.problems import random_quadratic
from hewfl.simulation.draws import draw

D, BATCH, HORIZONS = 5, 3, (1, 2, 4, 3, 2, 1, 4, 2)


def problem_of(n: int) -> Any:
    return random_quadratic(seed=0, n=n, d=D)


def method_of(name: str, smoothness: float) -> Any:
    methods = {
        "HewHet": HewHet(smoothness, 0.5),
        "HewHom": HewHom(smoothness, 0.5),
        "Scaffold": Scaffold(0.2 / smoothness),
    }
    return methods[name]


def build(context: Context) -> ClientObjective:
    config = context.run_config
    n, seed, pause = int(config["clients"]), int(config["seed"]), config["pause"]
    problem, i = problem_of(n), int(context.node_config["partition-id"])
    sizes, one = problem.data_sizes, np.ones(1, dtype=np.int64)
    cohort = Cohort(one * i, one, one * BATCH, sizes[i : i + 1], n)

    def gradient(x: Any, moment: StepContext) -> Any:
        time.sleep(float(pause))
        longer = replace(cohort, horizons=one * (moment.step + 1))
        drawn = draw(seed, moment.round, longer, problem.offsets)
        samples = drawn.samples[moment.step]
        return problem.minibatch_gradients(x[None, None], samples, drawn.counts)[0, 0]

    return ClientObjective(gradient, int(sizes[i]), BATCH)


client = client_app(build)
server = ServerApp()


@server.main()  # type: ignore[untyped-decorator]  # checked without flwr
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    n = int(config["clients"])
    problem = problem_of(n)
    method = method_of(str(config["method"]), problem.smoothness)
    strategy = AlgorithmStrategy(
        method,
        population=n,
        local_steps=FixedSteps(HORIZONS[:n]),
        seed=int(config["seed"]),
        wait_seconds=float(config["wait"]),
        fraction_evaluate=0.0,
        folder=str(config["folder"]),
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        x = arrays["0"].numpy()[None]
        del server_round
        return MetricRecord({"objective": float(problem.objectives(x)[0, 0])})

    strategy.start(
        grid,
        ArrayRecord([np.zeros(D)]),
        int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
