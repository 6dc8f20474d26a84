"""The averager behind torch's own optimiser wrapper."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import (
    SMALL,
    VARIATE,
    Quadratic,
    descend,
    flat,
    log_texts,
    post_local,
)

from hewfl import InvalidInputError
from hewfl.torch import HewAverager, HewLocalSGD

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch


def averaged(
    rank: int, _: int, warmup: int, *, grouped: bool = True
) -> tuple[Array, Any]:
    """Four steps under PostLocalSGDOptimizer, or with the averager called by hand.

    With a period of three, rounds come after the first step and after the fourth.
    """
    module = Quadratic(0, (torch.float32,))
    local = torch.optim.SGD(module.parameters(), lr=0.1)
    averager = HewAverager(module.parameters(), 3, warmup, options=SMALL)
    optimizer = post_local(local, averager)
    descend(module, optimizer, warmup)  # ranks stay equal
    assert averager.last is None
    module.become(rank)
    for _ in range(4):
        descend(module, optimizer if grouped else local, 1)
        if not grouped:
            averager.average_parameters(module.parameters())
    return flat(module), averager.last


def ungrouped(rank: int, ranks: int) -> tuple[Array, Any]:
    return averaged(rank, ranks, 0, grouped=False)


def by_hand(rank: int, _: int, warmup: int) -> tuple[Array, Any]:
    """The same rounds under HewLocalSGD."""
    module = Quadratic(0, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    descend(module, optimizer, warmup)
    module.become(rank)
    with HewLocalSGD(module, optimizer, 10**9, options=SMALL) as local:
        for steps in (1, 3):
            descend(module, optimizer, steps)
            local.sync()
    return flat(module), local.last


@pytest.mark.parametrize("warmup", [0, 2])
def test_rounds_come_when_torchs_averager_has_them(pool: Pool, warmup: int) -> None:
    results, expected = pool.run(averaged, 4, warmup), pool.run(by_hand, 4, warmup)
    for (model, last), (other, twin) in zip(results, expected, strict=True):
        assert model.tobytes() == other.tobytes()
        assert (last.weights, last.steps) == (twin.weights, (3, 3, 3, 3))
        assert last.round == 2


def test_without_learning_rates_all_ranks_have_the_same(pool: Pool) -> None:
    results, expected = pool.run(ungrouped, 2), pool.run(by_hand, 2, 0)
    assert results[0][0] == pytest.approx(expected[0][0], rel=1e-6)


def refused(rank: int, _: int) -> list[str]:
    module = Quadratic(rank, (torch.float32,))
    parameters = list(module.parameters())
    texts = []
    wrong: list[tuple[Any, ...]] = [
        (0,),
        (2, -1),
        (2, 0, None, VARIATE),
        (2, 0, None, "best"),
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInputError) as caught:
            HewAverager(parameters, *arguments)
        texts.append(str(caught.value))
    averager = HewAverager(parameters, 2)
    with pytest.raises(InvalidInputError) as caught:
        averager.average_parameters(parameters[:2])
    return [*texts, str(caught.value)]


def test_bad_arguments_are_named(pool: Pool) -> None:
    period, warmup, corrected, unknown, others = pool.run(refused, 2)[0]
    assert period == "`period` must be at least 1; got 0"
    assert warmup == "`warmup_steps` must be at least 0; got -1"
    assert "without control variates" in corrected
    assert "must be one of mean, " in unknown
    assert "`params` must be the parameters given at construction" in others


def lost_once(rank: int, _: int, *, cleared: bool) -> tuple[list[Any], list[str]]:
    """Rank 1 has one gradient that is not finite, and momentum that remembers it."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    averager = HewAverager(module.parameters(), 1, options=SMALL)
    lost = []
    with log_texts() as texts:
        for t in range(3):
            optimizer.zero_grad()
            module().backward()
            if rank == 1 and t == 0:
                module.parts[0].grad.fill_(torch.nan)
            optimizer.step()
            averager.average_parameters(optimizer.param_groups)
            assert averager.last is not None
            lost.append(averager.last.excluded)
            if cleared and rank in averager.last.excluded:
                optimizer.state.clear()
    return lost, [text for text in texts if "optimizer.state.clear()" in text]


def rested(rank: int, _: int) -> list[int]:
    """No rank moves in the second period, as in a warm-up schedule."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    averager = HewAverager(module.parameters(), 1, options=SMALL)
    rounds = []
    for rate in (0.1, 0.0, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        descend(module, optimizer, 1)
        averager.average_parameters(optimizer.param_groups)
        assert averager.last is not None
        rounds.append(averager.last.round)
    return rounds


def test_the_last_report_outlives_a_period_at_rest(pool: Pool) -> None:
    assert pool.run(rested, 2) == [[1, 1, 2]] * 2


def kept(rank: int, ranks: int) -> tuple[list[Any], list[str]]:
    return lost_once(rank, ranks, cleared=False)


def cleared(rank: int, ranks: int) -> tuple[list[Any], list[str]]:
    return lost_once(rank, ranks, cleared=True)


def test_a_lost_rank_is_told_what_to_do(pool: Pool) -> None:
    """An averager does not see the optimiser; what it advises brings the rank back."""
    (lost, none), (_, texts) = pool.run(kept, 2)
    assert lost == [(1,), (1,), (1,)]
    assert (len(none), len(texts)) == (0, 3)
    assert texts[0].startswith("round 1: the model of rank 1 was not finite")
    (lost, _), (_, texts) = pool.run(cleared, 2)
    assert lost == [(1,), (), ()]
    assert len(texts) == 1


def stopped_schedule(rank: int, _: int) -> Any:
    """The learning rate is zero when the averager sees it, after the last step."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    averager = HewAverager(module.parameters(), 1)
    descend(module, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.0
    averager.average_parameters(optimizer.param_groups)
    return averager.last


def test_a_learning_rate_of_zero_is_no_error(pool: Pool) -> None:
    """A scheduler may have stepped already; the rank is idle, as with HewLocalSGD."""
    assert pool.run(stopped_schedule, 2) == [None] * 2
