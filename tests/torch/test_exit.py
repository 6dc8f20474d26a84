"""A job that has destroyed its process group has nothing left that could abort it."""

import os
import subprocess
import sys
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import QUIET, Pool, started
from tests.torch.scenarios import Quadratic, descend, make_aggregator

from hewfl.torch import HewLocalSGD, RankError, SyncOptions

pytestmark = pytest.mark.torch


def leaves(rank: int, _: int) -> tuple[bool, str]:
    """Whether the group is gone while its user is there, and what that says then."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with HewLocalSGD(module, optimizer, 1, make_aggregator("variate")) as local:
        descend(module, optimizer, 2)
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    with pytest.raises(RankError) as caught:
        local.sync()
    return group() is None, str(caught.value)


def test_the_group_does_not_outlive_its_end(pool: Pool) -> None:
    for gone, text in pool.run(leaves, 2):
        assert gone
        assert text == "the process group has been destroyed"


JOB = """
import sys, weakref
import torch, torch.distributed as dist
from hewfl.torch import HewLocalSGD, RankError, SyncOptions

def run(rank, ranks, store):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # imports much of torch
    options = SyncOptions(timeout=3)
    with HewLocalSGD(model, optimizer, 1, options=options) as local:
        model(torch.ones(3)).backward()
        optimizer.step()

run(0, 1, sys.argv[1])
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
print("gone" if group() is None else "still there", flush=True)
try:
    run(0, 2, sys.argv[2])
except RankError as error:
    print(error, flush=True)
"""


def late(store: str) -> None:
    """The other rank of the second group: it sleeps where a round should be."""
    dist.init_process_group("gloo", init_method=store, rank=1, world_size=2)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    HewLocalSGD(model, optimizer, 1, options=SyncOptions(timeout=3))
    time.sleep(3600)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], bool]:
    """What a fresh process says line by line, and whether it ended before its peer.

    Copies of a loaded process would not do: torch would keep a group on first imports
    only, and a copy ends without the interpreter's own end.
    """
    folder = tmp_path_factory.mktemp("job")
    stores = [f"file://{folder}/store{k}" for k in range(2)]
    sleeper = started(late, stores[1], log=folder / "log")
    try:
        run = subprocess.run(
            [sys.executable, "-c", JOB, *stores],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=1000,
            env=os.environ | QUIET,
        )
        is_first = sleeper.is_alive()
    finally:
        sleeper.kill()
        sleeper.join()
    return run.stdout.splitlines(), is_first


def test_torch_does_not_keep_the_group_either(job: tuple[list[str], bool]) -> None:
    assert job[0][0] == "gone"


def test_a_process_ends_after_a_timeout(job: tuple[list[str], bool]) -> None:
    """The other rank sleeps on; its collective must not keep this one alive."""
    (_, text), is_first = job
    assert "it did not see rank 1 (last seen at construction)" in text
    assert is_first
