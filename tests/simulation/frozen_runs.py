"""Small runs whose numbers are frozen, and the script that writes `frozen_runs.json`.

    python -m tests.simulation.frozen_runs

The numbers in the repository were computed by commit d7cf06f, before the redesign of
the library. Write them again only when the arithmetic changes on purpose.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hewfl import (
    ChoiceSteps,
    Entry,
    FedAvg,
    Federation,
    FedNova,
    FedProx,
    FixedSteps,
    FlippedLabels,
    HewControl,
    HewHet,
    HewHom,
    HiddenBatches,
    ProblemBounds,
    RandomParticipation,
    SampledParticipation,
    Scaffold,
    ScaledUpdates,
    Scenario,
    ServerStep,
    StaleUpdates,
    UniformLocalSGD,
    simulate,
)
from hewfl.problems import random_quadratic, softmax_from_arrays

NUMBERS = Path(__file__).with_suffix(".json")
L = 1.0
QUADRATIC = random_quadratic(
    3, 4, 5, samples=[6, 8, 10, 12], noise=[0.7, 0.4, 0.5, 0.3], heterogeneity=0.7
)
FULL = Federation(FixedSteps([1, 2, 4, 3]), [2, 3, 4, 2])
SAMPLED = Federation(ChoiceSteps(every_round=True), 4, SampledParticipation(3))
RANDOM = Federation(ChoiceSteps((1, 3)), 2, RandomParticipation(0.35))
FAULTS = Scenario(
    (
        FlippedLabels(0.17),
        ScaledUpdates(0.17),
        StaleUpdates(0.17),
        HiddenBatches((1, 3)),
    )
)


def softmax() -> Any:
    """Six clients with twelve samples each, four classes; d = 12."""
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((72, 3)), rng.integers(4, size=72)
    return softmax_from_arrays(X, y, list(np.arange(72).reshape(6, 12)), l2=0.1)


def plain() -> list[Any]:
    """Methods without control variates."""
    return [
        UniformLocalSGD(0.3 / L),
        FedAvg(0.3 / L),
        FedNova(0.3 / L),
        FedProx(0.3 / L, prox=0.1),
        HewHom(L, 0.8),
    ]


def corrected() -> list[Any]:
    """Methods with control variates, Algorithm 1 among them."""
    bounds = ProblemBounds(L, 3.0, 1e-3, 1.0)
    return [Scaffold(0.3 / L), HewHet(L, 0.8), HewControl(bounds, 0.5)]


def server_steps() -> list[Any]:
    """Momentum, division, averages."""
    return [
        Entry(FedAvg(0.3 / L), ServerStep(0.9, 0.5)),
        Entry(HewHom(L, 0.8), ServerStep(0.7, 0.9, nesterov=True, average="ema")),
        Entry(HewHet(L, 0.8), ServerStep(0.1, 0.5, adapt="adam", average="tail")),
    ]


def line_search() -> list[Any]:
    """Lengths of steps from the clients' losses."""
    return [
        Entry(FedAvg(0.3 / L), ServerStep(line_search_samples=3)),
        Entry(HewHet(L, 0.8), ServerStep(momentum=0.5, line_search_samples=3)),
    ]


def run_all() -> dict[str, dict[str, Any]]:
    """Final objectives, models, averages and last weights of every configuration."""
    faulty = Federation(FixedSteps(3), 2, scenario=FAULTS)
    runs: dict[str, tuple[Any, Federation, list[Any], int]] = {
        "plain": (QUADRATIC, FULL, plain(), 6),
        "control variates": (QUADRATIC, FULL, corrected(), 6),
        "sampled": (QUADRATIC, SAMPLED, plain() + corrected(), 6),
        "random": (QUADRATIC, RANDOM, plain() + corrected(), 8),
        "faults": (softmax(), faulty, plain() + corrected(), 12),
        "server steps": (QUADRATIC, SAMPLED, server_steps(), 6),
        "line search": (softmax(), SAMPLED, line_search(), 6),
    }
    numbers = {}
    for name, (problem, federation, methods, rounds) in runs.items():
        trace = simulate(problem, federation, methods, rounds=rounds, seed=11)
        numbers[name] = {
            "objectives": list(trace.final().values()),
            "models": trace.anchors.tolist(),
            "averages": trace.averages.tolist(),
            "weights": [list(trace.of(k)[-1].weights) for k in range(len(methods))],
        }
    return numbers


if __name__ == "__main__":
    NUMBERS.write_text(json.dumps(run_all()) + "\n", encoding="utf-8")
