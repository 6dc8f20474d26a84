"""Jobs that survive: torchrun starts them again, and every rank leaves in time."""

import contextlib
import importlib.util
import io
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.pool import Pool, started
from torch.distributed import run

pytestmark = [pytest.mark.torch, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_elastic.py"


def torchrun(how: list[str], log: Path, **setting: str) -> Any:
    """An agent of torchrun; its ranks are copies of it, with torch loaded."""
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    forked = ["--run-path", "--start-method=fork"]
    return started(run.main, [*forked, *how], log=log, **own_store, **setting)


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
    module, output = example("torch_local_sgd"), io.StringIO()
    module.ROUNDS = 5
    with contextlib.redirect_stdout(output):
        module.compare(rank, ranks)
    return output.getvalue()


def test_the_example_of_unequal_ranks(pool: Pool) -> None:
    first, *others = pool.run(compared, 4)
    assert not any(others)
    heads = ["mean", "step-weighted", "exact", "exact, control variates"]
    assert [line for line in first.splitlines() if line in heads] == heads
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
    log, folder = tmp_path / "log", tmp_path / "a"
    how = ["--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    agent = torchrun([*how, str(EXAMPLE), str(folder)], log, KILLED="1:-1 0:3")
    agent.join(120)
    agent.kill()
    output = log.read_text()
    assert agent.exitcode == 0, output
    assert "rank 1 of 2 goes on after round 3" in output
    assert "must meet over the same" not in output
    results = torch.load(folder / "model.pt", weights_only=True)
    assert bits(results) == pool.run(undisturbed, 2, str(tmp_path / "b"))[0]


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
    with open(folder / "events", "a") as log:
        log.write(" ".join(map(str, words)) + chr(10))

def load_and_log(local, state):
    load(local, state)
    model = local._job.model
    parts = [*model.anchor, *model.memory]
    shared = hashlib.sha256(b"".join(x.numpy().tobytes() for x in parts)).hexdigest()
    moved = float(sum(m.abs().sum() for m in model.memory))
    say("loaded", rank, ranks, local.rounds, shared, moved)

def after(folder, t, name, state):
    kept(folder, t, name, state)
    say("round", rank, ranks, t, os.getpid())

example.HewLocalSGD.load_state_dict, example.keep = load_and_log, after
example.train(folder, rank, ranks, lambda: 0 if (folder / "stop").exists() else 1e9)
dist.destroy_process_group()
"""


def lines_of(folder: Path, what: str, ranks: int, after: int = -1) -> list[list[str]]:
    """Lines that a job with so many ranks has logged after some round."""
    path = folder / "events"
    lines = [line.split() for line in path.read_text().splitlines() if line]
    return [
        line
        for line in lines
        if (line[0], int(line[2])) == (what, ranks) and int(line[3]) > after
    ]


def wait_for(folder: Path, what: str, ranks: int, after: int, who: int) -> list[str]:
    """The first such line of a rank, once it is there."""
    for _ in range(1200):
        results = [x for x in lines_of(folder, what, ranks, after) if int(x[1]) == who]
        if results:
            return results[0]
        time.sleep(0.1)
    raise TimeoutError(f"{what} of {ranks} ranks: {(folder / 'events').read_text()}")


def test_a_machine_goes_and_another_comes(tmp_path: Path) -> None:
    """Two agents of torchrun; one is killed with its rank, a third takes its place."""
    script = tmp_path / "script.py"
    script.write_text(ELASTIC)
    (tmp_path / "events").write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    soon = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    how = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9"]
    how += ["--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-conf={soon}"]
    how += [f"--rdzv-endpoint=localhost:{port}"]
    how += [str(script), str(EXAMPLE.parent), str(tmp_path)]
    agents: list[Any] = []

    def start() -> None:
        agents.append(torchrun(how, tmp_path / f"agent{len(agents)}"))

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
        last = max(int(line[3]) for line in lines_of(tmp_path, "round", 2))
        alone = wait_for(tmp_path, "loaded", 1, last - 2, 0)
        assert float(alone[5]) > 0  # the server momentum
        wait_for(tmp_path, "round", 1, last + 1, 0)
        start()
        now = int(lines_of(tmp_path, "round", 1)[-1][3])
        joined = [wait_for(tmp_path, "loaded", 2, now - 1, who) for who in (0, 1)]
        assert joined[0][3:] == joined[1][3:]  # rounds, model and momentum
        assert float(joined[0][5]) > 0
        wait_for(tmp_path, "round", 2, int(joined[0][3]) + 2, 1)
        (tmp_path / "stop").touch()
        for agent in (agents[0], agents[2]):
            agent.join(60)
            assert agent.exitcode == 0
    finally:
        (tmp_path / "stop").touch()  # ranks outlive an agent that is killed
        for agent in agents:
            agent.terminate()
            agent.join(60)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
