"""DistributedDataParallel anywhere in a model: ranks are on their own in the block."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import Pool
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hewfl.torch import HewLocalSGD, SyncOptions

pytestmark = pytest.mark.torch
OPTIONS = SyncOptions(bucket_bytes=64, timeout=timedelta(seconds=20))


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def wrapped(inner: nn.Module, how: str) -> nn.Module:
    if how == "plain":
        return inner
    ddp = DistributedDataParallel(inner)
    if how == "compiled":
        compiled: nn.Module = torch.compile(ddp, backend="eager")
        return compiled
    return nn.Sequential(ddp) if how == "inside" else ddp


def alone(rank: int, _: int, how: str) -> list[float]:
    """Rank 1 does a step in the first round, rank 0 none: no rank waits for it."""
    inner = normed()
    module = wrapped(inner, how)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = torch.arange(12.0).reshape(3, 4) + rank
    with HewLocalSGD(module, optimizer, 10**9, "mean", None, OPTIONS) as local:
        for t in range(2):
            if rank == 1 or t == 1:
                optimizer.zero_grad()
                module(x).pow(2).sum().backward()
                optimizer.step()
            local.sync()
    ddps = [m for m in module.modules() if isinstance(m, DistributedDataParallel)]
    assert all(m.require_forward_param_sync for m in ddps)  # again, after the block
    return [float(v.double().sum()) for v in inner.state_dict().values()]


@pytest.mark.parametrize("how", ["outside", "inside"])
def test_ranks_take_steps_on_their_own(pool: Pool, how: str) -> None:
    """A rank that waited would end in an error, or not within the limit of the pool."""
    results, expected = pool.run(alone, 2, how), pool.run(alone, 2, "plain")
    assert results == expected  # running means too, which differ between ranks
    assert results[0] != results[1]


def differing(rank: int, _: int, how: str) -> list[Any]:
    """Models before the round; whether DDP averages again after the block."""
    torch.manual_seed(0)
    inner = nn.Linear(4, 3)
    module = wrapped(inner, how)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with HewLocalSGD(module, optimizer, 10**9, "mean", None, OPTIONS):
        module(torch.ones(2, 4)).sub(rank).pow(2).sum().backward()
        optimizer.step()
        before = inner.weight.detach().numpy().tobytes()
    optimizer.zero_grad()
    module(torch.ones(2, 4)).sub(rank).pow(2).sum().backward()
    return [before, inner.weight.grad.numpy().tobytes()]


@pytest.mark.parametrize("how", ["outside", "inside"])
def test_averaging_stops_in_the_block_only(pool: Pool, how: str) -> None:
    (first, gradient), (second, other) = pool.run(differing, 2, how)
    assert first != second
    assert gradient == other


def compiled(rank: int, ranks: int) -> list[Any]:
    import warnings  # noqa: PLC0415 - in the child only

    warnings.simplefilter("ignore")  # of the compiler, about torch itself
    try:
        return differing(rank, ranks, "compiled")
    finally:
        warnings.simplefilter("error")


def test_compiled_modules_are_seen_through(pool: Pool) -> None:
    (first, gradient), (second, other) = pool.run(compiled, 2)
    assert first != second
    assert gradient == other


def subgroup(rank: int, _: int) -> bytes:
    """DDP over the first two ranks of four, rounds over all: DDP goes on."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(0)
    inner = nn.Linear(4, 3)
    module = DistributedDataParallel(inner, process_group=halves[rank // 2])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with HewLocalSGD(module, optimizer, 10**9, "mean", None, OPTIONS):
        module(torch.ones(2, 4)).sub(rank).pow(2).sum().backward()
        optimizer.step()
        before: bytes = inner.weight.detach().numpy().tobytes()
    return before


def test_a_subgroup_goes_on_averaging(pool: Pool) -> None:
    a, b, c, d = pool.run(subgroup, 4)
    assert a == b != c == d
