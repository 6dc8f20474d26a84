"""Displacements where they lie: the same answers as from a matrix of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hewfl import combine, data_gap, post_local_weights
from hewfl.core import native
from hewfl.core.displacements import LinearCombination
from hewfl.displacements import gram
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import FEW_CLIENTS, round_products
from hewfl.errors import InvalidInputError

LENGTHS = (1, 300, 5, 257, 1024)
CERTIFIED = 1e-12
"""Gap of the weights, as `data_gap` finds it, in units of the objective's size."""


@pytest.fixture(params=["kernels", "NumPy"])
def _by(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernels":
        yield
        return
    with native.disabled():
        yield


pytestmark = pytest.mark.usefixtures("_by")


def in_pieces(
    rng: np.random.Generator, n: int, kind: Any = np.float32, *, based: bool = True
) -> tuple[ChunkedDisplacements, Any]:
    """Clients that end near each other, and the matrix of their displacements."""
    d = sum(LENGTHS)
    x = rng.standard_normal(d).astype(kind)
    ends = (x - 0.1 * rng.standard_normal((n, d)) - 0.1).astype(kind)
    cuts = np.cumsum(LENGTHS)[:-1]
    if not based:
        ends = (ends - x).astype(kind)
    parts = tuple(
        tuple(np.ascontiguousarray(row) for row in part)
        for part in np.split(ends, cuts, axis=1)
    )
    matrix = ends.astype(np.float64) - (x.astype(np.float64) if based else 0)
    return ChunkedDisplacements(parts, x if based else None), matrix


@pytest.mark.parametrize("based", [True, False])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 5, FEW_CLIENTS + 9])
def test_products_are_those_of_the_matrix(
    n: int, kind: Any, based: bool, rng: np.random.Generator
) -> None:
    pieces, matrix = in_pieces(rng, n, kind, based=based)
    g = rng.standard_normal(matrix.shape[1])
    result = round_products(pieces, g, 1.7)
    known = round_products(as_dense("displacements", matrix), g, 1.7)
    size = max(float(np.abs(known.gram).max()), 1e-3)
    assert np.abs(result.gram - known.gram).max() <= 1e-13 * size
    unit = max(float(np.abs(known.linear).max()), size)
    assert np.abs(result.linear - known.linear).max() <= 1e-12 * unit
    assert result.offset == pytest.approx(known.offset, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("n", [2, 7, FEW_CLIENTS + 9])
@pytest.mark.parametrize("ground", [1e-3, 1.0, 1e3])
def test_a_reference_that_is_not_formed(
    n: int, ground: float, rng: np.random.Generator
) -> None:
    pieces, matrix = in_pieces(rng, n)
    u = -rng.uniform(0.5, 2.0, n) / (n * ground)
    g, L = u @ matrix, 1.25
    result = post_local_weights(pieces, LinearCombination(u), L)
    known = post_local_weights(matrix, g, L)
    size = np.abs(matrix @ g).max() + L * (matrix**2).sum(axis=1).max()
    for weights in (result.weights, known.weights):
        assert data_gap(matrix, g, L, weights) <= CERTIFIED * size
    assert data_gap(pieces, LinearCombination(u), L, result.weights) <= CERTIFIED * size
    assert float(result.value) == pytest.approx(float(known.value), abs=1e-11 * size)
    np.testing.assert_allclose(result.weights, known.weights, atol=1e-8)


def test_it_is_formed_where_products_cannot_tell(rng: np.random.Generator) -> None:
    tiny = in_pieces(rng, 1)[1] * 1e-200
    both = np.vstack([tiny, 2 * tiny])
    u = np.array([-0.5, -0.5])
    result = post_local_weights(both, LinearCombination(u), 1.25)
    known = post_local_weights(both, u @ both, 1.25)
    np.testing.assert_allclose(result.weights, known.weights, atol=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_equal_clients_are_read_once(
    n: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no differences at all, which is no underflow."""
    one, matrix = in_pieces(rng, 1)
    equal, u = one.take(np.zeros(n, dtype=np.int64)), np.full(n, -1 / n)
    monkeypatch.setattr(gram, "_true_sizes", None)  # the slow way
    result = round_products(equal, -matrix[0], 3.0)
    assert not result.gram.any()
    assert not result.linear.any()
    assert result.offset == pytest.approx(0.5 * (matrix**2).sum(), rel=1e-12)
    from_sum = round_products(equal, LinearCombination(u), 3.0)
    assert from_sum.offset == pytest.approx(result.offset, rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_client_that_is_not_finite_is_named(
    bad: float, rng: np.random.Generator
) -> None:
    one, matrix = in_pieces(rng, 1)
    one.parts[3][0][5] = bad
    with pytest.raises(InvalidInputError, match="displacements"):
        round_products(one, matrix[0], 1.0)
    matrix[0, 7] = bad
    with pytest.raises(InvalidInputError, match="reference"):
        round_products(in_pieces(rng, 1)[0], matrix[0], 1.0)


def test_a_part_of_the_clients(rng: np.random.Generator) -> None:
    pieces, matrix = in_pieces(rng, 6)
    u = -np.ones(6) / 6
    result = post_local_weights(pieces, LinearCombination(u), 1.25, active=[1, 2, 5])
    known = post_local_weights(matrix, u @ matrix, 1.25, active=[1, 2, 5])
    np.testing.assert_allclose(result.weights, known.weights, atol=1e-9)


def test_many_clients_of_few_parameters(rng: np.random.Generator) -> None:
    d, n = 3, 1200
    x = rng.standard_normal(d).astype(np.float32)
    ends = (x - 0.1 * rng.standard_normal((n, d))).astype(np.float32)
    pieces = ChunkedDisplacements((tuple(ends),), x)
    u = -np.ones(n) / n
    matrix = ends.astype(np.float64) - x
    result = post_local_weights(pieces, LinearCombination(u), 1.25)
    assert data_gap(matrix, u @ matrix, 1.25, result.weights) <= 1e-12


@pytest.mark.parametrize("based", [True, False])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sums(kind: Any, based: bool, rng: np.random.Generator) -> None:
    pieces, matrix = in_pieces(rng, 6, kind, based=based)
    W = rng.standard_normal((2, 6))
    W[:, 2] = 0.0
    result = combine(pieces, W)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, W @ matrix, atol=1e-13)
    np.testing.assert_allclose(combine(pieces, W[0]), result[0], atol=1e-13)
    here = pieces.columns(200, 700)
    np.testing.assert_allclose(combine(here, W), (W @ matrix)[:, 200:700], atol=1e-13)
    narrow = matrix.astype(np.float32)
    once = combine(narrow, W[0])
    assert once.dtype == np.float32
    np.testing.assert_allclose(once, W[0] @ narrow.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("based", [True, False])
def test_nobody_has_weight(based: bool, rng: np.random.Generator) -> None:
    pieces, matrix = in_pieces(rng, 3, based=based)
    zero = np.zeros(matrix.shape[1])
    np.testing.assert_array_equal(pieces.combine(np.zeros(3)), zero)
    np.testing.assert_array_equal(combine(pieces, np.zeros(3)), zero)


def test_standing_still_besides(rng: np.random.Generator) -> None:
    for based in (True, False):
        pieces, matrix = in_pieces(rng, 3, based=based)
        result = pieces.append_zero().astype(np.float64)
        assert np.array_equal(result, np.vstack([matrix, np.zeros_like(matrix[:1])]))


def test_standing_still_is_zero_under_a_finer_base(rng: np.random.Generator) -> None:
    x = rng.standard_normal(5)
    pieces = ChunkedDisplacements(((np.zeros(5, np.float32),),), x)
    np.testing.assert_array_equal(pieces.append_zero().row(1), np.zeros(5))
    u = np.array([[0.0, 1.0]])
    np.testing.assert_array_equal(combine(pieces.append_zero(), u), np.zeros((1, 5)))


def test_bad_pieces_are_named() -> None:
    a, b = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(InvalidInputError, match=r"`parts` must be at least one"):
        ChunkedDisplacements(())
    with pytest.raises(InvalidInputError, match=r"of one length for 2 clients; got 2"):
        ChunkedDisplacements(((a, b),))
    with pytest.raises(InvalidInputError, match=r"for 2 clients; got 1 rows"):
        ChunkedDisplacements(((a, a), (b,)))
    with pytest.raises(InvalidInputError, match=r"float32 or float64; got \['float16'"):
        ChunkedDisplacements(((a.astype(np.float16),),))
    with pytest.raises(InvalidInputError, match=r"`base` must be of shape \(3,\)"):
        ChunkedDisplacements(((a,),), b)
    with pytest.raises(InvalidInputError, match=r"`base` must be .* got float16"):
        ChunkedDisplacements(((a,),), a.astype(np.float16))
    with pytest.raises(InvalidInputError, match=r"a sum of 1 displacements; got \(2,"):
        post_local_weights(
            ChunkedDisplacements(((a,),)), LinearCombination(np.ones(2)), 1.0
        )


def test_what_is_not_finite_is_found(rng: np.random.Generator) -> None:
    pieces, _ = in_pieces(rng, 3)
    pieces.parts[3][1][7] = np.nan
    with pytest.raises(InvalidInputError, match="nan for client 1"):
        post_local_weights(pieces, LinearCombination(-np.ones(3)), 1.0)
