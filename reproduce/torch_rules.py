"""Which rule a job of unequal ranks should use: every rule in every scenario.

    python -m reproduce torch-rules --cells FOLDER [--jobs N] [--device cpu|cuda]
        [--models transformer cnn large-transformer] [--seeds 5] [--rounds N]
        [--json FILE [--docs docs/results/torch.md]] [--held-out]

Rules x server step x scenarios x models x seeds, at equal wall-clock: `stacked_job.py`
says how a round is made. Every finished cell (model, scenario, seed; all rules in
it) is a file in FOLDER, and a command that is stopped goes on with what is missing. The
averaged model (EMA of the iterates) is judged beside the iterate. Differences are to
equal weights on the same seeds, with intervals of 95 %.

`--held-out` runs a second grid: other speeds, other data, other seeds, and good ranks
with unlike data. `sieve, per step` was chosen without it, `sieve, relative` after it.
"""

import argparse
import functools
import json
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from hewfl import FedAvg, LocalSGD, Method, Round, ServerStep, UniformLocalSGD
from hewfl.aggregators import (
    Aggregator,
    Agreement,
    Sieve,
    Trust,
)
from hewfl.core.algorithm import Algorithm, Need
from hewfl.core.round import Decision
from reproduce import rules_table
from reproduce.stacked_job import Fault, Job, Local, Scenario
from reproduce.stacked_models import (
    Stacked,
    char_transformer,
    python_source,
    small_cnn,
)

TINY_TEXT = {"width": 16, "blocks": 1, "context": 16, "heads": 2}
MODELS: dict[str, tuple[Callable[[str], Stacked], Local, float, int]] = {
    "transformer": (
        functools.partial(char_transformer, sizes=TINY_TEXT),
        "adamw",
        4e-3,
        24,
    ),
    "cnn": (
        functools.partial(small_cnn, held_out=500, pooled=4, width=4),
        "sgd",
        0.02,
        20,
    ),
    "source-transformer": (
        functools.partial(char_transformer, sizes=TINY_TEXT, read=python_source),
        "adamw",
        4e-3,
        24,
    ),
    "mnist-cnn": (
        functools.partial(small_cnn, held_out=500, pooled=4, width=4, name="mnist"),
        "sgd",
        0.02,
        20,
    ),
    "large-transformer": (char_transformer, "adamw", 2e-3, 100),
    "large-cnn": (small_cnn, "sgd", 0.02, 60),
}
"""Maker, local optimiser, learning rate, rounds."""
OUTERS = {"plain": ServerStep(), "nesterov": ServerStep(0.7, 0.9, nesterov=True)}
SPEEDS = {
    "1:1:1:1": (8, 8, 8, 8),
    "2:1": (8, 8, 4, 4),
    "16:4:2:1": (16, 4, 2, 1),
    "one slow": (8, 8, 8, 1),
}
FAULTS: dict[str, tuple[Fault, tuple[int, ...]]] = {
    "clean": ("none", ()),
    "labels": ("labels", (0,)),
    "flipped": ("flipped", (0,)),
    "rate × 10": ("rate", (0,)),
    "frozen": ("frozen", (0,)),
    "noisy": ("noisy", (0,)),
    "two alike": ("labels", (0, 3)),
}
"""The bad rank is the fastest; two alike are the fastest and the slowest."""
SCENARIOS: dict[str, Scenario] = {
    f"{fault}, {speed}": Scenario(steps, *FAULTS[fault])
    for fault in FAULTS
    for speed, steps in SPEEDS.items()
}
HELD_OUT_SPEEDS = {
    "9:5:3:1": (9, 5, 3, 1),
    "one fast": (16, 4, 4, 4),
    "8:7:6:5": (8, 7, 6, 5),
}
HELD_OUT: dict[str, Scenario] = {
    f"{fault}, {speed}": Scenario(steps, *place)
    for fault, place in (FAULTS | {"skewed": ("skewed", ())}).items()
    for speed, steps in HELD_OUT_SPEEDS.items()
}
HELD_OUT_SEED = 100
"""The first seed of the held-out grid; that of the other is 0."""


@final
@dataclass(frozen=True, slots=True)
class RadialDirectional(Aggregator):
    """Mean length times mean direction: radial-directional averaging.

        step = (Σ m_i‖Δ_i‖/Σ m_i) · u/‖u‖,    u = Σ m_iΔ_i/‖Δ_i‖

    Of Decoupled DiLoCo (arXiv 2604.21428), as two public implementations have it; over
    the whole model here, where its authors take each fragment by itself.
    """

    name: ClassVar[str] = "RadialDirectional"
    needs: ClassVar[frozenset[Need]] = frozenset({"sizes"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The step as weights; the weighted mean where directions cancel."""
        G = round_.displacements.gram()
        m = round_.cohort.data_sizes / round_.cohort.data_sizes.sum()
        lengths = np.sqrt(np.diagonal(G))
        toward = np.divide(m, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        total = float(np.sqrt(max(toward @ G @ toward, 0.0)))
        if total < 1e-12:
            return Decision(m, "directions cancel"), state
        return Decision((m @ lengths) * toward / total, "mean direction"), state


def rules(rate: float) -> dict[str, Algorithm[Any]]:
    """The rules by name; the first is what all are compared with."""

    def under(rule: Aggregator) -> Method:
        return Method(LocalSGD(rate), rule)

    sieve = Sieve(tolerance=0.2, by="equal")
    return {
        "equal": UniformLocalSGD(rate),
        "tokens": FedAvg(rate),
        "tokens²/steps": FedAvg(rate),
        "radial-directional": under(RadialDirectional()),
        "agreement": under(Agreement()),
        "sieve": under(sieve),
        "sieve, per step": under(replace(sieve, per_step=True)),
        "sieve, relative": under(replace(sieve, per_step=True, relative=True)),
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
        build_model(model, device),
        optimiser,
        rate,
        rounds,
        (SCENARIOS | HELD_OUT)[scenario],
        seed,
    )
    numbers = {"scores": job.run(rules(rate), OUTERS, device), "rounds": rounds}
    numbers["seconds"] = round(time.perf_counter() - began, 1)
    numbers["device"] = _named(device)
    path = _cell(Path(folder), model, scenario, seed)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(numbers))
    draft.rename(path)
    return f"{path.name}: {numbers['seconds']} s"


def gather(
    folder: Path, models: list[str], seeds: range, scenarios: Iterable[str]
) -> dict[str, Any]:
    """Finished cells of whole seeds: lists over seeds by model, scenario and entry."""
    numbers: dict[str, Any] = {"rounds": {}, "seeds": 0, "seconds": {}, "cells": {}}
    whole = [
        seed
        for seed in seeds
        if all(_cell(folder, m, w, seed).exists() for m in models for w in scenarios)
    ]
    numbers["seeds"] = len(whole)
    for model in models if whole else []:
        for scenario in scenarios:
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
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--scenarios", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path, help="page to write the table into")
    asked = parser.parse_args()
    asked.cells.mkdir(parents=True, exist_ok=True)
    usual = ["source-transformer", "mnist-cnn"] if asked.held_out else list(MODELS)[:2]
    models = asked.models or usual
    scenarios = list(HELD_OUT if asked.held_out else SCENARIOS)
    first = HELD_OUT_SEED if asked.held_out else 0
    seeds = range(first, first + asked.seeds)
    tasks = [
        (model, scenario, seed, asked.rounds, asked.device, str(asked.cells))
        for seed in seeds  # whole seeds first: a stopped run has tables
        for model in models
        for scenario in asked.scenarios or scenarios
        if not _cell(asked.cells, model, scenario, seed).exists()
    ]
    with mp.get_context("spawn").Pool(asked.jobs) as pool:
        for done, line in enumerate(pool.imap_unordered(run_cell, tasks), 1):
            print(f"{done}/{len(tasks)} {line}", flush=True)
    numbers = gather(asked.cells, models, seeds, scenarios)
    if numbers["seeds"] == 0:
        print("no seed has all its scenarios yet")
        return
    render = rules_table.render_table
    print((rules_table.render_held_out if asked.held_out else render)(numbers))
    if asked.json is not None:
        text = json.dumps(numbers).replace('"cells": ', '\n"cells": ')
        asked.json.write_text(text.replace('}, "', '},\n"') + "\n")
        if asked.docs is not None:
            rules_table.write(asked.json, asked.docs)
