"""Products with few entries: those of the dense matrix, and the same minimiser."""

from typing import Any

import numpy as np
import pytest

from hewfl.core import native
from hewfl.problems import Softmax, softmax_from_arrays
from hewfl.problems.softmax import sparse
from hewfl.problems.softmax.kernel import LIBRARY, is_usable
from hewfl.problems.softmax.sparse import SparseRows, sparse_rows

pytestmark = pytest.mark.skipif(not is_usable(), reason="the kernel is not built")
WIDTHS = (1, 3, 8, 10, 33, 140)
"""Rows of the other factor: fewer than a vector, and each of the groups of vectors."""


def features(dtype: str = "float32") -> Any:
    """Standardised counts, mostly zero before, with a dense and a constant column."""
    rng = np.random.default_rng(0)
    X = rng.poisson(0.2, (150, 21)).astype(float)
    X[:, 0] = rng.standard_normal(150)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X[:, 1] = 1
    return np.ascontiguousarray(X, dtype=dtype)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few numbers are enough for a list of entries."""
    monkeypatch.setattr(sparse, "LEAST_SIZE", 1)


def rows_of(X: Any) -> SparseRows:
    rows = sparse_rows(X)
    assert rows is not None
    assert len(rows.values) < 0.3 * X.size
    return rows


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_products_are_those_of_the_matrix(dtype: str, precision: str) -> None:
    X, rng = features(dtype), np.random.default_rng(1)
    rows, at = rows_of(X), slice(7, 120)
    tolerance = {"float32": 2e-5, "float64": 1e-13}[precision]
    for width in WIDTHS:
        W = rng.standard_normal((width, X.shape[1])).astype(precision)
        R = rng.standard_normal((width, 113)).astype(precision)
        product, wanted = rows.scores(W, at), W.astype(float) @ X[at].astype(float).T
        assert product.dtype == precision
        np.testing.assert_allclose(product, wanted, rtol=0, atol=tolerance * 10)
        product, wanted = rows.sums(R, at), R.astype(float) @ X[at].astype(float)
        np.testing.assert_allclose(product, wanted, rtol=0, atol=tolerance * 100)


@pytest.mark.usefixtures("small")
def test_dense_and_foreign_matrices_are_left_alone() -> None:
    X = features()
    assert sparse_rows(np.random.default_rng(0).standard_normal((50, 4))) is None
    assert sparse_rows(np.asfortranarray(X)) is None
    assert sparse_rows(X.tolist()) is None
    with native.disabled():
        assert sparse_rows(X) is None


def test_small_matrices_are_left_alone() -> None:
    assert sparse_rows(features()) is None


@pytest.mark.usefixtures("small")
def test_memory_that_is_not_there_is_refused() -> None:
    assert LIBRARY is not None
    X = features()
    rows = rows_of(X)
    W = np.zeros((3, 21), np.float32)
    out = np.zeros((3, 10), np.float32)

    def product(first: int, starts: Any, columns: Any) -> None:
        given = (starts, columns, rows.values, rows.background, W, out)
        LIBRARY.product(0, 4, 4, first, 3, *given)

    product(140, rows.starts, rows.columns)
    with pytest.raises(ValueError, match="out of range"):
        product(141, rows.starts, rows.columns)
    with pytest.raises(ValueError, match="out of range"):
        product(0, rows.starts[::-1].copy(), rows.columns)
    for wrong in (-1, 21):
        with pytest.raises(ValueError, match="out of range"):
            product(0, rows.starts, np.full_like(rows.columns, wrong))
    with pytest.raises(ValueError, match="wrong length"):
        product(0, rows.starts, rows.columns[:-1])


def problem() -> Softmax:
    y = np.random.default_rng(2).integers(0, 3, 150)
    shards = [np.arange(0, 40), np.arange(40, 150)]
    return softmax_from_arrays(features(), y, shards, l2=1e-3)


def test_the_minimiser_is_the_same(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del small
    own = problem().optimum()
    monkeypatch.setattr(sparse, "LEAST_SIZE", 10**9)
    wanted = problem().optimum()
    assert abs(own.objective - wanted.objective) < 1e-14
    np.testing.assert_allclose(own.x, wanted.x, atol=1e-10)
