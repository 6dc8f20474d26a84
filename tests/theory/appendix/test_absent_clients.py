import mpmath as mp
import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.control.tracking import absent_tracking, predictable_tracking
from hewfl.core.validation import Array
from hewfl.theory.appendix.absent_clients import propagated_tracking
from hewfl.theory.systems import System

EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""


def test_the_best_split_is_never_beaten(rng: np.random.Generator) -> None:
    Q, D = 10 ** rng.uniform(-100, 100, (2, 300))
    best = absent_tracking(Q, D)
    with mp.workdps(50):
        exact = [
            (mp.sqrt(mp.mpf(q)) + mp.sqrt(mp.mpf(d))) ** 2
            for q, d in zip(Q, D, strict=True)
        ]
    np.testing.assert_allclose(best, [float(x) for x in exact], rtol=EXACT)
    for split in (0.1, 1.0, 7.0, np.sqrt(D / Q)):
        given = (1 + split) * Q + (1 + 1 / split) * D
        assert (given >= best * (1 - EXACT)).all()
    np.testing.assert_allclose(given, best)
    np.testing.assert_array_equal(absent_tracking(Q, np.zeros(1)), Q)
    np.testing.assert_allclose(absent_tracking(np.zeros(1), D), D)
    never = absent_tracking(np.array([np.inf, np.inf]), np.array([0.0, 2.0]))
    assert np.isinf(never).all()


def test_active_clients_are_renewed_and_absent_ones_inflated() -> None:
    system = System(2.0, 1.0, [1, 2, 8], 4, [0.3, 0.1, 50.0])
    theta, U, Q = 0.05, 0.4, np.array([0.01, 0.02, 0.3])
    active = [True, True, False]
    after = propagated_tracking(system, theta, active, U, Q)
    M, H = system.noise[:2], np.array([1, 2])
    law = predictable_tracking(theta, M, H, 2.0, variant="sharp")
    np.testing.assert_allclose(after[:2], law.after(U, 0.3), rtol=EXACT)
    D = theta**2 * (8 * 2 * U + 16 * 0.3 + 2 * M.max())
    np.testing.assert_allclose(after[2], (np.sqrt(0.3) + np.sqrt(D)) ** 2, rtol=EXACT)
    paper = propagated_tracking(system, theta, active, U, Q, variant="paper")
    assert (paper > after).all()


def test_everybody_active_is_the_ordinary_recursion() -> None:
    system = System([1.0, 2.0], 1.0, [1, 2, 8], 4, 0.3)
    theta, U, Q = np.array([0.05, 0.1]), np.array([0.4, 0.5]), np.full((2, 3), 0.2)
    after = propagated_tracking(system, theta, np.full((2, 3), True), U, Q)
    H, L = system.horizon, system.L
    law = predictable_tracking(theta, system.noise, H, L, variant="sharp")
    assert after.shape == (2, 3)
    np.testing.assert_allclose(after, law.after(U, 0.2)[:, None] * np.ones(3))


def test_a_round_without_clients_changes_nothing() -> None:
    system, Q = System(1.0, 1.0, [1, 2], 4, 0.3), np.array([0.1, 0.7])
    after = propagated_tracking(system, 0.1, [False, False], 0.5, Q)
    np.testing.assert_array_equal(after, Q)


def test_bounds_hold_over_all_draws_with_an_absent_client() -> None:
    # F_i = x²/2, H = 1: client 2 joins in rounds 0 and 3 only
    system, theta = System(1.0, 2.0, 1, 1, [0.04, 0.09]), 0.4
    x, c = np.full(1, 1.0), np.full((1, 2), 1.0)
    Q: Array = np.zeros(2)
    signs = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) * np.sqrt([0.04, 0.09])
    worst = 0.0
    for t in range(4):
        active = np.array([True, t % 3 == 0])
        w = active / active.sum()
        U = float((x**2 / 2).mean())
        g = x[:, None, None] + signs
        moves = -theta * (g - c[:, None] + c.mean(-1)[:, None, None])
        x = (x[:, None] + moves @ w).ravel()
        kept = np.repeat(c, 4, axis=0)
        c = np.where(active, g.reshape(-1, 2), kept)
        Q = propagated_tracking(system, theta, active, U, Q)
        error = ((c - x[:, None]) ** 2).mean(0)
        assert (error <= Q).all()
        worst = max(worst, float((error / Q).max()))
    assert worst > 0.1


def test_bad_masks_are_named() -> None:
    system = System(1.0, 1.0, [1, 2], 4, 0.3)
    for mask in ([0, 1], [True], True):
        with pytest.raises(
            InvalidInputError, match="`active` must be booleans, one for"
        ):
            propagated_tracking(system, 0.1, mask, 0.5, [0.1, 0.1])
