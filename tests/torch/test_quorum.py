"""Inside torchft, with real processes: one is killed, another joins."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torchft = pytest.importorskip("torchft")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

JOB = """
import hashlib, sys
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from torchft import Manager
from torchft.process_group import ProcessGroupGloo
from hewfl import Outer
from hewfl.torch import QuorumLocalSGD, SyncOptions

name, lighthouse, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(ord(name))  # ranks start apart
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
limit = timedelta(seconds=30)
pg = ProcessGroupGloo(timeout=limit)
at = dict(store_addr="localhost", store_port=store.port, rank=0, world_size=1)
manager = Manager(pg, None, None, 1, False, timeout=limit, quorum_timeout=limit,
    lighthouse_addr=lighthouse, replica_id=name, **at)
options = SyncOptions(outer=Outer(0.7, 0.9, nesterov=True), timeout=30)
local = QuorumLocalSGD(manager, pg, model, optimizer, rule="equal", options=options)

def say(*words):
    with open(folder / "said", "a") as said:
        said.write(" ".join(map(str, (name, *words))) + chr(10))

while not (folder / "stop").exists():
    with local.round() as job:
        before = [*job._replica.model.anchor, *job._replica.model.memory]
        shared = b"".join(x.numpy().tobytes() for x in before)
        told = hashlib.sha256(shared).hexdigest()[:12], float(before[1].abs().sum())
        say(pg.parent.size(), job.rounds, *told)
        for _ in range(3):
            rows = torch.randn(16, 8)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(rows), rows.sum(1, True)).backward()
            optimizer.step()
manager.shutdown()
"""


def said(folder: Path, name: str, ranks: int) -> dict[int, tuple[str, str]]:
    """Model and momentum, and its size, before each round among so many ranks."""
    lines = [x.split() for x in (folder / "said").read_text().splitlines()]
    return {
        int(x[2]): (x[3], x[4])
        for x in lines
        if len(x) == 5 and (x[0], int(x[1])) == (name, ranks)
    }


def wait_for(folder: Path, name: str, ranks: int, after: int = 0) -> int:
    """The last round, once a rank has done some among so many, after a round."""
    for _ in range(1200):
        rounds = [t for t in said(folder, name, ranks) if t > after]
        if len(rounds) > 2:
            return max(rounds)
        time.sleep(0.1)
    raise TimeoutError(f"{name}, {ranks}: {(folder / 'said').read_text()[-2000:]}")


def test_ranks_go_and_come_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "said").write_text("")
    short = {"join_timeout_ms": 1000, "quorum_tick_ms": 50}
    lighthouse = torchft._torchft.LighthouseServer(
        "localhost:0", 1, heartbeat_timeout_ms=2000, **short
    )
    quiet = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    jobs: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        with (tmp_path / name).open("w") as log:
            jobs[name] = subprocess.Popen(
                [sys.executable, "-c", JOB, name, lighthouse.address(), str(tmp_path)],
                env=os.environ | quiet,
                stdout=log,
                stderr=log,
            )

    try:
        start("a")
        start("b")
        last = wait_for(tmp_path, "b", 2)
        jobs["b"].kill()
        wait_for(tmp_path, "a", 1, last)
        start("c")
        wait_for(tmp_path, "c", 2, last)
        (tmp_path / "stop").touch()
        assert jobs["a"].wait(60) == 0
        assert jobs["c"].wait(60) == 0
    finally:
        for job in jobs.values():
            job.kill()
            job.wait()
        lighthouse.shutdown()
    for other in ("b", "c"):
        theirs, ours = said(tmp_path, other, 2), said(tmp_path, "a", 2)
        both = sorted(set(theirs) & set(ours))
        assert len(both) > 2
        assert all(theirs[t] == ours[t] for t in both)
    assert float(theirs[min(theirs)][1]) > 0  # momentum, from the first round on
