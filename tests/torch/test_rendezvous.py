"""Ranks that come to different rendezvous, or with gradients that are not corrected."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import Pool
from tests.torch.scenarios import SMALL, Quadratic, descend, flat, make_aggregator

from hewfl import InvalidInputError
from hewfl.torch import HewLocalSGD, RankError, SyncOptions
from hewfl.torch.collectives import Communicator
from hewfl.torch.rendezvous import Attendance

pytestmark = pytest.mark.torch


def make(rank: int, rule: str) -> tuple[Quadratic, torch.optim.Optimizer, HewLocalSGD]:
    """A round every second step."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return (
        module,
        optimizer,
        HewLocalSGD(module, optimizer, 2, make_aggregator(rule), None, SMALL),
    )


def texts_of(outcomes: list[Any]) -> list[str]:
    """The errors of all ranks, which must be alive and have a RankError each."""
    assert all(outcome is not None for outcome in outcomes), "a process has ended"
    assert [outcome[1][0] for outcome in outcomes] == ["RankError"] * len(outcomes)
    return [outcome[1][1] for outcome in outcomes]


def stepless(rank: int, _: int, in_store: bool) -> None:
    """Rank 1 does no step under "variate", and calls a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "has_time_limits", not in_store)
        module, optimizer, local = make(rank, "variate")
        with local:
            if rank == 1:
                local.sync()
            descend(module, optimizer, 2)


@pytest.mark.parametrize("in_store", [False, True])
def test_a_rank_without_a_first_step_is_named(pool: Pool, in_store: bool) -> None:
    texts = texts_of(pool.outcomes(stepless, 3, in_store))
    rule = "all ranks must come to the same rendezvous; got ranks 0 and 2: "
    assert texts == [f"{rule}at the first step; rank 1: at a round"] * 3


def made_again(rank: int, _: int, in_store: bool) -> None:
    """Rank 1 constructs another one where rank 0 holds a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "has_time_limits", not in_store)
        module, optimizer, local = make(rank, "exact")
        with local:
            if rank == 1:
                make(rank, "exact")
            descend(module, optimizer, 2)


@pytest.mark.parametrize("in_store", [False, True])
def test_construction_is_no_round(pool: Pool, in_store: bool) -> None:
    for text in texts_of(pool.outcomes(made_again, 2, in_store)):
        assert text.endswith("got rank 1: at construction; rank 0: at a round")


def crossed(rank: int, _: int, in_store: bool) -> None:
    """Two of one layout, whose rounds rank 1 holds in another order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "has_time_limits", not in_store)
        jobs = [make(rank, "exact") for _ in range(2)]
        for module, optimizer, local in jobs if rank == 0 else jobs[::-1]:
            with local:
                descend(module, optimizer, 2)


@pytest.mark.parametrize("in_store", [False, True])
def test_two_of_one_layout_are_told_apart(pool: Pool, in_store: bool) -> None:
    for text in texts_of(pool.outcomes(crossed, 2, in_store)):
        assert text == (
            "all ranks must use the same HewLocalSGD;"
            " got rank 0: number 1; rank 1: number 2"
        )


def absent(rank: int, _: int, rule: str, last: str) -> None:
    """Rank 2 is absent after its `last` rendezvous; its process continues."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=1.5))
    try:
        come(rank, rule, last, group)
        store.wait(["0 is through", "1 is through"], timedelta(seconds=20))
    finally:
        store.set(f"{rank} is through", "")


def come(rank: int, rule: str, last: str, group: Any) -> None:
    """Come to all rendezvous of a round; rank 2 to some."""
    if rank == 2 and last == "none":
        return
    options = SyncOptions(bucket_bytes=64, timeout=timedelta(seconds=40))
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    local = HewLocalSGD(module, optimizer, 2, make_aggregator(rule), group, options)
    local.__enter__()  # never left: that would be a rendezvous
    if rank == 2 and last == "construction":
        return
    descend(module, optimizer, 1 if rank == 2 else 2)


@pytest.mark.parametrize(
    ("rule", "last", "place", "last_place"),
    [
        ("exact", "none", "at construction", "not seen before"),
        ("exact", "construction", "in round 0", "last seen at construction"),
        ("variate", "construction", "at the first step", "last seen at construction"),
        ("variate", "first step", "in round 0", "last seen at the first step"),
    ],
)
def test_a_rank_that_misses_any_rendezvous_is_named(
    pool: Pool, rule: str, last: str, place: str, last_place: str
) -> None:
    """The group's own timeout of 1.5 s is the shorter one: what is said is measured."""
    texts = texts_of(pool.outcomes(absent, 3, rule, last)[:2])
    for rank, text in enumerate(texts):
        start = f"rank {rank} broke off {place} after "
        assert text.startswith(start)
        assert float(text.removeprefix(start).split()[0]) < 20
        assert f"because it did not see rank 2 ({last_place}): " in text


def four_steps(rank: int, _: int, lost: bool) -> bytes:
    """Perhaps after a first step whose gradients were not finite on any rank."""
    module, optimizer, local = make(rank, "variate")
    with local:
        if lost:
            module().backward()
            module.parts[0].grad.fill_(torch.inf)
            with pytest.raises(RankError, match="no rank has a finite first gradient"):
                optimizer.step()
        descend(module, optimizer, 4)
    return flat(module).tobytes()


def test_control_variates_start_again_after_an_error(pool: Pool) -> None:
    assert pool.run(four_steps, 2, True) == pool.run(four_steps, 2, False)


def closed(rank: int, _: int, rule: str, named: bool) -> bool:
    """A step by closure, which forms gradients itself; whether a round followed."""
    module, optimizer, local = make(rank, rule)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = module()
        loss.backward()
        return loss

    with local:
        if named:
            optimizer.step(closure=closure)
        else:
            optimizer.step(closure)
    return local.last is not None


@pytest.mark.parametrize("named", [False, True])
def test_closures_are_refused_where_gradients_are_corrected(
    pool: Pool, named: bool
) -> None:
    for fine, (kind, text, _) in pool.outcomes(closed, 2, "variate", named):
        assert not fine
        assert kind == InvalidInputError.__name__
        assert text.startswith("`closure` must be absent with control")
    assert pool.run(closed, 2, "exact", named) == [True, True]


class QuorumGroup:
    """Like torchft's: not a group of the default store."""


def test_without_a_common_store_no_rank_is_blamed() -> None:
    with (
        pytest.raises(RankError, match="another rank is missing or broke off: gone"),
        Attendance(QuorumGroup(), 0, 2).watch("in round 3"),
    ):
        raise RuntimeError("gone")
