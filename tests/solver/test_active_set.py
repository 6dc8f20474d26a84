"""The active set in NumPy: its factor under exchanges, its answers, its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import known_solutions as problems
from tests.solver.prepared import scaled_problem
from tests.tolerances import WEIGHTS

from hewfl.solver.active_set import (
    OPTIMALITY,
    _Face,
    active_set,
    error_scale,
    gram_around,
    is_independent,
)


@given(seed=st.integers(0, 10_000), n=st.integers(1, 30), share=st.floats(0.05, 1.0))
def test_chosen_minimisers_are_found_from_any_start(
    seed: int, n: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    support = max(1, round(share * n))
    instance = problems.constructed_instance(rng, n, n + 20, support)
    assert instance.weights is not None
    H, c = scaled_problem(instance)
    for start in (None, np.eye(n)[-1], np.full(n, 1 / n), instance.weights):
        result = active_set(H, c, start)
        assert result.solved
        assert result.independent
        assert np.abs(result.weights - instance.weights).max() <= WEIGHTS


@given(seed=st.integers(0, 10_000))
def test_the_factor_survives_members_coming_and_going(seed: int) -> None:
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((12, 20)) * 10 ** rng.uniform(-3, 0, (12, 1))
    H = D @ D.T
    face = _Face(H, [0], np.ones(1), np.zeros((12, 12), order="F"))
    for _ in range(40):
        outside = sorted(set(range(12)) - set(face.support))
        if outside and (len(face.support) == 1 or rng.random() < 0.55):
            face.enter(int(rng.choice(outside)))
        else:
            face.leave(int(rng.integers(len(face.support))))
        origin, *others = face.support
        k = len(others)
        M, R = gram_around(H, origin, others, others), face.factor[:k, :k]
        assert np.abs(np.tril(R, -1)).max(initial=0) == 0
        size = np.sqrt(np.diagonal(M))
        assert (np.abs(R.T @ R - M) <= 1e-12 * np.outer(size, size)).all()
        assert face.independence() > 0


def test_differences_keep_the_digits_of_close_columns() -> None:
    """Columns 1 + ε apart: the plain formula has only rounding left."""
    base, apart = np.full(4, 1e3), 2.0**-12 * np.eye(4)
    D = base + apart
    H = D @ D.T
    M = gram_around(H, 0, [1, 2, 3], [1, 2, 3])
    exact = 2.0**-24 * (np.eye(3) + 1)
    assert np.abs(M - exact).max() <= 4 * np.spacing(H.max())


def test_ties_and_dependent_columns_end(rng: np.random.Generator) -> None:
    for _ in range(200):
        n = int(rng.integers(2, 9))
        D = rng.integers(-2, 3, (n, 3)).astype(float)
        H, c = D @ D.T / 16, rng.integers(-3, 4, n) / 16
        result = active_set(H, c)
        gradient = H @ result.weights + c
        violation = result.weights @ gradient - gradient
        scale = error_scale(np.sqrt(np.diagonal(H)), c, result.weights)
        assert result.solved
        assert (violation <= 4 * OPTIMALITY * scale).all()


def test_an_error_scale_has_no_unit(rng: np.random.Generator) -> None:
    root, c, w = rng.random(5), rng.standard_normal(5), rng.dirichlet(np.ones(5))
    plain = error_scale(root, c, w)
    scaled = error_scale(root * 2.0**20, c * 2.0**40, w)
    assert np.array_equal(scaled, plain * 2.0**40)
    assert error_scale(np.zeros(2), np.zeros(2), np.array([1.0, 0.0])).min() > 0


def test_independence_is_proved_or_not(rng: np.random.Generator) -> None:
    D = rng.standard_normal((5, 9))
    D = np.vstack([D, D[0] + 2 * (D[1] - D[0])])  # on a line with two others
    H = D @ D.T
    assert is_independent(H, np.array([0.2] * 5 + [0.0]))
    assert not is_independent(H, np.array([0.4, 0.4, 0, 0, 0, 0.2]))
    assert is_independent(H, np.array([0.5, 0, 0, 0, 0, 0.5]))
    assert is_independent(H, np.eye(6)[2])


def test_a_limit_on_pivots_is_kept_and_told(rng: np.random.Generator) -> None:
    H, c = scaled_problem(problems.constructed_instance(rng, 40, 60, 30))
    short = active_set(H, c, max_pivots=3)
    assert (short.solved, short.pivots) == (False, 3)
    assert short.weights.sum() == pytest.approx(1)
