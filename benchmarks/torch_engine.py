"""Rounds of a module in the engine against a per-client PyTorch loop, in one run.

    python benchmarks/torch_engine.py [--quick] [--device cpu|cuda] [--json FILE]
                                      [--markdown FILE]

The two modules of the paper's deep-learning lines on random samples, the medium CNN (10
clients, batches of 64) and the text head (10 clients, batches of 16), and a small dense
module: 20 local steps (2 of the CNN on a CPU), float32, clipping and weight decay, with
the dropout of the lines, no evaluation. The per-client loop is what one writes first:
copy the module for each client, run torch's SGD, average the state dicts; its
minibatches are already on the device. The last rows have unequal horizons, where
finished clients leave the stack. Times are wall seconds on a GPU and CPU seconds of one
thread on a CPU.
"""

import argparse
import copy
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import ratio, seconds, table

from hewfl import Federation, FixedSteps, UniformLocalSGD, simulate
from hewfl.problems.module import TorchModule, Training, torch_from_arrays
from hewfl.problems.module.models import classifier_head, medium_cnn
from hewfl.problems.module.stacked import MEMORY_SHARE, chunk_size

CLIENTS, EACH, ENTRIES = 10, 1000, 8
TARGETS = {"cuda": {"CNN": 6.0, "head": 10.0}, "cpu": {}}
"""Least speed-up over the per-client loop; elsewhere it may not be slower."""


@final
@dataclass(frozen=True)
class Line:
    """One of the two modules with its setting."""

    problem: TorchModule
    batch: int
    rate: float
    steps: int


def lines(device: str) -> dict[str, Line]:
    rng = np.random.default_rng(0)
    m = CLIENTS * EACH
    shards = np.array_split(np.arange(m), CLIENTS)
    images = rng.integers(0, 256, (m, 784), dtype=np.uint8)
    cnn = torch_from_arrays(
        medium_cnn(seed=0),
        images,
        rng.integers(0, 10, m),
        shards,
        normalise=(73.0, 90.0),
        training=Training(weight_decay=1e-4, clip=5.0),
        device=device,
    )
    head = torch_from_arrays(
        classifier_head(seed=0),
        rng.standard_normal((m, 768), dtype=np.float32),
        rng.integers(0, 4, m),
        shards,
        training=Training(weight_decay=1e-2, clip=1.0),
        device=device,
    )
    small = torch_from_arrays(
        torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        ),
        rng.standard_normal((m, 64), dtype=np.float32),
        rng.integers(0, 10, m),
        shards,
        training=Training(weight_decay=1e-4, clip=5.0),
        device=device,
    )
    few = 20 if device == "cuda" else 2
    return {
        "CNN": Line(cnn, 64, 1e-3, few),
        "head": Line(head, 16, 5e-4, 20),
        "small": Line(small, 32, 1e-2, 20),
    }


def engine(line: Line, steps: Sequence[int], entries: int = 1, **settings: Any) -> Any:
    """A round of `simulate` by one route."""
    training = replace(line.problem.training, **settings)
    problem = replace(line.problem, training=training)
    scales = np.linspace(1.0, 2.0, entries)
    algorithms = [UniformLocalSGD(float(s) / (1 / line.rate)) for s in scales]
    federation = Federation(FixedSteps(tuple(steps)), line.batch)

    def call() -> Any:
        trace = simulate(
            problem,
            federation,
            algorithms,
            rounds=1,
            seed=0,
            start=problem.start,
            dtype=np.float32,
            evaluate_every=None,
        )
        return trace.anchors[0]

    return call


def naive(line: Line, steps: Sequence[int]) -> Callable[[], Any]:
    """A module copied for each client, an optimiser each, state dicts averaged."""
    problem, training = line.problem, line.problem.training
    X, y, device = problem.features, problem.labels, problem.features.device
    module = copy.deepcopy(problem.module).to(device).train()
    loss_of = torch.nn.CrossEntropyLoss()

    def call() -> Any:
        rng = np.random.default_rng(0)
        states = []
        for i in range(CLIENTS):
            local = copy.deepcopy(module)
            optimiser = torch.optim.SGD(
                local.parameters(), lr=line.rate, weight_decay=training.weight_decay
            )
            draws = problem.offsets[i] + rng.integers(0, EACH, (steps[i], line.batch))
            for rows in torch.tensor(draws, device=device):
                inputs = X[rows]
                if problem.normalise is not None:
                    mean, deviation = problem.normalise
                    inputs = (inputs.float() - mean) / deviation
                optimiser.zero_grad()
                loss_of(local(inputs), y[rows]).backward()
                torch.nn.utils.clip_grad_norm_(local.parameters(), training.clip)
                optimiser.step()
            states.append(local.state_dict())
        mean_state = {k: sum(s[k] for s in states) / CLIENTS for k in states[0]}
        return torch.cat([v.reshape(-1) for v in mean_state.values()]).cpu().numpy()

    return call


def calls_of(line: Line, device: str) -> dict[str, Callable[[], Any]]:
    even = [line.steps] * CLIENTS
    spread = [max(1, line.steps * (i + 1) // CLIENTS) for i in range(CLIENTS)]
    calls = {
        "per-client PyTorch loop": naive(line, even),
        "engine, route auto": engine(line, even),
        "engine, route loop": engine(line, even, route="loop"),
        "engine, route stacked": engine(line, even, route="stacked"),
    }
    if device == "cuda":
        low = "engine, route graph, bfloat16"
        calls[low] = engine(line, even, route="graph", precision="bfloat16")
        calls[f"engine, {ENTRIES} entries"] = engine(line, even, ENTRIES)
    calls["per-client PyTorch loop, unequal"] = naive(line, spread)
    calls["engine, route auto, unequal"] = engine(line, spread)
    return calls


def memory_of(line: Line) -> dict[str, float]:
    """Peak bytes of a round of the stacked route, and what `auto` chunks reckon."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    engine(line, [line.steps] * CLIENTS, route="stacked")()
    peak = torch.cuda.max_memory_allocated() - before
    total = torch.cuda.get_device_properties(0).total_memory
    task = line.problem._task(torch.float32)
    reckoned = MEMORY_SHARE * total / chunk_size(task, line.batch) * CLIENTS
    return {"peak bytes": float(peak), "reckoned bytes": reckoned}


def agreement(line: Line) -> dict[str, Any]:
    """Routes against each other on one round, and a route against itself."""
    even = [line.steps] * CLIENTS
    auto = engine(line, even)
    first, again = auto(), auto()
    loop = engine(line, even, route="loop")()
    moved = np.linalg.norm(loop - line.problem.start)
    difference = np.linalg.norm(first - loop) / moved
    return {
        "auto against loop": float(difference),
        "repeats bit for bit": bool((first == again).all()),
    }


def rows_of(times: dict[str, float]) -> list[list[str]]:
    rows = []
    for name, time in times.items():
        peer = "per-client PyTorch loop"
        peer += ", unequal" if name.endswith("unequal") else ""
        rows.append([name, seconds(time), ratio(times[peer] / time)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    device = options.device
    torch.set_num_threads(1)
    report.SINGLE = 60.0  # rounds of a CNN are long on a CPU; none is measured once
    info = report.machine()
    if device == "cuda":
        info |= {"device": torch.cuda.get_device_name(0)}
    repeats = 2 if options.quick else 7
    texts, saved = [report.describe(info), info.get("device", ""), ""], {}
    for name, line in lines(device).items():
        rng = np.random.default_rng(1)
        calls = calls_of(line, device)
        out = report.interleave(calls, rng, rounds=repeats, budget=60.0)
        for call, outcome in out.items():
            if outcome.error:
                print(f"{name}, {call}: {outcome.error}")
        is_gpu = device == "cuda"
        times = {k: o.wall if is_gpu else o.cpu for k, o in out.items()}
        facts: dict[str, Any] = agreement(line)
        if is_gpu:
            facts |= memory_of(line)
        best = times["per-client PyTorch loop"] / times["engine, route auto"]
        target = TARGETS[device].get(name, 1.0)
        facts |= {"speed-up": best, "target": target}
        verdict = "reached" if best >= target else "missed"
        head = [f"{name}, {line.problem.d:,} parameters", "a round", "loop / this"]
        texts += [table(head, rows_of(times)), ""]
        texts += [f"{key}: {value}" for key, value in facts.items()]
        texts += [f"Target {target:g}: {verdict} ({best:.2f}).", ""]
        saved[name] = {"times": times, "facts": facts, "steps": line.steps}
    text = "\n".join(texts)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    place = options.json or report.RESULTS / f"torch_engine_{device}.json"
    report.save(place, saved | {"machine": info})


if __name__ == "__main__":
    main()
