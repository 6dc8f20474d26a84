"""The float64 kernel for CUDA tensors against its portable twin."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch
from hewfl.torch.shards import shard_products

from hewfl.aggregate.gpu import cuda_gram
from hewfl.aggregate.gram import vector_products
from hewfl.aggregate.rows import as_rows
from hewfl.core.displacements import RoundProducts

READY = (
    torch.cuda.is_available()
    and torch.cuda.get_device_capability() == cuda_gram.CAPABILITY
)
on_hopper = pytest.mark.skipif(not READY, reason="needs a GPU of the Hopper kind")
DOUBLE = 1e-13
"""float64 sums of up to 300,000 products, relative to the lengths of the vectors."""


def portable_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """The plain twin, in float64 throughout."""
    vectors = rows if reference is None else [*rows, reference]
    return vector_products(as_rows("vectors", vectors), origin)


def test_host_tensors_are_left_to_the_host() -> None:
    rows = torch.randn(3, 50)
    assert not cuda_gram.serves(rows, None)
    twin = portable_products(rows, None, 1)
    assert np.array_equal(shard_products(rows, None, 1).gram, twin.gram)


def test_every_number_of_rows_has_its_shape() -> None:
    """Threads of a block and of a multiprocessor stay within the hardware's limits."""
    for blocks in range(1, 9):
        loads, warps, resident = cuda_gram._tuned(blocks)
        assert loads in (1, 2, 4)
        assert 32 * warps <= 1024
        assert 32 * warps * resident <= 2048


def test_the_source_is_shipped() -> None:
    source = cuda_gram.source()
    for setting in ("BLOCKS", "ELEMENT", "ALIGNED", "LOADS", "WARPS", "RESIDENT"):
        assert setting in source


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", cuda_gram.ELEMENTS, ids=str)
@pytest.mark.parametrize("corrected", [False, True])
def test_products_are_the_twins(dtype: torch.dtype, corrected: bool) -> None:
    """Aligned and odd lengths, every number of blocks."""
    sizes = product([1, 7, 8, 15, 23, 24, 33, 62], [1, 77, 4097, 300_000, 300_016])
    for n, s in sizes:
        torch.manual_seed(n + s)
        rows = (torch.randn(n, s, device="cuda") + 3).to(dtype)
        reference = torch.randn(s, device="cuda").to(dtype) if corrected else None
        assert cuda_gram.serves(rows, reference)
        found = cuda_gram.gram(rows, reference, n // 2)
        twin = portable_products(rows, reference, n // 2)
        size, length = np.sqrt(np.diagonal(twin.gram)), np.sqrt(twin.offset)
        assert (np.abs(found.gram - twin.gram) <= DOUBLE * np.outer(size, size)).all()
        assert (np.abs(found.linear - twin.linear) <= DOUBLE * size * length).all()
        assert found.offset == pytest.approx(twin.offset, rel=DOUBLE)


@pytest.mark.gpu
@on_hopper
def test_two_runs_agree_in_every_bit() -> None:
    rows = torch.randn(20, 300_000, device="cuda")
    first, again = (cuda_gram.gram(rows, None, 0).gram for _ in range(2))
    assert np.array_equal(first, again)


@final
class Driver:
    """Stands in for the CUDA driver: notes on which device kernels are loaded and run.

    A kernel is a function that fails on another device than it was loaded on.
    """

    def __init__(self) -> None:
        self.current: torch.device | None = None
        self.loaded: list[torch.device | None] = []
        self.ran: list[torch.device | None] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def compile(self, *_: str) -> Callable[..., None]:
        home = self.current
        self.loaded.append(home)

        def kernel(*_: Any) -> None:
            assert self.current == home
            self.ran.append(home)

        return kernel


def test_every_device_has_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, fresh = Driver(), cache(cuda_gram._kernel.__wrapped__)
    monkeypatch.setattr(torch.cuda, "device", driver.device)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", driver.compile, raising=False)
    monkeypatch.setattr(cuda_gram, "_kernel", fresh)
    devices = [torch.device("cuda", k) for k in (0, 1, 0)]
    is_available = cuda_gram.is_available.__wrapped__
    assert [is_available(device) for device in devices] == [True, True, True]
    assert driver.loaded == devices[:2]


def test_kernels_are_loaded_where_the_rows_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host tensors, with the driver's stand-in: their device is never the current."""
    driver, fresh = Driver(), cache(cuda_gram._kernel.__wrapped__)
    properties = SimpleNamespace(multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "device", driver.device)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", driver.compile, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(cuda_gram, "_kernel", fresh)
    rows = torch.randn(3, 50)
    for _ in range(2):
        cuda_gram.block_sums(rows, None, 0)
    assert driver.loaded == [rows.device]
    assert driver.ran == [rows.device] * 2
