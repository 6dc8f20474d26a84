"""Which operations go to the GPU kernels, by kernels that NumPy stands in for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hewfl import combine, post_local_weights
from hewfl.core.displacements import LinearCombination
from hewfl.displacements import gram, weighted_sum
from hewfl.displacements.dense import DenseDisplacements, as_dense
from hewfl.displacements.sharded import ShardedDisplacements

N, D = 5, 30


@pytest.fixture(params=[True, False], ids=["kernels", "kernels give up"])
def called(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Names of the kernels called; products may return None, as on other GPUs."""
    names: list[str] = []

    def kernel(name: str, function: Any) -> Any:
        def call(*given: Any) -> Any:
            names.append(name)
            return function(*given)

        return call

    def products(rows: Any, reference: Any, curvature: float) -> Any:
        data = as_dense("rows", [*rows])
        return gram.round_products(data, reference, curvature)

    def vectors(rows: Any, reference: Any, origin: int) -> Any:
        all_rows = [*rows] if reference is None else [*rows, reference]
        return gram.vector_products(as_dense("rows", all_rows), origin)

    serves = request.param
    fake = SimpleNamespace(
        weighted_sum=kernel("weighted_sum", lambda rows, w: w @ rows),
        round_products=kernel("round_products", products if serves else _nothing),
        vector_products=kernel("vector_products", vectors if serves else _nothing),
    )

    def kernels(matrix: Any) -> Any:
        return None if isinstance(matrix, list) else fake

    for module in (gram, weighted_sum):
        monkeypatch.setattr(module, "gpu_kernels", kernels)
    return names


def _nothing(*_: Any) -> None:
    return None


def test_weights(called: list[str], rng: np.random.Generator) -> None:
    rows, g = rng.standard_normal((N, D)), rng.standard_normal(D)
    for reference in (None, g, LinearCombination(np.full(N, -0.2))):
        ours = post_local_weights(rows, reference, 1.5)
        known = post_local_weights([*rows], reference, 1.5)
        assert ours.weights == pytest.approx(known.weights, abs=1e-10)
        assert float(ours.value) == pytest.approx(float(known.value), rel=1e-10)
    assert called == ["round_products"] * 3


def test_sums(called: list[str], rng: np.random.Generator) -> None:
    rows, w = rng.standard_normal((N, D)), rng.dirichlet(np.ones(N))
    assert combine(rows, w) == pytest.approx(w @ rows)
    assert combine(rows, np.stack([w, 2 * w])).shape == (2, D)
    assert called == ["weighted_sum"] * 2
    assert combine(rows, w, wide=True) == pytest.approx(w @ rows)
    assert len(called) == 2  # the kernel rounds to float32


def test_shards(called: list[str], rng: np.random.Generator) -> None:
    rows, g = rng.standard_normal((N, D)), rng.standard_normal(D)
    shard = DenseDisplacements(rows, np, N, D)
    data = ShardedDisplacements(shard, np.copy, D)
    assert data.gram() == pytest.approx(rows @ rows.T)
    w = rng.dirichlet(np.ones(N))
    assert np.asarray(data.combine(w)) == pytest.approx(w @ rows)
    ours, known = data.products(g, 1.5), as_dense("rows", [*rows]).products(g, 1.5)
    value = 0.5 * 1.5 * w @ ours.gram @ w + ours.linear @ w + ours.offset
    expected = 0.5 * 1.5 * w @ known.gram @ w + known.linear @ w + known.offset
    assert value == pytest.approx(expected)
    assert set(called) == {"vector_products", "weighted_sum"}
