"""What goes wrong between ranks is said on every rank, in time."""

import os
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.torch.pool import Pool
from tests.torch.scenarios import (
    EXACT,
    SMALL,
    Plan,
    Quadratic,
    RoundView,
    descend,
    flat,
    log_texts,
    make_aggregator,
    play,
)
from torch import nn

from hewfl import (
    FedProx,
    HewControl,
    InvalidInputError,
    LocalSGD,
    Method,
    ProblemBounds,
    ServerStep,
)
from hewfl.aggregators import QFedAvg
from hewfl.torch import HewLocalSGD, RankError, SyncOptions
from hewfl.torch.collectives import Communicator, check_group
from hewfl.torch.optimizer_hooks import check_sync_every

pytestmark = pytest.mark.torch
SHORT = SyncOptions(bucket_bytes=64, timeout=timedelta(seconds=3))


def make(model: nn.Module, rule: Any = "exact", options: SyncOptions = SMALL) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, HewLocalSGD(
        model, optimizer, 2, make_aggregator(rule), None, options
    )


def texts_of(outcomes: list[Any]) -> list[str]:
    """The errors of all ranks, which must have one each, all of the same kind."""
    kinds = {outcome[1][0] for outcome in outcomes if not outcome[0]}
    assert kinds == {"RankError"}, outcomes
    assert not any(fine for fine, _ in outcomes)
    return [outcome[1][1] for outcome in outcomes]


def other_shapes(rank: int, _: int) -> None:
    make(nn.Linear(3, 4 if rank == 1 else 5))


def other_layout(rank: int, _: int) -> None:
    make(nn.Linear(4, 3) if rank else nn.Linear(2, 5))


def other_rule(rank: int, _: int) -> None:
    make(nn.Linear(3, 3), "step-weighted" if rank == 2 else "exact")


def test_mismatches_end_on_every_rank(pool: Pool) -> None:
    for text in texts_of(pool.outcomes(other_shapes, 4)):
        rule = "all ranks must have the same number of parameters; got "
        assert text == rule + "rank 1: 16; ranks 0, 2 and 3: 20"
    for text in texts_of(pool.outcomes(other_layout, 2)):
        assert text.startswith("all ranks must have the same parameters; got ")
        assert "weight ('torch.float32', (3, 4))" in text
    for text in texts_of(pool.outcomes(other_rule, 4)):
        rule = "all ranks must have the same aggregator and options; got "
        assert text.startswith(rule)
        first, second = sorted(text.removeprefix(rule).split("; "))
        assert first.startswith("rank 2: (Method(")
        assert second.startswith("ranks 0, 1 and 3: (Method(")


def all_lost(rank: int, ranks: int, gram: Any) -> None:
    play(rank, ranks, Plan(spoiled=(0, 1), options=SyncOptions(gram=gram)))


@pytest.mark.parametrize("gram", ["sketch", "full"])
def test_no_finite_rank_is_an_error_on_every_rank(pool: Pool, gram: str) -> None:
    for text in texts_of(pool.outcomes(all_lost, 2, gram)):
        assert text.startswith("no rank's model was finite in round 1; ")


def without_with(rank: int, _: int, forgetful: tuple[int, ...]) -> Any:
    """Some ranks make their steps outside the block."""
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module, "exact", SyncOptions(bucket_bytes=64))
    if rank not in forgetful:
        local.__enter__()
    descend(module, optimizer, 1)
    before = flat(module)
    try:
        local.sync()
    finally:
        assert flat(module).tobytes() == before.tobytes()


def in_backward(rank: int, _: int) -> Any:
    """Steps of other optimisers, inside of backward."""
    module = Quadratic(rank, (torch.float32,))
    _, local = make(module)
    for part in module.parameters():
        own = torch.optim.SGD([part], lr=0.1)
        part.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    with local:
        module().backward()


def test_movement_without_counted_steps_is_an_error(pool: Pool) -> None:
    """Nothing would be averaged, and nobody would know."""
    for forgetful, name in (((0, 1), "ranks 0 and 1"), ((1,), "rank 1")):
        for text in texts_of(pool.outcomes(without_with, 2, forgetful)):
            start = f"parameters moved on {name} without `optimizer.step()` being seen"
            assert text.startswith(start)
    for text in texts_of(pool.outcomes(in_backward, 2)):
        assert text.startswith("parameters moved on ranks 0 and 1 without")


def forgotten(rank: int, _: int) -> list[Any]:
    """No `with` at all: the third step, at which a round is due, is an error."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    local = HewLocalSGD(module, optimizer, 3)
    descend(module, optimizer, 2)
    with pytest.raises(RankError) as caught:
        descend(module, optimizer, 1)
    local.detach()
    descend(module, optimizer, 5)  # on purpose
    local = HewLocalSGD(module, optimizer, 3)
    del local  # one that is gone refuses nothing
    with HewLocalSGD(module, optimizer, 3) as local:
        descend(module, optimizer, 3)
    descend(module, optimizer, 5)  # after the job
    return [str(caught.value), local.rounds]


def test_a_forgotten_with_is_an_error_where_a_round_is_due(pool: Pool) -> None:
    for text, rounds in pool.run(forgotten, 2):
        assert text.startswith("a round was due, and nothing was averaged")
        assert rounds == 1


def at_rest(rank: int, _: int, options: SyncOptions, rule: Any) -> Any:
    """No steps, and steps that a scaler skips, are no movement."""
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module, rule, options)
    with local:
        descend(module, optimizer, 2)  # one round
        first = local.last
        second = local.sync()
    return first.round, second, local.rounds


@pytest.mark.parametrize("overlap", [False, True])
def test_rounds_without_steps_or_movement_are_none(pool: Pool, overlap: bool) -> None:
    options = SyncOptions(bucket_bytes=64, overlap=overlap)
    assert pool.run(at_rest, 2, options, "agreement") == [(1, None, 1)] * 2


def two_instances(rank: int, _: int) -> Any:
    """Two jobs on one group; after steady rounds one rank calls them in turn."""
    modules = nn.Linear(40, 10), nn.Linear(5, 1)
    pairs = [make(module, "mean", SHORT) for module in modules]
    for t in range(6):
        for module, (optimizer, _) in zip(modules, pairs, strict=True):
            module(torch.ones(3, module.in_features)).sum().backward()
            optimizer.step()
        locals_ = [local for _, local in pairs]
        for local in locals_[:: -1 if t == 5 and rank == 1 else 1]:
            if t == 0:
                local.__enter__()
                local.discard_local_steps()
            else:
                local.sync()


def test_instances_in_another_order_are_an_error_and_no_abort(pool: Pool) -> None:
    """Steady weights let a sum start early; its size is that of one instance."""
    for text in texts_of(pool.outcomes(two_instances, 2)):
        rule = "all ranks must use the same HewLocalSGD; got "
        assert text == rule + "rank 0: number 1; rank 1: number 2"


def frozen_rank(rank: int, _: int, options: SyncOptions) -> Any:
    """Rank 1 counts steps, but its parameters stay where they are."""
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module, "sieve", options)
    if rank == 1:
        module.A.zero_()
    with log_texts() as texts, local:
        descend(module, optimizer, 2 * 8)
    return local.last, texts


@pytest.mark.parametrize("gram", ["sketch", "full"])
def test_a_rank_that_never_moves_has_no_weight_and_is_named(
    pool: Pool, gram: Any
) -> None:
    results = pool.run(frozen_rank, 3, SyncOptions(bucket_bytes=64, gram=gram))
    for report, _ in results:
        assert report.weights[1] == 0
        assert sum(report.weights) == pytest.approx(1)
        assert (report.idle, report.excluded) == ((1,), ())
        assert "weight zero for 8 rounds in a row: rank 1" in report.status
    assert any("its work has no effect" in text for text in results[0][1])


def lost_at_first(rank: int, _: int, lost: tuple[int, ...]) -> tuple[Any, list[str]]:
    """Control variates after a first step whose gradients are not finite on some."""
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module, "variate")
    with log_texts() as texts, local:
        if rank in lost:
            module.b[0] = torch.inf
        descend(module, optimizer, 1)
        held = local._job.variates
        assert held is not None
        parts = torch.cat(held.client).tolist(), torch.cat(held.server).tolist()
    return parts, [text for text in texts if "first gradient" in text]


def test_without_a_first_gradient_a_rank_starts_at_the_mean_of_others(
    pool: Pool,
) -> None:
    results = pool.run(lost_at_first, 4, (1, 2))
    servers = [server for (_, server), _ in results]
    local_part = [np.array(local_part) for (local_part, _), _ in results]
    assert servers == [servers[0]] * 4
    assert np.array(servers[0]) == pytest.approx(
        (local_part[0] + local_part[3]) / 2, rel=1e-6
    )
    for rank in (1, 2):
        assert local_part[rank].tolist() == servers[0]
    (text,) = results[0][1]
    assert "not finite on ranks 1 and 2" in text


def test_nobody_with_a_first_gradient_is_an_error(pool: Pool) -> None:
    for text in texts_of(pool.outcomes(lost_at_first, 2, (0, 1))):
        assert text == "no rank has a finite first gradient"


def silent(rank: int, ranks: int) -> None:
    """The last rank comes to the first round only, and lives on until others leave."""
    store = dist.distributed_c10d._get_default_store()
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module, options=SHORT)
    try:
        with local:
            descend(module, optimizer, 2)
            if rank == ranks - 1:
                others = [f"{other} has left" for other in range(rank)]
                store.wait(others, timedelta(seconds=60))
                raise SystemExit
            descend(module, optimizer, 2)
    finally:
        store.set(f"{rank} has left", "")


def dies(rank: int, ranks: int) -> None:
    """The last rank's process ends in the middle of a round's steps."""
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module)
    with local:
        descend(module, optimizer, 3)
        if rank == ranks - 1:
            os._exit(3)
        descend(module, optimizer, 1)


def silent_after_more(rank: int, ranks: int) -> None:
    """The same where rank 0 has had a group of its own before."""
    local_part = dist.new_group([0])
    if rank == 0:
        model = nn.Linear(2, 1)
        HewLocalSGD(model, torch.optim.SGD(model.parameters()), 1, EXACT, local_part)
    silent(rank, ranks)


def test_missing_ranks_are_named_and_nobody_hangs(pool: Pool) -> None:
    """A rank that hangs has no outcome within the limit of the pool."""
    outcomes = pool.outcomes(silent_after_more, 3)
    for text in texts_of(outcomes[:2]):
        assert "broke off in round 1 after " in text
        assert "it did not see rank 2 (last seen in round 0)" in text
    *others, dead = pool.outcomes(dies, 3)
    assert dead is None
    for text in texts_of(others):
        assert "it did not see rank 2 (last seen in round 0)" in text


def timeless(rank: int, ranks: int) -> None:
    """As on NCCL, whose waits have no limit: the last rank stays silent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "has_time_limits", False)
        silent(rank, ranks)


def test_missing_ranks_are_named_before_a_device_waits(pool: Pool) -> None:
    """The group itself would wait as long as the pool does."""
    outcomes = pool.outcomes(timeless, 3)
    for text in texts_of(outcomes[:2]):
        assert "broke off in round 1 after " in text
        assert "it did not see rank 2 (last seen in round 0)" in text


def played_timeless(rank: int, ranks: int, plan: Plan) -> list[RoundView]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Communicator, "has_time_limits", False)
        patch.setattr(Communicator, "gather", None)  # no collective
        return play(rank, ranks, plan)


def test_rendezvous_in_the_store_equal_those_by_collectives(pool: Pool) -> None:
    plan = Plan("variate", rounds=5)
    usual, other = pool.run(play, 4, plan), pool.run(played_timeless, 4, plan)
    for a, b in zip(usual, other, strict=True):
        assert a[-1].after.tobytes() == b[-1].after.tobytes()
        assert a[-1].report.weights == b[-1].report.weights


def groups(rank: int, _: int) -> list[str]:
    """What is said of groups that cannot be used; rank 0 is not in the second."""
    others = dist.new_group([1])
    texts = []
    for group, device in [(dist.group.WORLD, "cuda"), (others, "cpu"), (None, "cpu")]:
        if not (group is others and rank == 1):
            with pytest.raises(InvalidInputError) as caught:
                check_group(group, torch.device(device))
            texts.append(str(caught.value))
    return texts


def test_groups_that_cannot_be_used_are_named(pool: Pool) -> None:
    device, others, none = pool.run(groups, 2)[0]
    assert "such as nccl; got gloo" in device
    assert others == "`process_group` must be one that contains this rank; got another"
    assert "must be initialised by init_process_group; got None" in none


def idle(rank: int, _: int) -> Any:
    """Rank 1 does nothing in the round called by hand, rank 2 does not move."""
    module = Quadratic(rank, (torch.float32,))
    optimizer, local = make(module)
    optimizer.param_groups[0]["lr"] = 0.0 if rank == 2 else 0.1
    with local:
        descend(module, optimizer, 0 if rank == 1 else 1)
        report = local.sync()
        assert local.sync() is None  # no rank has done a step since
    return report


def test_idle_ranks_have_no_weight(pool: Pool) -> None:
    report = pool.run(idle, 4)[0]
    assert report.idle == (1, 2)
    assert report.weights[1] == report.weights[2] == 0
    assert sum(report.weights) == pytest.approx(1)


def timed(rank: int, _: int) -> list[tuple[int, ...]]:
    """A time budget: rank 1 is ten times slower."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    budget = timedelta(seconds=0.2)
    steps = []
    with HewLocalSGD(module, optimizer, budget) as local:
        while local.rounds < 2:
            before = local.rounds
            descend(module, optimizer, 1)
            time.sleep(0.1 if rank else 0.01)
            if local.rounds > before and local.last is not None:
                steps.append(local.last.steps)
    return steps


def test_a_time_budget_lets_each_rank_do_what_it_can(pool: Pool) -> None:
    for fast, slow in pool.run(timed, 2)[0]:
        assert fast > slow >= 1


def recovers(rank: int, _: int) -> tuple[int, ...]:
    """Momentum of a lost rank is dropped: it is finite again in the next round."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    with HewLocalSGD(module, optimizer, 2) as local:
        descend(module, optimizer, 1)
        if rank == 1:
            optimizer.state[module.parts[0]]["momentum_buffer"][0] = torch.inf
        descend(module, optimizer, 1)
        assert local.last is not None
        assert local.last.excluded == (1,)
        descend(module, optimizer, 2)
    return local.last.excluded


def test_a_lost_rank_comes_back(pool: Pool) -> None:
    assert pool.run(recovers, 3) == [(), (), ()]


def spoiled_means(rank: int, _: int) -> list[str]:
    """Rank 1 sees a batch that is not finite; what its log says of buffers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with log_texts() as texts, HewLocalSGD(module, optimizer, 1) as local:
        x = torch.randn(3, 4)
        if rank == 1:
            x[0, 0] = torch.inf
        module(x).pow(2).sum().backward()
        optimizer.step()
    assert local.last is not None
    assert local.last.excluded == (1,)
    return [text for text in texts if "buffers" in text]


def test_buffers_of_a_lost_rank_are_named(pool: Pool) -> None:
    text = "buffers that are not finite stay so until they are reset: "
    means = "1.running_mean and 1.running_var"
    assert pool.run(spoiled_means, 3) == [[], [text + means], []]


def refused(rank: int, _: int) -> list[str]:
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    still = torch.optim.SGD(frozen.parameters(), lr=0.1)
    wrong: list[tuple[Any, ...]] = [
        (module, optimizer, 0),
        (module, optimizer, timedelta(0)),
        (module, optimizer, 2, "mean", None, SyncOptions(overlap=True, gram="full")),
        (module, optimizer, 2, "best"),
        (module, optimizer, 2, FedProx(1.0, prox=0.1)),
        (module, optimizer, 2, HewControl(ProblemBounds(1.0, 1.0, 0.1, 1.0), 1.0)),
        (module, optimizer, 2, Method(LocalSGD(1.0), QFedAvg(1.0))),
        (module, optimizer, 2, "oracle"),
        (frozen, still, 2),
    ]
    texts = []
    for arguments in wrong:
        with pytest.raises(InvalidInputError) as caught:
            HewLocalSGD(*arguments)
        texts.append(str(caught.value))
    with pytest.raises(InvalidInputError, match="`tokens` must be at least 0; got -1"):
        HewLocalSGD(module, optimizer, 1).add_tokens(-1)
    return texts


def test_bad_arguments_are_named(pool: Pool) -> None:
    results = pool.run(refused, 2)[0]
    every, budget, overlap, unknown, pulled, control, losses, truth, frozen = results
    assert overlap.startswith("`overlap` must be False")
    assert every == "`sync_every` must be positive; got 0"
    assert budget == "`sync_every` must be positive; got 0:00:00"
    assert unknown.startswith("`aggregator` must be one of mean, ")
    assert "leaves local steps" in pulled
    assert "leaves local steps" in control
    assert "needs no losses" in losses
    assert "only a simulation has" in truth
    assert frozen == (
        "`parameters` must be at least one that requires a gradient; got none"
    )


def uncounted(rank: int, ranks: int) -> None:
    play(rank, ranks, Plan("size-weighted"))


def test_token_weights_need_tokens(pool: Pool) -> None:
    for fine, (kind, text, _) in pool.outcomes(uncounted, 2):
        assert not fine
        assert kind == "InvalidInputError"
        assert text.startswith("`tokens` must be counted on every rank")


def test_old_names_of_aggregators_name_the_new_word() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for old, new in (("equal", "mean"), ("hom", "exact"), ("median", "geometric")):
        with pytest.raises(InvalidInputError, match=f"did you mean {new}"):
            HewLocalSGD(nn.Linear(1, 1), optimizer, 2, old)


def test_a_line_search_is_refused() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    options = SyncOptions(server_step=ServerStep(line_search_samples=4))
    with pytest.raises(InvalidInputError, match="must be left out in a torch job"):
        HewLocalSGD(nn.Linear(1, 1), optimizer, 2, "mean", None, options)


def test_options_are_checked() -> None:
    with pytest.raises(InvalidInputError, match="must be a number of steps or a time"):
        check_sync_every(2.5)
    assert check_sync_every(np.int64(4)) == 4
    with pytest.raises(InvalidInputError, match="`bucket_bytes` must be at least 1"):
        SyncOptions(bucket_bytes=0)
    with pytest.raises(InvalidInputError, match="`timeout` must be positive; got 0"):
        SyncOptions(timeout=0)
    assert SyncOptions(timeout=60) == SyncOptions(timeout=timedelta(minutes=1))
