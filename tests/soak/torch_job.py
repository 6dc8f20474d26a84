"""A `torchrun` job through faults of ranks, kills and stops.

    python -m tests.soak.torch_job FOLDER [--rounds 2000] [--kills 20] [--seed 0]

Three ranks train a network on the digits by `HewLocalSGD`, with a state of every rank
saved after every round. One of them sends its steps turned round and three times as
long in a third of all rounds; any of them may in any round have NaN in its model, claim
a million steps' worth of tokens, or be slow.

The run is made twice: once undisturbed, once with ranks killed at random moments, which
torchrun starts again, and others stopped for a second. Both must leave the same model
on every rank, bit for bit, and the undisturbed one must not grow in memory.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import run

from hewfl import ServerStep
from hewfl.data import load
from hewfl.torch import HewLocalSGD, SyncOptions
from tests.soak.measures import conclude, fate, growth, kill_rounds, memory, options_of
from tests.torch.pool import started

RANKS, STEPS = 3, 4
CHANCES = {"nan": 0.03, "tokens": 0.03, "slow": 0.01}


def latest(folder: Path, rank: int) -> Any:
    """This rank's state of the last round that all ranks have saved."""
    names = [{p.name for p in folder.glob(f"rank-{r}-*.pt")} for r in range(RANKS)]
    done = [{int(name.split("-")[2][:-3]) for name in some} for some in names]
    both = set.intersection(*done)
    if not both:
        return None
    return torch.load(folder / f"rank-{rank}-{max(both)}.pt", weights_only=True)


def keep(folder: Path, rank: int, t: int, state: Any) -> None:
    """Write a state atomically; delete the one before the last."""
    path = folder / f"rank-{rank}-{t}.pt"
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    (folder / f"rank-{rank}-{t - 2}.pt").unlink(missing_ok=True)


def train(folder: Path, rounds: int, seed: int) -> None:
    """One rank, from wherever the folder says that all ranks were."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    digits = load("digits")
    X = torch.tensor(digits.features, dtype=torch.float32)[rank::RANKS] / 16
    y = torch.tensor(digits.labels)[rank::RANKS]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    saved = latest(folder, rank)

    def after_round(report: Any) -> None:
        del report
        states = {"local": local.state_dict(), "optimizer": optimizer.state_dict()}
        keep(folder, rank, local.rounds, states)
        with (folder / f"memory-{rank}.txt").open("a") as file:
            file.write(f"{local.rounds} {memory():.3f} {os.getpid()}\n")

    options = SyncOptions(
        server_step=ServerStep(momentum=0.5),
        timeout=120,
        on_round=after_round,
    )
    local = HewLocalSGD(model, optimizer, STEPS, options=options)
    if saved is not None:
        local.load_state_dict(saved["local"])
        optimizer.load_state_dict(saved["optimizer"])
    with local:
        while local.rounds < rounds:
            t = local.rounds
            begin = [p.detach().clone() for p in model.parameters()]
            what = fate(seed, t, rank, CHANCES)
            draws = torch.Generator().manual_seed(1000 * rank + t)
            for step in range(STEPS):
                rows = torch.randint(len(X), (16,), generator=draws)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
                if step == STEPS - 1:
                    disturb(model, begin, what, turned=rank == 2 and t % 3 == 0)
                    if what == "tokens":
                        local.add_tokens(10**6)
                optimizer.step()
    final = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save(final, folder / f"final-{rank}.pt")
    dist.destroy_process_group()


def disturb(model: nn.Module, begin: list[Any], what: str, *, turned: bool) -> None:
    """What a rank does to its model before its last step."""
    with torch.no_grad():
        for p, x in zip(model.parameters(), begin, strict=True):
            if turned:
                p.copy_(x - 3 * (p - x))
            if what == "nan":
                p.view(-1)[0] = float("nan")
    if what == "slow":
        time.sleep(0.2)


def agent_of(folder: Path, rounds: int, seed: int, restarts: int) -> Any:
    """An agent of torchrun; its ranks are copies of it, with torch loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    how = ["--run-path", "--start-method=fork", "--standalone"]
    how += [f"--nproc-per-node={RANKS}", f"--max-restarts={restarts}", __file__]
    told = [str(folder), "--rounds", str(rounds), "--seed", str(seed), "--rank"]
    setting = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return started(run.main, [*how, *told], log=folder / "log", **setting)


def rounds_done(folder: Path, rank: int) -> tuple[int, int]:
    """Rounds that a rank has done, and its process."""
    path = folder / f"memory-{rank}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return (int(lines[-1].split()[0]), int(lines[-1].split()[2])) if lines else (0, 0)


def disturbed(folder: Path, rounds: int, seed: int, kills: int) -> list[list[int]]:
    """Kill and stop ranks while the job runs: [round, rank] of each kill."""
    rng, done = np.random.default_rng((seed, 79)), []
    agent = agent_of(folder, rounds, seed, kills)
    for at in kill_rounds(seed, rounds, kills):
        killed, held = (int(r) for r in rng.permutation(RANKS)[:2])
        while rounds_done(folder, killed)[0] < at and agent.is_alive():
            time.sleep(0.01)
        time.sleep(float(rng.random()) * 0.05)
        with suppress(ProcessLookupError):  # it may have ended since it wrote
            other = rounds_done(folder, held)[1]
            if other:  # zero, before its first round, would be this process
                os.kill(other, signal.SIGSTOP)
                time.sleep(1.0)
                os.kill(other, signal.SIGCONT)
        t, pid = rounds_done(folder, killed)
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
                done.append([t, killed])
        while rounds_done(folder, killed)[1] == pid and agent.is_alive():
            time.sleep(0.05)  # until it is back
    agent.join()
    if agent.exitcode:
        raise SystemExit((folder / "log").read_text()[-3000:])
    return done


def bits(folder: Path, rank: int) -> bytes:
    """The model that a rank ended with."""
    state = torch.load(folder / f"final-{rank}.pt", weights_only=True)
    return b"".join(tensor.numpy().tobytes() for tensor in state.values())


def accuracy(folder: Path) -> float:
    """Of the model of rank 0, on all digits."""
    state = torch.load(folder / "final-0.pt", weights_only=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    model.load_state_dict(state)
    digits = load("digits")
    X = torch.tensor(digits.features, dtype=torch.float32) / 16
    found = model(X).argmax(dim=1).numpy()
    return float((found == digits.labels).mean())


def main() -> None:
    """Both runs, and what they have to do with each other."""
    parser = options_of(__doc__)
    parser.add_argument("--rank", action="store_true", help="of torchrun")
    given = parser.parse_args()
    if given.rank:
        train(given.folder, given.rounds, given.seed)
        return
    whole, killed = given.folder / "whole", given.folder / "killed"
    agent = agent_of(whole, given.rounds, given.seed, 0)
    agent.join()
    if agent.exitcode:
        raise SystemExit((whole / "log").read_text()[-3000:])
    at = disturbed(killed, given.rounds, given.seed, given.kills)
    lines = [(whole / f"memory-{r}.txt").read_text().split("\n") for r in range(RANKS)]
    sizes = [[float(x.split()[1]) for x in some if x] for some in lines]
    draws = [(t, r) for t in range(given.rounds) for r in range(RANKS)]
    fates = [fate(given.seed, t, r, CHANCES) for t, r in draws]
    report = {
        "rounds": given.rounds,
        "killed: round, rank": at,
        "ranks that differ": [
            r for r in range(RANKS) if bits(whole, 0) != bits(killed, r)
        ],
        "faults": {name: fates.count(name) for name in CHANCES},
        "memory, MB": [[x[0], x[len(x) // 4], x[-1]] for x in sizes],
        "growth, MB": [round(growth(x), 3) for x in sizes],
        "accuracy": accuracy(whole),
    }
    conclude(given.folder, report, report["ranks that differ"])


if __name__ == "__main__":
    main()
