"""Vectors spread over machines answer as a matrix in one place does."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest
from jaxtyping import Float64

from hewfl.core.displacements import LinearCombination
from hewfl.core.validation import Array
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import vector_products
from hewfl.displacements.post_local import post_local_weights
from hewfl.displacements.sharded import ShardedDisplacements, VectorShard

T = TypeVar("T")
MACHINES = 3


def on_all(rows: Any, ask: Callable[[ShardedDisplacements, slice], T]) -> list[T]:
    """What each of three machines answers, that hold a third of the columns each."""
    barrier, values_of = threading.Barrier(MACHINES), {}
    ends = np.linspace(0, rows.shape[1], MACHINES + 1).astype(int)

    def answer(k: int) -> T:
        def summed(values: Float64[Array, " k"]) -> Float64[Array, " k"]:
            values_of[k] = values
            barrier.wait(timeout=300)
            total: Array = np.sum([values_of[i] for i in range(MACHINES)], axis=0)
            barrier.wait(timeout=300)
            return total

        here = slice(int(ends[k]), int(ends[k + 1]))
        shard = as_dense("rows", rows[:, here])
        return ask(ShardedDisplacements(shard, summed, rows.shape[1]), here)

    with ThreadPoolExecutor(MACHINES) as pool:
        return list(pool.map(answer, range(MACHINES)))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_spread_vectors_answer_as_a_matrix_does(
    rng: np.random.Generator, library: str
) -> None:
    rows: Any = rng.standard_normal((5, 40)) + 3
    v, u, w = rng.standard_normal((3, 40))[0], rng.dirichlet(np.ones(5)), np.arange(40)
    known = as_dense("rows", rows)
    if library == "torch":
        rows = pytest.importorskip("torch").tensor(rows)
    members, some = np.array([3, 1]), np.array([0, 2, 5])  # 5 is standing still

    def ask(ours: ShardedDisplacements, here: slice) -> Any:
        assert (ours.n, ours.d) == (5, 40)
        assert ours.append_zero().take(some).n == 3
        return (
            ours.gram(),
            ours.inner(v[here]),
            ours.combine(u) + 0.0,
            np.concatenate(list(ours.blocks()), 1),
            ours.matrix(),
            ours.dot(v[here], w[here]),
            ours.dot(ours.combine(u), ours.combine(u)),
            ours.take(members).gram(),
            ours.append_zero().take(some).gram(),
            ours.from_matrix(2 * ours.matrix()).products(ours.combine(u), 1.0).linear,
        )

    result = on_all(rows, ask)
    mean = known.combine(u)
    for one in result:
        assert one[0] == pytest.approx(known.gram(), rel=1e-12)
        assert one[1] == pytest.approx(known.inner(v), rel=1e-10)
        assert one[5] == pytest.approx(v @ w)
        assert one[6] == pytest.approx(mean @ mean)
        assert one[7] == pytest.approx(known.take(members).gram(), rel=1e-12)
        null = known.append_zero().take(some).gram()
        assert one[8] == pytest.approx(null, rel=1e-12, abs=1e-12)
        twice = as_dense("rows", 2 * known.matrix()).products(mean, 1.0).linear
        differences = np.subtract.outer(one[9], one[9])
        assert differences == pytest.approx(
            np.subtract.outer(twice, twice), abs=1e-9 * np.abs(twice).max() + 1e-9
        )
    assert np.concatenate([one[2] for one in result]) == pytest.approx(mean, rel=1e-12)
    for k in (3, 4):
        assert np.hstack([one[k] for one in result]) == pytest.approx(known.matrix())


def test_a_part_is_numpys_for_who_computes() -> None:
    torch = pytest.importorskip("torch")
    part = VectorShard(torch.tensor([1.0, -2.0]))
    assert (2 * part + np.ones(2)).tolist() == [3.0, -3.0]
    assert np.abs(part).tolist() == [1.0, 2.0]
    assert np.asarray(part).dtype == np.float64


def test_a_common_part_takes_no_digits(rng: np.random.Generator) -> None:
    rows = 1e3 + 1e-5 * rng.standard_normal((4, 50))
    g = rng.standard_normal(50)
    known = as_dense("rows", rows).products(g, 1.0)
    w = rng.dirichlet(np.ones(4), 3)
    for ours in on_all(rows, lambda spread, here: spread.products(g[here], 1.0)):
        for a, b in itertools.pairwise(w):
            result, expected = ((a - b) @ p.linear for p in (ours, known))
            assert result == pytest.approx(expected, rel=1e-9)


def test_an_origin_far_outside_is_left(rng: np.random.Generator) -> None:
    """The first vector is where products start; here it is the only long one."""
    rows = 1e-3 * rng.standard_normal((5, 60))
    rows[0] += 1e6
    known = as_dense("rows", rows).products(None, 1.0)
    w = np.array([0.0, 0.4, 0.1, 0.2, 0.3])
    for ours in on_all(rows, lambda spread, _: spread.products(None, 1.0)):
        result, expected = (
            p.linear @ w + 0.5 * w @ p.gram @ w + p.offset for p in (ours, known)
        )
        assert result == pytest.approx(expected, rel=1e-6)


def test_very_many_vectors_are_solved_with_the_other_machines() -> None:
    """Rows of few entries have a solver that reads them; parts are no whole rows."""
    rows = np.random.default_rng(3).standard_normal((300, 20))
    known = post_local_weights(rows, None, 1.0)
    for result in on_all(rows, lambda ours, _: post_local_weights(ours, None, 1.0)):
        assert result.weights == pytest.approx(known.weights, abs=1e-8)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("kind", ["a vector", "nothing", "a sum"])
def test_weights_are_those_of_the_matrix(
    null: bool, kind: str, rng: np.random.Generator
) -> None:
    rows = -0.1 - 0.1 * rng.standard_normal((5, 40))
    g, u = rng.standard_normal(40), np.full(5 + null, -0.7)
    u[5:] = 0.0

    def solved(data: Any, here: slice) -> Any:
        data = data.append_zero() if null else data
        given = {"a vector": g[here], "nothing": None, "a sum": LinearCombination(u)}[
            kind
        ]
        return post_local_weights(data, given, 1.3)

    expected = solved(as_dense("rows", rows), slice(None))
    for result in on_all(rows, solved):
        assert result.weights == pytest.approx(expected.weights, abs=1e-10)
        assert float(result.value) == pytest.approx(float(expected.value), rel=1e-10)


def test_a_vector_that_is_not_finite_spoils_itself_only(
    rng: np.random.Generator,
) -> None:
    V = rng.standard_normal((4, 50))
    V[1, 7], V[3, 9] = np.nan, np.inf
    result = vector_products(as_dense("vectors", V), 0)
    assert np.isfinite(np.diagonal(result.gram)).tolist() == [True, False, True, False]
    assert np.isfinite(result.gram[np.ix_([0, 2], [0, 2])]).all()
