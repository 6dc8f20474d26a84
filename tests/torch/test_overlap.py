"""Sums that travel while local steps go on, and sums in half the bytes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import SMALL, Quadratic, descend, flat

from hewfl import InvalidInputError, Outer
from hewfl.torch import HewAverager, HewLocalSGD, SyncOptions

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
    options = replace(SMALL, overlap=True, outer=Outer(0.7))
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


def test_half_the_bytes_and_nothing_lost(pool: Pool) -> None:
    """What is rounded off is sent later: the sum of all steps is right."""
    narrow = replace(SMALL, send="bfloat16")
    found, exact = pool.run(job, 2, narrow, "equal"), pool.run(job, 2, SMALL, "equal")
    size = len(found[0][2])
    assert exact[0][3] - found[0][3] == pytest.approx(2 * size, abs=8)
    assert found[0][2].tobytes() == found[1][2].tobytes()
    length = np.abs(exact[0][2] - exact[0][0][0]).max()
    error = np.abs(found[0][2] - exact[0][2]).max()
    assert 0 < error < 2**-7 * length


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
