"""Corners that a first version got wrong, and bad input that used to slip through."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from tests.tolerances import GAP

from hewfl import (
    ClientProfile,
    InvalidInputError,
    ProblemBounds,
    UpperState,
    combine,
    data_gap,
    post_local_weights,
    predictive_control,
    solve_simplex_qp,
)
from hewfl.aggregate.gram import slope_at

pytestmark = pytest.mark.usefixtures("path")


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


def test_a_unique_minimiser_at_zero_is_called_unique_or_least_norm() -> None:
    G = [[5, 2, 1, 0], [2, 4, -2, 0], [1, -2, 2, 0], [0, 0, 0, 0]]
    solution = solve_simplex_qp(G, np.zeros(4))
    assert "one of several" not in solution.status
    assert float(solution.gap) < 1e-15


def test_a_nonsense_start_does_not_cost_the_answer(rng: np.random.Generator) -> None:
    solution = solve_simplex_qp(
        [[1, 0], [0, 0]], [-2, -2], curvature=0.5, start=[0.5, 0.5]
    )
    assert solution.weights[1] == pytest.approx(1.0)
    for _ in range(100):
        n = int(rng.integers(2, 9))
        D = rng.integers(-2, 3, (n, 3)).astype(float)
        q = rng.integers(-3, 4, n).astype(float)
        cold = solve_simplex_qp(D @ D.T, q)
        start = rng.random(n) * (rng.random(n) < 0.5) + 1e-3
        warm = solve_simplex_qp(D @ D.T, q, start=start)
        assert float(warm.value) == pytest.approx(float(cold.value), abs=1e-12)
        assert int(warm.iterations) >= 0


def test_a_weak_curvature_beside_a_strong_slope(rng: np.random.Generator) -> None:
    signs = rng.choice([-1.0, 1.0], 600)
    D = np.c_[signs, rng.standard_normal((600, 3))]
    g = np.array([0.58, 0, 0, 0])
    for curvature in (1e-9, 1e-6, 1e-3, 1.0):
        solution = post_local_weights(D, g, curvature)
        assert data_gap(D, g, curvature, solution.weights) <= GAP
        assert (solution.weights[signs > 0] == 0).all() or curvature == 1.0


@pytest.mark.parametrize("last", [False, True])
def test_a_long_row_that_the_sample_does_not_see(
    last: bool, rng: np.random.Generator
) -> None:
    D = rng.standard_normal((20, 50_000)) * 0.01
    for lo in np.linspace(0, 50_000 - 512, 4).astype(int):
        D[:, lo : lo + 512] = 0  # frozen layers, exactly where the sample looks
    D[0] *= 1e8
    g = -1.5 * D[1:].mean(axis=0)
    if last:
        D = D[::-1]
    solution = post_local_weights(D, g, 1.0)
    assert data_gap(D, g, 1.0, solution.weights) < 1e-12
    assert solution.weights[-1 if last else 0] < 1e-9


@pytest.mark.parametrize("n", [8, 300])
def test_rounding_asymmetry_is_averaged_out(n: int, rng: np.random.Generator) -> None:
    D = rng.standard_normal((n, 2 * n)).astype(np.float32)
    G = D @ D.T
    G[0, 1] += np.float32(4e-5) * G[0, 0]
    solution = solve_simplex_qp(G, np.zeros(n, np.float32))
    wide = 0.5 * (G.astype(np.float64) + G.T)
    gradient = wide @ solution.weights
    gap = float((solution.weights @ gradient - gradient).max())
    assert gap <= GAP * float(np.diagonal(wide).max())


def test_half_precision_gram_matrices_are_welcome(rng: np.random.Generator) -> None:
    D = rng.standard_normal((6, 40))
    G = D @ D.T
    exact = solve_simplex_qp(G, np.zeros(6)).weights
    for half in (G.astype(np.float16), torch.tensor(G).bfloat16().float().numpy()):
        rounded = solve_simplex_qp(half, np.zeros(6)).weights
        assert np.abs(rounded - exact).max() < 0.05


@pytest.mark.parametrize("n", [5, 256, 257, 600])
def test_semidefiniteness_is_judged_alike_at_every_size(n: int) -> None:
    ones = np.ones((n, n)) / n
    assert solve_simplex_qp(np.eye(n) - ones, np.zeros(n)).weights == pytest.approx(
        1 / n
    )
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        solve_simplex_qp(np.eye(n) - (1 + 1e-6) * ones, np.zeros(n))


def test_orders_and_views_do_not_matter(rng: np.random.Generator) -> None:
    D = rng.standard_normal((3, 5, 9))
    G, q = D @ D.swapaxes(1, 2), rng.standard_normal((3, 5))
    plain = solve_simplex_qp(G, q, start=np.full((3, 5), 0.2))
    odd = solve_simplex_qp(
        np.asfortranarray(G),
        np.asfortranarray(q),
        start=np.asfortranarray(np.full((3, 5), 0.2)),
    )
    assert np.array_equal(plain.weights, odd.weights)
    big_endian = post_local_weights(D[0].astype(">f4"), np.ones(9), 1.0)
    native_order = post_local_weights(D[0].astype("f4"), np.ones(9), 1.0)
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


NOTHING: Any = object()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: solve_simplex_qp([[1, 2], [3]], [0, 0]), "`gram` must be an array of"),
        (
            lambda: solve_simplex_qp(NOTHING, [0]),
            "`gram` must be an array of real",
        ),
        (
            lambda: solve_simplex_qp(torch.eye(2, requires_grad=True), [0, 0]),
            "`gram` must be an array of real",
        ),
        (
            lambda: solve_simplex_qp(np.zeros((0, 3, 3)), np.zeros((0, 3))),
            "`gram` must be a stack of at least one",
        ),
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


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ClientProfile(0, 1, 1.0), "`horizon` must be a whole number of at"),
        (lambda: ClientProfile(1.5, 1, 1.0), "`horizon` must be a whole number of at"),
        (lambda: ClientProfile(1, 0, 1.0), "`batch_size` must be a whole number of at"),
        (lambda: ClientProfile(1, 1, -1.0), "`variance` must be nonnegative; got -1.0"),
        (lambda: ClientProfile(1, 1, np.nan), "`variance` must be finite; got nan"),
        (lambda: ClientProfile([1, 2], [1, 2, 3], 1.0), "must be numbers or arrays of"),
        (lambda: ClientProfile(np.ones((2, 2)), 1, 1.0), "nonempty one-dimensional"),
        (lambda: ProblemBounds(0.0, 1.0, 0.1, 0.2), "`smoothness` must be a positive"),
        (lambda: ProblemBounds(1.0, np.inf, 0.1, 0.2), "`radius` must be a positive"),
        (
            lambda: ProblemBounds(1.0, 1.0, 0.0, 0.2),
            "`amplitude_min` must be a positive",
        ),
        (
            lambda: ProblemBounds(1.0, 1.0, 0.1, 1.5),
            "`amplitude_max` must be at most 1",
        ),
        (lambda: ProblemBounds(1.0, 1.0, 0.3, 0.2), "`amplitude_min` must be at most"),
        (lambda: UpperState(-1.0, 0.0), "`gap` must be a nonnegative finite number"),
        (lambda: UpperState(1.0, np.nan), "`tracking` must be a nonnegative finite"),
    ],
)
def test_bad_records_are_named(make: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make()


def test_both_controllers_answer_through_the_public_door() -> None:
    clients = ClientProfile([1, 4, 4], 8, [1.0, 1.0, 9.0])
    setting = (clients, UpperState(0.5, 0.0), ProblemBounds(1.0, 1.0, 0.01, 1.0))
    first = predictive_control(*setting, solver="global")
    second = predictive_control(*setting, solver="alternating")
    assert first.value == pytest.approx(second.value, rel=1e-11)
    with pytest.raises(InvalidInputError, match="`solver` must be one of global"):
        predictive_control(*setting, solver="magic")  # type: ignore[arg-type]  # on purpose


def test_large_rounds_from_the_data(rng: np.random.Generator) -> None:
    D = rng.standard_normal((300, 400))
    g = -D.mean(axis=0)
    solution = post_local_weights(D, torch.tensor(g), 1.0)
    assert data_gap(D, g, 1.0, solution.weights) <= GAP * float((D**2).sum(1).max())
