"""Local SGD on two gloo ranks, every rule in two precisions, one rank lost once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hewfl import Entry, Federation, FixedSteps, HewHet, HewHom, ServerStep
from hewfl.problems import torch_from_arrays
from hewfl.torch import HewLocalSGD, SyncOptions
from tests.recorded.files import Files, Scenario, described, line, simulated
from tests.torch.pool import Pool

RULES = ("hom", "het", "equal", "steps", "tokens", "fednova")
ROUNDS, LOST = 4, 2
"""Rounds of a job, and the one in which rank 1 is not finite."""


def data_of(rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng([41, rank])
    X, y = rng.standard_normal((8, 3)), rng.standard_normal((8, 2)) + rank
    return torch.tensor(X, dtype=dtype), torch.tensor(y, dtype=dtype)


def train(rank: int, _: int, rule: str, kind: str) -> list[dict[str, Any]]:
    """One rank's job: unequal steps, unequal rates, outer Nesterov momentum."""
    dtype = getattr(torch, kind)
    layer = nn.Linear(3, 2).to(dtype)
    with torch.no_grad():
        for part in layer.parameters():
            values = np.linspace(-0.5, 0.5, part.numel()).reshape(part.shape)
            part.copy_(torch.tensor(values))
    X, y = data_of(rank, dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=(0.1, 0.05)[rank])
    server_step = ServerStep(0.7, 0.9, nesterov=True)
    told = SyncOptions(server_step=server_step, bucket_bytes=64)
    seen = []
    with HewLocalSGD(layer, optimizer, 10**9, rule, None, told) as local:
        for t in range(1, ROUNDS + 1):
            for _ in range((2, 3)[rank]):
                optimizer.zero_grad()
                ((layer(X) - y) ** 2).mean().backward()
                optimizer.step()
            local.count((10, 30)[rank])
            if (rank, t) == (1, LOST):
                with torch.no_grad():
                    layer.weight[0, 0] = torch.nan
            report = local.sync()
            assert report is not None
            parts = [p.detach().reshape(-1) for p in layer.parameters()]
            seen.append(
                {
                    "round": report.round,
                    "weights": list(report.weights),
                    "steps": list(report.steps),
                    "tokens": list(report.tokens),
                    "idle": list(report.idle),
                    "excluded": list(report.excluded),
                    "status": report.status,
                    "gap": report.gap,
                    "model": described(torch.cat(parts).numpy()),
                }
            )
    return seen


Ranks = Callable[[], Pool]
"""Gives the two processes, started when they are first needed."""


def job_of(rule: str, ranks: Ranks) -> Scenario:
    def scenario(folder: Path) -> Files:
        del folder
        files = {}
        for kind in ("float32", "float64"):
            answers = ranks().run(train, 2, rule, kind)
            assert answers[0] == answers[1]  # all ranks say the same
            files[f"{kind}.jsonl"] = b"".join(map(line, answers[0]))
        return files

    return scenario


def module_float32(folder: Path) -> Files:
    """A torch module in the simulator."""
    rng = np.random.default_rng(43)
    X, y = rng.standard_normal((24, 3)).astype(np.float32), rng.integers(2, size=24)
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.linspace(-0.5, 0.5, 6).reshape(2, 3))
        module.bias.zero_()
    shards = [range(6), range(6, 14), range(14, 24)]
    problem = torch_from_arrays(module, X, y, [list(rows) for rows in shards])
    federation = Federation(FixedSteps([1, 2, 3]), 2)
    entries = [HewHom(2.0, 0.8), Entry(HewHet(2.0, 0.8), ServerStep(0.7, 0.5))]
    more: dict[str, Any] = {"dtype": np.float32}
    return simulated(folder, problem, federation, entries, rounds=4, seed=44, **more)


def torch_scenarios(ranks: Ranks) -> dict[str, Scenario]:
    jobs = {f"torch_{rule}": job_of(rule, ranks) for rule in RULES}
    return {**jobs, "torch_module_float32": module_float32}
