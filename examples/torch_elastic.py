"""Local SGD that survives: kill a rank, or take a machine away, and it goes on.

    torchrun --standalone --nproc-per-node=2 --max-restarts=3 \
        examples/torch_elastic.py FOLDER

Every rank keeps its state of the last two rounds in the folder, which all machines must
see. When a process dies torchrun starts all of them again, and they go on from the last
round: to the same bits where as many ranks come back, and with the common model and the
outer momentum where there are more or fewer of them (`--nnodes=1:4`).
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hewfl import Outer
from hewfl.data import load
from hewfl.torch import HewLocalSGD, SyncOptions

ROUNDS, STEPS = 6, 4


def join() -> None:
    """Make the process group, apart from those of earlier attempts.

    torchrun keeps its store when it starts ranks again, and torch 2.13 may read there
    at which address a rank was before: "Connection refused".
    """
    store, rank, ranks = next(dist.rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"attempt {attempt} of {ranks}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=ranks)


def latest(folder: Path, rank: int, ranks: int) -> Path | None:
    """The state to go on from: of this rank, of the last round that all have kept.

    Where a rank's files are lost, or there are more ranks than before, all take the
    last round of anybody: what ranks share is in every state.
    """
    rounds: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("round-*/rank-*.pt")):
        rounds.setdefault(int(path.parent.name.split("-")[1]), []).append(path)
    for t in sorted(rounds, reverse=True):
        names = {path.name for path in rounds[t]}
        if names >= {f"rank-{k}-of-{ranks}.pt" for k in range(ranks)}:
            return folder / f"round-{t}" / f"rank-{rank}-of-{ranks}.pt"
    return rounds[max(rounds)][0] if rounds else None


def keep(folder: Path, t: int, name: str, state: Any) -> None:
    """Write a state at once or not at all; forget the one before the last."""
    (folder / f"round-{t}").mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{t}" / name
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    (folder / f"round-{t - 2}" / name).unlink(missing_ok=True)


def train(folder: Path, rank: int, ranks: int) -> nn.Module:
    digits = load("digits")
    X = torch.tensor(digits.features, dtype=torch.float32)[rank::ranks] / 16
    y = torch.tensor(digits.labels)[rank::ranks]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def after_round(_: Any) -> None:
        states = {"local": local.state_dict(), "optimizer": optimizer.state_dict()}
        keep(folder, local.rounds, f"rank-{rank}-of-{ranks}.pt", states)

    outer = Outer(0.7, 0.9, nesterov=True)
    options = SyncOptions(outer=outer, timeout=60, on_round=after_round)
    found = latest(folder, rank, ranks)  # before ranks meet, and write again
    local = HewLocalSGD(model, optimizer, STEPS, "hom", None, options)
    if found is not None:
        states = torch.load(found, weights_only=True)
        local.load_state_dict(states["local"])
        if found.name == f"rank-{rank}-of-{ranks}.pt":
            optimizer.load_state_dict(states["optimizer"])
        print(f"rank {rank} of {ranks} goes on after round {local.rounds}", flush=True)
    with local:
        while local.rounds < ROUNDS:
            draws = torch.Generator().manual_seed(1000 * rank + local.rounds)
            for _ in range(STEPS):
                rows = torch.randint(len(X), (16,), generator=draws)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
                fail(rank, local.rounds)
                optimizer.step()
    return model


def fail(rank: int, rounds: int) -> None:
    """End this process at once where KILLED says so: "rank:round" in each attempt."""
    plan = os.environ.get("KILLED", "").split()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt < len(plan) and plan[attempt] == f"{rank}:{rounds}":
        os.kill(os.getpid(), 9)


def main() -> None:
    if len(sys.argv) != 2 or not dist.is_torchelastic_launched():
        sys.exit("usage: torchrun --nproc-per-node=2 torch_elastic.py FOLDER")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    fail(rank, -1)
    model = train(folder, rank, ranks)
    if rank == 0:
        torch.save(model.state_dict(), folder / "model.pt")
        print("trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
