"""Very many clients of few parameters, solved from their rows."""

from typing import Any

import numpy as np
import pytest
from tests.tolerances import GAP, WEIGHTS

from hewfl import data_gap, post_local_weights, solve_simplex_qp
from hewfl.core.displacements import LinearCombination
from hewfl.displacements import dense as rows
from hewfl.displacements import low_rank

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("inside", [True, False])
def test_many_clients_few_parameters_never_form_the_gram_matrix(
    inside: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, d = 1500, 20
    D = rng.standard_normal((n, d))
    g = -D[:40].mean(axis=0) if inside else 20 * rng.standard_normal(d)
    dense = solve_simplex_qp(D @ D.T, D @ g, curvature=1.5)
    largest = 0
    block = low_rank.DataColumns.block

    def spying(self: Any, rows: Any, columns: Any) -> Any:
        nonlocal largest
        largest = max(largest, len(rows) * len(columns))
        return block(self, rows, columns)

    def forbidden(*_: Any) -> Any:
        pytest.fail("the whole Gram matrix was formed")

    monkeypatch.setattr(low_rank.DataColumns, "block", spying)
    monkeypatch.setattr(rows, "round_products", forbidden)
    solution = post_local_weights(D, g, 1.5)
    assert 0 < largest < n * n / 50
    assert float(solution.gap) <= GAP * 1.5 * float((D**2).sum(1).max())
    assert np.abs(solution.weights - dense.weights).max() <= WEIGHTS
    assert solution.support.sum() > d + 1 if inside else solution.support.sum() <= d + 1
    order = rng.permutation(n)
    again = post_local_weights(D[order].astype(np.float32), g, 1.5)
    assert np.abs(again.weights - solution.weights[order]).max() <= 1e-4


@pytest.mark.parametrize("reference", ["none", "own sum"])
def test_references_that_are_not_vectors(
    reference: str, rng: np.random.Generator
) -> None:
    n, d = 700, 6
    D = rng.standard_normal((n, d)) + 0.3
    u = np.full(n, -1.4 / n)
    g = np.zeros(d) if reference == "none" else u @ D
    result = post_local_weights(
        D, None if reference == "none" else LinearCombination(u), 1.1
    )
    known = post_local_weights(D, g, 1.1)
    assert result.weights == pytest.approx(known.weights, abs=1e-9)
    assert data_gap(D, g, 1.1, result.weights) <= 1e-11
