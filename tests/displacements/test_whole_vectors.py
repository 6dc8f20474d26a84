"""Whole vectors of float32 that a rank receives: products, differences and sums."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl.core.displacements import LinearCombination
from hewfl.core.native import PASSES, disabled, load
from hewfl.displacements.dense import DenseDisplacements
from hewfl.displacements.sketched_displacements import SketchedDisplacements

Single = NDArray[np.float32]
compiled = pytest.mark.skipif(load(PASSES) is None, reason="there is no such kernel")


def kernels() -> Any:
    return load(PASSES)


def vectors(n: int, d: int, scale: float = 1.0) -> Single:
    rng = np.random.default_rng([n, d])
    return (scale * (rng.standard_normal((n, d)) + 0.3)).astype(np.float32)


def nearly_equal(n: int, d: int) -> Single:
    """One entry of each differs, in its last digit."""
    rows = np.repeat(vectors(1, d), n, axis=0)
    for i in range(n):
        rows[i, i] = np.nextafter(rows[i, i], np.float32(9))
    return rows


CASES = {
    "one": vectors(1, 100),
    "two": vectors(2, 1037),
    "five": vectors(5, 3000),
    "many": vectors(9, 700),
    "short": vectors(3, 1),
    "tiny": vectors(3, 50, 1e-44),
    "huge": vectors(3, 50, 1e37),
    "nearly equal": nearly_equal(3, 2000),
    "equal": np.repeat(vectors(1, 600), 3, axis=0),
    "zero": np.zeros((2, 70), np.float32),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("native", [True, False])
def test_products_are_those_of_the_vectors(name: str, native: bool) -> None:
    """Around a short one of them, so that differences keep their digits."""
    rows = CASES[name]
    n, d = rows.shape
    u = np.linspace(-0.2, 0.7, n)
    wide = DenseDisplacements(rows.astype(np.float64), np, n, d)
    expected = wide.products(LinearCombination(u), 1.7)
    if native:
        problem = SketchedDisplacements(n, d, rows)
        got = problem.products(LinearCombination(u), 1.7)
    else:
        with disabled():
            problem = SketchedDisplacements(n, d, rows)
            got = problem.products(LinearCombination(u), 1.7)
    for w in (np.full(n, 1 / n), np.eye(n)[0], np.eye(n)[-1]):
        values = []
        for p in (got, expected):
            value = p.linear @ w + 0.85 * w @ p.gram @ w + p.offset
            values.append(float(np.ldexp(value, p.exponent)))
        assert values[0] == pytest.approx(values[1], rel=1e-9)
    # distances between vectors do not depend on which of them is the origin
    apart = [
        np.diagonal(p.gram)[:, None] + np.diagonal(p.gram) - 2 * p.gram
        for p in (got, expected)
    ]
    scale = np.ldexp(1.0, got.exponent - expected.exponent)
    np.testing.assert_allclose(apart[0] * scale, apart[1], rtol=1e-8, atol=0)


@compiled
@pytest.mark.parametrize("spoiled", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sizes", [(1,), (5000,), (3, 4096, 1, 4100)])
def test_a_difference_and_its_largest_entry(
    sizes: tuple[int, ...], spoiled: float | None
) -> None:
    d = sum(sizes)
    y, x = vectors(2, d)
    y[d // 2] = -70 if spoiled is None else spoiled
    out = np.empty(d, np.float32)
    pieces = [part.copy() for part in np.split(y, np.cumsum(sizes)[:-1])]
    reach = kernels().displaced(pieces, x, out)
    np.testing.assert_array_equal(out, y - x)
    if spoiled is None:
        assert reach == np.abs(y - x).max()
    else:
        assert not math.isfinite(reach)
    assert kernels().displaced([x], x, out) == 0


@compiled
@pytest.mark.parametrize("n", [0, 1, 3, 4, 8, 13])
def test_a_step_of_whole_vectors(n: int) -> None:
    """Products with weights of float32 are exact; the sum is rounded once."""
    d = 5003
    rows, x = vectors(n + 1, d)[1:], vectors(1, d)[0]
    w = np.linspace(-0.1, 0.6, n).astype(np.float32).astype(np.float64)
    step = (w[:, None] * rows.astype(np.float64)).sum(axis=0)
    out = np.empty(d, np.float32)
    reach = kernels().stepped(list(rows), d, w, x, out)
    ulp = np.spacing(np.abs(step).astype(np.float32))
    exact = x.astype(np.float64) + step
    assert (np.abs(out - exact) <= ulp + np.spacing(np.abs(out))).all()
    assert reach == np.abs(out).max()
    alone = np.empty(d, np.float32)
    kernels().stepped(list(rows), d, w, None, alone)
    assert (np.abs(alone - step) <= ulp).all()
    assert (x + alone).tobytes() == out.tobytes()


@compiled
def test_a_sum_beyond_the_range_shows() -> None:
    rows = [np.full(9, 3e38, np.float32)] * 2
    out = np.empty(9, np.float32)
    assert kernels().stepped(rows, 9, np.ones(2), None, out) == math.inf
    rows[0] = np.full(9, np.nan, np.float32)
    assert math.isnan(kernels().stepped(rows, 9, np.ones(2), None, out))


@compiled
def test_buffers_that_are_too_short_are_refused() -> None:
    long, short = np.ones(10, np.float32), np.ones(9, np.float32)
    passes, A = kernels(), np.empty((2, 2))
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("displaced", ([long], short, long.copy())),
        ("displaced", ([long], long, short.copy())),
        ("displaced", ([short, short], long, long.copy())),
        ("stepped", ([long, short], 10, np.ones(2), None, long.copy())),
        ("stepped", ([long], 10, np.ones(1), short, long.copy())),
        ("stepped", ([long], 10, np.ones(1), None, short.copy())),
        ("stepped", ([long], -1, np.ones(1), None, long.copy())),
        ("inner", ([long, short], 10, A)),
        ("inner", ([long, long, long], 10, A)),
        ("inner", ([long], -1, A)),
    ]
    for name, arguments in calls:
        with pytest.raises(ValueError, match="shorter"):
            getattr(passes, name)(*arguments)
    for wrong in (5, [5], [None]):
        with pytest.raises((TypeError, ValueError)):
            passes.displaced(wrong, long, long.copy())
    with pytest.raises((TypeError, IndexError)):
        passes.stepped([long], 10, np.ones(2), None, long.copy())
