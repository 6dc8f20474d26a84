"""Rounds of the engine against a naive PyTorch loop and Flower, in one run.

    python benchmarks/softmax_rounds.py [--quick] [--device cpu|cuda] [--flower PYTHON]
                                [--json FILE] [--markdown FILE]

The paper's shape: softmax regression on 785 features and 10 classes, 20 clients, 4
local steps of 32 samples, float32, one thread, no evaluation. The naive loop is what
one writes first: copy the module for each client, run an optimiser, average state
dicts. Flower's rounds (`flower_rounds.py`) run in processes of their own, before and
after the rest, and are counted in wall time without start-up. Growth is measured over
clients and over features; the machine's matrix-product and memory limits are measured
in the same run.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import ratio, seconds, table

from hewfl import Federation, FixedSteps, HewHet, HewHom, UniformLocalSGD, simulate
from hewfl.problems import Softmax

ROUNDS = 10
ENTRIES = 25


def softmax(n: int, p: int, c: int = 10, each: int = 2000) -> Softmax:
    rng = np.random.default_rng(0)
    m = n * each
    X = rng.standard_normal((m, p), dtype=np.float32)
    y = rng.integers(0, c, m)
    sizes = np.full(n, each)
    return Softmax(X, y, np.arange(n) * each, sizes, c, 1e-4)


def on_device(problem: Softmax, device: str) -> Softmax:
    """The same problem with its samples as torch tensors."""
    X = torch.from_numpy(problem.features).to(device)
    y = torch.from_numpy(problem.labels).to(device)
    given = problem.offsets, problem.data_sizes, problem.classes, problem.l2
    return Softmax(X, y, *given)


def engine(problem: Softmax, algorithms: list[Any], rounds: int) -> Callable[[], Any]:
    federation = Federation(FixedSteps(4), 32)

    def call() -> Any:
        trace = simulate(
            problem,
            federation,
            algorithms,
            rounds=rounds,
            seed=0,
            dtype=np.float32,
            evaluate_every=None,
        )
        return trace.anchors[0]

    return call


def naive(problem: Softmax, rounds: int, eta: float) -> Callable[[], Any]:
    """A module copied for each client, an optimiser each, state dicts averaged."""
    X, y = torch.from_numpy(problem.features), torch.from_numpy(problem.labels)
    sizes, offsets = problem.data_sizes, problem.offsets
    loss_of = torch.nn.CrossEntropyLoss()

    def call() -> Any:
        rng = np.random.default_rng(0)
        model = torch.nn.Linear(X.shape[1], problem.classes, bias=False)
        torch.nn.init.zeros_(model.weight)
        for _ in range(rounds):
            states = []
            for i in range(problem.n):
                local = copy.deepcopy(model)
                optimiser = torch.optim.SGD(
                    local.parameters(), lr=eta, weight_decay=1e-4
                )
                for _ in range(4):
                    batch = offsets[i] + rng.integers(0, sizes[i], 32)
                    optimiser.zero_grad()
                    loss_of(local(X[batch]), y[batch]).backward()
                    optimiser.step()
                states.append(local.state_dict())
            mean = {k: sum(s[k] for s in states) / len(states) for k in states[0]}
            model.load_state_dict(mean)
        return model.weight.detach().numpy().ravel()

    return call


def flower(python: str, problem: Softmax, rounds: int) -> float:
    """Median wall seconds of a round in Flower's simulation runtime, start-up apart."""
    script = Path(__file__).with_name("flower_rounds.py")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "features.npy"), problem.features)
        np.save(Path(folder, "labels.npy"), problem.labels)
        call = [python, str(script), folder, str(rounds)]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return statistics.median(times[1:])  # the first also starts the workers


def limits() -> dict[str, float]:
    """Billions of operations and bytes a second: a large product, a large read."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((2000, 2000), dtype=np.float32)
    big = np.ones(50_000_000, np.float32)
    calls = {"product": lambda: A @ A, "read": lambda: big.sum(keepdims=True)}
    out = report.interleave(calls, np.random.default_rng(0), rounds=5, budget=5.0)
    return {
        "GFlop/s": 2 * 2000**3 / out["product"].cpu / 1e9,
        "GB/s": big.nbytes / out["read"].cpu / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", help="also with torch tensors there (cpu, cuda)")
    parser.add_argument(
        "--flower", help="a Python with flwr[simulation] and torch; also its rounds"
    )
    parser.add_argument("--json", type=Path, default=report.RESULTS / "engine.json")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    info = report.machine()
    rng = np.random.default_rng(1)
    repeats = 2 if options.quick else 5
    problem = softmax(20, 785)
    L = problem.smoothness_estimate()
    eta = 0.4 / L
    uniform = [UniformLocalSGD(0.4 / L)]
    many = [UniformLocalSGD((0.1 + 0.02 * k) / L) for k in range(ENTRIES)]
    calls: dict[str, Callable[[], Any]] = {
        "naive PyTorch loop": naive(problem, ROUNDS, eta),
        "one entry, uniform weights": engine(problem, uniform, ROUNDS),
        "one entry, HEW plain": engine(problem, [HewHom(L, 1.0)], ROUNDS),
        "one entry, HEW corrected": engine(problem, [HewHet(L, 1.0)], ROUNDS),
        f"{ENTRIES} entries, uniform weights": engine(problem, many, ROUNDS),
    }
    if options.device:
        there = on_device(problem, options.device)
        calls[f"one entry, tensors on {options.device}"] = engine(
            there, uniform, ROUNDS
        )
        calls[f"{ENTRIES} entries, tensors on {options.device}"] = engine(
            there, many, ROUNDS
        )
    before = flower(options.flower, problem, 20) if options.flower else None
    out = report.interleave(calls, rng, rounds=repeats, budget=60.0)
    loop, one = out["naive PyTorch loop"].cpu, out["one entry, uniform weights"].cpu
    rows = [
        [name, seconds(o.cpu / ROUNDS), ratio(loop / o.cpu), ratio(o.cpu / one)]
        for name, o in out.items()
    ]
    federated: dict[str, float] = {}
    if (
        before is not None
    ):  # once before and once after; wall time, for it has processes
        each = (before + flower(options.flower, problem, 20)) / 2
        alone = out["one entry, uniform weights"].wall / ROUNDS
        federated = {"Flower": each, "one entry": alone}
        rows.append(
            [
                "Flower's simulation runtime (wall)",
                seconds(each),
                "",
                ratio(each / alone),
            ]
        )
    speed = limits()
    flops = 2 * 2 * 20 * 4 * 32 * 785 * 10
    gathered = 20 * 4 * 32 * 785 * 4
    least = flops / speed["GFlop/s"] / 1e9 + gathered / speed["GB/s"] / 1e9
    growth = {}
    for n, p in ((20, 785), (200, 785), (2000, 785), (10000, 785), (20, 7850)):
        small = softmax(n, p, each=40)
        calls = {"engine": engine(small, [UniformLocalSGD(0.01)], 2)}
        o = report.interleave(calls, rng, rounds=repeats, budget=30.0)["engine"]
        growth[f"{n} clients, {p * 10} parameters"] = o.cpu / 2
    first = growth["20 clients, 7850 parameters"]
    text = "\n".join(
        [
            report.describe(info) + "\n",
            table(["", "a round", "naive loop / this", "this / one entry"], rows),
            f"Limits: {speed['GFlop/s']:.0f} GFlop/s, {speed['GB/s']:.0f} GB/s. One "
            f"entry does {flops / 1e6:.0f} MFlop and gathers {gathered / 1e6:.0f} MB a "
            f"round, at those limits {seconds(least)}; it takes "
            f"{ratio(one / ROUNDS / least)} times that.",
            table(
                ["growth", "a round", "over the first"],
                [[k, seconds(v), ratio(v / first)] for k, v in growth.items()],
            ),
        ]
    )
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    saved = {
        "times": {k: o.cpu / ROUNDS for k, o in out.items()},
        "limits": speed,
        "growth": growth,
        "wall": federated,
    }
    report.save(options.json, saved | {"machine": info})


if __name__ == "__main__":
    main()
