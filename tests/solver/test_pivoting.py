"""Block pivoting of a stack: agrees with the active set or says that it gave up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import known_solutions as problems
from tests.solver.prepared import Array, scaled_problem
from tests.tolerances import WEIGHTS

from hewfl.solver import pivoting
from hewfl.solver.active_set import OPTIMALITY, active_set, error_scale
from hewfl.solver.pivoting import MAX_SWEEPS, block_pivoting


@given(seed=st.integers(0, 10_000), n=st.integers(1, 25))
def test_a_stack_agrees_with_the_active_set(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    each = [scaled_problem(problems.gaussian_instance(rng, n, n + 5)) for _ in range(4)]
    H, c = (np.stack(parts) for parts in zip(*each, strict=True))
    weights, sweeps, solved = block_pivoting(H, c, np.ones((4, n), dtype=np.bool_))
    assert (sweeps <= MAX_SWEEPS).all()
    for t in np.flatnonzero(solved):
        assert np.abs(weights[t] - active_set(H[t], c[t]).weights).max() <= WEIGHTS


@given(seed=st.integers(0, 10_000))
def test_what_is_called_solved_passes_the_test(seed: int) -> None:
    """Ties, dependent and duplicated columns: it may give up, it may not be wrong."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    D = rng.integers(-2, 3, (n, 3)).astype(float)
    H, c = (D @ D.T / 16)[None], (rng.integers(-3, 4, n) / 16)[None]
    weights, _, solved = block_pivoting(H, c, np.ones((1, n), dtype=np.bool_))
    w = weights[0]
    assert w.min() >= 0
    if solved[0]:
        gradient = H[0] @ w + c[0]
        scale = error_scale(np.sqrt(np.diagonal(H[0])), c[0], w)
        assert (w @ gradient - gradient <= 4 * OPTIMALITY * scale).all()


def test_a_right_guess_is_confirmed_in_two_sweeps(rng: np.random.Generator) -> None:
    instance = problems.constructed_instance(rng, 20, 40, 7)
    assert instance.weights is not None
    H, c = scaled_problem(instance)
    weights, sweeps, solved = block_pivoting(
        H[None], c[None], instance.weights[None] > 0
    )
    assert solved.all()
    assert sweeps.tolist() == [2]
    assert np.abs(weights[0] - instance.weights).max() <= WEIGHTS


def test_problems_of_a_stack_do_not_disturb_each_other(
    rng: np.random.Generator,
) -> None:
    each = [scaled_problem(problems.gaussian_instance(rng, 9, 15)) for _ in range(6)]
    H, c = (np.stack(parts) for parts in zip(*each, strict=True))
    guess = np.ones(c.shape, dtype=np.bool_)
    together = block_pivoting(H, c, guess)
    for t in range(6):
        alone = block_pivoting(H[t : t + 1], c[t : t + 1], guess[t : t + 1])
        assert np.abs(together[0][t] - alone[0][0]).max() <= 1e-14
        assert (together[1][t], together[2][t]) == (alone[1][0], alone[2][0])


def test_the_first_guess_is_not_written_to(rng: np.random.Generator) -> None:
    H, c = scaled_problem(problems.constructed_instance(rng, 10, 20, 2))
    guess = np.ones((1, 10), dtype=np.bool_)
    weights, _, solved = block_pivoting(H[None], c[None], guess)
    assert guess.all()
    assert solved[0]
    assert weights.sum() == pytest.approx(1)


def cycling() -> tuple[Array, Array]:
    """Five clients of very unequal length, whose offenders come and go for ever."""
    rng = np.random.default_rng(17)
    n = int(rng.integers(3, 7))
    B, spread = rng.standard_normal((n, n)), 10.0 ** rng.uniform(-3, 3, n)
    H = B @ np.diag(spread) @ B.T
    return H / np.abs(H).max(), rng.standard_normal(n) * 10 ** rng.uniform(-3, 0)


@pytest.mark.parametrize("patience", [1, 2, 4, 9])
def test_a_cycle_is_given_up_when_patience_is_over(
    patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second sweep has the fewest offenders of all."""
    H, c = cycling()
    monkeypatch.setattr(pivoting, "PATIENCE", patience)
    _, sweeps, solved = block_pivoting(H[None], c[None], np.ones((1, 5), np.bool_))
    assert sweeps.tolist() == [2 + patience]
    assert not solved.any()
    assert active_set(H, c).solved  # it is not the problem that is hard


@pytest.mark.parametrize("most", [1, 3, 20])
def test_sweeps_are_counted_and_limited(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    H, c = cycling()
    monkeypatch.setattr(pivoting, "PATIENCE", 1000)
    monkeypatch.setattr(pivoting, "MAX_SWEEPS", most)
    easy = np.eye(5), np.zeros(5)  # two sweeps, whoever is beside it
    both = np.stack([H, easy[0]]), np.stack([c, easy[1]])
    weights, sweeps, solved = block_pivoting(*both, np.ones((2, 5), np.bool_))
    assert sweeps.tolist() == [most, min(most, 2)]
    assert solved.tolist() == [False, most >= 2]
    assert [result.dtype.name for result in (sweeps, solved)] == ["int64", "bool"]
    np.testing.assert_allclose(weights.sum(-1), 1.0)
