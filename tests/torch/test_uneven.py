"""Ranks whose loops end at different times, and several optimisers."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import SMALL, Quadratic, descend, flat, make_aggregator
from torch import nn

from hewfl import FedAvgM, InvalidInputError, ServerStep
from hewfl.torch import HewLocalSGD, SyncOptions
from hewfl.torch.sync_options import SyncReport

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch


def uneven(
    rank: int, _: int, rule: str, steps: tuple[int, ...]
) -> tuple[Array, list[SyncReport]]:
    """A round every second step; ranks have data for different numbers of them."""
    reports: list[SyncReport] = []
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = SyncOptions(bucket_bytes=64, timeout=30, on_round=reports.append)
    with HewLocalSGD(module, optimizer, 2, make_aggregator(rule), None, options):
        descend(module, optimizer, steps[rank])
    return flat(module), reports


@pytest.mark.parametrize("rule", ["exact", "variate"])
def test_a_rank_that_runs_out_of_data_waits_for_the_others(
    pool: Pool, rule: str
) -> None:
    """It adds its last steps to the next round, and idles from then on."""
    results = pool.run(uneven, 3, rule, (2, 3, 7))
    for model, reports in results:
        assert model.tobytes() == results[0][0].tobytes()
        assert [r.steps for r in reports] == [
            (2, 2, 2),
            (0, 1, 2),
            (0, 0, 2),
            (0, 0, 1),
        ]
        assert [r.finished for r in reports] == [(), (0, 1), (0, 1), (0, 1, 2)]
        assert reports[2].weights == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("steps", [(0, 4), (4, 0)])
def test_a_rank_without_data_does_not_stop_control_variates(
    pool: Pool, steps: tuple[int, ...]
) -> None:
    """It has no first gradient; its variate starts at the others' mean."""
    results = pool.run(uneven, 2, "variate", steps)
    for model, reports in results:
        assert model.tobytes() == results[0][0].tobytes()
        assert [r.steps for r in reports] == [tuple(min(s, 2) for s in steps)] * 2


def shared_out(rank: int, _: int, several: bool) -> tuple[Array, tuple[int, ...]]:
    """Two optimisers of a part each, or one of both."""
    module = Quadratic(rank, (torch.float32,))
    first, *others = module.parameters()
    made: list[torch.optim.Optimizer] = [torch.optim.SGD([first, *others], lr=0.05)]
    if several:
        parts: list[list[nn.Parameter]] = [[first], others]
        made = [torch.optim.SGD(part, lr=0.05) for part in parts]
    with HewLocalSGD(
        module, made if several else made[0], 3, make_aggregator("variate")
    ) as local:
        for _ in range(6):
            module.zero_grad()
            module().backward()
            for optimizer in made:
                optimizer.step()
    assert local.last is not None
    return flat(module), local.last.steps


def test_several_optimisers_are_as_one(pool: Pool) -> None:
    """A step is done when each has made one; gradients are corrected once."""
    one, two = pool.run(shared_out, 2, False), pool.run(shared_out, 2, True)
    for (model, steps), (other, same) in zip(one, two, strict=True):
        assert model.tobytes() == other.tobytes()
        assert steps == same == (3, 3)


def odd(rank: int, _: int) -> list[Any]:
    """A entry for a rule, and an optimiser that has no learning rate."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    entry = FedAvgM(1.0, momentum=0.5)
    texts: list[Any] = []
    wrong: list[tuple[Any, ...]] = [
        (optimizer, 2, entry, None, SyncOptions(server_step=ServerStep(0.3))),
        ([optimizer, optimizer], 2),
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInputError) as caught:
            HewLocalSGD(module, *arguments)
        texts.append(str(caught.value))
    with HewLocalSGD(module, optimizer, np.int64(2), entry, None, SMALL) as local:
        for _ in range(2):
            local.add_tokens(10)
            descend(module, optimizer, 2)
    texts.append(local._job.model.server_step)
    optimizer.param_groups[0].pop("lr")
    rateless = HewLocalSGD(module, optimizer, 2, make_aggregator("exact"), None, SMALL)
    with pytest.MonkeyPatch.context() as patch, rateless:
        patch.setattr(torch.optim.SGD, "step", without_rate)
        for hook in list(optimizer._optimizer_step_post_hooks.values()):
            hook(optimizer, (), {})
    return [*texts, rateless._steps.work.steps]


def without_rate(optimizer: torch.optim.Optimizer) -> None:
    """An optimiser that finds its own."""


def test_entries_and_optimisers_without_rates(pool: Pool) -> None:
    for other, twice, server_step, _ in pool.run(odd, 2):
        assert other.startswith(
            "`options.server_step` must be left out, or that of `aggregator`"
        )
        assert twice.startswith("`optimizer` must be different optimisers")
        assert server_step == ServerStep(1.0, 0.5)
