"""Which rule a job of unequal ranks should use: every rule in every world.

    python benchmarks/torch_rules.py --cells FOLDER [--jobs N] [--device cpu|cuda]
        [--models transformer cnn] [--seeds 5] [--rounds N] [--json FILE]

Rules x outer steps x worlds x models x seeds, at equal wall-clock: `stacked_job.py`
says how a round is made. Every finished cell (model, world, seed; all rules in it) is a
file in FOLDER, and a command that is stopped goes on with what is missing. The averaged
model (EMA of the iterates) is judged beside the iterate. Differences are to equal
weights on the same seeds, with intervals of 95 %.
"""

import argparse
import functools
import json
import multiprocessing as mp
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarks.stacked_job import STEPS, Job, Local, World
from benchmarks.stacked_models import Stacked, char_transformer, small_cnn

from hewfl import (
    Agreement,
    Disagreement,
    FedAvg,
    FedNova,
    GeometricMedian,
    HewHom,
    HewMean,
    Outer,
    StepWeighted,
    UniformLocalSGD,
)
from hewfl.core.algorithm import Algorithm
from hewfl.experiments.compare import compare

MODELS: dict[str, tuple[Callable[[str], Stacked], Local, float, int]] = {
    "transformer": (char_transformer, "adamw", 2e-3, 100),
    "cnn": (small_cnn, "sgd", 0.02, 60),
}
"""Maker, local optimiser, learning rate, rounds."""
OUTERS = {"plain": Outer(), "nesterov": Outer(0.7, 0.9, nesterov=True)}
WORLDS = {
    "clean": World(),
    **{f"bad {i}": World(bad=i) for i in range(len(STEPS))},
    "noisy 0": World(noisy=0),
}


def rules(rate: float) -> dict[str, Algorithm[Any]]:
    """The rules by name; the first is what all are compared with."""
    eta, far = (1.0, rate), rate * float(STEPS.mean())
    found: dict[str, Algorithm[Any]] = {
        "equal": UniformLocalSGD(*eta),
        "steps": StepWeighted(*eta),
        "tokens": FedAvg(*eta),
        "fednova": FedNova(*eta, by_size=False),
        "kappa 1/2, by rates": HewHom(1 / (2.5 * far), 1.0, 1.25),
    }
    for kappa in (1.0, 1.25, 2.0):
        one = HewHom(kappa=kappa, amplitude=1.0, by="length")
        found[f"kappa {kappa:g}, by lengths"] = one
    for kappa in (1.25, 2.0):
        found[f"kappa {kappa:g}, mean"] = HewMean(*eta, kappa, "uniform")
    fit = HewMean(*eta, 1.0, "uniform", cross_fit=True)
    return found | {
        "kappa 1, cross-fitted": fit,
        "agreement": Agreement(*eta),
        "agreement, power 1": Agreement(*eta, power=1.0),
        "disagreement": Disagreement(*eta),
        "geometric median": GeometricMedian(*eta),
    }


@functools.cache
def made(model: str, device: str) -> Stacked:
    """A model with its data, read once in each process."""
    return MODELS[model][0](device)


def run_cell(task: tuple[str, str, int, int, str, str]) -> str:
    """All rules under all outer steps in one world, written to its file."""
    model, world, seed, rounds, device, folder = task
    torch.set_num_threads(1)
    began = time.perf_counter()
    _, optimiser, rate, usual = MODELS[model]
    rounds = rounds or usual
    job = Job(made(model, device), optimiser, rate, rounds, WORLDS[world], seed)
    found = {"scores": job.run(rules(rate), OUTERS, device), "rounds": rounds}
    found["seconds"] = round(time.perf_counter() - began, 1)
    path = Path(folder, f"{model}-{world.replace(' ', '')}-{seed}.json")
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(found))
    draft.rename(path)
    return f"{path.name}: {found['seconds']} s"


def table(cells: dict[str, dict[int, Any]], outer: str, score: str) -> list[str]:
    """Markdown: one row a rule, one column a world; the mean, and if it differs.

    Args:
        cells: scores of one model by world and seed.
        outer: which outer step.
        score: which number; more is better for accuracies.
    """
    more = "accuracy" in score
    names = list(rules(1.0))
    lines = [f"| rule | {' | '.join(cells)} |", "|---" * (len(cells) + 1) + "|"]
    for name in names:
        row = []
        for seeds in cells.values():
            values, equal = (
                [cell[f"{rule} | {outer}"][score] for cell in seeds.values()]
                for rule in (name, names[0])
            )
            mean = sum(values) / len(values)
            mark = ""
            if name != names[0]:
                found = compare(values, equal, larger_is_better=more)
                mark = {"better": " +", "worse": " −", "undecided": ""}[found.verdict]
            row.append(f"{mean:.3f}{mark}")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return lines


def given(cells: dict[str, dict[int, Any]], outer: str) -> list[str]:
    """Markdown: mean weight of each rank, and in how many rounds it was zero."""
    lines = [f"| rule | {' | '.join(cells)} |", "|---" * (len(cells) + 1) + "|"]
    for name in rules(1.0):
        row = []
        for seeds in cells.values():
            told = [cell[f"{name} | {outer}"]["weights"] for cell in seeds.values()]
            told = [w for w in told if w]
            means = [sum(w[i] for w in told) / max(1, len(told)) for i in range(4)]
            row.append(" ".join(f"{w:.2f}" for w in means))
        lines.append(f"| {name} | {' | '.join(row)} |")
    return lines


def safety(everything: dict[str, dict[str, dict[int, Any]]], score: str) -> list[str]:
    """Markdown: how often a rule was better or worse than equal weights, by world.

    Over models and outer steps, each judged on its seeds; and the mean difference.
    """
    kinds = list(dict.fromkeys(world.split()[0] for world in WORLDS))
    lines = [f"| rule | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for name in list(rules(1.0))[1:]:
        row = []
        for kind in kinds:
            found = [
                compare(
                    *(
                        [cell[f"{rule} | {outer}"][score] for cell in seeds.values()]
                        for rule in (name, "equal")
                    )
                )
                for cells in everything.values()
                for world, seeds in cells.items()
                for outer in OUTERS
                if world.split()[0] == kind
            ]
            better, worse = (
                sum(one.verdict == verdict for one in found)
                for verdict in ("better", "worse")
            )
            mean = sum(one.mean for one in found) / max(1, len(found))
            row.append(f"{better} better, {worse} worse of {len(found)}, {mean:+.3f}")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return lines


def read(folder: Path, model: str) -> dict[str, dict[int, Any]]:
    """Finished cells of a model by world and seed."""
    found: dict[str, dict[int, Any]] = {}
    for world in WORLDS:
        for path in sorted(folder.glob(f"{model}-{world.replace(' ', '')}-*.json")):
            seed = int(path.stem.rsplit("-", 1)[1])
            scores = json.loads(path.read_text())["scores"]
            found.setdefault(world, {})[seed] = scores
    return found


def main() -> None:
    """Run what is missing, then print the tables and write all numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    told.cells.mkdir(parents=True, exist_ok=True)
    tasks = [
        (model, world, seed, told.rounds, told.device, str(told.cells))
        for seed in range(told.seeds)  # whole seeds first: a stopped run has tables
        for model in told.models
        for world in told.worlds
        if not (told.cells / f"{model}-{world.replace(' ', '')}-{seed}.json").exists()
    ]
    with mp.get_context("spawn").Pool(told.jobs) as pool:
        for done, line in enumerate(pool.imap_unordered(run_cell, tasks), 1):
            print(f"{done}/{len(tasks)} {line}", flush=True)
    everything = {model: read(told.cells, model) for model in told.models}
    for model, cells in everything.items():
        for outer in OUTERS:
            for score in ("loss", "average loss", "accuracy"):
                print(f"\n{model}, {outer}: test {score}\n")
                print("\n".join(table(cells, outer, score)))
            print(f"\n{model}, {outer}: mean weights of the ranks\n")
            print("\n".join(given(cells, outer)))
    for score in ("loss", "average loss"):
        print(f"\nagainst equal weights, all models and outer steps: test {score}\n")
        print("\n".join(safety(everything, score)))
    if told.json is not None:
        told.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
