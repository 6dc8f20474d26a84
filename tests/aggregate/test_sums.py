"""Weighted sums: kernels and portable code, one rounding."""

from typing import Any

import numpy as np
import pytest
import torch

from hewfl.aggregate.pieces import Pieces
from hewfl.aggregate.rows import as_rows
from hewfl.aggregate.sums import products_with, weighted_sum

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 255, 70_001])
def test_sums_are_exact_to_one_rounding(
    kind: Any, d: int, rng: np.random.Generator
) -> None:
    D = rng.standard_normal((4, d)).astype(kind)
    w = np.array([0.25, -1.5, 0.0, 3.0])
    exact = w @ D.astype(np.longdouble)
    wide = weighted_sum(as_rows("rows", D), w)
    assert wide.dtype == np.float64
    assert np.abs(wide - exact).max() <= 1e-14
    narrow = weighted_sum(as_rows("rows", D), w, kind=D.dtype)
    assert narrow.dtype == kind
    assert np.array_equal(narrow, np.asarray(wide, dtype=kind))


def test_several_sums_in_one_pass_into_given_memory(rng: np.random.Generator) -> None:
    D, w = rng.standard_normal((3, 500)), rng.standard_normal((2, 3))
    out = np.empty((2, 500))
    assert weighted_sum(as_rows("rows", D), w, out=out) is not None
    assert out == pytest.approx(w @ D, abs=1e-13)
    parts = tuple(
        tuple(np.ascontiguousarray(row) for row in part)
        for part in np.split(D, [200], axis=1)
    )
    again = np.empty((2, 500))
    weighted_sum(Pieces(parts), w, out=again)
    assert again == pytest.approx(out, abs=1e-13)


def test_other_libraries_keep_their_kind(rng: np.random.Generator) -> None:
    D = torch.tensor(rng.standard_normal((3, 50))).bfloat16()
    w = np.array([0.5, 0.25, 0.25])
    found = weighted_sum(as_rows("rows", D), w, kind=torch.bfloat16)
    assert found.dtype == torch.bfloat16
    wide = weighted_sum(as_rows("rows", D), w)
    assert np.asarray(wide) == pytest.approx(w @ D.double().numpy())


def test_products_with_a_vector(rng: np.random.Generator) -> None:
    D, v = rng.standard_normal((6, 90_000)), rng.standard_normal(90_000)
    assert products_with(as_rows("rows", D), v) == pytest.approx(D @ v, abs=1e-9)
