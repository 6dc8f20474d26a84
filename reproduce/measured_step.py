"""Measured steps against the truth: how far, how sure, and where they fail.

    python -m reproduce measured-step [mnist] [network] [--seeds 7] [--rounds N]
        [--jobs 2]

mnist    softmax regression as in docs/results/server_step, horizon weights, amplitude
         one at the start: samples of each client, lists of a, and how often the true
         decrease of the step lies in the interval of the trace. Looks in HEWFL_DATA.
network  a small convolutional network on digits: five first learning rates, fixed or
         measured.

Written: reproduce/results/measured_step_<part>.json, every seed's values.
"""

import argparse
import json
import multiprocessing as mp
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

from hewfl import (
    ChoiceSteps,
    Entry,
    Federation,
    HewFixed,
    ServerStep,
    Trace,
    UniformLocalSGD,
    simulate,
)
from hewfl.data import dirichlet_partition, load
from hewfl.experiments.build_problem import build_federation, build_problem
from hewfl.experiments.reference_optima import find_smoothness
from hewfl.experiments.spec import read_spec
from hewfl.problems import Training, torch_from_arrays
from hewfl.server.server_step import POINTS
from hewfl.simulation.rounds import Observer, Step

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "reproduce" / "results"
PANELS = ("mnist-het", "mnist-hom")
RATES = (0.003, 0.03, 0.1, 0.3, 1.0)
"""First learning rates of the network."""


def line_search(
    momentum: float, samples: int, at: tuple[float, ...] | None
) -> ServerStep:
    return ServerStep(
        1.0,
        momentum,
        average="ema",
        line_search_samples=samples,
        line_search_points=at or POINTS,
    )


OUTERS = {
    "no momentum, 128 samples": line_search(0.0, 128, None),
    "no momentum, 1024 samples": line_search(0.0, 1024, None),
    "momentum 0.5, 32 samples": line_search(0.5, 32, None),
    "momentum 0.5, 512 samples": line_search(0.5, 512, None),
    "momentum 0.5, a to 4": line_search(0.5, 128, (0.5, 1.0, 2.0, 4.0)),
}


def mnist(seed: int, rounds: int) -> Iterator[tuple[str, Mapping[str, float]]]:
    for panel in PANELS:
        spec = read_spec(ROOT / f"docs/results/server_step/{panel}-averaged/spec.toml")
        problem = build_problem(spec, seed)
        L = find_smoothness(spec, seed, problem)
        entries = [
            Entry(HewFixed(total=1.0 / L, power=1.0), o, name)
            for name, o in OUTERS.items()
        ]
        warm = Entry(HewFixed(total=16.0 / L, power=1.0), line_search(0.5, 128, None))
        trace = simulate(
            problem,
            build_federation(spec),
            [*entries, warm],
            rounds=rounds,
            seed=seed,
            dtype=spec.dtype,
            evaluate_every=10,
            observers=[true_decrease(problem)],
        )
        for k, name in enumerate([*OUTERS, "momentum 0.5, amplitude 16"]):
            yield f"{panel}, {name}", summarise(trace, k)


def true_decrease(problem: Any) -> Observer:
    """Σ w_i (F_i(x) − F_i(x + a s)) and the same for equal weights, all samples.

    Of entries without momentum, whose move is a s.
    """

    def observe(step: Step) -> Mapping[str, float]:
        if step.entry > 1:
            return {}
        x = step.round.anchor
        both = np.stack([x, x + step.move]).astype(np.float32)
        losses = np.asarray(problem.client_losses(both))
        fallen = losses[0] - losses[1]
        return {
            "true_weighted": float(fallen @ step.decision.weights),
            "true_mean": float(fallen.mean()),
        }

    return observe


def summarise(trace: Trace, entry: int) -> Mapping[str, float]:
    """Both objectives, and what the intervals are worth, of one entry."""
    records = trace.of(entry)
    last, early = records[-1], records[min(20, len(records) - 1)]
    values = {
        "objective": last.objective or np.nan,
        "averaged": last.metrics["averaged_objective"],
        "averaged_20": early.metrics["averaged_objective"],
    }
    searches = [r.observed for r in records if "measured_low" in r.observed]
    moved = [s for s in searches if s["measured_step"] > 0]
    values["rounds_still"] = len(searches) - len(moved)
    values["share_above_zero"] = float(np.mean([s["measured_low"] > 0 for s in moved]))
    for true in ("true_weighted", "true_mean"):
        if true in moved[0]:
            inside = [s["measured_low"] <= s[true] <= s["measured_high"] for s in moved]
            values[f"{true}_inside"] = float(np.mean(inside))
    if "true_mean" in moved[0]:
        sure = [s["true_mean"] <= 0 for s in moved if s["measured_low"] > 0]
        values["sure_and_wrong"] = float(np.mean(sure)) if sure else 0.0
    return values


def network(seed: int, rounds: int) -> Iterator[tuple[str, Mapping[str, float]]]:
    torch.manual_seed(seed)
    convolutions = (nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1))
    module = nn.Sequential(
        *(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    data = load("digits")
    X = data.features.reshape(-1, 1, 8, 8).astype(np.float32) / 8 - 1
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:1400], order[1400:]
    problem = torch_from_arrays(
        module,
        X[train],
        data.labels[train],
        dirichlet_partition(data.labels[train], 10, 0.3, seed, min_samples=8),
        parts={"test": (X[test], data.labels[test])},
        training=Training(),
        device="cpu",
    )
    outers = {
        "fixed": ServerStep(average="ema"),
        "fixed, momentum 0.8": ServerStep(1.0, 0.8, average="ema"),
        "measured": line_search(0.0, 32, None),
        "measured, momentum 0.5": line_search(0.5, 32, None),
    }
    names = [(rate, name) for rate in RATES for name in outers]
    entries = [Entry(UniformLocalSGD(rate), outers[name]) for rate, name in names]
    federation = Federation(ChoiceSteps((1, 2, 4, 8), every_round=True), 16)
    given = (problem, federation, entries)
    more: dict[str, Any] = {"dtype": np.float32, "evaluate_every": rounds}
    trace = simulate(*given, rounds=rounds, seed=seed, **more)
    for k, (rate, name) in enumerate(names):
        last = trace.of(k)[-1]
        yield (
            f"rate {rate:g}, {name}",
            {
                "averaged": last.metrics.get("averaged_objective", np.inf),
                "averaged_accuracy": last.metrics.get("averaged_test_accuracy", 0.1),
                "scale": last.observed.get("amplitude_scale", 1.0),
            },
        )


def of_seed(part: str, seed: int, rounds: int | None) -> dict[str, Mapping[str, float]]:
    """All rows of one part for one seed, by name."""
    torch.set_num_threads(1)
    if part == "mnist":
        return dict(mnist(seed, rounds or 60))
    return dict(network(seed, rounds or 40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["mnist", "network"])
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--rounds", type=int, help="else 60 for mnist, 40 for network")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    for part in given.parts:
        rows: dict[str, list[Mapping[str, float]]] = {}
        tasks = [(part, seed, given.rounds) for seed in range(given.seeds)]
        with mp.get_context("spawn").Pool(given.jobs) as pool:
            for rows_of_seed in pool.starmap(of_seed, tasks, chunksize=1):
                for name, row in rows_of_seed.items():
                    rows.setdefault(name, []).append(row)
        file = RESULTS / f"measured_step_{part}.json"
        text = json.dumps(rows, indent=1).replace("Infinity", "null")  # diverged
        file.write_text(text + "\n")
        for name, each in rows.items():
            means = {k: np.mean([row[k] for row in each]) for k in each[0]}
            text = ", ".join(f"{k} {value:.4f}" for k, value in means.items())
            print(f"{name:42} {text}")
