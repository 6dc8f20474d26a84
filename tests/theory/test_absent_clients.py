from itertools import islice
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from hewfl import (
    Federation,
    FixedSteps,
    HewControl,
    InvalidInputError,
    ProblemBounds,
    simulate,
)
from hewfl.control.tracking import absent_tracking, predictable_tracking
from hewfl.core.validation import Array
from hewfl.federation.participation import RotatingParticipation
from hewfl.problems import random_quadratic
from hewfl.simulation.audit import control_audit
from hewfl.theory.absent_clients import absent_clients, propagated_tracking
from hewfl.theory.post_local import PostLocal
from hewfl.theory.systems import Case, System
from hewfl.theory.theorem_table import theorem_curve

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


# ------------------------------------------------------------------ over many rounds


def gaps(case: Case, theta: float, rounds: int, variant: Any = "sharp") -> Array:
    bound = absent_clients(case, theta, variant=variant)
    assert all(h.holds for h in bound.hypotheses)
    return np.array(list(islice(bound.gaps(), rounds + 1)))


def test_a_client_that_never_comes_is_not_forgotten() -> None:
    """F_1 = 0 and F_2 = x²/2: client 1 alone walks away (E-19).

    Without inflation the bound ends below the true gap.
    """
    system = System(1.0, 6.0, [1, 1], 1, 0.0)
    x, c, theta = 1.0, np.array([0.0, 1.0]), 0.1
    true: list[float] = []
    while abs(x) <= 6.0 and len(true) < 261:
        true.append(x * x / 4)
        x -= theta * (0 - c[0] + c.mean())
    assert max(true) > 7.5
    case = Case(system, gap=0.25, tracking=0.0, rotation=((0,),))
    bounds = gaps(case, theta, len(true) - 1)
    assert (bounds >= np.array(true) * (1 - 1e-12)).all()


@pytest.mark.unchecked
@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed"])
def test_the_controller_certifies_no_less(variant: Any) -> None:
    """Algorithm 1 minimises the bound of which this is the value at fixed controls."""
    for seed, size in ((0, 1), (1, 2), (2, 3)):
        problem = random_quadratic(seed, 4, 2, noise=1e-3)
        L, R, theta = problem.smoothness, 3.0, 0.02
        box = ProblemBounds(L, R, 1e-4, theta)
        noise = (1e-6, 1e-5, 1e-4, 1e-3)
        control = HewControl(box, noise, variant)
        steps = FixedSteps([1, 2, 4, 8])
        federation = Federation(steps, 1, RotatingParticipation(size))
        trace = simulate(
            problem, federation, [control], rounds=40, seed=0,
            observers=[control_audit(problem)],
        )  # fmt: skip
        records = trace.of(0)[1:]
        certified = [record.observed["certified_gap"] for record in records]
        rotation = tuple(tuple(map(int, record.clients)) for record in records)
        system = System(L, R, [1, 2, 4, 8], 1, noise)
        ours = gaps(Case(system, rotation=rotation), theta, 40, variant)[1:]
        assert (np.array(certified) <= ours * (1 + 1e-12)).all()
        assert min(certified) < box.smoothness * R * R / 2
        worst = Case(system, active=size, absence=-(-4 // size) - 1)
        assert (np.array(certified) <= gaps(worst, theta, 40, variant)[1:]).all()


@pytest.mark.unchecked
def test_the_worst_absence_is_above_every_rotation(rng: np.random.Generator) -> None:
    for _ in range(60):
        n, S, K = 4, int(rng.integers(2, 4)), int(rng.integers(1, 4))
        v2, theta = 10.0 ** rng.uniform(-8, -2), float(10 ** rng.uniform(-3, -1))
        # alike: the weights of least noise are uniform, as those of the worst absence
        system = System(1.5, 2.0, [2] * n, 1, v2)
        away, rotation = np.zeros(n, dtype=int), []
        for _ in range(60):
            due = np.flatnonzero(away >= K)
            rest = rng.permutation(np.setdiff1d(np.arange(n), due))
            clients = np.r_[due, rest][: max(S, len(due))]
            away += 1
            away[clients] = 0
            rotation.append(tuple(map(int, clients)))
        if max(map(len, rotation)) > S:
            continue
        variant = rng.choice(["paper", "sharp", "absorbed"])
        case = Case(system, gap=0.3, tracking=1e-3)
        given = Case(system, gap=0.3, tracking=1e-3, rotation=tuple(rotation))
        worst = Case(system, gap=0.3, tracking=1e-3, active=S, absence=K)
        never = Case(system, gap=0.3, tracking=1e-3, active=S)
        known, most, unlimited = (
            gaps(x, theta, 60, variant) for x in (given, worst, never)
        )
        assert (known <= most * (1 + 1e-12)).all()
        assert (most <= unlimited * (1 + 1e-12)).all()
        # with all clients it is the recursion of th:sur-cvx, stopped by the ball
        everyone = Case(system, gap=0.3, tracking=1e-3, rotation=(tuple(range(n)),))
        curve = theorem_curve("th:sur-cvx", case, PostLocal(theta, 3.0), variant)
        assert curve.recursion is not None
        full = curve.recursion.trajectory(case.start, 60).gap
        assert (gaps(everyone, theta, 60, variant) <= full * (1 + 1e-12)).all()
        assert gaps(everyone, theta, 1, variant)[1] == pytest.approx(full[1], rel=1e-12)


def test_a_round_without_clients_is_a_round() -> None:
    system = System(1.0, 1.0, [1, 2], 8, 1e-6)
    whole, paused = (
        gaps(Case(system, rotation=rotation), 0.01, 40)
        for rotation in (((0,), (1,)), ((0,), (), (1,), ()))
    )
    assert paused[::2] == pytest.approx(whole[:21], rel=1e-12)
    assert paused[1::2] == pytest.approx(paused[2::2], rel=1e-12)


def test_the_first_round_at_a_target_is_the_first() -> None:
    case = Case(System(1.0, 1.0, [1, 2], 8, 1e-7), active=1, absence=1)
    bound = absent_clients(case, 0.01)
    rounds, lowest = bound.lowest(0.1)
    assert bound.after(int(rounds)) == lowest <= 0.1 < bound.after(int(rounds) - 1)
    assert bound.lowest(1e-9)[0] == np.inf


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"rotation": ((0, 2),)}, "`rotation` must be of rounds with different cl"),
        ({"rotation": ((0, 0),)}, "`rotation` must be of rounds with different cl"),
        ({"rotation": ((), ())}, "`rotation` must be rounds, some of them with cl"),
        ({"rotation": ((0,),), "active": 1}, "`rotation` must be given without"),
        ({"active": 1, "absence": 0}, "`absence` must be at least 1, where 1 of 2"),
    ],
)
def test_bad_participation_is_named(fields: Any, rule: str) -> None:
    with pytest.raises(InvalidInputError, match=rule):
        Case(System(1.0, 1.0, [1, 2], 8, 1e-6), **fields)
