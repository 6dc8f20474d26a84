"""What CUDA tensors are multiplied by against its portable twin, on a GPU."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hewfl.torch.shards import shard_products
from hewfl.torch.sums import weighted_sum
from tests.torch.scenarios import Quadratic, descend, flat

from hewfl.aggregate.gpu import triton_gram
from hewfl.aggregate.gram import vector_products
from hewfl.aggregate.rows import as_rows
from hewfl.core.displacements import RoundProducts
from hewfl.torch import HewLocalSGD

READY = torch.cuda.is_available() and triton_gram.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not READY, reason="needs a CUDA device and Triton"),
]
SINGLE = 3e-6
"""Products in float32 blocks, relative to the lengths of the vectors."""


def portable_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """The plain twin, in float64 throughout."""
    vectors = rows if reference is None else [*rows, reference]
    return vector_products(as_rows("vectors", vectors), origin)


def rows_of(n: int, s: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(n + s)
    common = torch.randn(s, device="cuda")
    return (torch.randn(n, s, device="cuda") + common).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("corrected", [False, True])
def test_products_are_the_twins(dtype: torch.dtype, corrected: bool) -> None:
    for n, s in product([1, 2, 15, 16, 20, 40, 62, 80], [1, 100, 4097, 300_000]):
        rows = rows_of(n, s, dtype)
        reference = torch.randn(s, device="cuda") if corrected else None
        found = shard_products(rows, reference, n // 2)
        twin = portable_products(rows, reference, n // 2)
        size = np.sqrt(np.diagonal(twin.gram))
        length = np.sqrt(twin.offset)
        assert (np.abs(found.gram - twin.gram) <= SINGLE * np.outer(size, size)).all()
        assert (np.abs(found.linear - twin.linear) <= SINGLE * size * length).all()
        assert found.offset == pytest.approx(twin.offset, rel=SINGLE)


def test_rows_that_are_not_finite_or_beyond_float32_squares() -> None:
    rows = rows_of(4, 1000, torch.float32)
    rows[2] *= 1e30
    twin = portable_products(rows, None, 0)
    found = shard_products(rows, None, 0).gram
    assert found == pytest.approx(twin.gram, rel=1e-9)
    rows[1, 3] = torch.nan
    finite = np.isfinite(np.diagonal(shard_products(rows, None, 0).gram))
    assert finite.tolist() == [True, False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weighted_sums_are_the_twins(dtype: torch.dtype) -> None:
    rows = rows_of(5, 70_001, dtype)
    rows[3, 17] = torch.nan
    weights = np.array([0.1, 0.2, 0.3, 0.0, 0.4])
    found, twin = weighted_sum(rows, weights), weighted_sum(rows.cpu(), weights)
    assert found.dtype == torch.float32
    assert (found.cpu() - twin).abs().max() <= 1e-6  # float64 sums in another order


def test_one_rank_on_nccl(tmp_path: object) -> None:
    """All code of a round on the device; with one rank the round changes nothing."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    try:
        module = Quadratic(0, (torch.float32,)).cuda()
        module.A, module.b = module.A.cuda(), module.b.cuda()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with HewLocalSGD(module, optimizer, 10**9, "het") as local:
            descend(module, optimizer, 3)
            before = flat(module)
            local.sync()
        assert flat(module) == pytest.approx(before, rel=1e-6)
    finally:
        dist.destroy_process_group()
