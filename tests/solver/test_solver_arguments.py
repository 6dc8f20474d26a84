"""Arguments of the solver: what is welcome, and what is refused by name."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.tolerances import GAP

from hewfl import InvalidInputError, solve_simplex_qp
from hewfl.solver.weight_problem import stack_problems

pytestmark = pytest.mark.usefixtures("path")


def test_float32_and_lists_are_welcome(rng: np.random.Generator) -> None:
    D = rng.standard_normal((8, 50)).astype(np.float32)
    single = solve_simplex_qp(D @ D.T, D @ D[0])
    double = solve_simplex_qp((D @ D.T).astype(float), (D @ D[0]).astype(float))
    assert np.array_equal(single.weights, double.weights)
    assert solve_simplex_qp([[2, 0], [0, 2]], [0, 0]).weights.tolist() == [0.5, 0.5]


def test_half_precision_gram_matrices_are_welcome(rng: np.random.Generator) -> None:
    D = rng.standard_normal((6, 40))
    G = D @ D.T
    exact = solve_simplex_qp(G, np.zeros(6)).weights
    for half in (G.astype(np.float16), torch.tensor(G).bfloat16().float().numpy()):
        rounded = solve_simplex_qp(half, np.zeros(6)).weights
        assert np.abs(rounded - exact).max() < 0.05


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


def test_orders_and_views_do_not_matter(rng: np.random.Generator) -> None:
    D = rng.standard_normal((3, 5, 9))
    G, q = D @ D.swapaxes(1, 2), rng.standard_normal((3, 5))
    plain = solve_simplex_qp(G, q)
    odd = solve_simplex_qp(np.asfortranarray(G), np.asfortranarray(q))
    assert np.array_equal(plain.weights, odd.weights)


@pytest.mark.parametrize("n", [5, 256, 257, 600])
def test_semidefiniteness_is_judged_alike_at_every_size(n: int) -> None:
    ones = np.ones((n, n)) / n
    assert solve_simplex_qp(np.eye(n) - ones, np.zeros(n)).weights == pytest.approx(
        1 / n
    )
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        solve_simplex_qp(np.eye(n) - (1 + 1e-6) * ones, np.zeros(n))


def test_batch_dimensions_are_flattened_and_kept(rng: np.random.Generator) -> None:
    D = rng.standard_normal((2, 3, 4, 6))
    stack = stack_problems(D @ D.swapaxes(-1, -2), np.zeros((2, 3, 4)), np.ones((2, 3)))
    assert (stack.batch, stack.n) == ((2, 3), 4)
    assert stack.G.shape == (6, 4, 4)
    assert stack.curvature.tolist() == [1.0] * 6


# ------------------------------------------------------------------ bad input


GOOD = np.eye(3)


@pytest.mark.parametrize(
    ("gram", "linear", "keywords", "text"),
    [
        (np.full((3, 3), np.nan), np.zeros(3), {}, "`gram` must be finite; got nan"),
        (GOOD, [0, np.inf, 0], {}, "`linear` must be finite; got inf at index"),
        (np.ones((2, 3)), np.zeros(2), {}, "`gram` must be square"),
        (np.ones(3), np.zeros(3), {}, "`gram` must be square"),
        (np.zeros((0, 0)), np.zeros(0), {}, "`gram` must be square"),
        (GOOD, np.zeros(2), {}, "`linear` must be of shape"),
        (
            GOOD + np.eye(3, k=1),
            np.zeros(3),
            {},
            "`gram` must be symmetric; got 1.0 at",
        ),
        (-GOOD, np.zeros(3), {}, "`gram` must be positive semidefinite; got"),
        ([[1, 2], [2, 1]], np.zeros(2), {}, "`gram` must be positive semidefinite"),
        (GOOD - 0.6, np.zeros(3), {}, "`gram` must be positive semidefinite"),
        (
            GOOD,
            np.zeros(3),
            {"curvature": -1.0},
            "`curvature` must be a positive finite",
        ),
        (
            GOOD,
            np.zeros(3),
            {"curvature": 0.0},
            "`curvature` must be a positive finite",
        ),
        (
            GOOD,
            np.zeros(3),
            {"curvature": np.nan},
            "`curvature` must be finite; got nan",
        ),
        (
            GOOD,
            np.zeros(3),
            {"curvature": [1.0, 2.0]},
            "`curvature` must be one number",
        ),
        (GOOD, ["a", "b", "c"], {}, "`linear` must be an array of real numbers"),
        (GOOD * 1j, np.zeros(3), {}, "`gram` must be an array of real numbers"),
        (GOOD * 1e300, np.zeros(3), {"curvature": 1e300}, "`curvature` must be such"),
    ],
)
def test_bad_input_is_named(
    gram: object, linear: object, keywords: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        solve_simplex_qp(gram, linear, **keywords)  # type: ignore[arg-type]  # on purpose


def test_large_bad_input_is_named(rng: np.random.Generator) -> None:
    n = 300
    D = rng.standard_normal((n, 400))
    G = D @ D.T
    skewed = G.copy()
    skewed[5, 9] += 1.0
    with pytest.raises(InvalidInputError, match="`gram` must be symmetric"):
        solve_simplex_qp(skewed, np.zeros(n))
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        solve_simplex_qp(G - 50 * np.eye(n), np.zeros(n))
    hidden = np.eye(n) - 2.0 / n  # indefinite along the ones vector only
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        solve_simplex_qp(hidden, np.zeros(n))
    with pytest.raises(InvalidInputError, match=r"positive semidefinite.*problem 1"):
        solve_simplex_qp(np.stack([G, -G]), np.zeros((2, n)))


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
    ],
)
def test_what_is_no_input_is_named(call: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call()
