"""Corners that a first version got wrong, and bad input that used to slip through."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.known_solutions import QPInstance, componentwise_gap
from tests.tolerances import GAP

from hewfl import InvalidInputError, combine, data_gap, post_local_weights
from hewfl.displacements.gram import slope_at

pytestmark = pytest.mark.usefixtures("path")
Array = NDArray[np.float64]


@pytest.mark.parametrize(
    ("n", "d", "idle"), [(10, 200, 2), (20, 500, 5), (100, 500, 20), (300, 500, 100)]
)
def test_idle_clients_share_the_weight_when_standing_still_is_best(
    n: int, d: int, idle: int, rng: np.random.Generator
) -> None:
    """Round one of Algorithm 2 with c_0 = 0: the optimum sits at a zero column."""
    for _ in range(5):
        D = rng.standard_normal((n, d))
        D[:idle] = 0
        order = rng.permutation(n)
        weights = post_local_weights(D[order], np.zeros(d), 1.0).weights
        expected = np.where(order < idle, 1 / idle, 0.0)
        assert np.abs(weights - expected).max() < 1e-12


def test_a_weak_curvature_beside_a_strong_slope(rng: np.random.Generator) -> None:
    signs = rng.choice([-1.0, 1.0], 600)
    D = np.c_[signs, rng.standard_normal((600, 3))]
    g = np.array([0.58, 0, 0, 0])
    for curvature in (1e-9, 1e-6, 1e-3, 1.0):
        solution = post_local_weights(D, g, curvature)
        gap = data_gap(D, g, curvature, solution.weights)
        assert gap <= 16 * GAP  # with the rounding of sums of 600 terms
        assert (solution.weights[signs > 0] == 0).all() or curvature == 1.0


@pytest.mark.parametrize("last", [False, True])
def test_a_long_row_that_the_sample_does_not_see(
    last: bool, rng: np.random.Generator
) -> None:
    """A weight of 6e-12 on a row of length 2e8 moves the step by 1e-3: it counts.

    Its reduced cost is a difference of terms of size 1e8, so no absolute tolerance is
    right for all rows: one rounding of this weight moves it by 4e-11. The weights are
    compared with those of extended precision, each over its own size.
    """
    D = rng.standard_normal((20, 50_000)) * 0.01
    for lo in np.linspace(0, 50_000 - 512, 4).astype(int):
        D[:, lo : lo + 512] = 0  # frozen layers, exactly where the sample looks
    D[0] *= 1e8 * np.sign(D[0] @ D[1:].mean(axis=0))  # descent: the weight is positive
    g = -1.5 * D[1:].mean(axis=0)
    if last:
        D = D[::-1]
    solution = post_local_weights(D, g, 1.0)
    long = len(D) - 1 if last else 0
    assert 1e-12 < solution.weights[long] < 1e-9
    exact = interior_weights(D, g)
    assert exact.min() > 0
    assert np.abs(solution.weights / exact - 1).max() < 1e-12
    instance = QPInstance("long row", D, g, 1.0)
    assert componentwise_gap(instance, solution.weights) <= GAP
    ordinary = np.delete(D, long, axis=0)
    step = solution.weights @ D
    assert ((step - ordinary) @ (g + step)).max() < 1e-12


def interior_weights(D: Array, g: Array) -> Array:
    """Where all weights are positive: the face of all rows in extended precision.

    From a short row o, M δ = −⟨D_i − D_o, g + D_o⟩ for i ≠ o with M the inner products
    of differences, brought to unit diagonal and solved by three refinements.
    """
    o = int(np.argmin((D**2).sum(1)))
    wide = D.astype(np.longdouble)
    C = np.delete(wide, o, axis=0) - wide[o]
    size = np.sqrt((C**2).sum(1))
    C /= size[:, None]
    M, rest = C @ C.T, -(C @ (g + wide[o]))
    inverse, x = np.linalg.inv(M.astype(np.float64)), np.zeros_like(rest)
    for _ in range(4):
        x = x + inverse @ (rest - M @ x)
    weights = np.insert(x / size, o, 0.0)
    weights[o] = 1 - weights.sum()
    return weights.astype(np.float64)


def test_the_order_of_bytes_does_not_matter(rng: np.random.Generator) -> None:
    D = rng.standard_normal((5, 9))
    big_endian = post_local_weights(D.astype(">f4"), np.ones(9), 1.0)
    native_order = post_local_weights(D.astype("f4"), np.ones(9), 1.0)
    assert np.abs(big_endian.weights - native_order.weights).max() < 1e-12


def test_mixed_precisions_are_promoted() -> None:
    rows = [np.ones(4, np.float32), np.ones(4, np.float64)]
    assert combine(rows, [0.5, 0.5]).dtype == np.float64
    assert combine(rows[::-1], [0.5, 0.5]).dtype == np.float64
    tensors = [torch.ones(4, dtype=torch.bfloat16), torch.ones(4)]
    assert combine(tensors, [0.5, 0.5]).dtype == torch.float32


def test_the_slope_keeps_its_digits_when_it_cancels() -> None:
    lam, r = 1.1, np.array([1 / 3, 1e6 / 7])
    g = -(lam * r)
    pairs = zip(g.tolist(), r.tolist(), strict=True)
    exact = [float(Fraction(a) + Fraction(lam) * Fraction(b)) for a, b in pairs]
    assert slope_at(g, lam, r).tolist() == exact


def test_subnormal_data_is_no_accident() -> None:
    D = np.array([[1e-310, 0.0], [0.0, 2e-310]])
    solution = post_local_weights(D, np.zeros(2), 1.0)
    assert np.isfinite(solution.weights).all()
    assert solution.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: post_local_weights([np.ones(2), np.ones(2) * 1j], np.ones(2), 1.0),
            "`displacements` must be an array of real",
        ),
        (
            lambda: post_local_weights([np.ones(2), torch.ones(2)], np.ones(2), 1.0),
            "`displacements` must be vectors of one array library",
        ),
        (
            lambda: data_gap(np.eye(2), np.ones(2), 1.0, [0.9, 0.9]),
            "`weights` must be on the simplex; got a sum of 1.8",
        ),
        (
            lambda: data_gap(np.eye(2) * np.nan, np.ones(2), 1.0, [0.5, 0.5]),
            "`displacements` must be finite",
        ),
    ],
)
def test_what_is_no_input_is_named(call: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call()


def test_large_rounds_from_the_data(rng: np.random.Generator) -> None:
    D = rng.standard_normal((300, 400))
    g = -D.mean(axis=0)
    solution = post_local_weights(D, torch.tensor(g), 1.0)
    assert data_gap(D, g, 1.0, solution.weights) <= GAP * float((D**2).sum(1).max())
