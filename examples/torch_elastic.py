"""Elastic local SGD: the job continues after a rank or a machine is lost.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 \
        examples/torch_elastic.py FOLDER

Every rank saves its state of the last two rounds in the folder, which all machines must
share. When a process dies torchrun starts all of them again, and they continue from the
last round: to the same bits with as many ranks, and with the common model and the
server momentum with more or fewer. On several machines, which may join and leave, the
same command on each of them:

    torchrun --nnodes=1:4 --nproc-per-node=2 --max-restarts=100 --rdzv-backend=c10d \
        --rdzv-id=job --rdzv-endpoint=MACHINE:29400 --rdzv-conf=\
    last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3 \
        examples/torch_elastic.py FOLDER

MACHINE hosts the rendezvous: it must stay. The exported variable gives every attempt a
store of its own. Without it no machine can join a running job under torch 2.13, and
after a restart gloo may read the old address of a rank ("Connection refused").
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hewfl import ServerStep
from hewfl.data import load
from hewfl.torch import HewLocalSGD, SyncOptions

ROUNDS, STEPS = 6, 4


def latest(folder: Path, rank: int, ranks: int) -> Path | None:
    """The state to continue from: of the last round that all its ranks have saved.

    With as many ranks as then it is this rank's own state; else that of rank 0, because
    every state has what ranks share. Where files are lost with a machine, it is the
    last round of any rank.
    """
    kept: dict[tuple[int, int], list[Path]] = {}
    for path in sorted(folder.glob("round-*/rank-*.pt")):
        key = int(path.parent.name.split("-")[1]), int(path.stem.split("-")[3])
        kept.setdefault(key, []).append(path)
    whole = [(t, n) for (t, n), paths in kept.items() if len(paths) == n]
    if not kept:
        return None
    t, n = max(whole or kept)
    return kept[t, n][rank if n == ranks and (t, n) in whole else 0]


def keep(folder: Path, t: int, name: str, state: Any) -> None:
    """Write a state atomically; delete the one before the last."""
    (folder / f"round-{t}").mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{t}" / name
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    (folder / f"round-{t - 2}" / name).unlink(missing_ok=True)


def train(
    folder: Path, rank: int, ranks: int, rounds: Callable[[], float] = lambda: ROUNDS
) -> nn.Module:
    digits = load("digits")
    X = torch.tensor(digits.features, dtype=torch.float32)[rank::ranks] / 16
    y = torch.tensor(digits.labels)[rank::ranks]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def after_round(_: Any) -> None:
        states = {"local": local.state_dict(), "optimizer": optimizer.state_dict()}
        keep(folder, local.rounds, f"rank-{rank}-of-{ranks}.pt", states)

    server_step = ServerStep(0.7, 0.9, nesterov=True)
    options = SyncOptions(server_step=server_step, timeout=60, on_round=after_round)
    saved = latest(folder, rank, ranks)  # before ranks write again
    local = HewLocalSGD(model, optimizer, STEPS, options=options)
    if saved is not None:
        states = torch.load(saved, weights_only=True)
        local.load_state_dict(states["local"])
        if saved.name == f"rank-{rank}-of-{ranks}.pt":
            optimizer.load_state_dict(states["optimizer"])
        print(f"rank {rank} of {ranks} goes on after round {local.rounds}", flush=True)
    with local:
        while local.rounds < rounds():
            draws = torch.Generator().manual_seed(1000 * rank + local.rounds)
            for _ in range(STEPS):
                rows = torch.randint(len(X), (16,), generator=draws)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
                fail(rank, local.rounds)
                optimizer.step()
    return model


def fail(rank: int, rounds: int) -> None:
    """Kill this process as KILLED requests: "rank:round" for each attempt."""
    plan = os.environ.get("KILLED", "").split()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt < len(plan) and plan[attempt] == f"{rank}:{rounds}":
        os.kill(os.getpid(), 9)


def main() -> None:
    if len(sys.argv) != 2 or not dist.is_torchelastic_launched():
        sys.exit("usage: torchrun --nproc-per-node=2 torch_elastic.py FOLDER")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        sys.exit("set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    fail(rank, -1)
    model = train(folder, rank, ranks)
    if rank == 0:
        torch.save(model.state_dict(), folder / "model.pt")
        print("trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
