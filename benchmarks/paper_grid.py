"""One regime of the paper's grid: the engine against a plain per-client loop.

    python benchmarks/paper_grid.py [--quick] [--data NAME] [--device cuda] [--json F]

Both do the same work on the same rounds: every method's own plan and rule, the same
clients and horizons. The plain loop goes method by method and client by client: copy a
torch module, run its local steps, collect the displacement; then evaluate the module on
the training and test part. Measured are rounds of the tuning (every candidate of the
paper's grids, no evaluation) and rounds of the run (tuned methods, evaluated at the
start and every third round, as the spec has it), in turns; the regime's time follows
from its 3 x 20 and 7 x 90 rounds.

Twice: on one thread, and on all cores as each would be run, the loop with that many
torch threads (or one, where that is faster), the engine with a process per core, which
is how `hewfl run` does seeds. Starting and loading are not counted for either.
`--data digits` needs no download; the others are looked for as `hewfl data` does.
"""

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import ratio, seconds, table
from reproduce.specs import main_methods, main_spec

from hewfl import Entry, simulate
from hewfl.displacements.dense import matrix_round
from hewfl.experiments.build_problem import build_federation, build_problem
from hewfl.experiments.spec import Spec
from hewfl.problems import Softmax

TUNED = {
    "HewHom": {"amplitude": 8.0, "curvature_ratio": 1.1},
    "HewHet": {"amplitude": 8.0, "curvature_ratio": 2.0},
    "HewFixed": {"amplitude": 8.0},
    "FedProx": {"step_scale": 1.6, "proximal": 0.01},
}
"""What tuning finds on MNIST; the time does not depend on it."""


def entries_of(smoothness: float, *, tuned: bool) -> list[Entry]:
    methods = []
    for method in main_methods():
        point = dict(TUNED.get(method.method, {"step_scale": 1.6}))
        chosen = replace(method, parameters={**method.parameters, **point}, grid={})
        methods += [chosen] if tuned else list(method.candidates())
    return [method.entry(smoothness) for method in methods]


def plain(
    problem: Softmax, spec: Spec, entries: list[Entry], rounds: int, every: int | None
) -> float:
    """Wall seconds of the plain loop."""
    X, y = torch.as_tensor(problem.features), torch.as_tensor(problem.labels)
    federation = build_federation(spec)
    n, d, c = problem.n, problem.d, problem.classes
    began = time.perf_counter()
    for entry in entries:
        model = torch.nn.Linear(X.shape[1], c, bias=False)
        torch.nn.init.zeros_(model.weight)
        rule = entry.algorithm
        state = rule.init(n, d, np.zeros((n, d)) if rule.demands.gradients else None)
        memory: Any = np.zeros(d)
        if every:
            evaluate(problem, model)
        for t in range(rounds):
            cohort = federation.cohort(0, t, problem.data_sizes)
            plan = rule.plan(cohort, state)
            x = model.weight.detach().numpy().ravel().astype(np.float64)
            rng = np.random.default_rng(t)
            moved = []
            for i, steps in enumerate(cohort.horizons):
                local = copy.deepcopy(model)
                eta = float(plan.step_sizes[i])
                optimiser = torch.optim.SGD(
                    local.parameters(), lr=eta, weight_decay=problem.l2
                )
                first = problem.offsets[cohort.clients[i]]
                for _ in range(int(steps)):
                    rows = first + rng.integers(0, cohort.data_sizes[i], 32)
                    optimiser.zero_grad()
                    scores = (model if plan.hold else local)(X[rows])
                    loss = torch.nn.functional.cross_entropy(scores, y[rows])
                    loss.backward()
                    if plan.hold:
                        local.weight.grad = model.weight.grad
                    if plan.correction is not None:
                        push = plan.correction[i].reshape(c, -1)
                        local.weight.grad -= torch.as_tensor(push, dtype=torch.float32)
                    if plan.proximal:
                        pull = plan.proximal * (local.weight - model.weight).detach()
                        local.weight.grad += pull
                    optimiser.step()
                moved.append(local.weight.detach().numpy().ravel() - x)
            decision, state = rule.decide(
                matrix_round(x, np.stack(moved), cohort, plan, None), state
            )
            step = decision.step
            step = decision.weights @ np.stack(moved) if step is None else step
            move, memory = entry.server_step.apply(step, memory)
            fresh = torch.as_tensor((x + move).reshape(c, -1), dtype=torch.float32)
            model.weight.data.copy_(fresh)
            if every and (t + 1) % every == 0:
                evaluate(problem, model)
    return time.perf_counter() - began


def evaluate(problem: Softmax, model: torch.nn.Module) -> tuple[list[float], float]:
    """Every client's loss, and the accuracy on the test part."""
    assert problem.test is not None
    X, y, *test = map(
        torch.as_tensor, (problem.features, problem.labels, *problem.test)
    )
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(model(X), y, reduction="none")
        parts = torch.split(losses, problem.data_sizes.tolist())
        right = (model(test[0]).argmax(1) == test[1]).float().mean()
        return [float(part.mean()) for part in parts], float(right)


def engine(
    problem: Softmax, spec: Spec, entries: list[Entry], rounds: int, every: int | None
) -> float:
    """Wall seconds of the engine."""
    began = time.perf_counter()
    simulate(
        problem,
        build_federation(spec),
        entries,
        rounds=rounds,
        seed=0,
        dtype=spec.dtype,
        evaluate_every=every,
    )
    return time.perf_counter() - began


@cache
def regime(data: str, device: Any = None) -> tuple[Spec, Softmax]:
    """One regime and its data for the first seed."""
    spec = main_spec(data, "het-random")
    if data == "digits":
        spec = replace(spec, clients=replace(spec.clients, min_samples=8))
    if device is not None:
        spec = replace(spec, device=device)
    problem = build_problem(spec, 0)
    assert isinstance(problem, Softmax)
    return spec, problem


def one_of_several(data: str, tuned: bool, rounds: int) -> tuple[float, float]:
    """When the engine began and ended, in a process of its own."""
    spec, problem = regime(data)
    entries, every = part_of(spec, problem, tuned=tuned)
    began = time.monotonic()
    engine(problem, spec, entries, rounds, every)
    return began, time.monotonic()


def part_of(
    spec: Spec, problem: Softmax, *, tuned: bool
) -> tuple[list[Entry], int | None]:
    """The entries of a part of the regime, and how often they are evaluated."""
    entries = entries_of(problem.smoothness_estimate(), tuned=tuned)
    return entries, spec.evaluate_every if tuned else None


class AllCores:
    """The engine in a process per core, each with a seed's worth of work."""

    def __init__(self, data: str, cores: int) -> None:
        self._given, self._cores = data, cores
        self._pool = ProcessPoolExecutor(cores, get_context("spawn"))
        self(True, 1)  # load the data

    def __call__(self, tuned: bool, rounds: int) -> float:
        """Wall seconds for as many rounds, shared out."""
        tasks = [
            self._pool.submit(one_of_several, self._given, tuned, rounds)
            for _ in range(self._cores)
        ]
        times = [task.result() for task in tasks]
        whole = max(end for _, end in times) - min(begin for begin, _ in times)
        return whole / self._cores

    def close(self) -> None:
        self._pool.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--device", help="also with torch tensors there (cuda)")
    parser.add_argument("--json", type=Path, help="paper_DATA.json if absent")
    options = parser.parse_args()
    cores, few = os.cpu_count() or 1, 1 if options.quick else 2
    counts = {"tuning": (few, 3 * 20), "run": (9 * few, 7 * 90)}
    given = regime(options.data)
    entries = {part: part_of(*given[:2], tuned=part == "run") for part in counts}

    def timed(
        call: Callable[..., float], spec: Spec, problem: Softmax, threads: int
    ) -> Callable[[str, int], float]:
        def spent(part: str, rounds: int) -> float:
            torch.set_num_threads(threads)
            chosen, every = entries[part]
            return call(problem, spec, chosen, rounds, every)

        return spent

    everywhere = AllCores(options.data, cores)
    contenders: dict[str, Callable[[str, int], float]] = {
        "plain loop, 1 thread": timed(plain, *given, 1),
        f"plain loop, {cores} threads": timed(plain, *given, cores),
        "engine, 1 thread": timed(engine, *given, 1),
        f"engine, {cores} processes": lambda part, rounds: everywhere(
            part == "run", rounds
        ),
    }
    if options.device:
        away = regime(options.data, options.device)
        contenders[f"engine, {options.device}"] = timed(engine, *away, 1)
    times: dict[str, dict[str, list[float]]] = {
        name: {part: [] for part in counts} for name in contenders
    }
    for _ in range(1 if options.quick else 3):
        for part, (rounds, _) in counts.items():
            for name, spent in contenders.items():
                times[name][part].append(spent(part, rounds) / rounds)
    everywhere.close()
    each = {n: {p: float(np.median(v)) for p, v in t.items()} for n, t in times.items()}
    whole = {n: sum(t[p] * counts[p][1] for p in counts) for n, t in each.items()}
    alone, *others = (whole[name] for name in list(whole)[:2])
    rows = []
    for name, t in each.items():
        peer = alone if name.endswith("1 thread") else min(alone, *others)
        cells = [seconds(t["tuning"]), seconds(t["run"]), f"{whole[name]:.0f} s"]
        rows.append([name, *cells, ratio(peer / whole[name])])
    head = ["", "tuning round", "run round", "regime", "plain / this"]
    info = report.machine()
    print(report.describe(info) + "\n")
    tried, kept = (len(entries[part][0]) for part in counts)
    print(f"{options.data}, heterogeneous, random H, wall time;")
    print(f"{tried} candidates in the tuning, {kept} methods in the run\n")
    print(table(head, rows))
    saved = {"rounds": each, "regime": whole, "data": options.data, "machine": info}
    report.save(options.json or report.RESULTS / f"paper_{options.data}.json", saved)


if __name__ == "__main__":
    main()
