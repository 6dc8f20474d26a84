"""Sketches: inner products on average, the same signs everywhere, linear, one pass."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.count_sketch import CountSketch, _add_on_device
from hewfl.displacements.dense import as_dense

torch = pytest.importorskip("torch")
K = 64


def vectors(d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(d)
    return x, 0.5 * x + rng.standard_normal(d)


def products(x: np.ndarray, y: np.ndarray, seeds: int = 200) -> np.ndarray:
    sketches = [CountSketch(K, seed) for seed in range(seeds)]
    return np.array([float(s.of([x]) @ s.of([y])) for s in sketches])


@pytest.mark.parametrize("kind", ["random", "constant", "periodic", "one column"])
def test_inner_products_are_right_on_average(kind: str) -> None:
    """Vectors whose rows are alike are no worse: shifts and turns see to it."""
    x, y = vectors(10 * K + 17)
    if kind == "constant":
        x, y = np.ones_like(x), np.ones_like(x)
    if kind == "periodic":
        x = np.resize(x[:K], x.shape)
    if kind == "one column":  # an outlying feature of a layer whose width divides k
        x, y = (np.where(np.arange(len(v)) % K == 5, v, 0.0) for v in (x, y))
    result = products(x, y)
    lengths = x @ x * (y @ y)
    allowed = np.sqrt(
        ((1 + 1 / (3 * K)) * (lengths + (x @ y) ** 2) + 2 / 3 * lengths) / K
    )
    assert abs(result.mean() - x @ y) < 4 * allowed / np.sqrt(len(result))
    assert result.std() < 1.25 * allowed


def test_signs_follow_from_the_seed() -> None:
    """Frozen: two machines of one job must not differ."""
    ones = CountSketch(4, seed=7).of([np.ones(4)])
    assert ones.tolist() == CountSketch(4, seed=7).of([torch.ones(4)]).tolist()
    assert ones.tolist() == [-1.0, 1.0, -1.0, -1.0]
    others = [CountSketch(4, seed=s).of([np.ones(4)]).tolist() for s in range(12)]
    assert len({tuple(o) for o in others}) > 4


def test_short_vectors_are_kept_whole() -> None:
    x, y = vectors(K)
    s = CountSketch(K, 3)
    assert sorted(np.abs(s.of([x]))) == sorted(np.abs(x))
    assert s.of([x]) @ s.of([y]) == pytest.approx(x @ y, rel=1e-14)


def test_sketches_are_linear() -> None:
    x, y = vectors(5 * K + 3)
    s = CountSketch(K, 3)
    both = s.of([2 * x - y])
    assert both == pytest.approx(2 * s.of([x]) - s.of([y]), abs=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_pieces_make_the_whole(library: str) -> None:
    """Wherever a vector is cut: within rows, at their ends, in many rows at once."""
    x, _ = vectors(40 * K + 9)
    whole = CountSketch(K, 3).of([x])
    cuts = [0, 5, K, K + 1, 3 * K, 37 * K + 2, 37 * K + 2, len(x)]
    pieces = [x[lo:hi] for lo, hi in pairwise(cuts)]
    given = pieces if library == "numpy" else [torch.tensor(p) for p in pieces]
    assert np.asarray(CountSketch(K, 3).of(given)) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_other_precisions_are_summed_as_they_are(kind: str) -> None:
    """Rows of halves are widened before they are added."""
    x = torch.tensor(vectors(50 * K)[0]).to(getattr(torch, kind))
    result = CountSketch(K, 3).of([x.view(50, K)])
    assert result.dtype == torch.float64
    expected = CountSketch(K, 3).of([x.double()])
    assert torch.allclose(result, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_base_is_subtracted(path: str, library: str) -> None:
    """By the compiled kernel, which reads float32, and by its twin."""
    x, y = (v.astype(np.float32) for v in vectors(70 * K + 9))
    expected = CountSketch(K, 3).of([x.astype(np.float64) - y])
    as_given = np.asarray if library == "numpy" else torch.tensor
    for given in ((x, y), (x[:50].copy(), y[:50].copy())):
        total = CountSketch(K, 3).empty(as_given(x))
        begin = len(x) - len(given[0])
        CountSketch(K, 3).add(total, as_given(given[0]), begin, as_given(given[1]))
        if begin == 0:
            assert np.asarray(total) == pytest.approx(expected, abs=1e-4)
        else:
            zeros = np.zeros(begin)
            whole = CountSketch(K, 3).of([zeros, given[0] - given[1]])
            assert np.asarray(total) == pytest.approx(whole, abs=1e-5)
    assert path


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_weighted_entries_come_with_the_sketch(
    path: str, library: str, kind: str
) -> None:
    """The sketch stays without the weight; entries are rounded as two operations."""
    x, y = (v.astype(kind) for v in vectors(70 * K + 9))
    as_given = np.asarray if library == "numpy" else torch.tensor
    pieces = [as_given(part) for part in np.split(x, [5, 5, K, 3 * K + 7, len(x) - 1])]
    sketch = CountSketch(K, 3)
    for base in (as_given(y), None):
        plain, total = sketch.empty(as_given(x)), sketch.empty(as_given(x))
        out = as_given(np.full_like(x, np.nan))
        sketch.add(plain, pieces, 11, base)
        sketch.add(total, pieces, 11, base, out=out, weight=0.3)
        assert np.asarray(total) == pytest.approx(np.asarray(plain), rel=1e-6, abs=1e-6)
        expected = as_given(x) - (0 if base is None else base)
        expected *= 0.3
        assert np.asarray(out).tobytes() == np.asarray(expected).tobytes()
    assert path


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_list_of_pieces_is_one_vector(path: str, library: str) -> None:
    """Whatever their lengths; an empty one is nothing."""
    x, y = (v.astype(np.float32) for v in vectors(70 * K + 9))
    as_given = np.asarray if library == "numpy" else torch.tensor
    pieces = [as_given(part) for part in np.split(x, [5, 5, K, 3 * K + 7, len(x) - 1])]
    result, whole = (CountSketch(K, 3).empty(as_given(x)) for _ in range(2))
    CountSketch(K, 3).add(result, pieces, 11, as_given(y))
    CountSketch(K, 3).add(whole, as_given(x), 11, as_given(y))
    assert np.asarray(result).tobytes() == np.asarray(whole).tobytes()
    assert path


def test_what_is_not_finite_shows() -> None:
    x, _ = vectors(3 * K)
    x[100] = np.inf
    assert not np.isfinite(CountSketch(K).of([x])).all()


def test_many_rows_at_a_time_are_as_one_by_one() -> None:
    """What accelerators are given, on the host."""
    x = torch.tensor(vectors(300 * K)[0])
    sketch = CountSketch(K, 3)
    result, rows = sketch.empty(x), sketch._rows(0, 300)
    _add_on_device(result, x.view(300, K), sketch._table(x), *rows)
    assert torch.allclose(result, sketch.of([x]), atol=1e-10)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("form", ["matrix", "torch", "chunks", "chunks with a base"])
def test_all_vectors_at_once_are_as_one_by_one(path: str, kind: str, form: str) -> None:
    """Six vectors, four of which are added together; parts end within rows."""
    rng, n, d = np.random.default_rng(4), 6, 70 * K + 9
    rows = rng.standard_normal((n, d))
    base = rng.standard_normal(d).astype(np.float32)
    tensor = torch.tensor(rows).to(getattr(torch, kind))
    rows = tensor.double().numpy()
    if form.startswith("chunks"):
        held = tensor.numpy() if kind != "bfloat16" else rows
        cuts = [0, 5, 3 * K + 7, d]
        parts = tuple(
            tuple(row[lo:hi].copy() for row in held) for lo, hi in pairwise(cuts)
        )
        x = base if form == "chunks with a base" else None
        data: Any = ChunkedDisplacements(parts, x)
        rows = rows - (0.0 if x is None else x)
    else:
        as_given = tensor if form == "torch" or kind == "bfloat16" else tensor.numpy()
        data = as_dense("rows", as_given)
    result = CountSketch(K, 3).of_all(data)
    near = 1e-12 if kind == "float64" else 1e-4
    for row, sketch in zip(rows, result, strict=True):
        assert sketch == pytest.approx(CountSketch(K, 3).of([row]), abs=near)
    assert path


def test_nothing_cannot_be_sketched() -> None:
    with pytest.raises(InvalidInputError, match="`pieces` must be at least one array"):
        CountSketch(K).of([])
    with pytest.raises(InvalidInputError, match="`size` must be at least 1; got 0"):
        CountSketch(0)
