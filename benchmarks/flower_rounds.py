"""Rounds of FedAvg in Flower's simulation runtime, on the shape of `softmax_rounds.py`.

    python benchmarks/flower_rounds.py FOLDER ROUNDS

Called by `softmax_rounds.py --flower PYTHON` where `flwr[simulation]` is installed with
torch. FOLDER holds features.npy and labels.npy, the clients' samples one after another.
Prints one line of JSON: wall seconds of each round, start-up not counted.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

FOLDER, ROUNDS = Path(sys.argv[1]), int(sys.argv[2])
CLIENTS, STEPS, BATCH, RATE = 20, 4, 32, 0.01
client, server = ClientApp(), ServerApp()
ends: list[float] = []


def model(p: int, c: int) -> torch.nn.Module:
    layer = torch.nn.Linear(p, c, bias=False)
    torch.nn.init.zeros_(layer.weight)
    return layer


@client.train()  # type: ignore[untyped-decorator]  # checked without flwr
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    X = np.load(FOLDER / "features.npy", mmap_mode="r")
    y = np.load(FOLDER / "labels.npy", mmap_mode="r")
    i, each = int(context.node_config["partition-id"]), len(y) // CLIENTS
    local = model(X.shape[1], 10)
    local.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(local.parameters(), lr=RATE, weight_decay=1e-4)
    rng = np.random.default_rng(i)
    for _ in range(STEPS):
        rows = i * each + rng.integers(0, each, BATCH)
        optimiser.zero_grad()
        scores = local(torch.from_numpy(X[rows]))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(y[rows]))
        loss.backward()
        optimiser.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(local.state_dict()),
            "metrics": MetricRecord({"num-examples": each}),
        }
    )
    return Message(content=content, reply_to=message)


@server.main()  # type: ignore[untyped-decorator]  # checked without flwr
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001 - the runtime's signature
    def ended(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001 - likewise
        ends.append(time.perf_counter())
        return MetricRecord({"round": server_round})

    p = np.load(FOLDER / "features.npy", mmap_mode="r").shape[1]
    FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS
    ).start(
        grid=grid,
        initial_arrays=ArrayRecord(model(p, 10).state_dict()),
        num_rounds=ROUNDS,
        evaluate_fn=ended,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=backend)
    print(json.dumps(np.diff(ends).tolist()))
