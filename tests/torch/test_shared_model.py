"""The shared model in one process: displacements, server steps, ranges."""

import math

import pytest
import torch
from torch import nn

from hewfl import ServerStep
from hewfl.torch.parameters import plan_layout
from hewfl.torch.shared_model import (
    SMALL_PIECE,
    SharedModel,
    add_anchor,
    is_finite,
    largest,
)

pytestmark = pytest.mark.torch


def model() -> list[torch.Tensor]:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    return [*conv.parameters(), nn.Parameter(torch.randn(101).bfloat16())]


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


def shared(server_step: ServerStep) -> SharedModel:
    """After a first move, so that momentum is not zero."""
    parameters = [nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))]
    model = SharedModel(parameters, plan_layout(parameters, 100), server_step)
    model.set_anchor()
    assert fits(model, torch.tensor([1.0, 1.0, -2.0]))
    model.commit(0)
    return model


def fits(model: SharedModel, step: torch.Tensor) -> bool:
    return model.is_representable([model.advance(0, step.clone())[1]])


@pytest.mark.parametrize("far", [1e3, 8e37, 2e38, 3e38])
@pytest.mark.parametrize(
    "server_step",
    [
        ServerStep(),
        ServerStep(0.7, 0.9, nesterov=True),
        ServerStep(2.0, 0.5),
        ServerStep(0.5, adapt="adam"),
    ],
    ids=repr,
)
def test_what_fits_is_finite(server_step: ServerStep, far: float) -> None:
    """What does not fit leaves no mark until it is accepted."""
    step = far * torch.tensor([1.0, -1.0, 1.0])
    model, twin = shared(server_step), shared(server_step)
    if fits(model, step):
        model.commit(1)
        assert is_finite(model.anchor[0])
        return
    for one in (model, twin):
        assert fits(one, torch.tensor([0.5, 0.25, 1.0]))
        one.commit(1)
    assert torch.equal(model.anchor[0], twin.anchor[0])
    assert torch.equal(model.parameters[0], twin.parameters[0])
    assert not fits(twin, step)
    twin.commit(2)
    assert not is_finite(twin.anchor[0]) or not is_finite(twin.memory[0])


def test_what_is_not_finite_has_no_largest_entry() -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        assert not is_finite(torch.tensor([1.0, value, 2.0]))
    assert float(largest(torch.tensor([1.0, -7.0, 2.0]))) == 7
    assert is_finite(torch.zeros(0))


@pytest.mark.parametrize(
    ("server_step", "models"),
    [
        (ServerStep(), 2),
        (ServerStep(0.7), 2),
        (ServerStep(0.7, 0.9, nesterov=True), 4),
        (ServerStep(0.7, 0.9, average="ema"), 5),
    ],
)
def test_memory_is_what_the_docs_say(server_step: ServerStep, models: int) -> None:
    """x and the sum take turns; so do a memory and the next one."""
    parameters = [nn.Parameter(torch.randn(100))]
    shared = SharedModel(parameters, plan_layout(parameters, 160), server_step)
    shared.set_anchor()
    for t in range(3):
        for b in range(len(shared.layout.buckets)):
            shared.advance(b, shared.sum_buffer(b).fill_(0.1))
        shared.commit(t)
    spare = [part for pair in shared._spare.values() for part in pair]
    kept = [*shared.anchor, *shared.memory, *shared.average, *shared._sums.values()]
    sizes = {
        part.data_ptr(): part.numel() for part in (*kept, *spare) if part is not None
    }
    assert sum(sizes.values()) == models * 100
