"""Weighted sums: kernels and portable code, one rounding."""

from typing import Any

import numpy as np
import pytest
import torch

from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.dense import as_dense
from hewfl.displacements.weighted_sum import (
    inner_with_sum,
    inner_with_vector,
    weighted_sum,
)

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 255, 70_001])
def test_sums_are_exact_to_one_rounding(
    kind: Any, d: int, rng: np.random.Generator
) -> None:
    D = rng.standard_normal((4, d)).astype(kind)
    w = np.array([0.25, -1.5, 0.0, 3.0])
    exact = w @ D.astype(np.longdouble)
    wide = weighted_sum(as_dense("rows", D), w)
    assert wide.dtype == np.float64
    assert np.abs(wide - exact).max() <= 1e-14
    narrow = weighted_sum(as_dense("rows", D), w, kind=D.dtype)
    assert narrow.dtype == kind
    assert np.array_equal(narrow, np.asarray(wide, dtype=kind))


def test_several_sums_in_one_pass(rng: np.random.Generator) -> None:
    D, w = rng.standard_normal((3, 500)), rng.standard_normal((2, 3))
    sums = weighted_sum(as_dense("rows", D), w)
    assert sums == pytest.approx(w @ D, abs=1e-13)
    parts = tuple(
        tuple(np.ascontiguousarray(row) for row in part)
        for part in np.split(D, [200], axis=1)
    )
    again = weighted_sum(ChunkedDisplacements(parts), w)
    assert again == pytest.approx(sums, abs=1e-13)


def test_other_libraries_keep_their_kind(rng: np.random.Generator) -> None:
    D = torch.tensor(rng.standard_normal((3, 50))).bfloat16()
    w = np.array([0.5, 0.25, 0.25])
    result = weighted_sum(as_dense("rows", D), w, kind=torch.bfloat16)
    assert result.dtype == torch.bfloat16
    wide = weighted_sum(as_dense("rows", D), w)
    assert np.asarray(wide) == pytest.approx(w @ D.double().numpy())


def test_products_with_a_vector(rng: np.random.Generator) -> None:
    D, v = rng.standard_normal((6, 90_000)), rng.standard_normal(90_000)
    assert inner_with_vector(as_dense("rows", D), v) == pytest.approx(D @ v, abs=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 3, 13])
@pytest.mark.parametrize("d", [5, 3_001])
def test_the_gram_matrix_times_a_vector(
    kind: Any, n: int, d: int, rng: np.random.Generator
) -> None:
    x, w = (100 * rng.standard_normal(d)).astype(kind), rng.standard_normal(n)
    small = 1e-4 if kind == np.float32 else 1e-12  # beside x, which must not show
    ends = (x + small * rng.standard_normal((n, d))).astype(kind)
    D = ends.astype(np.longdouble) - x
    G, data = D @ D.T, ChunkedDisplacements((tuple(ends),), x)
    lengths = np.sqrt(np.diagonal(G))
    scale = (lengths * (np.abs(w) @ lengths)).astype(np.float64)
    error = (inner_with_sum(data, w) - G @ w).astype(np.float64)
    assert np.abs(error / scale).max() <= 1e-9
    np.testing.assert_allclose(
        inner_with_sum(data), np.diagonal(G).astype(np.float64), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("kind", "size"),
    [*((np.float32, s) for s in (1e-30, 1e-8, 1.0, 1e30)), (np.float64, 1e-100)],
)
def test_a_length_is_found_at_any_size(kind: Any, size: float) -> None:
    """Squares would leave the range of single precision, not that of float64."""
    x = np.random.default_rng(0).standard_normal(9_000).astype(kind) * kind(size)
    ends = x * kind(1.1)
    exact = ends.astype(np.float64) - x.astype(np.float64)
    result = inner_with_sum(ChunkedDisplacements(((ends[:70],), (ends[70:],)), x))
    assert result == pytest.approx(float(exact @ exact), rel=1e-12, abs=0.0)


def test_one_bad_vector_spoils_its_own_length_only(rng: np.random.Generator) -> None:
    ends = rng.standard_normal((3, 40)).astype(np.float32)
    ends[1, 7] = np.nan
    result = inner_with_sum(ChunkedDisplacements((tuple(ends),)))
    assert list(np.isnan(result)) == [False, True, False]
