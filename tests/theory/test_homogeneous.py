from itertools import product

import mpmath as mp
import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.control.certificate import Variant
from hewfl.theory.appendix.lemmas import (
    homogeneous_advantage,
    homogeneous_slope_error,
    uniform_model_value,
)
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
    homogeneous_pl_rate,
    pathwise_bound,
)
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System, is_homogeneous

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""
QUIET = System(1.0, 1.0, 4, 1, 0.0)


def exact_coefficients(
    system: System, theta: float, Lambda: float
) -> dict[str, mp.mpf]:
    L, R = mp.mpf(float(system.L)), mp.mpf(float(system.R))
    t, lam, n = mp.mpf(theta), mp.mpf(Lambda), system.n
    M, H = [
        [mp.mpf(float(x)) for x in field]
        for field in (np.asarray(system.noise), np.asarray(system.horizon))
    ]
    V1, V_u = mp.fsum(M) / n, mp.fsum(M) / n**2
    h1 = mp.fsum((h - 1) * (2 * h - 1) / (6 * h**2) for h in H) / n
    drifted = mp.fsum((h - 1) / (2 * h) * m for h, m in zip(H, M, strict=True)) / n
    gap = lam - L
    return {
        "A": t / (4 * L * R**2),
        "capped": t / (4 * L * R**2 * (1 + t / 8)),
        "beta": 16 * t**3 + 16 * L * t**2 / gap,
        "delta": (4 * t**3 / L + 4 * t**2 / gap) * V1 + (t / L + 1 / gap) * V_u,
        # (ϑ/2L + 1/(2(Λ − L))) times 8h₁Lϑ²g + 4ϑ² mean h₂M + 2V_u
        "beta_sharp": (t / (2 * L) + 1 / (2 * gap)) * 8 * h1 * L * t**2,
        "delta_sharp": (t / (2 * L) + 1 / (2 * gap)) * (4 * t**2 * drifted + 2 * V_u),
        "V1": V1,
        "V_u": V_u,
        "h1": h1,
        "drifted": drifted,
        "L": L,
        "cap": L * R**2 / 2,
        "t": t,
    }


def draw(rng: np.random.Generator) -> tuple[System, float, float]:
    n = int(rng.integers(1, 9))
    L, R = 10 ** rng.uniform(-20, 20, 2)
    noise = 10 ** rng.uniform(-12, 0, n) * L * L * R * R
    system = System(L, R, rng.integers(1, 20, n), rng.integers(1, 9, n), noise)
    return system, float(10 ** rng.uniform(-6, -1)), float(L * rng.uniform(1.1, 2))


@pytest.mark.parametrize("variant", ["paper", "sharp"])
def test_coefficients_and_rates_agree_with_fifty_digits(
    rng: np.random.Generator, variant: Variant
) -> None:
    for _ in range(30):
        system, theta, Lambda = draw(rng)
        k = homogeneous_coefficients(system, PostLocal(theta, Lambda), variant=variant)
        T = int(10 ** rng.uniform(0, 10))
        with mp.workdps(DIGITS):
            e = exact_coefficients(system, theta, Lambda)
            end = "" if variant == "paper" else "_sharp"
            beta, delta, a = e["beta" + end], e["delta" + end], e["capped"]
            m = (beta + mp.sqrt(beta**2 + 4 * a * delta)) / (2 * a)
            start = float(3 * m)
            left = mp.mpf(start) - m
            value = m + 1 / (1 / left + a * T)
            g = min(mp.mpf(start), e["cap"])
            step = min(e["cap"], g / (1 + e["A"] * g) + beta * g + delta)
            pairs = [
                (k.descent, e["A"]),
                (k.capped_descent, a),
                (k.growth, beta),
                (k.noise, delta),
                (k.step((start, 0.0))[0], step),
            ]
        for ours, exact in pairs:
            np.testing.assert_allclose(ours, float(exact), rtol=EXACT)
        rate = k.rate((start, 0.0), T, printed=True)
        np.testing.assert_allclose(rate.floor, float(m), rtol=EXACT)
        np.testing.assert_allclose(rate.value, float(value), rtol=EXACT)
        assert rate.vacuous == (m >= e["cap"])
        assert k.rate((start, 0.0), T).value <= rate.value * (1 + EXACT)


def test_slope_error_agrees_with_fifty_digits(rng: np.random.Generator) -> None:
    for _ in range(20):
        system, theta, Lambda = draw(rng)
        g = float(system.cap) * float(rng.uniform())
        with mp.workdps(DIGITS):
            e = exact_coefficients(system, theta, Lambda)
            t, L, u = e["t"], e["L"], mp.mpf(g)
            paper = 32 * L * t**2 * u + 8 * t**2 * e["V1"] + 2 * e["V_u"]
            sharp = 8 * e["h1"] * L * t**2 * u + 4 * t**2 * e["drifted"] + 2 * e["V_u"]
        ours = homogeneous_slope_error(system, theta, g)
        np.testing.assert_allclose(ours, float(paper), rtol=EXACT)
        ours = homogeneous_slope_error(system, theta, g, variant="sharp")
        np.testing.assert_allclose(ours, float(sharp), rtol=EXACT)
        assert sharp <= paper


def test_pl_rate_agrees_with_fifty_digits(rng: np.random.Generator) -> None:
    for _ in range(20):
        n = int(rng.integers(1, 9))
        L, R = 10 ** rng.uniform(-9, 9, 2)
        system = System(L, R, rng.integers(1, 9, n), 2, L * rng.uniform(0, 1, n))
        mu, ratio = float(L * 10 ** rng.uniform(-3, 0)), float(rng.uniform(1.2, 2))
        # half of what makes ρ zero, so that nothing cancels
        theta = mu / L * (ratio - 1) / 64
        start, T = float(system.cap), int(10 ** rng.uniform(0, 8))
        k = homogeneous_coefficients(system, PostLocal(theta, ratio * L))
        with mp.workdps(DIGITS):
            e = exact_coefficients(system, theta, float(ratio * L))
            rho = mp.mpf(mu) * e["t"] / (2 * e["L"]) - e["beta"]
            m = e["delta"] / rho
            printed = (1 - rho) ** T * mp.mpf(start) + m
            ours = m + (1 - rho) ** T * max(mp.mpf(start) - m, 0)
        np.testing.assert_allclose(k.contraction(mu), float(rho), rtol=EXACT)
        rate = homogeneous_pl_rate(k, mu, start, T, printed=True)
        np.testing.assert_allclose(rate.floor, float(m), rtol=EXACT)
        np.testing.assert_allclose(rate.value, float(printed), rtol=1e-11)
        rate = homogeneous_pl_rate(k, mu, start, T)
        np.testing.assert_allclose(rate.value, float(ours), rtol=1e-11)
        assert rate.label == "cor:realized-hom-PL"
        assert rate.holds
        assert rate.vacuous == (m >= e["cap"])


def test_the_rate_is_vacuous_from_an_amplitude_on() -> None:
    k = homogeneous_coefficients(QUIET, PostLocal([0.00774, 0.00776], 2.0))
    rate = k.rate((0.5, 0.0), 10**6)
    np.testing.assert_array_equal(rate.vacuous, [False, True])
    assert rate.holds.all()
    assert 0.00774 < 1 / 129 < 0.00776
    sharp = homogeneous_coefficients(QUIET, PostLocal(0.00776, 2.0), variant="sharp")
    assert not sharp.rate((0.5, 0.0), 10**6).vacuous


def test_without_noise_the_floor_is_the_positive_root() -> None:
    # m = 0 would meet the printed conditions, yet the recursion stands still at β/A
    k = homogeneous_coefficients(QUIET, PostLocal(0.004, 2.0))
    rate = k.rate((0.5, 0.0), 10**9)
    assert rate.floor == pytest.approx(float(k.growth / k.capped_descent), rel=EXACT)
    path = k.trajectory((float(rate.floor), 0.0), 50).gap
    assert path[-1] > 0.9 * float(rate.floor)
    one_step = homogeneous_coefficients(
        System(1.0, 1.0, 1, 1, 0.0), PostLocal(0.1, 2.0), variant="sharp"
    )
    assert one_step.rate((0.5, 0.0), 10).floor == 0


def test_recursion_step_and_rate_agree(rng: np.random.Generator) -> None:
    system = System(1.0, 1.0, [1, 2, 4], 1, 1e-6 * rng.uniform(0, 1, (20, 3)))
    k = homogeneous_coefficients(system, PostLocal(rng.uniform(1e-4, 0.1, 20), 2.0))
    path = k.trajectory((0.5, 0.0), 300, solver_gap=1e-8).gap
    assert path.shape == (301, 20)
    stepped = np.minimum(k.step((path[:-1], 0.0), 1e-8)[0], 0.5)
    np.testing.assert_allclose(path[1:], stepped, rtol=EXACT)
    T = np.arange(301)[:, None]
    for printed in (False, True):
        rate = k.rate((0.5, 0.0), T, solver_gap=1e-8, printed=printed)
        assert (path <= rate.value * (1 + EXACT)).all()


def test_schedules_run_round_by_round(rng: np.random.Generator) -> None:
    theta = rng.uniform(0.001, 0.1, (4, 2))
    system = System([1.0, 2.0], 1.0, [1, 4], 8, 0.3)
    path = (
        homogeneous_coefficients(system, PostLocal(theta, 2.5))
        .trajectory((0.4, 0.0), None)
        .gap
    )
    assert path.shape == (5, 2)
    for t in range(4):
        k = homogeneous_coefficients(system, PostLocal(theta[t], 2.5))
        np.testing.assert_allclose(path[t + 1], k.trajectory((path[t], 0.0), 1).gap[1])


@pytest.mark.parametrize("H", [1, 2, 3])
@pytest.mark.parametrize("variant", ["paper", "sharp"])
def test_the_bellman_inequality_holds_over_all_draws(H: int, variant: Variant) -> None:
    # F = x²/2 for both clients, noise ± s_i at each step; Ψ on an interval is clipped
    theta, Lambda, x, spread = 0.24, 2.0, 1.0, np.array([0.2, 0.5])
    draws = np.array(list(product([-1.0, 1.0], repeat=2 * H))).reshape(-1, H, 2)
    y = np.full((len(draws), 2), x)
    for step in range(H):
        y = y - theta / H * (y + draws[:, step] * spread)
    moves = y - x
    slope = -moves.mean(-1) / theta
    d = np.clip(-slope / Lambda, moves.min(-1), moves.max(-1))
    system = System(1.0, 3.0, H, 1, spread**2)
    error = float(((slope - x) ** 2).mean())
    assert error <= homogeneous_slope_error(system, theta, x**2 / 2, variant=variant)
    k = homogeneous_coefficients(system, PostLocal(theta, Lambda), variant=variant)
    assert all_hold(k.hypotheses)
    assert float(((x + d) ** 2 / 2).mean()) <= k.step((x**2 / 2, 0.0))[0]
    # path by path, through the uniform weights and the advantage over them
    uniform = uniform_model_value(theta, Lambda, 1.0, slope**2)
    middle = moves.mean(-1)
    np.testing.assert_allclose(uniform, slope * middle + Lambda / 2 * middle**2)
    psi = slope * d + Lambda / 2 * d**2
    gain = homogeneous_advantage(uniform, psi)
    assert (gain >= -EXACT).all()
    assert gain.max() > 0
    bound = x**2 / 2 + uniform - gain + (x - slope) ** 2 / (2 * (Lambda - 1))
    assert ((x + d) ** 2 / 2 <= bound + EXACT).all()


def test_hypotheses_and_refusals() -> None:
    controls = PostLocal([0.25, 0.26, 0.5], 2.0)
    k = homogeneous_coefficients(QUIET, controls)
    np.testing.assert_array_equal(all_hold(k.hypotheses), [True, False, False])
    assert (
        not homogeneous_coefficients(QUIET, PostLocal(0.1, 2.0))
        .rate((0.6, 0.0), 1)
        .holds
    )
    one = homogeneous_coefficients(QUIET, PostLocal(0.25, 2.0))
    alone = homogeneous_pl_rate(one, 0.01, 0.5, 10)
    assert np.isnan(alone.value)
    assert "0 < ρ" in [h.name for h in alone.hypotheses if not h.holds]
    two = homogeneous_coefficients(QUIET, PostLocal([1e-3, 0.25], 2.0))
    rate = homogeneous_pl_rate(two, 0.1, 0.5, 10)  # the second does not contract
    assert np.isnan(rate.value).tolist() == [False, True]
    assert rate.vacuous[1]
    failed = {h.name for h in rate.hypotheses if not np.all(h.holds)}
    assert failed == {"0 < ρ", "a ≤ 1"}
    with pytest.raises(
        InvalidInputError, match="`variant` must be one of paper, sharp"
    ):
        homogeneous_coefficients(QUIET, PostLocal(0.1, 2.0), variant="absorbed")
    with pytest.raises(InvalidInputError, match="`curvature` must be above"):
        homogeneous_coefficients(QUIET, PostLocal(0.1, 1.0))
    steep = homogeneous_coefficients(QUIET, PostLocal(0.001, 2.0))
    names = [
        h.name
        for h in homogeneous_pl_rate(steep, 2.0, 0.5, 1).hypotheses
        if not h.holds
    ]
    assert names == ["μ ≤ L"]


def test_pathwise_bound_holds_for_any_step(rng: np.random.Generator) -> None:
    # F = ½ xᵀ diag(h) x with 0 ≤ h ≤ L: any reference, any step
    L = 3.0
    h, x, c, d = (rng.normal(size=(500, 4)) for _ in range(4))
    h = L * rng.uniform(0, 1, (500, 4))
    Lambda = L * rng.uniform(1.01, 5, 500)
    gap, after = (h * x**2).sum(-1) / 2, (h * (x + d) ** 2).sum(-1) / 2
    psi = (c * d).sum(-1) + Lambda / 2 * (d**2).sum(-1)
    mismatch = ((h * x - c) ** 2).sum(-1)
    bound = pathwise_bound(gap, psi, mismatch, Lambda, L)
    np.testing.assert_allclose(bound, gap + psi + mismatch / (2 * (Lambda - L)))
    assert (after <= bound * (1 + EXACT)).all()
    # tight: curvature L everywhere and d = (∇F − c)/(Λ − L)
    g = L * x
    best = (g - c) / (Lambda - L)[:, None]
    psi = (c * best).sum(-1) + Lambda / 2 * (best**2).sum(-1)
    gap, after = L * (x**2).sum(-1) / 2, L * ((x + best) ** 2).sum(-1) / 2
    bound = pathwise_bound(gap, psi, ((g - c) ** 2).sum(-1), Lambda, L)
    np.testing.assert_allclose(after, bound, rtol=1e-9)


def test_hypotheses_tell_experiments_from_theory() -> None:
    system = System(1.0, 1.0, [1] * 12, 1, 1.0)

    def failed(theta: float, Lambda: float, *, printed: bool = False) -> list[str]:
        controls = PostLocal(theta, Lambda)
        k = heterogeneous_coefficients(system, controls, printed=printed)
        return [h.name for h in k.hypotheses if not h.holds]

    assert failed(0.25, 2.0) == []
    assert failed(0.25, 2.1) == ["Λ ≤ 2L", "Λϑ ≤ L/2"]
    for theta in (0.5, 1.0, 2.0, 4.0, 8.0):
        for ratio in (1.1, 1.25, 1.5, 1.75, 2.0):
            assert "Λϑ ≤ L/2" in failed(theta, ratio)
    assert failed(0.01, 2.0, printed=True) == ["n ≤ 10"]
    few = System(1.0, 1.0, [1] * 10, 1, 1.0)
    for theta, safe in ((0.2182, True), (0.2183, False)):
        k = heterogeneous_coefficients(few, PostLocal(theta, 2.0), printed=True)
        assert bool(all_hold(k.hypotheses)) == safe


def test_only_fresh_draws_from_one_pool_are_homogeneous() -> None:
    assert is_homogeneous("one objective")
    assert is_homogeneous("fresh draws")
    assert not is_homogeneous("fixed shards")
    assert is_homogeneous("fixed shards", printed=True)
    with pytest.raises(
        InvalidInputError, match="`sampling` must be one of one objective"
    ):
        is_homogeneous("iid")  # type: ignore[arg-type]  # the point


def test_a_shard_dealt_once_breaks_the_printed_lemma() -> None:
    """E-14: given its shard, a client errs by more than lem:realized-hom-q allows.

    F averages (x − z)²/2 over z = ±1; the one client was dealt z = 1, so that batches
    from its shard have no variance, and sees −1 at the minimiser 0 in every round.
    """
    alone = System(1.0, 2.0, 1, 1, 0.0)
    x, pool, shard = 0.0, np.array([-1.0, 1.0]), np.array([1.0])
    off = ((x - shard).mean() - (x - pool).mean()) ** 2
    assert off == 1.0
    assert homogeneous_slope_error(alone, 0.1, 0.0) == 0.0
