"""What is read from the user's optimiser: learning rates, scales, skipped steps."""

import warnings
from typing import Any

import pytest
import torch
from tests.torch.pool import Pool
from tests.torch.scenarios import SMALL, Quadratic, descend, flat, make_aggregator
from torch import nn

from hewfl import InvalidInputError
from hewfl.torch import HewLocalSGD
from hewfl.torch.optimizer_hooks import list_optimizers, mean_rate
from hewfl.torch.rank_variates import require_correctable, require_plain_sgd

pytestmark = pytest.mark.torch


def groups(*pairs: tuple[float, int]) -> list[dict[str, Any]]:
    return [{"lr": lr, "params": [nn.Parameter(torch.ones(n))]} for lr, n in pairs]


def test_the_rate_of_a_step_is_the_mean_over_parameters() -> None:
    assert mean_rate(groups((0.1, 3))) == 0.1
    assert mean_rate(groups((0.1, 3), (0.1, 7))) == 0.1  # to the bit
    assert mean_rate(groups((0.0, 3), (0.4, 1))) == pytest.approx(0.1)
    assert mean_rate(groups((0.0, 3), (0.0, 1))) == 0
    frozen = groups((0.1, 3), (0.4, 1))
    frozen[0]["params"][0].requires_grad_(requires_grad=False)
    assert mean_rate(frozen) == 0.4
    require_correctable(frozen, [])
    with pytest.raises(InvalidInputError, match=r"`lr` must be the same .* \[0.1, 0.4"):
        require_correctable(groups((0.4, 3), (0.1, 1)), [])


def first_at_rest(rank: int, _: int) -> tuple[int, float, Any]:
    """The first group is at learning rate zero; the second trains."""
    module = Quadratic(rank, (torch.float32,))
    first, *others = module.parameters()
    parts = [{"params": [first], "lr": 0.0}, {"params": others, "lr": 0.05}]
    optimizer = torch.optim.SGD(parts, lr=0.1)
    with HewLocalSGD(module, optimizer, 2, options=SMALL) as local:
        descend(module, optimizer, 6)
    return local.rounds, local._steps.work.total_step, flat(module).tobytes()


def test_a_first_group_at_rest_does_not_stop_rounds(pool: Pool) -> None:
    results = pool.run(first_at_rest, 2)
    assert results == [results[0]] * 2
    assert results[0][0] == 3


def unequal(rank: int, _: int) -> list[float]:
    """Rates that come apart under control variates: said before anything moves."""
    module = Quadratic(rank, (torch.float32,))
    first, *others = module.parameters()
    parts = [{"params": [first]}, {"params": others}]
    optimizer = torch.optim.SGD(parts, lr=0.1)
    local = HewLocalSGD(module, optimizer, 2, make_aggregator("variate"), None, SMALL)
    with local:
        descend(module, optimizer, 2)
        start = flat(module)
        optimizer.param_groups[1]["lr"] = 0.05
        with pytest.raises(InvalidInputError, match="`lr` must be the same in all"):
            descend(module, optimizer, 1)
    return [local.rounds, float(abs(flat(module) - start).max())]


def test_control_variates_need_one_rate(pool: Pool) -> None:
    assert pool.run(unequal, 2) == [[1, 0.0]] * 2


def measured(rank: int, _: int) -> tuple[Any, ...]:
    """Two rounds of 2 or 3 steps; the raw gradients of the last branch, by hand."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    with HewLocalSGD(
        module, optimizer, 10**9, make_aggregator("variate"), None, SMALL
    ) as local:
        for _round in range(2):
            history = []
            for _step in range(2 + rank):
                optimizer.zero_grad()
                module().backward()
                history.append(torch.cat([p.grad.reshape(-1) for p in module.parts]))
                optimizer.step()
            local.sync()
        variates = local._job.variates
    assert variates is not None
    client, server = (torch.cat(part) for part in (variates.client, variates.server))
    return client, server, torch.stack(history).mean(dim=0)


def test_variates_are_mean_gradients(pool: Pool) -> None:
    first, second = pool.run(measured, 2)
    for client, _, mean in (first, second):
        # buckets have padding, and their own order
        results = client[client != 0].sort().values
        expected = mean[mean != 0].sort().values
        torch.testing.assert_close(results, expected, rtol=1e-3, atol=1e-4)
    mean = (first[0] + second[0]) / 2
    torch.testing.assert_close(first[1], mean, rtol=1e-4, atol=1e-5)
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda y: torch.optim.Adam(y, lr=0.1),
        lambda y: torch.optim.SGD(y, lr=0.1, momentum=0.9),
        lambda y: torch.optim.SGD(y, lr=0.1, fused=True),
    ],
)
def test_control_variates_need_plain_sgd(optimizer: Any) -> None:
    """Displacements of others hide the mean gradient."""
    parameters = [nn.Parameter(torch.ones(2))]
    require_plain_sgd([torch.optim.SGD(parameters, lr=0.1)])
    with pytest.raises(InvalidInputError, match="SGD without momentum, not fused"):
        require_plain_sgd([optimizer(parameters)])


def scaled(rank: int, _: int, rule: str, how: str) -> Any:
    """Four steps of torch's GradScaler; one is skipped where gradients overflow."""
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, fused=how == "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with HewLocalSGD(
        module, optimizer, 10**9, make_aggregator(rule), None, SMALL
    ) as local:
        for t in range(4):
            optimizer.zero_grad()
            scaler.scale(module()).backward()
            if t == 2 and how != "three":
                module.parts[0].grad.fill_(torch.inf)
            if t != 2 or how != "three":
                scaler.step(optimizer)
                scaler.update()
        report = local.sync()
    assert report is not None
    return report.steps, flat(module)


@pytest.mark.parametrize(
    ("rule", "how"), [("exact", "fused"), ("exact", "loop"), ("variate", "loop")]
)
def test_steps_skipped_by_a_scaler_do_not_count(
    pool: Pool, rule: str, how: str
) -> None:
    """A job that skips a step is one that makes three."""
    results = pool.run(scaled, 2, rule, how)
    expected = pool.run(scaled, 2, rule, "three")
    for (steps, model), (_, twin) in zip(results, expected, strict=True):
        assert steps == (3, 3)
        assert model == pytest.approx(twin, rel=1e-5)


def sparse(rank: int, _: int, rule: str) -> int:
    module = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with HewLocalSGD(module, optimizer, 1, make_aggregator(rule)) as local:
        module(torch.tensor([rank, 1])).pow(2).sum().backward()
        optimizer.step()
    return local.rounds


def test_sparse_gradients_cannot_be_corrected(pool: Pool) -> None:
    assert pool.run(sparse, 2, "exact") == [1, 1]
    for fine, (kind, text, _) in pool.outcomes(sparse, 2, "variate"):
        assert not fine
        assert kind == InvalidInputError.__name__
        assert text == (
            "`gradients` must be dense with control variates; got "
            "torch.sparse_coo for parameter number 0"
        )


def compiled_step(rank: int, _: int) -> Any:
    """A compiled training step: the hooks run as they are."""
    warnings.simplefilter("ignore")  # torch's own, of its age
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    step = torch.compile(optimizer.step, backend="eager")
    with HewLocalSGD(module, optimizer, 2, options=SMALL) as local:
        for _ in range(4):
            optimizer.zero_grad()
            module().backward()
            step()
    return local.rounds, flat(module).tobytes()


def plain_step(rank: int, _: int) -> Any:
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with HewLocalSGD(module, optimizer, 2, options=SMALL) as local:
        descend(module, optimizer, 4)
    return local.rounds, flat(module).tobytes()


def test_compiled_steps_count(pool: Pool) -> None:
    assert pool.run(compiled_step, 2) == pool.run(plain_step, 2)


def test_entering_twice_is_refused(pool: Pool) -> None:
    """Two sets of hooks would count each step twice."""
    assert pool.run(entered_twice, 2) == [1, 1]


def entered_twice(rank: int, _: int) -> int:
    module = Quadratic(rank, (torch.float32,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with HewLocalSGD(module, optimizer, 10**9, options=SMALL) as local:
        with pytest.raises(InvalidInputError, match="`with` must be entered once"):
            local.__enter__()
        descend(module, optimizer, 1)
        return local._steps.work.steps


class Interpolated(torch.optim.SGD):  # type: ignore[misc]  # torch is untyped to mypy
    """What schedule-free optimisers add to the interface."""

    def eval(self) -> None:
        """Would set the parameters to their mean."""


class Partitioned(torch.optim.SGD):  # type: ignore[misc]  # as above
    """What ZeroRedundancyOptimizer adds to the interface."""

    def consolidate_state_dict(self) -> None:
        """Would gather the state of all ranks."""


@pytest.mark.parametrize("kind", [Interpolated, Partitioned])
def test_optimisers_that_keep_a_part_of_the_model_are_refused(kind: Any) -> None:
    """Ranks would end with different models, or wait for each other in each step."""
    optimizer = kind([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(InvalidInputError, match=rf"`optimizer` .* got {kind.__name__}"):
        list_optimizers(optimizer)
