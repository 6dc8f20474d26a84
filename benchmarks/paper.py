"""One regime of the paper's grid: the engine against a plain per-client loop.

    python benchmarks/paper.py [--quick] [--data mnist] [--device cuda] [--json FILE]

Both do the same work on the same rounds: every method's own plan and rule, the same
clients and horizons. The plain loop goes method by method and client by client: copy a
torch module, run its local steps, collect the displacement; then evaluate the module on
the training and test part. Measured are rounds of the tuning (every candidate of the
paper's grids, no evaluation) and rounds of the run (tuned methods, evaluated at the
start and every third round, as the spec has it), in turns; the regime's time follows
from its 3 x 20 and 7 x 90 rounds.
`--data digits` needs no download; the others are looked for as `hewfl data` does.
"""

import argparse
import copy
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import ratio, seconds, table

from hewfl import Lane, Round, simulate
from hewfl.experiments.paper import main_methods, main_spec
from hewfl.experiments.spec import Spec
from hewfl.experiments.world import build_federation, build_problem
from hewfl.problems import Softmax
from hewfl.sim.outer import outer_step

TUNED = {
    "HewHom": {"amplitude": 8.0, "curvature_ratio": 1.1},
    "HewHet": {"amplitude": 8.0, "curvature_ratio": 2.0},
    "HewFixed": {"amplitude": 8.0},
    "FedProx": {"step_scale": 1.6, "proximal": 0.01},
}
"""What tuning finds on MNIST; the time does not depend on it."""


def lanes_of(smoothness: float, *, tuned: bool) -> list[Lane]:
    found = []
    for method in main_methods():
        point = dict(TUNED.get(method.method, {"step_scale": 1.6}))
        chosen = replace(method, parameters={**method.parameters, **point}, grid={})
        found += [chosen] if tuned else list(method.candidates())
    return [method.lane(smoothness) for method in found]


def plain(
    problem: Softmax, spec: Spec, lanes: list[Lane], rounds: int, every: int | None
) -> float:
    """Wall seconds of the plain loop."""
    X, y = torch.as_tensor(problem.features), torch.as_tensor(problem.labels)
    federation = build_federation(spec)
    n, d, c = problem.n, problem.d, problem.classes
    began = time.perf_counter()
    for lane in lanes:
        model = torch.nn.Linear(X.shape[1], c, bias=False)
        torch.nn.init.zeros_(model.weight)
        rule = lane.algorithm
        state = rule.init(n, d, np.zeros((n, d)) if rule.needs_gradients else None)
        memory: Any = np.zeros(d)
        if every:
            evaluated(problem, model)
        for t in range(rounds):
            roster = federation.roster(0, t, problem.data_sizes)
            plan = rule.plan(roster, state)
            x = model.weight.detach().numpy().ravel().astype(np.float64)
            rng = np.random.default_rng(t)
            moved = []
            for i, steps in enumerate(roster.horizons):
                local = copy.deepcopy(model)
                eta = float(plan.step_sizes[i])
                optimiser = torch.optim.SGD(
                    local.parameters(), lr=eta, weight_decay=problem.l2
                )
                first = problem.offsets[roster.clients[i]]
                for _ in range(int(steps)):
                    rows = first + rng.integers(0, roster.data_sizes[i], 32)
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
                Round(x, np.stack(moved), roster, plan, None), state
            )
            step = decision.step
            step = decision.weights @ np.stack(moved) if step is None else step
            move, memory = outer_step(lane.outer, step, memory)
            fresh = torch.as_tensor((x + move).reshape(c, -1), dtype=torch.float32)
            model.weight.data.copy_(fresh)
            if every and (t + 1) % every == 0:
                evaluated(problem, model)
    return time.perf_counter() - began


def evaluated(problem: Softmax, model: torch.nn.Module) -> tuple[list[float], float]:
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
    problem: Softmax, spec: Spec, lanes: list[Lane], rounds: int, every: int | None
) -> float:
    """Wall seconds of the engine."""
    began = time.perf_counter()
    simulate(
        problem,
        build_federation(spec),
        lanes,
        rounds=rounds,
        seed=0,
        dtype=spec.dtype,
        evaluate_every=every,
    )
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--device", help="also with torch tensors there (cuda)")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "paper.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = main_spec(options.data, "het-random")
    if options.data == "digits":
        spec = replace(spec, clients=replace(spec.clients, minimum=8))
    problem = build_problem(spec, 0)
    L = problem.smoothness_estimate()
    few = 1 if options.quick else 2
    parts: dict[str, tuple[list[Lane], int, int | None, int]] = {
        "tuning": (lanes_of(L, tuned=False), few, None, 3 * 20),
        "run": (lanes_of(L, tuned=True), 9 * few, spec.evaluate_every, 7 * 90),
    }
    problems: dict[str, Any] = {"plain": problem, "engine": problem}
    if options.device:
        away = build_problem(replace(spec, device=options.device), 0)
        problems[options.device] = away
    times: dict[str, dict[str, list[float]]] = {
        name: {part: [] for part in parts} for name in problems
    }
    for _ in range(1 if options.quick else 3):
        for part, (lanes, rounds, every, _) in parts.items():
            for name, given in problems.items():
                call = plain if name == "plain" else engine
                spent = call(given, spec, lanes, rounds, every)
                times[name][part].append(spent / rounds)
    each = {n: {p: float(np.median(v)) for p, v in t.items()} for n, t in times.items()}
    whole = {n: sum(t[p] * parts[p][3] for p in parts) for n, t in each.items()}
    rows = [
        [
            name,
            seconds(t["tuning"]),
            seconds(t["run"]),
            f"{whole[name]:.0f} s",
            ratio(whole["plain"] / whole[name]),
        ]
        for name, t in each.items()
    ]
    head = ["", "tuning round", "run round", "regime, one core", "plain / this"]
    info = report.machine()
    print(report.describe(info) + "\n")
    tried, kept = len(parts["tuning"][0]), len(parts["run"][0])
    print(f"{options.data}, heterogeneous, random H, one thread, wall time;")
    print(f"{tried} candidates in the tuning, {kept} methods in the run\n")
    print(table(head, rows))
    saved = {"rounds": each, "regime": whole, "data": options.data, "machine": info}
    report.save(options.json, saved)


if __name__ == "__main__":
    main()
