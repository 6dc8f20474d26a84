"""One rank on a GPU, over NCCL: the same rounds as on the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.torch.scenarios import SMALL, Quadratic, descend, flat, make_aggregator

from hewfl import ServerStep
from hewfl.displacements.count_sketch import CountSketch
from hewfl.torch import HewLocalSGD, SyncOptions

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
OPTIONS = replace(SMALL, server_step=ServerStep(0.7, 0.9, nesterov=True, average="ema"))


@contextmanager
def alone(backend: str, store: Path) -> Iterator[None]:
    """A job of one rank."""
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained(device: str, rule: str, options: SyncOptions) -> np.ndarray:
    module = Quadratic(0, (torch.float32,)).to(device)
    module.A, module.b = module.A.to(device), module.b.to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    with HewLocalSGD(
        module, optimizer, 3, make_aggregator(rule), None, options
    ) as local:
        descend(module, optimizer, 7)
        state = local.state_dict()
        local.load_state_dict(state)
    assert local.rounds == 3
    return flat(module)


@pytest.mark.parametrize("rule", ["exact", "mean", "variate"])
@pytest.mark.parametrize("how", ["sketch", "full", "on host"])
def test_rounds_on_a_gpu_are_those_on_the_host(
    tmp_path: Path, rule: str, how: str
) -> None:
    options = replace(OPTIONS, gram="full") if how == "full" else OPTIONS
    if how == "on host":
        options = replace(options, anchor_on_host=True)
    with alone("gloo", tmp_path / "gloo"):
        expected = trained("cpu", rule, options)
    torch.cuda.set_device(0)
    with alone("nccl", tmp_path / "nccl"):
        results = trained("cuda", rule, options)
    assert results == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_sketches_of_a_gpu_are_those_of_the_host() -> None:
    vector = torch.randn(300 * 64 + 9)
    expected = CountSketch(64, 3).of([vector[:100], vector[100:]])
    results = CountSketch(64, 3).of([vector[:100].cuda(), vector[100:].cuda()])
    assert results.is_cuda
    assert torch.allclose(results.cpu(), expected, atol=1e-3)
