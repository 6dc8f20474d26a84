"""A job that has destroyed its process group has nothing left that could abort it."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import Pool
from tests.torch.scenarios import Quadratic, descend

from hewfl.torch import HewAverager, HewLocalSGD, RankError

pytestmark = pytest.mark.torch


def leaves(rank: int, _: int) -> tuple[bool, list[str]]:
    """Whether the group is gone while its users are there, and what they say then."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    averager = HewAverager(module.parameters(), 1)
    with HewLocalSGD(module, optimizer, 1, "het") as local:
        descend(module, optimizer, 2)
        averager.average_parameters(module.parameters())
    group = weakref.ref(averager.process_group)
    dist.destroy_process_group()
    texts = []
    for call in (local.sync, lambda: averager.average_parameters(module.parameters())):
        with pytest.raises(RankError) as caught:
            call()
        texts.append(str(caught.value))
    return group() is None, texts


def test_the_group_does_not_outlive_its_end(pool: Pool) -> None:
    for gone, texts in pool.run(leaves, 2):
        assert gone
        assert texts == ["the process group has been destroyed"] * 2


JOB = """
import sys, weakref
import torch, torch.distributed as dist
from hewfl.torch import HewLocalSGD

dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # imports much of torch
with HewLocalSGD(model, optimizer, 1) as local:
    model(torch.ones(3)).backward()
    optimizer.step()
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
print("gone" if group() is None else "still there")
"""


def test_torch_does_not_keep_the_group_either(tmp_path: Path) -> None:
    """A fresh process, because torch would keep the group on first imports only."""
    job = [sys.executable, "-c", JOB, f"file://{tmp_path}/store"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        job, capture_output=True, text=True, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "gone\n"
