"""The minimiser of softmax regression: a second opinion, and its own gradient."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from tests.problems.softmax.samples import data, split

from hewfl.data import load
from hewfl.errors import SolverError
from hewfl.problems import softmax_from_arrays
from hewfl.problems.softmax import optimum
from hewfl.problems.softmax import optimum as metric
from hewfl.problems.softmax.weighted_losses import WeightedSoftmax


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pooled", [False, True])
def test_optimum_is_that_of_a_general_minimiser(dtype: str, pooled: bool) -> None:
    """Σ_j ω_j ℓ_j + (λ/2)‖W‖² written out here, minimised by L-BFGS."""
    digits, l2, shards = load("digits"), 1e-3, split(600, 5)
    X, y = digits.features[:600].astype(float) / 16, digits.labels[:600]
    problem = softmax_from_arrays(X.astype(dtype), y, shards, l2=l2)
    sizes = problem.data_sizes
    each = np.full(5, 1 / sizes.sum()) if pooled else 1 / (5 * sizes)
    weights = np.repeat(each, sizes)
    rows, hot = problem.features.astype(float), np.eye(10)[problem.labels]

    def objective(x: Any) -> tuple[float, Any]:
        W = x.reshape(10, -1)
        margins = rows @ W.T
        logs = logsumexp(margins, axis=1)
        losses = logs - (margins * hot).sum(axis=1)
        slopes = weights[:, None] * (np.exp(margins - logs[:, None]) - hot)
        return weights @ losses + l2 / 2 * x @ x, (slopes.T @ rows + l2 * W).ravel()

    options: Any = {"maxiter": 10_000, "maxfun": 10_000, "gtol": 1e-10, "ftol": 0.0}
    start = np.zeros(problem.d)
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    solution = problem.pooled_optimum() if pooled else problem.optimum()
    assert solution.residual <= 1e-14
    theirs = problem.objectives(best[None, :])[0, int(pooled)]
    assert solution.objective <= theirs + 1e-15
    assert theirs == pytest.approx(solution.objective, abs=1e-10)
    assert np.abs(solution.x - best).max() <= 1e-5


@pytest.mark.parametrize("l2", [1e-8, 1e-4, 10.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimum_on_features_of_unequal_scale(l2: float, dtype: str) -> None:
    """Collinear columns, a rare large one and an absent class, from flat to steep."""
    X, y = data(120, 5, 3)
    rare = np.where(np.arange(120) == 7, 80.0, 0.0)[:, None]
    X = np.hstack([X * [1e-3, 1, 1, 30, 1], X[:, :1], rare])
    y = np.where(y == 1, 3, y)
    problem = softmax_from_arrays(X.astype(dtype), y, split(120, 4), l2=l2)
    assert problem.classes == 4
    solution = problem.optimum()
    gradient = problem.full_gradients(solution.x[None, :])[0].mean(axis=0)
    assert np.linalg.norm(gradient) <= 1e-13 * problem.smoothness
    assert solution.gap <= 1e-15
    assert np.abs(solution.x.reshape(4, -1).sum(axis=0)).max() <= 1e-9


def test_optimum_without_penalty() -> None:
    """Overlapping classes have a minimiser, defined up to a shift of all classes."""
    X, y = data(200, 3, 2)
    problem = softmax_from_arrays(X, y, split(200, 2), l2=0.0)
    solution = problem.optimum()
    assert solution.gap == np.inf
    assert solution.residual <= 1e-14
    near = solution.x + 1e-3 * np.random.default_rng(0).standard_normal((30, problem.d))
    assert (problem.objectives(near)[:, 0] >= solution.objective).all()


def test_separable_data_without_penalty_has_no_optimum() -> None:
    problem = softmax_from_arrays([[1.0], [-1.0]], [0, 1], [[0, 1]], l2=0.0)
    with pytest.raises(SolverError, match=r"gradient norm .* wanted; is `l2` zero"):
        problem.optimum()


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("dense", [0, 1000])
def test_many_samples_of_unequal_weight(
    classes: int, dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BFGS looks at a part of them, and class blocks or the Hessian precondition."""
    monkeypatch.setattr(metric, "DENSE", dense)
    X, y = data(4000, 2, classes)
    rare = np.where(np.arange(4000) % 1000 == 7, 30.0, 0.0)[:, None]
    X = np.hstack([X, rare])
    shards = np.split(np.arange(4000), [8, 40, 900])
    problem = softmax_from_arrays(X, y, shards, l2=1e-4)
    f = WeightedSoftmax(
        problem.features,
        np.linalg.norm(problem.features, axis=1),
        problem.labels,
        np.repeat(1 / (4 * problem.data_sizes), problem.data_sizes),
        classes,
        1e-4,
    )
    part = optimum._part(f)
    assert len(part.labels) < 4000
    assert (part.norms > 30).sum() == 4  # the rare are all among them
    assert part.weights.sum() == pytest.approx(1, rel=0.2)
    solution = problem.optimum()
    gradient = problem.full_gradients(solution.x[None, :])[0].mean(axis=0)
    assert np.linalg.norm(gradient) <= 1e-13
    near = problem.optimum(gap=1e-6)
    assert solution.gap < near.gap <= 1e-6
    assert solution.objective <= near.objective <= solution.objective + near.gap
    other = problem.optimum(problem.pooled_optimum().x)  # other weights: far away
    np.testing.assert_allclose(other.x, solution.x, rtol=0, atol=1e-9)
