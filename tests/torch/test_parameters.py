"""Shared parameters: which there are, and their layout in buckets."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.pool import Pool
from tests.torch.scenarios import make_aggregator
from torch import nn

from hewfl import InvalidInputError
from hewfl.torch import HewLocalSGD
from hewfl.torch.parameters import plan_layout

pytestmark = pytest.mark.torch


def two_layers(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01)


def step(module: nn.Module, optimizer: torch.optim.Optimizer, target: float) -> None:
    optimizer.zero_grad()
    ((module(torch.ones(2, 4)) - target) ** 2).sum().backward()
    optimizer.step()


def freeze(module: nn.Module, *, frozen: bool = True) -> None:
    module.requires_grad_(requires_grad=not frozen)


def frozen_alike(rank: int, _: int) -> list[bytes]:
    """Frozen parameters in several precisions, one of them not contiguous."""
    module = two_layers(rank)
    freeze(module[0])
    module.codes = nn.Parameter(torch.full((3,), rank), requires_grad=False)
    module.turned = nn.Parameter(torch.rand(2, 3).bfloat16().T, requires_grad=False)
    module.one = nn.Parameter(torch.tensor(float(rank)), requires_grad=False)
    HewLocalSGD(module, sgd(module), 1)
    values = [p.detach().double().numpy().tobytes() for p in module.parameters()]
    assert module.codes.tolist() == [0, 0, 0]
    return values


def test_frozen_parameters_are_those_of_rank_0(pool: Pool) -> None:
    first, *others = pool.run(frozen_alike, 3)
    assert others == [first, first]


def changed(rank: int, _: int, rule: str) -> list[str]:
    """What is said where parameters are frozen, let go, replaced or turned."""
    return [after_change(rank, rule, c) for c in ("frozen", "free", "other", "turned")]


def after_change(rank: int, rule: str, change: str) -> str:
    """Three steps, the change, and one that ends a round."""
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 4, 1))
    freeze(module[1])
    optimizer = sgd(module)
    local = HewLocalSGD(module, optimizer, 2, make_aggregator(rule))
    local.__enter__()  # never left, for that would be another round
    for t in range(4):
        if t == 3:
            spoil(module, change)
        optimizer.zero_grad()
        (module(torch.ones(1, 3, 4, 4)) - rank).pow(2).sum().backward()
        if t < 3:
            optimizer.step()
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(InvalidInputError) as caught:
        optimizer.step()
    if rule == "variate":  # said before the step, with no gradient made up
        pairs = zip(before, module.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        assert change != "frozen" or module[0].bias.grad is None
    return str(caught.value)


def spoil(module: nn.Sequential, change: str) -> None:
    if change == "frozen":
        module[0].bias.requires_grad_(requires_grad=False)
    elif change == "free":
        module[1].weight.requires_grad_(requires_grad=True)
    elif change == "other":
        module[0].weight = nn.Parameter(module[0].weight.detach().clone())
    else:
        module.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("rule", ["exact", "variate"])
def test_a_change_is_refused_and_named(pool: Pool, rule: str) -> None:
    start = "`parameters` must be those that required gradients at construction "
    for frozen, free, another, turned in pool.run(changed, 2, rule):
        assert frozen.startswith(start)
        assert frozen.endswith("got 0.bias, which no longer requires gradients")
        assert free.endswith("got 1.weight, which did not")
        assert another.endswith("got 0.weight, which is another tensor now")
        assert "must be of the form they had at construction; got " in turned
        assert " for 0.weight, not " in turned


def optimizers(_: int, __: int) -> tuple[list[str], int]:
    """Of a part of the model, and of another model; frozen ones may be given."""
    module = two_layers(0)
    wrong: list[Any] = [sgd(module[1]), sgd(nn.ModuleList([module, nn.Linear(1, 1)]))]
    texts = []
    for optimizer in wrong:
        with pytest.raises(InvalidInputError) as caught:
            HewLocalSGD(module, optimizer, 1)
        texts.append(str(caught.value))
    freeze(module[0])
    for optimizer in (sgd(module), sgd(module[1])):
        with HewLocalSGD(module, optimizer, 1) as local:
            step(module, optimizer, 1.0)
    return texts, local.rounds


def test_the_optimiser_moves_what_is_shared(pool: Pool) -> None:
    for (part, other), rounds in pool.run(optimizers, 2):
        assert part == (
            "`optimizer` must be one of all parameters that require gradients (freeze "
            "the others with `requires_grad_(False)`); got one without 0.weight"
        )
        assert other == (
            "`optimizer` must be one of the model's parameters; got parameter 4 of its "
            "group 0"
        )
        assert rounds == 1


def model() -> list[torch.Tensor]:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    return [*conv.parameters(), nn.Parameter(torch.randn(101).bfloat16())]


@pytest.mark.parametrize("bucket_bytes", [1, 40, 150, 10**6])
def test_every_entry_lies_in_one_bucket(bucket_bytes: int) -> None:
    parameters = model()
    layout = plan_layout(parameters, bucket_bytes)
    history = [np.zeros(p.numel(), dtype=int) for p in parameters]
    begin = 0
    for bucket in layout.buckets:
        assert bucket.size == sum(piece.size for piece in bucket.pieces)
        assert bucket.size <= max(1, bucket_bytes // bucket.dtype.itemsize)
        assert bucket.begin == begin
        begin += bucket.size
        for piece in bucket.pieces:
            assert parameters[piece.parameter].dtype == bucket.dtype
            history[piece.parameter][piece.start : piece.start + piece.size] += 1
    assert all((counts == 1).all() for counts in history)
    assert layout.parameters == sum(p.numel() for p in parameters)


def test_layouts_differ_where_models_do() -> None:
    first = plan_layout(model(), 100)
    assert first == plan_layout(model(), 100)
    other = [p.contiguous() for p in model()]
    assert first.signature != plan_layout(other, 100).signature


def test_odd_parameters_are_refused() -> None:
    gaps = nn.Parameter(torch.zeros(4, 4))[:, ::2]
    with pytest.raises(InvalidInputError, match="`parameters` must be without gaps"):
        plan_layout([gaps], 100)
    with pytest.raises(InvalidInputError, match="`parameters` must be at least one"):
        plan_layout([torch.zeros(0, 3)], 100)
    whole = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InvalidInputError, match="`parameters` must be floating; got"):
        plan_layout([whole], 100)
