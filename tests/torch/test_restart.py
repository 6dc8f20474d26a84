"""Jobs that survive: torchrun starts them again, and every rank leaves in time."""

import importlib.util
import os
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
    return os.environ | quiet | more


def undisturbed(rank: int, ranks: int, folder: str) -> bytes:
    spec = importlib.util.spec_from_file_location("torch_elastic", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return bits(example.train(Path(folder), rank, ranks).state_dict())


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


LATE = """
import sys, time
import torch, torch.distributed as dist
from hewfl.torch import HewLocalSGD, RankError, SyncOptions

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = SyncOptions(timeout=12)
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
