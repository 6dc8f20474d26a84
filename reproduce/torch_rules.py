"""Which rule a job of unequal ranks should use: every rule in every scenario.

    python -m reproduce torch-rules --cells FOLDER [--jobs N] [--device cpu|cuda]
        [--models transformer cnn] [--seeds 5] [--rounds N]
        [--json FILE [--docs docs/results/torch.md]]

Rules x server step x scenarios x models x seeds, at equal wall-clock: `stacked_job.py`
says how a round is made. Every finished cell (model, scenario, seed; all rules in
it) is a file in FOLDER, and a command that is stopped goes on with what is missing. The
averaged model (EMA of the iterates) is judged beside the iterate. Differences are to
equal weights on the same seeds, with intervals of 95 %.
"""

import argparse
import functools
import json
import multiprocessing as mp
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from hewfl import (
    ExactWeights,
    FedAvg,
    FedNova,
    HewHom,
    LocalSGD,
    Method,
    ServerStep,
    StepWeighted,
    UniformLocalSGD,
)
from hewfl.aggregators import (
    Aggregator,
    Agreement,
    Disagreement,
    GeometricMedian,
    Sieve,
    Trust,
)
from hewfl.core.algorithm import Algorithm
from reproduce import rules_table
from reproduce.stacked_job import STEPS, Job, Local, Scenario
from reproduce.stacked_models import Stacked, char_transformer, small_cnn

MODELS: dict[str, tuple[Callable[[str], Stacked], Local, float, int]] = {
    "transformer": (char_transformer, "adamw", 2e-3, 100),
    "cnn": (small_cnn, "sgd", 0.02, 60),
}
"""Maker, local optimiser, learning rate, rounds."""
OUTERS = {"plain": ServerStep(), "nesterov": ServerStep(0.7, 0.9, nesterov=True)}
SCENARIOS = {
    "clean": Scenario(),
    **{f"bad {i}": Scenario(bad=i) for i in range(len(STEPS))},
    "noisy 0": Scenario(noisy=0),
}


def rules(rate: float) -> dict[str, Algorithm[Any]]:
    """The rules by name; the first is what all are compared with."""
    far = rate * float(STEPS.mean())

    def under(rule: Aggregator) -> Method:
        return Method(LocalSGD(rate), rule)

    by_name: dict[str, Algorithm[Any]] = {
        "equal": UniformLocalSGD(rate),
        "steps": StepWeighted(rate),
        "tokens": FedAvg(rate),
        "fednova": FedNova(rate, by="equal"),
        "kappa 1/2, by rates": HewHom(1 / (2.5 * far), 1.0, 1.25),
    }
    for kappa in (1.0, 1.25, 2.0):
        one = Method(
            LocalSGD(total=1.0),
            ExactWeights(kappa=kappa, normalize="length", cross_fit=False),
        )
        by_name[f"kappa {kappa:g}, by lengths"] = one
    for kappa in (1.25, 2.0):
        by_name[f"kappa {kappa:g}, mean"] = under(
            ExactWeights(kappa=kappa, cross_fit=False)
        )
    fit = under(ExactWeights())
    return by_name | {
        "kappa 1, cross-fitted": fit,
        "agreement": under(Agreement()),
        "agreement, power 1": under(Agreement(power=1.0)),
        "disagreement": under(Disagreement()),
        "geometric median": under(GeometricMedian()),
        "sieve": under(Sieve(tolerance=0.2)),
        "sieve by tokens": under(Sieve(tolerance=0.2)),
        "trust": under(Trust()),
    }


@functools.cache
def build_model(model: str, device: str) -> Stacked:
    """A model with its data, read once in each process."""
    return MODELS[model][0](device)


def _named(device: str) -> str:
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, torch {torch.__version__}"


def run_cell(task: tuple[str, str, int, int, str, str]) -> str:
    """All rules under all server step in one scenario, written to its file."""
    model, scenario, seed, rounds, device, folder = task
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True  # as jobs on such GPUs do
    began = time.perf_counter()
    _, optimiser, rate, usual = MODELS[model]
    rounds = rounds or usual
    job = Job(
        build_model(model, device), optimiser, rate, rounds, SCENARIOS[scenario], seed
    )
    numbers = {"scores": job.run(rules(rate), OUTERS, device), "rounds": rounds}
    numbers["seconds"] = round(time.perf_counter() - began, 1)
    numbers["device"] = _named(device)
    path = _cell(Path(folder), model, scenario, seed)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(numbers))
    draft.rename(path)
    return f"{path.name}: {numbers['seconds']} s"


def gather(folder: Path, models: list[str], seeds: int) -> dict[str, Any]:
    """Finished cells of whole seeds: lists over seeds by model, scenario and entry."""
    numbers: dict[str, Any] = {"rounds": {}, "seeds": 0, "seconds": {}, "cells": {}}
    whole = [
        seed
        for seed in range(seeds)
        if all(_cell(folder, m, w, seed).exists() for m in models for w in SCENARIOS)
    ]
    numbers["seeds"] = len(whole)
    for model in models if whole else []:
        for scenario in SCENARIOS:
            cells = [
                json.loads(_cell(folder, model, scenario, k).read_text()) for k in whole
            ]
            numbers["rounds"][model] = cells[0]["rounds"]
            numbers["device"] = cells[0]["device"]
            numbers["seconds"][f"{model}, {scenario}"] = [
                one["seconds"] for one in cells
            ]
            numbers["cells"].setdefault(model, {})[scenario] = {
                entry: _over_seeds([one["scores"][entry] for one in cells])
                for entry in cells[0]["scores"]
            }
    return numbers


def _over_seeds(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores as lists; weights, and shares of rounds with weight zero, as means."""
    numbers: dict[str, Any] = {}
    for key in ("loss", "average loss", "accuracy", "average accuracy"):
        numbers[key] = [round(one[key], 5) for one in cells]
    for key in ("weights", "zero"):
        known = [one[key] for one in cells if one[key]]
        each = zip(*known, strict=True)
        numbers[key] = [round(sum(part) / len(known), 4) for part in each]
    return numbers


def _cell(folder: Path, model: str, scenario: str, seed: int) -> Path:
    return folder / f"{model}-{scenario.replace(' ', '')}-{seed}.json"


def main() -> None:
    """Run what is missing, then print the tables and write all numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path, help="page to write the table into")
    asked = parser.parse_args()
    asked.cells.mkdir(parents=True, exist_ok=True)
    tasks = [
        (model, scenario, seed, asked.rounds, asked.device, str(asked.cells))
        for seed in range(asked.seeds)  # whole seeds first: a stopped run has tables
        for model in asked.models
        for scenario in asked.scenarios
        if not _cell(asked.cells, model, scenario, seed).exists()
    ]
    with mp.get_context("spawn").Pool(asked.jobs) as pool:
        for done, line in enumerate(pool.imap_unordered(run_cell, tasks), 1):
            print(f"{done}/{len(tasks)} {line}", flush=True)
    numbers = gather(asked.cells, asked.models, asked.seeds)
    if numbers["seeds"] == 0:
        print("no seed has all its scenarios yet")
        return
    print(rules_table.render_table(numbers))
    if asked.json is not None:
        text = json.dumps(numbers).replace('"cells": ', '\n"cells": ')
        asked.json.write_text(text.replace('}, "', '},\n"') + "\n")
        if asked.docs is not None:
            rules_table.write(asked.json, asked.docs)
