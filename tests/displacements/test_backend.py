"""Where vectors lie, and what the kernels may read of them."""

import array_api_compat as compat
import ml_dtypes
import numpy as np
import pytest
import torch

from hewfl.displacements.backend import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    Span,
    as_wide,
    gpu_kernels,
    host_rows,
    is_host,
    to_host,
)


def test_rows_are_lent_without_a_copy() -> None:
    narrow, wide = np.ones(5, np.float32), np.ones(5)
    half = np.ones(5).astype(ml_dtypes.bfloat16)
    lent = host_rows([narrow, wide, half, torch.ones(5), torch.ones(5).bfloat16()])
    assert lent is not None
    views, codes = lent
    assert list(codes) == [FLOAT32, FLOAT64, BFLOAT16, FLOAT32, BFLOAT16]
    assert views[0] is narrow
    assert np.shares_memory(views[2], half)


@pytest.mark.parametrize(
    "row", [np.ones(10)[::2], np.ones(5, np.float16), np.ones(5, int), [1.0, 2.0]]
)
def test_what_kernels_cannot_read_is_not_lent(row: object) -> None:
    assert host_rows([np.ones(5), row]) is None


def test_a_span_widens_what_it_holds() -> None:
    half = np.array([1.5, -2.25, 3.0]).astype(ml_dtypes.bfloat16)
    base = np.array([1.0, 1.0, 1.0], np.float32)
    span = Span(0, 3, [half.view(np.uint16)], bytes([BFLOAT16]), base)
    assert span.wide(0, 1, 3).tolist() == [-3.25, 2.0]
    assert span.lent_base == (base, FLOAT32)


def test_devices_and_widths() -> None:
    tensor = torch.ones(3, dtype=torch.float16)
    assert is_host(tensor)
    assert is_host(np.ones(3))
    assert as_wide(compat.array_namespace(tensor), tensor).dtype == torch.float64
    assert to_host(tensor).dtype == np.float16
    assert gpu_kernels(np.ones((2, 2))) is None
    assert gpu_kernels(torch.ones(2, 2)) is None
