"""Finite displacements whose common model would be beyond its precision."""

from dataclasses import dataclass
from typing import Any, final

import pytest
import torch
from tests.torch.pool import Pool
from torch import nn

from hewfl import Outer
from hewfl.torch import HewLocalSGD, RankError, SyncOptions

pytestmark = pytest.mark.torch
KINDS = {torch.float16: 4e4, torch.bfloat16: 2e38, torch.float32: 2e38}
"""Displacements that the outer step size of 2 takes beyond each precision."""


@final
@dataclass(frozen=True)
class Job:
    """Rounds by hand, with outer momentum.

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
    options = SyncOptions(bucket_bytes=8, outer=Outer(2.0, 0.5))  # several buckets
    models, texts = [], []
    with HewLocalSGD(module, optimizer, 10**9, job.rule, None, options) as local:
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
                models += [bits(x) for x in state["masters"] + state["anchor"]]
    return models, texts


def step(module: nn.Linear, optimizer: Any, rank: int, size: float) -> None:
    """Entry (2, 1) moves by `size`, or as far as g − c_i + c lets it."""
    gradient = torch.full_like(module.weight, 0.25 * (1 + rank))
    gradient[2, 1] = -size
    module.weight.grad = gradient
    optimizer.step()


def take_back(local: HewLocalSGD, module: nn.Linear, start: torch.Tensor) -> None:
    """Go on from the common model as if the last step had not been."""
    state = local.state_dict()
    state["work"] = {"steps": 0, "tokens": 0, "travelled": 0.0}
    local.load_state_dict(state)
    with torch.no_grad():
        module.weight.copy_(start)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().double().numpy().tobytes())


@pytest.mark.parametrize("rule", ["equal", "het"])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_every_rank_says_so_and_nothing_has_changed(
    pool: Pool, dtype: torch.dtype, rule: str
) -> None:
    """The rounds around the one that fails are those of a job without it."""
    found = pool.run(play, 3, Job(rule, dtype, KINDS[dtype]))
    expected = pool.run(play, 3, Job(rule, dtype, None))
    for (models, texts), (twins, none) in zip(found, expected, strict=True):
        assert models == twins
        assert (len(texts), none) == (1, [])
        assert texts[0].startswith("the model after round 2 would not be finite")
        assert "outer step size 2" in texts[0]
