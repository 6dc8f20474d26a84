"""Sums that travel while local steps go on, and sums in fewer bytes."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import SMALL, Quadratic, descend, flat
from torch import nn

from hewfl import InvalidInputError, ServerStep
from hewfl.torch import HewAverager, HewLocalSGD, SyncOptions
from hewfl.torch.compression import BLOCK, packed, unpacked

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
    with HewLocalSGD(module, optimizer, 10**9, rule, None, options) as local:
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


@pytest.mark.parametrize("rule", ["hom", "equal"])
def test_a_sum_is_applied_one_round_later(pool: Pool, rule: str) -> None:
    """Δ of a round is what was done since the last one was sent."""
    options = replace(SMALL, overlap=True, server_step=ServerStep(0.7))
    found = pool.run(job, 3, options, rule)
    n, x = 3, found[0][0][0]
    starts = [x] * n  # of a rank's steps: what was captured when a sum was sent
    sent: Array | None = None
    for t in range(1, ROUNDS + 1):
        ends = [steps_of(i, starts[i]) for i in range(n)]
        for i in range(n):
            assert found[i][0][t] == pytest.approx(ends[i], abs=5e-5)
        if sent is not None:  # the sum of the round before has arrived by now
            x = x + 0.7 * sent
        moved = np.stack(ends) - np.stack(starts)
        starts = list(x + moved)
        sent = np.array(found[0][1][t - 1]) @ moved
    assert sent is not None
    x = x + 0.7 * sent
    for _, _, end, _ in found:
        assert end == pytest.approx(x, abs=5e-5)
        assert end.tobytes() == found[0][2].tobytes()


@pytest.mark.parametrize(("send", "ranks"), [("bfloat16", 2), ("int8", 2), ("int8", 3)])
def test_fewer_bytes_and_nothing_lost(
    pool: Pool, send: Literal["bfloat16", "int8"], ranks: int
) -> None:
    """What is rounded off is sent later: the sum of all steps is right."""
    narrow = replace(SMALL, send=send)
    found = pool.run(job, ranks, narrow, "equal")
    exact = pool.run(job, ranks, SMALL, "equal")
    size = len(found[0][2])
    if send == "bfloat16":
        assert exact[0][3] - found[0][3] == pytest.approx(2 * size, abs=8)
    assert all(end.tobytes() == found[0][2].tobytes() for _, _, end, _ in found)
    length = np.abs(exact[0][2] - exact[0][0][0]).max()
    error = np.abs(found[0][2] - exact[0][2]).max()
    assert 0 < error < 2**-7 * length


def test_numbers_of_int8_keep_two_digits() -> None:
    numbers = torch.randn(3, 2 * BLOCK) * torch.tensor([[1.0], [1e-6], [0.0]])
    message = packed(numbers)
    assert message.shape == (3, 2 * (BLOCK + 4))
    found = unpacked(message, torch.float32)
    largest = numbers.abs().amax(dim=1, keepdim=True)
    assert ((found - numbers).abs() <= largest / 254 * 1.001).all()
    numbers[1, 5] = torch.inf
    lost = unpacked(packed(numbers), torch.float32).isnan().any(dim=1)
    assert lost.tolist() == [False, True, False]


def refused(rank: int, _: int) -> list[str]:
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    overlap, texts = SyncOptions(overlap=True), []
    for call in (
        lambda: HewLocalSGD(module, optimizer, 2, "het", None, overlap),
        lambda: HewAverager(module.parameters(), 2, options=overlap),
    ):
        with pytest.raises(InvalidInputError) as caught:
            call()
        texts.append(str(caught.value))
    return texts


def test_what_cannot_overlap_is_refused(pool: Pool) -> None:
    variates, averager = pool.run(refused, 2)[0]
    assert variates.startswith("`overlap` must be False for rules with control")
    assert averager.startswith("`options.overlap` must be False: nothing tells")


def idle_at_first(rank: int, _: int) -> list[float]:
    """Rank 1 does no step before the first round; what it does then is not lost."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    options = SyncOptions(overlap=True)
    with HewLocalSGD(module, optimizer, 10**9, "equal", None, options) as local:
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
