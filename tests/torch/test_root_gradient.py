"""A root gradient in a torch job: rank 0's, the same on all ranks."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.torch.pool import Pool
from tests.torch.scenarios import (
    TRUSTED,
    Quadratic,
    descend,
    flat,
    quadratic,
    root_loss,
)

from hewfl import InvalidInputError
from hewfl.aggregators import ExactWeights
from hewfl.torch import HewLocalSGD, RankError, SyncOptions

Array = NDArray[np.float64]
pytestmark = pytest.mark.torch
RATE, RULE = 0.01, ExactWeights("root", kappa=3.0)


@final
@dataclass(frozen=True)
class RankRecord:
    """One rank: the start, models before and after each round, weights."""

    start: Array
    before: list[Array]
    after: list[Array]
    weights: list[Any]


def make(rank: int, gram: Any) -> tuple[Any, Any, HewLocalSGD]:
    module = Quadratic(rank, (torch.float64,))
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    options = SyncOptions(bucket_bytes=64, gram=gram, timeout=20.0)
    return module, optimizer, HewLocalSGD(module, optimizer, 99, RULE, None, options)


def play(rank: int, _: int, gram: str) -> RankRecord:
    module, optimizer, local = make(rank, gram)

    def root() -> torch.Tensor:
        assert rank == 0
        return root_loss(module)

    local.set_root(root)
    record = RankRecord(flat(module), [], [], [])
    local.__enter__()
    for _round in range(2):
        descend(module, optimizer, 1 + rank)
        record.before.append(flat(module))
        report = local.sync()
        assert report is not None
        record.weights.append(report.weights)
        record.after.append(flat(module))
    assert all(p.grad is not None for p in module.parameters())  # of the last step
    return record


@pytest.mark.parametrize("gram", ["sketch", "full"])
def test_the_rule_gets_rank_0s_gradient_at_the_common_model(
    pool: Pool, gram: str
) -> None:
    ranks = pool.run(play, 3, gram)
    A, b = quadratic(TRUSTED)
    x = ranks[0].start
    for t in range(2):
        updates = np.stack([rank.before[t] - x for rank in ranks])
        decision, _ = RULE(updates, root=A.T @ (A @ x - b))
        for rank in ranks:  # sketches of so few numbers are exact
            np.testing.assert_allclose(rank.weights[t], decision.weights, atol=1e-6)
        x = x + decision.step
        for rank in ranks:
            np.testing.assert_allclose(rank.after[t], x, atol=1e-6)
        x = ranks[0].after[t]


def fail(rank: int, _: int, kind: str) -> tuple[str, str, Array, Array]:
    module, optimizer, local = make(rank, "sketch")
    if kind == "raises":
        local.set_root(lambda: 1 / 0)
    elif kind == "not finite":
        local.set_root(lambda: torch.nan * module())
    elif kind == "detached":
        local.set_root(lambda: module().detach())
    local.__enter__()
    start = flat(module)
    descend(module, optimizer, 1)
    end = flat(module)
    with pytest.raises((RankError, InvalidInputError, ZeroDivisionError)) as caught:
        local.sync()
    np.testing.assert_array_equal(flat(module), end)  # nothing has changed
    return type(caught.value).__name__, str(caught.value), start, end


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("none", "InvalidInputError", "set_root"),
        ("detached", "InvalidInputError", "a loss with gradients"),
        ("raises", "ZeroDivisionError", "division"),
        ("not finite", "RankError", "not finite"),
    ],
)
def test_every_rank_learns_at_once_that_there_is_no_root(
    pool: Pool, kind: str, error: str, sentence: str
) -> None:
    first, second = pool.run(fail, 2, kind)
    assert first[0] == error
    assert sentence in first[1]
    assert second[0] == "RankError"
    assert "root gradient of rank 0" in second[1]
