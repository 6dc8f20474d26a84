"""Models that would leave the range of their precision: an error on every rank."""

from dataclasses import dataclass
from typing import Any, final

import pytest
import torch
from tests.torch.pool import Pool
from tests.torch.scenarios import make_aggregator
from torch import nn

from hewfl import ServerStep
from hewfl.torch import HewLocalSGD, RankError, SyncOptions
from hewfl.torch.rendezvous import RankWork

pytestmark = pytest.mark.torch


KINDS = {torch.float16: 4e4, torch.bfloat16: 2e38, torch.float32: 2e38}
"""Displacements that the server step size of 2 takes beyond each precision."""


@final
@dataclass(frozen=True)
class Job:
    """Rounds by hand, with server momentum.

    Attributes:
        rule: of HewLocalSGD.
        dtype: of the parameters.
        far: displacement of one entry in the second round, None for no such round.
    """

    rule: str
    dtype: torch.dtype
    far: float | None


def play(rank: int, _: int, job: Job) -> tuple[list[bytes], list[str]]:
    """The model after each round, and what was said."""
    module = nn.Linear(4, 3, bias=False).to(job.dtype)
    nn.init.zeros_(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    options = SyncOptions(
        bucket_bytes=8, server_step=ServerStep(2.0, 0.5)
    )  # several buckets
    models, texts = [], []
    with HewLocalSGD(
        module, optimizer, 10**9, make_aggregator(job.rule), None, options
    ) as local:
        for size in (1.0, job.far, 1.0):
            if size is None:
                continue
            start = module.weight.detach().clone()
            step(module, optimizer, rank, size)
            here = module.weight.detach().clone()
            try:
                local.sync()
            except RankError as error:
                texts.append(str(error))
                assert torch.equal(module.weight, here)
                take_back(local, module, start)
            else:
                models.append(bits(module.weight))
                state = local.state_dict()
                common = state["common"].items()
                models += [bits(x) for name, x in common if name.startswith("anchor")]
    return models, texts


def step(module: nn.Linear, optimizer: Any, rank: int, size: float) -> None:
    """Entry (2, 1) moves by `size`, or as far as g − c_i + c lets it."""
    gradient = torch.full_like(module.weight, 0.25 * (1 + rank))
    gradient[2, 1] = -size
    module.weight.grad = gradient
    optimizer.step()


def take_back(local: HewLocalSGD, module: nn.Linear, start: torch.Tensor) -> None:
    """Go on from the common model as if the last step had not been."""
    local._steps.work = RankWork()
    with torch.no_grad():
        module.weight.copy_(start)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().double().numpy().tobytes())


@pytest.mark.parametrize("rule", ["mean", "variate"])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_every_rank_says_so_and_nothing_has_changed(
    pool: Pool, dtype: torch.dtype, rule: str
) -> None:
    """The rounds around the one that fails are those of a job without it."""
    results = pool.run(play, 3, Job(rule, dtype, KINDS[dtype]))
    expected = pool.run(play, 3, Job(rule, dtype, None))
    for (models, texts), (twins, none) in zip(results, expected, strict=True):
        assert models == twins
        assert (len(texts), none) == (1, [])
        assert texts[0].startswith("the model after round 2, or a control variate,")
        assert "server step size 2" in texts[0]


def far_variate(rank: int, _: int) -> tuple[str, list[bytes], list[bytes]]:
    """Δ_1 is within float32, Δ_1/(η_1H_1) is not; c_i and c before and after."""
    module = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with HewLocalSGD(module, optimizer, 10**9, make_aggregator("variate")) as local:
        module.weight.grad = torch.ones(1, 2)
        optimizer.step()
        if rank == 1:
            module.weight.data.fill_(5e37)
        before = variates(local)
        with pytest.raises(RankError) as caught:
            local.sync()
        after = variates(local)
        local.discard_local_steps()
    return str(caught.value), before, after


def variates(local: HewLocalSGD) -> list[bytes]:
    held = local._job.variates
    assert held is not None
    return [bits(c) for c in held.client + held.server]


def test_a_control_variate_beyond_its_precision_is_said_too(pool: Pool) -> None:
    for text, before, after in pool.run(far_variate, 2):
        assert text.startswith("the model after round 1, or a control variate, would")
        assert before == after


def near_the_end(rank: int, _: int) -> list[float]:
    """A model far beyond half of the range of float16, but within it."""
    module = nn.Linear(4, 4, bias=False).half()
    nn.init.zeros_(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    options = SyncOptions(bucket_bytes=8)  # four buckets
    with HewLocalSGD(module, optimizer, 1, "mean", None, options):
        for size in (1.0, 4e4 + 64 * rank):
            module.weight.grad = torch.full((4, 4), -size).half()
            optimizer.step()
    entries: list[float] = module.weight.detach().view(-1).tolist()
    return entries


def test_all_of_the_range_may_be_used(pool: Pool) -> None:
    for entries in pool.run(near_the_end, 2):
        assert entries == [40032.0] * 16  # 1 + 40032, to the precision of float16
