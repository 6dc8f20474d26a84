from itertools import product

import mpmath as mp
import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.control.certificate import Variant
from hewfl.theory.noise import (
    mean_noise,
    noise_of_mean,
    noise_optimal,
    noise_optimal_level,
)
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    heterogeneous_noise,
    pathwise_bound,
)
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""
QUIET = System(1.0, 1.0, 1, 1, 0.0)


def exact_coefficients(
    system: System, theta: float, Lambda: float, a: np.ndarray
) -> dict[str, mp.mpf]:
    L, R = mp.mpf(float(system.L)), mp.mpf(float(system.R))
    t, lam = mp.mpf(theta), mp.mpf(Lambda)
    H, M = [
        [mp.mpf(float(x)) for x in field]
        for field in (np.asarray(system.horizon), np.asarray(system.noise))
    ]
    A = [mp.mpf(float(x)) for x in a]
    V1 = mp.fsum(x * m for x, m in zip(A, M, strict=True))
    V2 = mp.fsum(x**2 * m for x, m in zip(A, M, strict=True))
    h1 = [(h - 1) * (2 * h - 1) / (6 * h**2) for h in H]
    h2 = [(h - 1) / (2 * h) for h in H]
    mean_h1 = mp.fsum(x * h for x, h in zip(A, h1, strict=True))
    drifted = mp.fsum(x * h * m for x, h, m in zip(A, h2, M, strict=True))
    top, n = max(M), len(M)
    return {
        "A": t / (2 * L * R**2),
        "capped": t / (2 * L * R**2 * (1 + t / 4)),
        "beta": 192 * t**3 + 32 * lam / L * t**4,
        "gamma": 1 / (2 * (lam - L)) + 39 * t / L + 64 * lam / L**2 * t**4,
        "delta": 64 * t**3 / L * V1 + 16 * lam * t**2 / L**2 * V2,
        "beta_sharp": 52 * mean_h1 * t**3,
        "gamma_sharp": 1 / (2 * (lam - L)) + (29 * t + 104 * mean_h1 * t**3) / L,
        "delta_sharp": 13 * t**3 / L * drifted + lam * t**2 * V2 / (2 * L**2),
        "printed_A": 6 * top,
        "printed_B": 144 * L * t**2,
        "printed_C": 288 * t**2,
        "our_A": 3 * top * (1 + 2 * max(h2) * t**2) + 6 * t**2 * mp.fsum(M),
        "our_B": 24 * (1 + max(h1)) * L * t**2,
        "our_C": (48 * max(h1) + 24 * (n + 1)) * t**2,
        "cap": L * R**2 / 2,
    }


def draw(rng: np.random.Generator) -> tuple[System, float, float, np.ndarray]:
    n = int(rng.integers(1, 9))
    L, R = 10 ** rng.uniform(-20, 20, 2)
    noise = 10 ** rng.uniform(-9, 0, n) * L * L * R * R
    system = System(L, R, rng.integers(1, 20, n), rng.integers(1, 9, n), noise)
    theta = float(10 ** rng.uniform(-6, -2))
    return system, theta, float(L * rng.uniform(1.1, 2)), rng.dirichlet(np.ones(n))


def test_coefficients_agree_with_fifty_digits(rng: np.random.Generator) -> None:
    for _ in range(40):
        system, theta, Lambda, a = draw(rng)
        controls = PostLocal(theta, Lambda)
        with mp.workdps(DIGITS):
            e = exact_coefficients(system, theta, Lambda, a)
            k = heterogeneous_coefficients(system, controls, comparator=a, printed=True)
            s = heterogeneous_coefficients(
                system, controls, comparator=a, variant="sharp"
            )
            pairs = [
                (k.descent, e["A"]),
                (k.capped_descent, e["capped"]),
                (k.growth, e["beta"]),
                (k.staleness, e["gamma"]),
                (k.noise, e["delta"]),
                (k.tracking.noise, e["printed_A"]),
                (k.tracking.gap, e["printed_B"]),
                (k.tracking.tracking, e["printed_C"]),
                (s.growth, e["beta_sharp"]),
                (s.staleness, e["gamma_sharp"]),
                (s.noise, e["delta_sharp"]),
                (s.tracking.noise, e["our_A"]),
                (s.tracking.gap, e["our_B"]),
                (s.tracking.tracking, e["our_C"]),
            ]
        for ours, exact in pairs:
            np.testing.assert_allclose(ours, float(exact), rtol=EXACT)


@pytest.mark.parametrize("printed", [False, True])
def test_recursion_and_rate_agree_with_fifty_digits(
    rng: np.random.Generator, printed: bool
) -> None:
    for _ in range(20):
        system, theta, Lambda, a = draw(rng)
        T, eps = int(10 ** rng.uniform(0, 9)), float(system.cap) * 1e-6
        with mp.workdps(DIGITS):
            e = exact_coefficients(system, theta, Lambda, a)
            name = "printed" if printed else "our"
            qa, qb, qc = (e[f"{name}_{letter}"] for letter in "ABC")
            U, Q = e["cap"] / 2, e["cap"] * mp.mpf(float(system.L)) / 1000
            start = (float(U), float(Q))
            U, Q = map(mp.mpf, start)
            states = [(U, Q)]
            for _ in range(12):
                after = U / (1 + e["A"] * U) + e["beta"] * U + e["gamma"] * Q
                after += e["delta"] + mp.mpf(eps)
                U, Q = min(e["cap"], after), qa + qb * U + qc * Q
                states.append((U, Q))
            Q_bar = max(mp.mpf(start[1]), (qa + qb * e["cap"]) / (1 - qc))
            d = e["gamma"] * Q_bar + e["delta"] + mp.mpf(eps)
            root = mp.sqrt(e["beta"] ** 2 + 4 * e["capped"] * d)
            m = (e["beta"] + root) / (2 * e["capped"])
            left = max(mp.mpf(start[0]) - m, 0)
            value = m + (1 / (1 / left + e["capped"] * T) if left else 0)
        k = heterogeneous_coefficients(
            system, PostLocal(theta, Lambda), comparator=a, printed=printed
        )
        path = k.trajectory(start, 12, solver_gap=eps)
        np.testing.assert_allclose(path.gap, [float(u) for u, _ in states], rtol=EXACT)
        np.testing.assert_allclose(
            path.tracking, [float(q) for _, q in states], rtol=EXACT
        )
        rate = k.rate(start, T, solver_gap=eps, printed=True)
        np.testing.assert_allclose(rate.floor, float(m), rtol=EXACT)
        np.testing.assert_allclose(rate.value, float(value), rtol=EXACT)
        assert rate.vacuous == (m >= e["cap"])
        ours = k.rate(start, T, solver_gap=eps)
        assert ours.value <= rate.value * (1 + EXACT)


def test_the_printed_rate_is_vacuous_from_an_amplitude_on() -> None:
    for ratio, last, first in ((2.0, 0.00281, 0.00283), (1.5, 0.00162, 0.00164)):
        controls = PostLocal([last, first], ratio)
        k = heterogeneous_coefficients(QUIET, controls, printed=True)
        rate = k.rate((0.5, 0.0), 10**6)
        np.testing.assert_array_equal(rate.vacuous, [False, True])
        assert rate.holds.all()


def test_the_rate_bounds_the_recursion(rng: np.random.Generator) -> None:
    theta = rng.uniform(1e-5, 1e-3, 30)
    system = System(1.0, 1.0, [1, 2, 4], 1, 1e-6 * rng.uniform(0, 1, (30, 3)))
    variants: tuple[Variant, ...] = ("paper", "sharp")
    for variant in variants:
        k = heterogeneous_coefficients(system, PostLocal(theta, 2.0), variant=variant)
        path = k.trajectory((0.5, 0.0), 200)
        T = np.arange(201)[:, None]
        for printed in (False, True):
            rate = k.rate((0.5, 0.0), T, printed=printed)
            assert (path.gap <= rate.value * (1 + EXACT)).all()
    paper = heterogeneous_coefficients(system, PostLocal(theta, 2.0))
    assert (k.growth <= paper.growth).all()
    assert (k.staleness <= paper.staleness).all()
    assert (k.noise <= paper.noise).all()


def test_the_noise_term_at_the_noise_optimal_weights() -> None:
    system = System(2.0, 1.0, [1, 2, 4, 8], [3, 5, 7, 9], [0.5, 2.0, 1.0, 9.0])
    theta, Lambda = np.array([0.01, 0.1]), 3.0
    controls = PostLocal(theta, Lambda)
    star = noise_optimal(system)
    k = heterogeneous_coefficients(system, controls, comparator=star)
    closed = (64 * 4 * theta**3 / 2 + 16 * Lambda * theta**2 / 4) * noise_optimal_level(
        system
    )
    np.testing.assert_allclose(k.noise, closed, rtol=EXACT)
    V1, V2 = mean_noise(system, star), noise_of_mean(system, star)
    direct = 64 * theta**3 / 2 * V1 + 16 * Lambda * theta**2 / 4 * V2
    np.testing.assert_allclose(k.noise, direct, rtol=EXACT)
    best = heterogeneous_coefficients(system, controls)
    assert (best.noise < k.noise).all()
    assert best.comparator is not None
    assert best.comparator.shape == (2, 4)
    linear, quadratic = heterogeneous_noise(system, controls)
    assert linear.shape == quadratic.shape == (2, 4)


def test_schedules_run_round_by_round(rng: np.random.Generator) -> None:
    system = System([1.0, 2.0], 1.0, [1, 4], 8, 0.3)
    theta = rng.uniform(0.001, 0.02, (5, 2))
    Lambda = system.L * rng.uniform(1.2, 2, (5, 2))
    schedule = heterogeneous_coefficients(system, PostLocal(theta, Lambda))
    path = schedule.trajectory((0.4, 0.1), None)
    assert path.gap.shape == path.tracking.shape == (6, 2)
    U, Q = path.gap[0], path.tracking[0]
    for t in range(5):
        k = heterogeneous_coefficients(system, PostLocal(theta[t], Lambda[t]))
        step = k.trajectory((U, Q), 1)
        U, Q = step.gap[1], step.tracking[1]
        np.testing.assert_allclose(path.gap[t + 1], U, rtol=EXACT)
        np.testing.assert_allclose(path.tracking[t + 1], Q, rtol=EXACT)
    ended = heterogeneous_coefficients(system, PostLocal(theta, Lambda), box_end=0.02)
    wider = ended.trajectory((0.4, 0.1), None)
    assert (wider.tracking[1:] > path.tracking[1:]).all()


def enumerate_rounds(
    theta: float, Lambda: float, spread: np.ndarray, centres: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """E[F(x_t) − F*] and E e_{i,t}² over all draws, for F_i = (x − z_i)²/2 with samples
    ± s_i, one local step, and the exact minimiser of Ψ on the interval of endpoints."""
    x, c = np.full(1, 1.0), (1.0 - centres)[None]
    draws = np.array(list(product([-1.0, 1.0], repeat=len(centres))))
    gap, error = [], []
    for _ in range(rounds + 1):
        gap.append(float(((x - centres.mean()) ** 2 / 2).mean()))
        error.append(float(((c - (x[:, None] - centres)) ** 2).mean(0).max()))
        g = (x[:, None] - centres)[:, None] + draws * spread
        server = c.mean(-1)
        moves = -theta * (g - c[:, None] + server[:, None, None])
        d = np.clip(-server[:, None] / Lambda, moves.min(-1), moves.max(-1))
        x, c = (x[:, None] + d).ravel(), g.reshape(-1, len(centres))
    return np.array(gap), np.array(error)


@pytest.mark.parametrize("theta", [0.02, 0.055, 0.2, 0.24])
@pytest.mark.parametrize("variant", ["paper", "sharp"])
def test_the_bounds_hold_over_all_draws(theta: float, variant: Variant) -> None:
    centres, spread = np.array([-0.5, 0.5]), np.array([0.3, 1.0])
    gap, error = enumerate_rounds(theta, 2.0, spread, centres, 5)
    R = 4.0
    system = System(1.0, R, 1, 1, spread**2)
    k = heterogeneous_coefficients(system, PostLocal(theta, 2.0), variant=variant)
    path = k.trajectory((0.5, 0.0), 5)
    assert all_hold(path.hypotheses)
    assert (gap <= path.gap * (1 + EXACT)).all()
    assert (error <= path.tracking * (1 + EXACT)).all()
    assert gap[0] == path.gap[0] == 0.5


def test_undefined_quantities_are_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"`curvature` must be above .* got 1\.0"
    ):
        heterogeneous_coefficients(QUIET, PostLocal(0.1, [2.0, 1.0]))
    with pytest.raises(
        InvalidInputError, match=r"`curvature` must be above .* got 3\.0"
    ):
        pathwise_bound(1.0, -0.1, 0.2, 3.0, 3.0)
    with pytest.raises(InvalidInputError, match="`amplitude` must be positive"):
        heterogeneous_coefficients(QUIET, PostLocal(0.0, 2.0))
    with pytest.raises(
        InvalidInputError, match="`variant` must be one of paper, sharp"
    ):
        heterogeneous_coefficients(QUIET, PostLocal(0.1, 2.0), variant="absorbed")
    with pytest.raises(InvalidInputError, match="`comparator` must be nonnegative and"):
        heterogeneous_coefficients(QUIET, PostLocal(0.1, 2.0), comparator=[0.5])
    wide = heterogeneous_coefficients(QUIET, PostLocal(0.2, 2.0))
    rate = wide.rate((0.5, 0.0), 10)
    assert np.isnan(rate.value)
    assert "C < 1" in [h.name for h in rate.hypotheses if not h.holds]
    assert (wide.trajectory((0.5, 0.0), 2000).gap <= 0.5).all()
    with pytest.raises(InvalidInputError, match="`rounds` must be given"):
        wide.trajectory((0.5, 0.0), None)
