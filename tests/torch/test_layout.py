"""Buckets, shards, and the products formed on them, in one process."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from hewfl import InvalidInputError, ServerStep
from hewfl.torch.parameters import plan_layout
from hewfl.torch.shared_model import SMALL_PIECE, SharedModel, add_anchor

pytestmark = pytest.mark.torch


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


def test_displacements_and_models_go_through_any_memory_format() -> None:
    parameters = model()
    layout = plan_layout(parameters, 50)
    shared = SharedModel(parameters, layout, ServerStep())
    shared.set_anchor()
    start = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1)
    for b, bucket in enumerate(layout.buckets):
        away = torch.full((bucket.size,), torch.nan, dtype=bucket.dtype)
        shared.displacement(b, away)
        assert (away.float() - 1).abs().max() < 0.01
    shared.set_parameters()
    for parameter, value in zip(parameters, start, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("multiplies", [False, True])
def test_the_direct_way_is_the_general_one(
    path: str, large: bool, multiplies: bool
) -> None:
    """Sums that become the next x where they lie, and others by an server step.

    Small pieces are put together before they are read.
    """
    shapes = [(SMALL_PIECE, 5), (SMALL_PIECE,)] if large else [(7, 3), (5,), (11,)]
    jobs = []
    for server_step in (
        ServerStep(),
        ServerStep(average="tail"),
        ServerStep(momentum=0.5),
    ):
        torch.manual_seed(6)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        shared = SharedModel(parameters, plan_layout(parameters, 2**16), server_step)
        shared.set_anchor()
        for p in parameters:
            p.data = p.detach() + torch.randn(p.shape)  # memory of another place
        jobs.append(shared)
    torch.manual_seed(5)
    steps = [torch.randn(bucket.size) for bucket in jobs[0].layout.buckets]
    products = []
    for job in jobs:
        before = [x.clone() for x in (*job.anchor, *job.parameters)]
        rooms = [job.sum_buffer(b).copy_(s) for b, s in enumerate(steps)]
        made = [
            job.advance(b, room, multiplies=multiplies) for b, room in enumerate(rooms)
        ]
        for x, held in zip((*job.anchor, *job.parameters), before, strict=True):
            assert torch.equal(x, held)  # until it is accepted
        products.append(float(sum(part for part, _ in made)))
        assert max(float(reach) for _, far in made for reach in far) == pytest.approx(
            max(float((x + s).abs().max()) for x, s in zip(before, steps, strict=False))
        )
        assert job.is_representable([far for _, far in made])
        job.commit(0)
    assert products[1:] == pytest.approx(products[:1] * 2, rel=1e-4)
    assert (products[0] != 0) == multiplies
    for job in jobs[1:]:
        for one, other in zip(jobs[0].parameters, job.parameters, strict=True):
            assert torch.equal(one, other)
        for x, other in zip(jobs[0].anchor, job.anchor, strict=True):
            assert torch.equal(x, other)
    assert path


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_step_that_is_not_finite_shows(path: str, value: float) -> None:
    for place in (0, 3, 10):
        step = torch.zeros(11)
        step[place] = value
        assert not math.isfinite(add_anchor(step, torch.ones(11), None)[1])
    assert add_anchor(-torch.ones(11), -torch.ones(11), torch.zeros(11)) == (-11.0, 2.0)
    assert path


def test_odd_parameters_are_refused() -> None:
    gaps = nn.Parameter(torch.zeros(4, 4))[:, ::2]
    with pytest.raises(InvalidInputError, match="`parameters` must be without gaps"):
        plan_layout([gaps], 100)
    with pytest.raises(InvalidInputError, match="`parameters` must be at least one"):
        plan_layout([torch.zeros(0, 3)], 100)
    whole = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InvalidInputError, match="`parameters` must be floating; got"):
        plan_layout([whole], 100)
