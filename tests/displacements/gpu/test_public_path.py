"""The public functions on CUDA tensors: the kernels' answers, those of the host."""

import numpy as np
import pytest
import torch

from hewfl import combine, data_gap, post_local_weights
from hewfl.core.displacements import LinearCombination
from hewfl.displacements.dense import as_dense

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def rows_of(n: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(n + d)
    common = torch.randn(d, device="cuda")
    return (0.1 * torch.randn(n, d, device="cuda") + common).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str
)
@pytest.mark.parametrize(("n", "d"), [(1, 50), (5, 333), (20, 70_001), (90, 4000)])
@pytest.mark.parametrize("reference", ["vector", "own sum", None])
def test_weights_are_those_of_the_host(
    dtype: torch.dtype, n: int, d: int, reference: str | None
) -> None:
    rows = rows_of(n, d, dtype)
    u = np.full(n, -0.9 / n)
    g = {
        "vector": -0.8 * rows.float().mean(dim=0),
        "own sum": LinearCombination(u),
        None: None,
    }[reference]
    there = post_local_weights(rows, g, 1.3)
    home = g.cpu() if isinstance(g, torch.Tensor) else g
    here = post_local_weights(rows.cpu(), home, 1.3)
    assert there.weights == pytest.approx(here.weights, abs=1e-6)
    assert float(there.value) == pytest.approx(float(here.value), rel=1e-6)
    size = float(np.diagonal(as_dense("rows", rows.cpu()).gram()).max())
    given = home if home is not None else torch.zeros(d)
    assert data_gap(rows.cpu(), given, 1.3, there.weights) <= 1e-6 * size


def test_a_long_first_row_takes_no_digits() -> None:
    rows = rows_of(6, 5000, torch.float32)
    rows[0] *= 1e4
    g = -0.8 * rows[1:].mean(dim=0)
    there = post_local_weights(rows, g, 1.0)
    here = post_local_weights(rows.cpu(), g.cpu(), 1.0)
    assert there.weights == pytest.approx(here.weights, abs=1e-7)


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [(torch.float32, 1e-6), (torch.bfloat16, 0.0), (torch.float64, 1e-14)],
    ids=str,
)
@pytest.mark.parametrize("several", [False, True])
def test_sums_are_those_of_the_host(
    dtype: torch.dtype, unit: float, several: bool
) -> None:
    """The unit is for float64 sums in another order."""
    rows = rows_of(7, 12_345, dtype)
    w = np.array([0.1, 0.0, 0.2, 0.3, 0.0, 0.25, 0.15])
    if several:
        w = np.stack([w, w[::-1], 0 * w])
    there, here = combine(rows, w), combine(rows.cpu(), w)
    assert there.is_cuda
    assert there.dtype == dtype
    assert there.shape == here.shape
    assert (there.cpu() - here).abs().max() <= unit


def test_what_is_not_finite_is_named() -> None:
    rows = rows_of(4, 1000, torch.float32)
    rows[2, 17] = torch.nan
    with pytest.raises(ValueError, match="`displacements` must be finite; got nan for"):
        post_local_weights(rows, rows[0], 1.0)
