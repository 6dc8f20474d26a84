"""Sums that travel while local steps go on, and sums in fewer bytes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import SMALL, Quadratic, descend, flat, make_aggregator
from torch import nn

from hewfl import InvalidInputError, ServerStep
from hewfl.torch import HewLocalSGD, SyncOptions

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch
STEPS, ROUNDS = 2, 4


def job(
    rank: int, _: int, options: SyncOptions, rule: str
) -> tuple[list[Array], list[Any], Array, int]:
    """The model before each round; weights; the model at the end; bytes of a round."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    before: list[Array] = [flat(module)]
    weights, sent = [], 0
    with HewLocalSGD(
        module, optimizer, 10**9, make_aggregator(rule), None, options
    ) as local:
        for _ in range(ROUNDS):
            descend(module, optimizer, STEPS)
            before.append(flat(module))
            report = local.sync()
            assert report is not None
            weights.append(report.weights)
            sent = report.bytes_sent
    return before, weights, flat(module), sent


def steps_of(rank: int, y: Array) -> Array:
    """What a rank's steps make of a model, by torch itself."""
    module = Quadratic(rank, (torch.float32,))
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(
            torch.tensor(y, dtype=torch.float32), module.parameters()
        )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    descend(module, optimizer, STEPS)
    return flat(module)


@pytest.mark.parametrize("rule", ["exact", "mean"])
def test_a_sum_is_applied_one_round_later(pool: Pool, rule: str) -> None:
    """Δ of a round is what was done since the last one was sent."""
    options = replace(SMALL, overlap=True, server_step=ServerStep(0.7))
    results = pool.run(job, 3, options, rule)
    n, x = 3, results[0][0][0]
    starts = [x] * n  # of a rank's steps: what was captured when a sum was sent
    sent: Array | None = None
    for t in range(1, ROUNDS + 1):
        ends = [steps_of(i, starts[i]) for i in range(n)]
        for i in range(n):
            assert results[i][0][t] == pytest.approx(ends[i], abs=5e-5)
        if sent is not None:  # the sum of the round before has arrived by now
            x = x + 0.7 * sent
        updates = np.stack(ends) - np.stack(starts)
        starts = list(x + updates)
        sent = np.array(results[0][1][t - 1]) @ updates
    assert sent is not None
    x = x + 0.7 * sent
    for _, _, end, _ in results:
        assert end == pytest.approx(x, abs=5e-5)
        assert end.tobytes() == results[0][2].tobytes()


def test_bfloat16_sends_half_the_bytes(pool: Pool) -> None:
    """The model is that of whole sums, but for the rounding to 8 bits."""
    compressed = pool.run(job, 2, replace(SMALL, compression="bfloat16"), "mean")
    plain = pool.run(job, 2, SMALL, "mean")
    model = compressed[0][2]
    assert plain[0][3] - compressed[0][3] == pytest.approx(2 * len(model), abs=8)
    assert all(end.tobytes() == model.tobytes() for _, _, end, _ in compressed)
    length = np.abs(plain[0][2] - plain[0][0][0]).max()
    assert 0 < np.abs(model - plain[0][2]).max() < 2**-7 * length


def refused(rank: int, _: int) -> str:
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    overlap, rule = SyncOptions(overlap=True), make_aggregator("variate")
    with pytest.raises(InvalidInputError) as caught:
        HewLocalSGD(module, optimizer, 2, rule, None, overlap)
    return str(caught.value)


def test_what_cannot_overlap_is_refused(pool: Pool) -> None:
    text = pool.run(refused, 2)[0]
    assert text.startswith("`overlap` must be False with control")


def idle_at_first(rank: int, _: int) -> list[float]:
    """Rank 1 does no step before the first round; what it does then is not lost."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    options = SyncOptions(overlap=True)
    with HewLocalSGD(module, optimizer, 10**9, "mean", None, options) as local:
        for size, steps in ((1.0, rank == 0), (4.0, True)):
            if steps:
                module.weight.grad = torch.full((1, 1), -size)
                optimizer.step()
            local.sync()
    entries: list[float] = module.weight.detach().view(-1).tolist()
    return entries


def test_steps_of_a_rank_that_was_idle_are_kept(pool: Pool) -> None:
    """x = 0 + 1 of rank 0 alone, then the mean of 4 and 4."""
    assert pool.run(idle_at_first, 2) == [[5.0]] * 2


def ones(sync_every: int) -> tuple[nn.Linear, torch.optim.Optimizer, HewLocalSGD]:
    """A model of one weight, zero at first, that each step makes larger by one."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    options = SyncOptions(overlap=True)
    return (
        module,
        optimizer,
        HewLocalSGD(module, optimizer, sync_every, options=options),
    )


def climb(module: nn.Linear, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (-module.weight.sum()).backward()
        optimizer.step()


def loaded_and_discarded(*_: int) -> tuple[float, float]:
    """Models after a state is loaded, or steps discarded, while a sum travels."""
    module, optimizer, local = ones(4)
    with local:
        state = local.state_dict()
        climb(module, optimizer, 4)  # its sum is on its way
        local.load_state_dict(state)
        climb(module, optimizer, 4)
        local.state_dict()  # waits for the sum
        loaded = module.weight.item()
    module, optimizer, local = ones(4)
    with local:
        climb(module, optimizer, 4 + 2)
        local.discard_local_steps()  # the last two
        climb(module, optimizer, 4)
        local.state_dict()
        discarded = module.weight.item()
    return loaded, discarded


def test_a_sum_on_its_way_is_dropped_by_load_and_kept_by_discard(pool: Pool) -> None:
    assert pool.run(loaded_and_discarded, 2) == [(4.0, 8.0)] * 2
