"""Data in any unit, on every route to its products, and all parts of an answer."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.tolerances import WEIGHTS

from hewfl import combine, data_gap, post_local_weights, solve_simplex_qp
from hewfl.core.displacements import LinearCombination
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import FEW_CLIENTS

pytestmark = pytest.mark.usefixtures("path")

FEW, MANY = (5, 40), (310, 400)
EXACT = 1e-11
"""Relative error of a value or multiplier; both are sums of products of the data."""


def test_both_compiled_routes_are_taken() -> None:
    assert FEW[0] <= FEW_CLIENTS < MANY[0]


@pytest.mark.parametrize("shape", [FEW, MANY, (600, 6)], ids=["few", "many", "flat"])
@pytest.mark.parametrize(("p", "q"), [(-400, -400), (240, 240), (300, -300), (-9, 400)])
def test_an_answer_follows_the_units_of_the_data(
    shape: tuple[int, int], p: int, q: int, rng: np.random.Generator
) -> None:
    """Δ in units of 2^p and g of 2^q, with Λ in 2^(q − p): Ψ is in 2^(p + q)."""
    D = rng.standard_normal(shape) + 0.5
    g, lam = 20 * rng.standard_normal(shape[1]), 1.5
    known = post_local_weights(D, g, lam)
    result = post_local_weights(
        np.ldexp(D, p), np.ldexp(g, q), float(np.ldexp(lam, q - p))
    )
    assert np.abs(result.weights - known.weights).max() <= WEIGHTS
    unit = float(np.ldexp(1.0, p + q))
    size = np.abs(known.value) + known.multipliers.max()
    assert float(result.value) / unit == pytest.approx(float(known.value), rel=EXACT)
    np.testing.assert_allclose(
        result.multipliers / unit, known.multipliers, rtol=EXACT, atol=EXACT * size
    )
    assert float(result.gap) / unit <= 1e-9 * size


@pytest.mark.parametrize("shape", [FEW, (600, 6)], ids=["few", "flat"])
def test_all_parts_of_an_answer_are_those_of_the_gram_matrix(
    shape: tuple[int, int], rng: np.random.Generator
) -> None:
    D, g = rng.standard_normal(shape) + 0.5, 50 * rng.standard_normal(shape[1])
    lam = 3.0
    result = post_local_weights(D, g, lam)
    known = solve_simplex_qp(D @ D.T, D @ g, curvature=lam)
    assert float(result.value) == pytest.approx(float(known.value), rel=1e-9)
    size = known.multipliers.max()
    assert size > 1  # somebody has no weight
    np.testing.assert_allclose(result.multipliers, known.multipliers, atol=1e-9 * size)
    assert np.array_equal(result.support, result.weights > 0)
    assert result.status == known.status


def test_an_answer_for_some_clients_is_whole(rng: np.random.Generator) -> None:
    D, g = rng.standard_normal((9, 30)) + 0.5, rng.standard_normal(30)
    some = np.array([1, 4, 5, 8])
    result = post_local_weights(D, g, 1.5, active=some)
    alone = post_local_weights(D[some], g, 1.5)
    others = np.setdiff1d(np.arange(9), some)
    for name in ("weights", "multipliers", "support"):
        assert np.array_equal(getattr(result, name)[some], getattr(alone, name))
        assert not getattr(result, name)[others].any()
    for name in ("value", "gap", "iterations", "status"):
        assert getattr(result, name) == getattr(alone, name)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_gap_against_each_kind_of_reference(
    kind: Any, rng: np.random.Generator
) -> None:
    D = (rng.standard_normal((5, 30)) + 0.5).astype(kind)
    w, u = np.full(5, 0.2), rng.standard_normal(5)
    wide = D.astype(np.float64)
    for given, g in ((None, np.zeros(30)), (LinearCombination(u), u @ wide)):
        step = w @ wide
        known = ((g + 2.0 * step) @ (step - wide).T).max()
        assert data_gap(D, given, 2.0, w) == pytest.approx(known, rel=1e-12)
    for bad, text in ((-1.0, "`curvature` must be"), (np.nan, "`curvature` must be")):
        with pytest.raises(ValueError, match=text):
            data_gap(D, None, bad, w)
    with pytest.raises(ValueError, match="`weights` must be"):
        data_gap(D, None, 1.0, np.full(5, np.nan))
    with pytest.raises(ValueError, match="`displacements` must be"):
        data_gap(D[0], None, 1.0, w)
    with pytest.raises(ValueError, match="`displacements` must be"):
        combine(D[0], w)


def test_host_vectors_meet_rows_of_another_library(rng: np.random.Generator) -> None:
    v, u = rng.standard_normal((2, 6))
    data = as_dense("displacements", torch.tensor(rng.standard_normal((2, 6))))
    for a in (v, torch.tensor(v)):
        for b in (u, torch.tensor(u)):
            assert data.dot(a, b) == pytest.approx(v @ u)
