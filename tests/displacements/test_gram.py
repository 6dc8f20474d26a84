"""The compiled passes equal their NumPy twins, and refuse bad calls."""

import numpy as np
import pytest

from hewfl.core import native
from hewfl.core.displacements import RoundProducts
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import round_products, vector_products, weight_problem

needs_kernels = pytest.mark.skipif(
    not native.is_available(),
    reason="the compiled kernels are switched off or not built",
)


@needs_kernels
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 21])
@pytest.mark.parametrize("d", [1, 7, 255, 256, 257, 4097, 70_001])
def test_the_products_agree(n: int, d: int, rng: np.random.Generator) -> None:
    D = rng.standard_normal((n, d)).astype(np.float32)
    g = rng.standard_normal(d)
    data = as_dense("displacements", D)
    ours = round_products(data, g, 1.7)
    with native.disabled():
        twin = round_products(data, g, 1.7)
    size = max(float(np.abs(twin.gram).max()), 1e-30)
    assert np.abs(ours.gram - twin.gram).max() <= 1e-13 * size
    assert np.array_equal(ours.gram, ours.gram.T)
    unit = max(float(np.abs(twin.linear).max()), size)
    assert np.abs(ours.linear - twin.linear).max() <= 1e-13 * unit
    assert ours.offset == pytest.approx(twin.offset, rel=1e-12, abs=1e-12)


@needs_kernels
def test_bad_calls_fail_instead_of_crashing() -> None:
    kernels = native.library(native.PASSES)
    assert kernels is not None
    row, out = np.zeros(5), np.zeros(4)
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.gram(
            [row, row[:4]], bytes([1, 1]), 5, 1.0, 1.0, 1.0, 0, out, np.zeros(2)
        )
    with pytest.raises(ValueError, match="unknown type of row"):
        kernels.gram([row, row], bytes([1, 9]), 5, 1.0, 1.0, 1.0, 0, out, np.zeros(2))
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.combine([row], bytes([1]), 5, np.ones(1), np.zeros(4), 1)
    row, out, short = np.zeros(5), np.zeros(10), np.zeros(4)
    given = ([row, row], bytes([1, 1]), 5, 1.0, 1.0, 1.0, 0, np.zeros(4), np.zeros(2))
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.gram(*given, short, 1)
    with pytest.raises(ValueError, match="unknown type of row"):
        kernels.gram(*given, row, 7)
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.combine([row], bytes([1]), 5, np.ones(1), out, 1, short, 1)
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.combine([row], bytes([1]), 5, np.ones(3), out, 1)
    for w, to, base in [(short, out, row), (row, short, row), (None, out, short)]:
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.against_sum([row] * 5, b"\1" * 5, 5, w, to, base, 1)
    for lo, count, origin, stride in [(1, 5, 0, 5), (0, 5, 0, 6), (0, -1, 0, 5)]:
        with pytest.raises(ValueError, match=r"shorter|outside"):
            kernels.shifted([row, row], b"\1\1", lo, count, origin, 1.0, stride, out)
    for lo, count, origin, stride in [(-1, 2, 0, 5), (0, 5, 2, 5), (0, 5, 0, 4)]:
        with pytest.raises(ValueError, match="outside the rows"):
            kernels.shifted([row, row], b"\1\1", lo, count, origin, 1.0, stride, out)
    none = np.zeros(0)
    for rows, kinds in [([], b""), ([none], b"\3")]:  # nothing bounds their length
        with pytest.raises(ValueError, match="no row is stored"):
            kernels.slopes(rows, kinds, 2**40, row, None, out, None, 3, 1.0)
        with pytest.raises(ValueError, match="no row is stored"):
            kernels.against_sum(rows, kinds, 2**40, row, out)
    with pytest.raises(ValueError, match="outside the rows"):
        kernels.sampled([row], b"\1", 5, np.array([3]), 3, out)
    places = np.zeros(1, dtype=np.int64)
    for turn, length in [(5, 20), (-1, 20), (0, 4)]:
        table = np.ones(length, dtype=np.float32)
        where = places, places, places + turn, table, out
        with pytest.raises(ValueError, match="a shift is outside"):
            kernels.sketches([row], b"\1", 5, 0, 5, *where)
    rate = np.ones(2)
    for rates, server, variates in [
        (rate[:1], row, [row, row]),
        (rate, short, [row, row]),
        (rate, row, [row, short]),
    ]:
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.advance([row, row], b"\1\1", 5, rates, server, variates)
    with pytest.raises(IndexError):
        kernels.advance([row, row], b"\1\1", 5, rate, row, [row])
    fixed = np.zeros(5)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.advance([row, row], b"\1\1", 5, rate, row, [row, fixed])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("given", [True, False])
def test_plain_products_of_parts_are_the_weight_problem(
    given: bool, rng: np.random.Generator
) -> None:
    """As ranks of a torch job do it: each has some columns, and g after the vectors."""
    V, lam, n = rng.standard_normal((5, 60)) + 2, 1.7, 4
    g = V[n] if given else np.zeros(60)
    parts = [as_dense("part", V[: n + given, lo : lo + 20]) for lo in (0, 20, 40)]
    each = [vector_products(part, 1) for part in parts]
    assert {result.exponent for result in each} == {0}
    whole = RoundProducts(
        np.sum([result.gram for result in each], axis=0),
        np.sum([result.linear for result in each], axis=0),
        float(np.sum([result.offset for result in each])),
        0,
    )
    problem = weight_problem(whole, n, lam)
    for w in rng.dirichlet(np.ones(n), 4):
        step = w @ V[:n]
        known = g @ step + lam / 2 * step @ step
        value = problem.linear @ w + lam / 2 * w @ problem.gram @ w + problem.offset
        assert value == pytest.approx(known, rel=1e-11)
