"""Inside torchft, with real processes: one is killed, another joins."""

import hashlib
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import started

from hewfl import ServerStep
from hewfl.torch import QuorumLocalSGD, SyncOptions

torchft = pytest.importorskip("torchft")
ProcessGroupGloo = pytest.importorskip("torchft.process_group").ProcessGroupGloo
pytestmark = [pytest.mark.torch, pytest.mark.slow]


def job(name: str, lighthouse: str, folder: Path) -> None:
    """Rounds among whoever is there, until the file `stop` is."""
    torch.set_num_threads(1)
    torch.manual_seed(ord(name))  # ranks start apart
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=30)
    pg = ProcessGroupGloo(timeout=limit)
    at = {"store_addr": "localhost", "store_port": store.port}
    at |= {"rank": 0, "world_size": 1, "lighthouse_addr": lighthouse}
    at |= {"timeout": limit, "quorum_timeout": limit, "replica_id": name}
    manager = torchft.Manager(pg, None, None, 1, use_async_quorum=False, **at)
    options = SyncOptions(server_step=ServerStep(0.7, 0.9, nesterov=True), timeout=30)
    local = QuorumLocalSGD(
        manager, pg, model, optimizer, aggregator="mean", options=options
    )
    while not (folder / "stop").exists():
        with local.round() as results:
            shared = results._job.model
            before = [*shared.anchor, *shared.memory]
            held = b"".join(x.numpy().tobytes() for x in before)
            outcome = (
                hashlib.sha256(held).hexdigest()[:12],
                float(before[1].abs().sum()),
            )
            with (folder / "events").open("a") as output:
                print(name, pg.parent.size(), results.rounds, *outcome, file=output)
            for _ in range(3):
                rows = torch.randn(16, 8)
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(rows), rows.sum(1, True)).backward()
                optimizer.step()
    manager.shutdown()


def output(folder: Path, name: str, ranks: int) -> dict[int, tuple[str, str]]:
    """Model and momentum, and its size, before each round among so many ranks."""
    lines = [x.split() for x in (folder / "events").read_text().splitlines()]
    return {
        int(x[2]): (x[3], x[4])
        for x in lines
        if len(x) == 5 and (x[0], int(x[1])) == (name, ranks)
    }


def wait_for(folder: Path, name: str, ranks: int, after: int = 0) -> int:
    """The last round, once a rank has done some among so many, after a round."""
    for _ in range(1200):
        rounds = [t for t in output(folder, name, ranks) if t > after]
        if len(rounds) > 2:
            return max(rounds)
        time.sleep(0.1)
    raise TimeoutError(f"{name}, {ranks}: {(folder / 'events').read_text()[-2000:]}")


def test_ranks_go_and_come_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")
    short = {"join_timeout_ms": 1000, "quorum_tick_ms": 50}
    lighthouse = torchft._torchft.LighthouseServer(
        "localhost:0", 1, heartbeat_timeout_ms=2000, **short
    )
    jobs: dict[str, Any] = {}

    def start(name: str) -> None:
        of = name, lighthouse.address(), tmp_path
        jobs[name] = started(job, *of, log=tmp_path / name)

    try:
        start("a")
        start("b")
        last = wait_for(tmp_path, "b", 2)
        jobs["b"].kill()
        wait_for(tmp_path, "a", 1, last)
        start("c")
        wait_for(tmp_path, "c", 2, last)
        (tmp_path / "stop").touch()
        for name in ("a", "c"):
            jobs[name].join(60)
            assert jobs[name].exitcode == 0
    finally:
        for one in jobs.values():
            one.kill()
            one.join()
        lighthouse.shutdown()
    for other in ("b", "c"):
        theirs, ours = output(tmp_path, other, 2), output(tmp_path, "a", 2)
        both = sorted(set(theirs) & set(ours))
        assert len(both) > 2
        assert all(theirs[t] == ours[t] for t in both)
    assert float(theirs[min(theirs)][1]) > 0  # momentum, from the first round on
