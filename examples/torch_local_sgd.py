"""Local SGD on four machines of unequal speed, with four aggregators.

    torchrun --standalone --nproc-per-node=4 examples/torch_local_sgd.py

Plain `python examples/torch_local_sgd.py` starts torchrun itself. Real data
(handwritten digits), a small network, and ranks that need 1, 2, 4 and 8 ms for a
step. Each rank does as many steps as fit a time budget; a round then aggregates. Prints
the training loss against wall-clock time and bytes.
"""

import os
import subprocess
import sys
import time
from copy import deepcopy
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hewfl import ExactWeights, LocalSGD, Method
from hewfl.data import dirichlet_partition, load
from hewfl.torch import HewLocalSGD

AGGREGATORS: dict[str, Any] = {
    "mean": "mean",
    "step-weighted": "step-weighted",
    "exact": "exact",
    "exact, control variates": Method(
        LocalSGD(0.1, variates="gradient"), ExactWeights("variate")
    ),
}
STEP_TIMES = (0.001, 0.002, 0.004, 0.008)
BUDGET = timedelta(milliseconds=40)
ROUNDS = 25


def shards(ranks: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Digits, scaled; each rank's rows, with labels split unevenly."""
    digits = load("digits")
    features = torch.tensor(digits.features, dtype=torch.float32) / 16
    labels = torch.tensor(digits.labels)
    parts = dirichlet_partition(digits.labels, ranks, alpha=0.5, seed=0)
    return features, labels, [torch.tensor(rows) for rows in parts]


def train(aggregator: Any, rank: int, ranks: int) -> list[tuple[float, int, Any]]:
    """(seconds, bytes sent, model) after each round."""
    features, labels, rows = shards(ranks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(rank)
    points: list[tuple[float, int, Any]] = []
    with HewLocalSGD(model, optimizer, BUDGET, aggregator) as local:
        began, sent = time.monotonic(), local.bytes_sent
        while local.rounds < ROUNDS:
            batch = rows[rank][torch.randint(len(rows[rank]), (16,), generator=draws)]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features[batch]), labels[batch])
            loss.backward()
            time.sleep(STEP_TIMES[rank % len(STEP_TIMES)])  # the machine's speed
            optimizer.step()
            if local.rounds > len(points):
                seconds = time.monotonic() - began
                points.append((seconds, local.bytes_sent - sent, deepcopy(model)))
    return points


def compare(rank: int, ranks: int) -> None:
    """Train with each aggregator; the first rank prints the losses."""
    features, labels, _ = shards(ranks)
    for name, aggregator in AGGREGATORS.items():
        points = train(aggregator, rank, ranks)
        if rank == 0:
            print(f"\n{name}\n{'seconds':>8s} {'kB sent':>8s} {'loss':>8s}")
            for seconds, sent, model in points[4::5]:
                with torch.no_grad():
                    loss = nn.functional.cross_entropy(model(features), labels)
                print(
                    f"{seconds:8.2f} {sent / 1e3:8.0f} {float(loss):8.4f}", flush=True
                )


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    compare(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run([*torchrun, "--nproc-per-node=4", *sys.argv], check=True)
