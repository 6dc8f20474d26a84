"""Small models: all ranks get all displacements whole, in one message each."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.pool import Pool
from tests.torch.scenarios import SIZE, Plan, Quadratic, descend, flat, log_texts, play
from torch import nn

from hewfl import ServerStep
from hewfl.core.native import PASSES, load
from hewfl.core.round import Round
from hewfl.server.state import checked_decision
from hewfl.torch import HewLocalSGD, RankError, SyncOptions
from hewfl.torch.collectives import Communicator
from hewfl.torch.exchange import WHOLE_BYTES, Exchange

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(load(PASSES) is None, reason="sums are the only way without it"),
]
WHOLE, SUMS = SyncOptions(), SyncOptions(bucket_bytes=64)
DILOCO = ServerStep(0.7, 0.9, nesterov=True)


@pytest.mark.parametrize("server_step", [ServerStep(), DILOCO], ids=["plain", "DiLoCo"])
@pytest.mark.parametrize("rule", ["sieve", "exact", "mean"])
def test_a_round_is_that_of_sums(
    pool: Pool, rule: str, server_step: ServerStep
) -> None:
    """One rank is lost in the last round; all ranks have the same bits."""
    plan = Plan(rule, rounds=4, spoiled=(2,))
    whole, sums = (
        pool.run(play, 4, replace(plan, options=replace(way, server_step=server_step)))
        for way in (WHOLE, SUMS)
    )
    for ours, theirs in zip(whole, sums, strict=True):
        for t, (now, twin) in enumerate(zip(ours, theirs, strict=True)):
            assert now.after.tobytes() == whole[0][t].after.tobytes()
            np.testing.assert_allclose(now.after, twin.after, rtol=2e-5, atol=2e-6)
            weights = now.report.weights, twin.report.weights
            np.testing.assert_allclose(*weights, atol=1e-5)
            assert now.report.excluded == twin.report.excluded
            assert now.report.bytes_sent == 3 * (192 + 4 * SIZE)
            assert now.report.sketch_check is None
    assert whole[0][-1].report.excluded == (2,)


def idle_and_still(rank: int, _: int) -> Any:
    """Rank 1 does steps and does not move, rank 2 does none."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with HewLocalSGD(module, optimizer, 10**9) as local:
        before = flat(module)
        descend(module, optimizer, 0 if rank == 2 else 2)
        if rank == 1:
            with torch.no_grad():
                start = torch.from_numpy(before).float()
                nn.utils.vector_to_parameters(start, module.parameters())
        report = local.sync()
        assert report is not None
    return report.weights, report.idle


def test_a_rank_that_did_not_move_has_no_weight(pool: Pool) -> None:
    for weights, idle in pool.run(idle_and_still, 4):
        assert idle == (1, 2)
        assert weights == (0.5, 0.0, 0.0, 0.5)


def different_weights(rank: int, _: int) -> Any:
    """In round 1 rank 1 finds weights that differ in a last digit, as others might."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def other(algorithm: Any, round_: Round, state: Any) -> Any:
        decision, following = checked_decision(algorithm, round_, state)
        off = 1e-6 * (rank == 1 and round_.cohort.round == 0)
        return replace(decision, weights=decision.weights + off), following

    models, ways = [], []
    with pytest.MonkeyPatch.context() as patch, log_texts() as texts:
        patch.setattr("hewfl.torch.sync.checked_decision", other)
        options = SyncOptions(server_step=DILOCO)
        with HewLocalSGD(module, optimizer, 2, options=options) as local:
            for _ in range(4):
                descend(module, optimizer, 2)
                shared = local._job.model
                held = [flat(module), *(x.numpy() for x in shared.memory)]
                models.append(b"".join(part.tobytes() for part in held))
                ways.append(bool(local._job.exchange.is_whole))
    return models, ways, texts


def test_ranks_that_find_different_weights_continue_from_one_model(pool: Pool) -> None:
    """Sums follow, in which such a difference does no harm."""
    results = pool.run(different_weights, 3)
    first = results[0][0]
    assert [models[0] == first[0] for models, *_ in results] == [True, False, True]
    for models, ways, _ in results:
        assert models[1:] == first[1:]
        assert ways == [True, False, False, False]
    assert sum("ranks had found different weights" in t for t in results[0][2]) == 1


def heard_by_one(rank: int, _: int) -> Any:
    """Rank 2 is lost in round 1 when its message has reached rank 0 alone."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def send_to_one(self: Communicator, sent: Any, rows: Any, tag: int) -> Any:
        handles = [self.group.recv([rows[k]], k, tag) for k in (0, 1)]
        self.wait([*handles, self.group.send([sent], 0, tag)])
        text = "the machine has no power"
        raise RuntimeError(text)

    ends = [flat(module)]
    options = SyncOptions(timeout=30, on_round=lambda _: ends.append(flat(module)))
    with pytest.MonkeyPatch.context() as patch:
        local = HewLocalSGD(module, optimizer, 1, options=options)
        local.__enter__()
        descend(module, optimizer, 1)
        if rank == 2:
            patch.setattr(Communicator, "_send_to_all", send_to_one)
        with pytest.raises(RankError) as caught:
            descend(module, optimizer, 2)
    local.discard_local_steps()
    return local.rounds, [end.tobytes() for end in (*ends, flat(module))], str(caught)


def test_a_rank_that_is_lost_half_heard_is_an_error_on_all(pool: Pool) -> None:
    """Who heard of it has the round, as where a rank is lost right after it; no abort.

    Each rank has the model of its own last round, to return to.
    """
    results = pool.run(heard_by_one, 3)
    assert [rounds for rounds, *_ in results] == [2, 1, 1]
    for rounds, ends, text in results:
        assert len(ends) == rounds + 2
        assert ends[-1] == ends[-2]
        assert ends[1] == results[0][1][1]
        assert f"broke off in round {rounds}" in text


class Vector(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy here
    """So many parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def two_on_one_group(rank: int, _: int, sizes: tuple[int, ...], order: str) -> Any:
    """Two jobs on one group; rank 1 calls them in another order, if at all."""
    jobs = []

    def make(size: int) -> None:
        module = Vector(size)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        local = HewLocalSGD(module, optimizer, 10**9)
        local.__enter__()
        jobs.append((module, optimizer, local))

    def step(k: int) -> None:
        module, optimizer, local = jobs[k]
        module.weight.grad = torch.full_like(module.weight, 1.0 + rank)
        optimizer.step()
        local.sync()

    make(sizes[0])
    if order == "at construction" and rank == 1:
        step(0)
    make(sizes[1])
    for k in (1, 0) if order == "crossed" and rank == 1 else (0, 1):
        step(k)
    return [bool(local._job.exchange.is_whole) for *_, local in jobs], [
        module.weight[0].item() for module, *_ in jobs
    ]


@pytest.mark.parametrize("sizes", [(50, 70_000), (70_000, 50), (60, 600_000)])
def test_messages_of_a_group_have_one_size(pool: Pool, sizes: tuple[int, ...]) -> None:
    """Whatever comes second: each learns what is wrong, and no process ends."""
    for whole, ends in pool.run(two_on_one_group, 3, sizes, "alike"):
        assert whole == [size < 100_000 for size in sizes]
        assert ends == pytest.approx([1 - 0.2] * 2)
    for order, rule in (("crossed", "use the same"), ("at construction", "come to")):
        for outcome in pool.outcomes(two_on_one_group, 3, sizes, order):
            assert outcome is not None, "a process has ended"
            assert outcome[1][0] == "RankError"
            assert outcome[1][1].startswith(f"all ranks must {rule}")


def without_kernels(rank: int, _: int) -> Any:
    """Rank 1 has no compiled kernels: all send sums."""
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(Exchange, "whole_bytes", 0)
        module = Quadratic(rank, (torch.float32,))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with HewLocalSGD(module, optimizer, 2) as local:
            descend(module, optimizer, 4)
        return local._job.exchange.is_whole, flat(module).tobytes()


def test_where_one_rank_cannot_all_send_sums(pool: Pool) -> None:
    results = pool.run(without_kernels, 2)
    assert results[0] == results[1]
    assert results[0][0] is False


def chosen(_: int, __: int, size: int, options: SyncOptions) -> bool:
    module = Vector(size)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    local = HewLocalSGD(module, optimizer, 1, options=options)
    return bool(local._job.exchange.is_whole)


@pytest.mark.parametrize(
    ("ranks", "size", "options", "expected"),
    [
        (2, WHOLE_BYTES // 4, SyncOptions(), True),
        (2, WHOLE_BYTES // 4 + 1, SyncOptions(), False),
        (4, WHOLE_BYTES // 12, SyncOptions(), True),
        (4, WHOLE_BYTES // 12 + 1, SyncOptions(), False),
        (2, 100, SyncOptions(overlap=True), False),
        (2, 100, SyncOptions(compression="bfloat16"), False),
        (2, 100, SyncOptions(gram="full"), False),
        (2, 100, SyncOptions(bucket_bytes=200), False),
    ],
)
def test_models_are_sent_whole_where_it_costs_little(
    pool: Pool, ranks: int, size: int, options: SyncOptions, expected: bool
) -> None:
    assert pool.run(chosen, ranks, size, options) == [expected] * ranks
