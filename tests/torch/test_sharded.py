"""Replicas sharded by `fully_shard`: a job of 2 x 2 ranks is one of two whole ones."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import make_aggregator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hewfl import DataError, HewError, ServerStep
from hewfl.torch import HewLocalSGD, SyncOptions

pytestmark = pytest.mark.torch
Array = NDArray[np.float32]
ROUNDING = 2e-5
"""Of AdamW on sums that FSDP forms in another order."""
NESTEROV = ServerStep(0.7, 0.9, nesterov=True, average="ema")
OPTIONS = SyncOptions(bucket_bytes=32, server_step=NESTEROV)


def make_mesh() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def make_model(mesh: Any = None) -> nn.Module:
    """Shards of unequal size: no first dimension is even."""
    warnings.simplefilter("ignore")  # of torch, about itself
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 1))
    model[2].bias.requires_grad_(requires_grad=False)
    if mesh is not None:
        for part in model:
            if list(part.parameters()):
                fully_shard(part, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
    return model


def make(rank: int, ranks: int, rule: Any, options: SyncOptions = OPTIONS) -> Any:
    """Four ranks shard two replicas; two hold them whole."""
    mesh = make_mesh() if ranks == 4 else None
    replica = rank // 2 if mesh else rank
    model = make_model(mesh)
    group = mesh["replicate"].get_group() if mesh else None
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.01)
    local = HewLocalSGD(model, optimizer, 10**9, make_aggregator(rule), group, options)
    return replica, model, optimizer, local


def train(replica: int, model: nn.Module, optimizer: Any, t: int, steps: int) -> None:
    for k in range(steps):
        generator = torch.Generator().manual_seed(100 * t + 10 * replica + k)
        rows = torch.randn(6, 5, generator=generator)
        optimizer.zero_grad()
        ((model(rows) - rows.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()


def whole(model: nn.Module) -> Array:
    parts = [
        p.full_tensor() if isinstance(p, DTensor) else p
        for p in map(torch.Tensor.detach, model.parameters())
    ]
    flat: Array = torch.cat([p.reshape(-1) for p in parts]).numpy()
    return flat


def run(rank: int, ranks: int, rule: Any, gram: Any) -> Any:
    """Three rounds of unequal replicas; the second has no finite loss in the last."""
    options = SyncOptions(bucket_bytes=32, server_step=NESTEROV, gram=gram)
    replica, model, optimizer, local = make(rank, ranks, rule, options)
    reports = []
    with local:
        for t in range(3):
            train(replica, model, optimizer, t, 4 - 2 * replica)
            local.add_tokens(8 if ranks == 2 else 4)  # each rank of a replica its own
            if t == 2 and replica == 1:
                with torch.no_grad():
                    first = next(iter(model.parameters()))
                    part = first.to_local() if ranks == 4 else first
                    if rank in (1, 2):  # one shard alone
                        part.view(-1)[0] = torch.nan
            reports.append(local.sync())
        with torch.no_grad():
            model(torch.ones(1, 5))  # FSDP keeps the root whole until it is resharded
        with local.averaged_model():
            model(torch.ones(1, 5))
            average = whole(model)
        value = float(model(torch.ones(1, 5)).detach())
        end = whole(model)
    rows = [(r.weights, r.excluded, r.tokens, r.steps, r.status) for r in reports]
    return end, average, value, rows


@pytest.mark.parametrize(
    ("rule", "gram"),
    [
        ("sieve", "sketch"),
        ("size-weighted", "sketch"),
        ("exact", "sketch"),
        ("geometric-median", "full"),
        ("coordinate-median", "sketch"),
    ],
)
def test_a_sharded_job_is_the_whole_one(pool: Pool, rule: Any, gram: Any) -> None:
    sharded, plain = pool.run(run, 4, rule, gram), pool.run(run, 2, rule, gram)
    end, average, value, rows = plain[0]
    assert rows[2][1] == (1,), "the replica with a lost shard"
    for other in sharded:
        assert other[3] == sharded[0][3], "all shards decide alike, to the bit"
        assert np.abs(other[0] - end).max() <= ROUNDING
        assert np.abs(other[1] - average).max() <= ROUNDING
        assert other[2] == pytest.approx(value, abs=10 * ROUNDING)
        for row, expected in zip(other[3], rows, strict=True):
            assert row[0] == pytest.approx(expected[0], abs=10 * ROUNDING)
            assert row[1:] == expected[1:]


def resumed(rank: int, ranks: int, folder: str, by: str) -> list[bytes]:
    """The rest of a job, by itself and from its states."""
    ends = []
    for is_loaded in (False, True):
        replica, model, optimizer, local = make(rank, ranks, "sieve")
        path, dcp_path = Path(folder, f"{rank}.pt"), str(Path(folder, "dcp"))
        if is_loaded:
            states = torch.load(path, weights_only=False)
            optimizer.load_state_dict(states["optimizer"])
            if by == "dcp":
                dcp.load({"local": local}, checkpoint_id=dcp_path)
            else:
                local.load_state_dict(states["local"])
        with local:
            if not is_loaded:
                train(replica, model, optimizer, 0, 3)
                local.sync()
                train(replica, model, optimizer, 1, 1 + replica)
                parts = {"optimizer": optimizer, "local": local}
                torch.save({k: v.state_dict() for k, v in parts.items()}, path)
                dcp.save({"local": local}, checkpoint_id=dcp_path)
            train(replica, model, optimizer, 2, 2)
        ends.append(whole(model).tobytes())
        dist.barrier()
    return ends


@pytest.mark.parametrize("by", ["file", "dcp"])
def test_a_sharded_job_resumes_to_the_same_bits(
    pool: Pool, tmp_path: Path, by: str
) -> None:
    for through, cut in pool.run(resumed, 4, str(tmp_path), by):
        assert through == cut


def movements(rank: int, _: int) -> None:
    """The first replica does steps that are not counted."""
    replica, model, optimizer, local = make(rank, 4, "mean")
    train(replica, model, optimizer, 0, 1 - replica)
    local.sync()


def test_movement_of_a_shard_without_counted_steps_is_an_error(pool: Pool) -> None:
    for good, outcome in pool.outcomes(movements, 4):
        assert not good
        assert outcome[0] == "RankError"
        assert outcome[1].startswith("parameters moved on rank 0 without")


def refused(rank: int, _: int) -> list[str]:
    """What sharded parameters cannot be served with, in words."""
    mesh, texts = make_mesh(), []
    group = mesh["replicate"].get_group()

    def attempt(model: nn.Module, group: Any, every: Any = 2, **keywords: Any) -> None:
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=0.1)
        with pytest.raises(HewError) as caught:
            HewLocalSGD(model, optimizer, every, process_group=group, **keywords)
        texts.append(str(caught.value))

    model = make_model(mesh)
    attempt(model, None)
    attempt(model, group, aggregator=make_aggregator("variate"))
    attempt(model, group, aggregator="root-weights")
    attempt(fully_shard(nn.Linear(4, 4), mesh=mesh), group)
    mixed = nn.Sequential(fully_shard(nn.Linear(4, 4), mesh=mesh["shard"]))
    attempt(mixed.append(nn.Linear(4, 1)), group)
    *_, local = make(rank, 4, "mean")
    state = local.state_dict()
    state[f"common, shard {rank % 2} of 3"] = state.pop(
        f"common{local._job.shards.name}"
    )
    with pytest.raises(DataError) as caught:
        local.load_state_dict(state)
    return [*texts, str(caught.value)]


def test_what_sharded_parameters_cannot_do_is_said(pool: Pool) -> None:
    expected = [
        "`process_group` must be the ranks that hold the same shard in other replicas",
        "`aggregator` must be one without control variates",
        "`aggregator` must be one without a root gradient, where",
        "`parameters` must be all whole, or all sharded over one dimension of a mesh",
        "`parameters` must be all whole, or all sharded over one dimension of a mesh",
        "the state is of a job with other shards",
    ]
    for texts in pool.run(refused, 4):
        pairs = zip(texts, expected, strict=True)
        assert all(text.startswith(start) for text, start in pairs), texts
