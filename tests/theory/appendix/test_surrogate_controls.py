import mpmath as mp
import numpy as np
import pytest

from hewfl import ClientProfile, InvalidInputError, ProblemBounds, UpperState
from hewfl.control.certificate import Variant
from hewfl.control.joint_problem import predictive_control
from hewfl.theory.appendix.surrogate_controls import surrogate, surrogate_under
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""
SMALL = System(1.0, 1.0, [1, 2, 4], 8, [1e-6, 2e-6, 5e-6])


def test_fixed_controls_agree_with_fifty_digits(rng: np.random.Generator) -> None:
    for _ in range(15):
        n, T = int(rng.integers(1, 5)), 6
        L, R = (float(x) for x in 10 ** rng.uniform(-10, 10, 2))
        M = 10 ** rng.uniform(-9, -3, n) * L * L * R * R
        w, theta = rng.dirichlet(np.ones(n)), rng.uniform(0.001, 0.05, n)
        start = (L * R * R * float(rng.uniform(0, 0.5)), L * L * R * R * 1e-4)
        with mp.workdps(DIGITS):
            S, r, top = mp.mpf(L), mp.mpf(R), max(map(mp.mpf, theta))
            rows = [tuple(map(mp.mpf, x)) for x in zip(w, theta, M, strict=True)]
            f, u, chi = S * r**2 / 2, mp.mpf(start[0]), mp.mpf(start[1])
            states = [(u, chi)]
            for _ in range(T):
                J = u
                for x, t, m in rows:
                    e = mp.exp(2 * t)
                    s = u - u / (1 + t / (2 * S * r**2) * u)
                    rho = 32 * e * t**3 * u + (16 * t + 64 * e * t**3) / S * chi
                    rho += 8 * e * t**3 * m / S
                    kappa = 16 * e * t**4 / S * u + 32 * e * t**4 / S**2 * chi
                    kappa += (2 * t**2 + 4 * e * t**4) * m / S**2
                    J += -x * (s - rho) + S / 2 * x**2 * kappa
                A = 6 * max(m for _, _, m in rows)
                u, chi = min(f, J), A + 144 * S * top**2 * u + 288 * top**2 * chi
                states.append((u, chi))
        path = surrogate_under(System(L, R, 1, 1, M), (w, theta), start, T)
        np.testing.assert_allclose(path.gap, [float(x) for x, _ in states], rtol=EXACT)
        np.testing.assert_allclose(
            path.tracking, [float(x) for _, x in states], rtol=EXACT
        )


@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed"])
@pytest.mark.parametrize("printed", [False, True])
def test_optimal_controls_are_those_of_the_controller(
    variant: Variant, printed: bool
) -> None:
    low, high, T = 1e-4, 0.05, 4
    run = surrogate(SMALL, (low, high), (0.5, 0.0), T, variant=variant, printed=printed)
    clients = ClientProfile([1, 2, 4], 8, [1e-6, 2e-6, 5e-6])
    bounds = ProblemBounds(1.0, 1.0, low, high)
    for t in range(T):
        state = UpperState(float(run.gap[t]), float(run.tracking[t]))
        best = predictive_control(clients, state, bounds, variant=variant)
        np.testing.assert_array_equal(run.weights[t], best.weights)
        np.testing.assert_array_equal(run.amplitudes[t], best.amplitudes)
        assert run.gap[t + 1] == min(0.5, best.value)
        assert run.solver_gap[t] == best.value - best.lower_bound <= 1e-12
    # the schedule replayed offline gives the same bounds (E-18)
    end = high if printed else None
    replayed = surrogate_under(
        SMALL,
        (run.weights, run.amplitudes),
        (0.5, 0.0),
        box_end=end,
        variant=variant,
    )
    np.testing.assert_allclose(replayed.gap, run.gap, rtol=EXACT)
    np.testing.assert_allclose(replayed.tracking, run.tracking, rtol=EXACT)
    assert all_hold(run.hypotheses)


def test_the_amplitude_played_tracks_better_than_the_end_of_the_box() -> None:
    box, start, T = (1e-4, 0.1), (0.5, 0.0), 6
    played = surrogate(SMALL, box, start, T, variant="sharp")
    printed = surrogate(SMALL, box, start, T, variant="sharp", printed=True)
    assert (played.tracking[1:] <= printed.tracking[1:]).all()
    assert played.gap[-1] < printed.gap[-1]


@pytest.mark.parametrize(("end", "moves"), [(0.01025, True), (0.01027, False)])
def test_the_printed_system_stalls_from_a_box_on(end: float, moves: bool) -> None:
    # noise-free, χ at its cap: the first unit of θ gains u²/(2LR²) and costs 16χ/L, so
    # nothing is gained at u = f̄ once 9216θ̄² ≥ 1 − 288θ̄², that is θ̄ ≥ 0.01026
    chi = 72 * end**2 / (1 - 288 * end**2)
    system, box = System(1.0, 1.0, 1, 1, 0.0), (1e-9, end)
    run = surrogate(system, box, (0.5, chi), 1, printed=True)
    assert (run.amplitudes[0, 0] > 1e-9) == moves
    assert (run.gap[1] < 0.5) == moves


@pytest.mark.parametrize("variant", ["paper", "sharp", "absorbed"])
def test_tracking_without_limit_leaves_the_cap(variant: Variant) -> None:
    start = (0.5, 1e300)
    run = surrogate(SMALL, (0.5, 1.0), start, 10, variant=variant)
    assert run.tracking[-1] == np.inf
    assert run.gap[-1] == 0.5
    assert (run.amplitudes[-1] == 0.5).all()
    schedule = (run.weights, run.amplitudes)
    replayed = surrogate_under(SMALL, schedule, start, variant=variant)
    np.testing.assert_allclose(replayed.gap, run.gap, rtol=EXACT)


def test_configurations_are_independent() -> None:
    many = System([1.0, 2.0], 1.0, [1, 2, 4], 8, [1e-6, 2e-6, 5e-6])
    run = surrogate(many, (1e-4, [[0.01], [0.03]]), (0.5, 1e-6), 2)
    assert run.gap.shape == run.tracking.shape == (3, 2, 2)
    assert run.weights.shape == run.amplitudes.shape == (2, 2, 2, 3)
    alone = surrogate(SMALL, (1e-4, 0.03), (0.5, 1e-6), 2)
    np.testing.assert_array_equal(run.gap[:, 1, 0], alone.gap)
    np.testing.assert_array_equal(run.weights[:, 1, 0], alone.weights)
    w, theta = np.full(3, 1 / 3), np.full((4, 1, 3), 0.01)
    path = surrogate_under(many, (w, theta), (0.5, [0.0, 1.0]), 3)
    assert path.gap.shape == (4, 4, 2)


def test_bounds_hold_for_a_quadratic_over_all_draws() -> None:
    # F_i = x²/2, H = 1, noise ± s_i: gap and errors by recursion over second moments
    system = System(1.0, 3.0, [1, 1], 1, [0.04, 0.09])
    w, theta = np.array([0.7, 0.3]), np.array([0.3, 0.2])
    path = surrogate_under(system, (w, theta), (0.5, 0.0), 3, variant="sharp")
    assert all_hold(path.hypotheses)
    x, c = np.full(1, 1.0), np.full((1, 2), 1.0)
    signs = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) * np.sqrt([0.04, 0.09])
    for t in range(4):
        assert (x**2 / 2).mean() <= path.gap[t] * (1 + EXACT)
        assert ((c - x[:, None]) ** 2).mean(0).max() <= path.tracking[t] + EXACT
        g = x[:, None, None] + signs
        moves = -theta * (g - c[:, None] + c.mean(-1)[:, None, None])
        x, c = (x[:, None] + moves @ w).ravel(), g.reshape(-1, 2)


def test_hypotheses_and_refusals() -> None:
    w, theta = [1.0], [0.6]
    system = System(1.0, 1.0, 4, 1, 0.0)
    path = surrogate_under(system, (w, theta), (0.5, 0.0), 1)
    assert [h.name for h in path.hypotheses if not h.holds] == ["θ̄ ≤ 1/√3"]
    sharp = surrogate_under(system, (w, theta), (0.5, 0.0), 1, variant="sharp")
    assert all_hold(sharp.hypotheses)
    run = surrogate(SMALL, (1e-4, 0.15), (0.5, 0.0), 1, printed=True)
    assert [h.name for h in run.hypotheses if not h.holds] == ["48θ̄² ≤ 1"]
    over = surrogate(SMALL, (1e-4, 0.1), (0.6, 0.0), 0)
    assert [h.name for h in over.hypotheses if not h.holds] == ["u₀ ≤ f̄"]
    assert over.gap.shape == (1,)
    with pytest.raises(InvalidInputError, match="`amplitude_max` must be at most 1"):
        surrogate(SMALL, (0.1, 1.5), (0.5, 0.0), 1)
    with pytest.raises(InvalidInputError, match="`rounds` must be given"):
        surrogate_under(system, (w, theta), (0.5, 0.0))
    with pytest.raises(InvalidInputError, match="`weights` must be nonnegative and"):
        surrogate_under(system, ([0.5], theta), (0.5, 0.0), 1)
