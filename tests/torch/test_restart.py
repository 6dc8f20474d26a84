"""Jobs that survive: torchrun starts them again, and every rank leaves in time."""

import contextlib
import importlib.util
import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.pool import Pool

pytestmark = [pytest.mark.torch, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_elastic.py"


def environment(**more: str) -> dict[str, str]:
    quiet = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return os.environ | quiet | own_store | more


def example(name: str) -> Any:
    file = EXAMPLE.with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def undisturbed(rank: int, ranks: int, folder: str) -> bytes:
    trained = example("torch_elastic").train(Path(folder), rank, ranks)
    return bits(trained.state_dict())


def compared(rank: int, ranks: int) -> str:
    module, said = example("torch_local_sgd"), io.StringIO()
    module.ROUNDS = 5
    with contextlib.redirect_stdout(said):
        module.compare(rank, ranks)
    return said.getvalue()


def test_the_example_of_unequal_ranks(pool: Pool) -> None:
    first, *others = pool.run(compared, 4)
    assert not any(others)
    heads = ["equal", "step-weighted", "exact", "corrected"]
    assert [x for x in first.splitlines() if "weights" in x] == [
        f"{name} weights" for name in heads
    ]
    rows = [x.split() for x in first.splitlines() if x.strip()[:1].isdigit()]
    losses = [float(row[2]) for row in rows]
    assert len(losses) == len(heads)
    assert all(0 < loss < 2.3 for loss in losses)  # log 10 at the start


def bits(state: dict[str, Any]) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in state.values())


def test_killed_ranks_are_started_again_to_the_same_bits(
    pool: Pool, tmp_path: Path
) -> None:
    """One is killed before construction, then one in the middle of a round."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    how = ["--nproc-per-node=2", "--max-restarts=2", str(EXAMPLE), str(tmp_path / "a")]
    run = subprocess.run(
        [*torchrun, *how],
        capture_output=True,
        text=True,
        check=False,
        env=environment(KILLED="1:-1 0:3"),
    )
    assert run.returncode == 0, run.stderr
    assert "rank 1 of 2 goes on after round 3" in run.stdout
    assert "must meet over the same" not in run.stderr
    found = torch.load(tmp_path / "a" / "model.pt", weights_only=True)
    assert bits(found) == pool.run(undisturbed, 2, str(tmp_path / "b"))[0]


ELASTIC = """
import hashlib, os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch, torch_elastic as example
import torch.distributed as dist

folder = Path(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
load, kept = example.HewLocalSGD.load_state_dict, example.keep

def say(*words):  # one write each: all processes write here
    with open(folder / "said", "a") as said:
        said.write(" ".join(map(str, words)) + chr(10))

def told(local, state):
    load(local, state)
    model = local._replica.model
    parts = [*model.anchor, *model.memory]
    shared = hashlib.sha256(b"".join(x.numpy().tobytes() for x in parts)).hexdigest()
    moved = float(sum(m.abs().sum() for m in model.memory))
    say("loaded", rank, ranks, local.rounds, shared, moved)

def after(folder, t, name, state):
    kept(folder, t, name, state)
    say("round", rank, ranks, t, os.getpid())

example.HewLocalSGD.load_state_dict, example.keep = told, after
example.train(folder, rank, ranks, lambda: 0 if (folder / "stop").exists() else 1e9)
dist.destroy_process_group()
"""


def said_by(folder: Path, what: str, ranks: int, after: int = -1) -> list[list[str]]:
    """What ranks of a job with that many of them said, after some round."""
    path = folder / "said"
    lines = [line.split() for line in path.read_text().splitlines() if line]
    return [
        line
        for line in lines
        if (line[0], int(line[2])) == (what, ranks) and int(line[3]) > after
    ]


def wait_for(folder: Path, what: str, ranks: int, after: int, who: int) -> list[str]:
    """The first such line of a rank, once it is there."""
    for _ in range(1200):
        found = [x for x in said_by(folder, what, ranks, after) if int(x[1]) == who]
        if found:
            return found[0]
        time.sleep(0.1)
    raise TimeoutError(f"{what} of {ranks} ranks: {(folder / 'said').read_text()}")


def test_a_machine_goes_and_another_comes(tmp_path: Path) -> None:
    """Two agents of torchrun; one is killed with its rank, a third takes its place."""
    script = tmp_path / "script.py"
    script.write_text(ELASTIC)
    (tmp_path / "said").write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    soon = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2"]
    command += ["--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d"]
    command += ["--rdzv-id=job", f"--rdzv-endpoint=localhost:{port}"]
    command += [f"--rdzv-conf={soon}", str(script), str(EXAMPLE.parent), str(tmp_path)]
    agents: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with (tmp_path / f"agent{len(agents)}").open("w") as log:
            agents.append(
                subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
            )

    try:
        start()  # keeps the rendezvous, and stays
        time.sleep(1)
        start()
        lost = next(
            int(line[4])
            for line in (wait_for(tmp_path, "round", 2, 2, who) for who in (0, 1))
            if parent_of(int(line[4])) == agents[1].pid
        )
        agents[1].kill()
        os.kill(lost, signal.SIGKILL)
        last = max(int(line[3]) for line in said_by(tmp_path, "round", 2))
        alone = wait_for(tmp_path, "loaded", 1, last - 2, 0)
        assert float(alone[5]) > 0  # the outer momentum
        wait_for(tmp_path, "round", 1, last + 1, 0)
        start()
        now = int(said_by(tmp_path, "round", 1)[-1][3])
        joined = [wait_for(tmp_path, "loaded", 2, now - 1, who) for who in (0, 1)]
        assert joined[0][3:] == joined[1][3:]  # rounds, model and momentum
        assert float(joined[0][5]) > 0
        wait_for(tmp_path, "round", 2, int(joined[0][3]) + 2, 1)
        (tmp_path / "stop").touch()
        assert agents[0].wait(60) == 0
        assert agents[2].wait(60) == 0
    finally:
        (tmp_path / "stop").touch()  # ranks outlive an agent that is killed
        for agent in agents:
            agent.terminate()
            agent.wait(60)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


LATE = """
import sys, time
import torch, torch.distributed as dist
from hewfl.torch import HewLocalSGD, RankError, SyncOptions

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = SyncOptions(timeout=5)
local = HewLocalSGD(model, optimizer, 1, options=options)
if rank == 1:
    time.sleep(120)
try:
    local.sync()
except RankError as error:
    print(time.time(), error, flush=True)
"""


def test_a_process_ends_soon_after_a_timeout(tmp_path: Path) -> None:
    """The other rank sleeps on; its collective must not keep this one alive."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", LATE, str(rank), f"file://{tmp_path}/store"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(2)
    ]
    try:
        said, _ = jobs[0].communicate(timeout=100)
        ended = time.time()
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    when, text = said.split(" ", 1)
    assert "it never saw rank 1 (last seen at construction)" in text
    assert ended - float(when) < 20
