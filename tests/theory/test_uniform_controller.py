import mpmath
import numpy as np
import pytest
from mpmath import mpf

from hewfl import InvalidInputError
from hewfl.control.certificate import VARIANTS, Variant
from hewfl.control.tracking import tracking_cap
from hewfl.core.validation import Array
from hewfl.theory.statement import all_hold
from hewfl.theory.systems import System
from hewfl.theory.uniform import uniform_coefficients

RELATIVE = 1e-12
DIGITS = 50
EDGE = 1 / np.sqrt(288)
variants = pytest.mark.parametrize("variant", VARIANTS)


def random_system(rng: np.random.Generator, size: int, n: int) -> tuple[System, Array]:
    """Systems over many decades with common H and b, and amplitudes below the edge."""
    L, R = 10 ** rng.uniform(-6, 6, (2, size))
    v2 = 10 ** rng.uniform(-6, 6, (size, n)) * rng.integers(0, 2, (size, 1))
    H, b = rng.choice([1, 4, 100], (size, 1)), rng.choice([1, 32], (size, 1))
    return System(L, R, H, b, v2), EDGE * 10 ** rng.uniform(-6, -1e-9, size)


# 50 digits


def test_coefficients_have_all_their_digits(rng: np.random.Generator) -> None:
    """The display before th:pl-global, transcribed."""
    size, n = 100, 5
    many, theta = random_system(rng, size, n)
    ours = uniform_coefficients(many, theta)
    assert all_hold(ours.recursion.hypotheses).all()
    H, b, v2 = (np.asarray(x) for x in (many.horizon, many.batch_size, many.variance))
    with mpmath.workdps(DIGITS):
        for c in range(size):
            t, L, R = mpf(theta[c]), mpf(many.L[c]), mpf(many.R[c])
            per = mpf(v2[c].max()) / (mpf(H[c, 0]) * mpf(b[c, 0]))
            exact = {
                "descent": t / (2 * L * R**2),
                "growth": 48 * t**3 + 32 * t**4 / n,
                "staleness": 96 * t**3 / L + 64 * t**4 / (L * n),
                "noise": (16 * t**3 + 16 * t**2 / n) * per / L,
            }
            for name, value in exact.items():
                miss = abs(mpf(getattr(ours.recursion, name)[c]) - value)
                assert miss <= RELATIVE * value, name
            track = (
                (ours.recursion.tracking.noise, 6 * per),
                (ours.recursion.tracking.gap, 144 * L * t**2),
                (ours.recursion.tracking.tracking, 288 * t**2),
            )
            for result, value in track:
                assert abs(mpf(result[c]) - value) <= RELATIVE * value


def test_the_step_and_the_cap_have_all_their_digits(rng: np.random.Generator) -> None:
    size = 100
    many, theta = random_system(rng, size, 3)
    g, q = many.cap * 10 ** rng.uniform(-9, 0, size), 10 ** rng.uniform(-6, 6, size)
    k = uniform_coefficients(many, theta)
    after, tracked = k.recursion.step((g, q))
    caps = tracking_cap(k.recursion.tracking, q, k.system.cap)
    with mpmath.workdps(DIGITS):
        for c in range(size):
            t, L, G, Q = mpf(theta[c]), mpf(many.L[c]), mpf(g[c]), mpf(q[c])
            R, per, n = mpf(many.R[c]), mpf(many.noise[c].max()), 3
            f = L * R**2 / 2
            rise = (48 * t**3 + 32 * t**4 / n) * G
            rise += (96 * t**3 / L + 64 * t**4 / (L * n)) * Q
            rise += (16 * t**3 + 16 * t**2 / n) * per / L
            exact = min(f, G - t / (2 * L * R**2) * G**2 + rise)
            assert abs(mpf(after[c]) - exact) <= RELATIVE * exact
            exact = 6 * per + 144 * L * t**2 * G + 288 * t**2 * Q
            assert abs(mpf(tracked[c]) - exact) <= RELATIVE * exact
            exact = max(Q, (6 * per + 144 * L * t**2 * f) / (1 - 288 * t**2))
            slack = RELATIVE / (1 - 288 * t**2)  # the division's condition
            assert abs(mpf(caps[c]) - exact) <= slack * exact


# the theory


@variants
def test_the_recursion_bounds_exact_expectations(
    rng: np.random.Generator, variant: Variant
) -> None:
    """One round on scalar quadratics with additive noise, in closed form.

    F_i = λ_i(x − z_i)²/2 with λ_i ≤ L = 1. A branch is linear in its noise, so means
    and variances of the next anchor and of the next control variates are exact.
    """
    trials, n = 400, 4
    for _ in range(trials):
        H, top = int(rng.integers(1, 7)), EDGE if variant == "paper" else 1.0
        theta, sd = rng.uniform(0.01, 1) * top, rng.uniform(0, 1)
        curvature, z = rng.uniform(0, 1, n) ** 0.3, rng.normal(size=n)
        best = (curvature * z).sum() / curvature.sum()
        x, e = best + rng.normal(), rng.normal(size=n) * rng.choice([0, 0.1, 1])
        slope = curvature * (x - z)
        c = slope + e
        eta = theta / H
        shrink = 1 - eta * curvature
        powers = shrink ** np.arange(H)[:, None]
        mean = -eta * powers.sum(0) * (slope - c + c.mean())
        loading = -eta * powers  # of the step's noise on the endpoint, last step first
        variance = sd**2 * (loading**2).sum(0)
        flat = curvature.mean()
        g = flat * (x - best) ** 2 / 2
        moved, spread = x - best + mean.mean(), variance.sum() / n**2
        g_next = flat * (moved**2 + spread) / 2
        # e_i⁺ = c_i − c − Δ_i/θ − λ_i(x⁺ − z_i), loadings of own and of others' noise
        centre = c - c.mean() - mean / theta - curvature * (x + mean.mean() - z)
        own = (1 / theta + curvature / n)[None] * loading
        noise = sd**2 * (own**2).sum(0)
        noise += (curvature / n) ** 2 * (variance.sum() - variance)
        q_next = (centre**2 + noise).max()
        R = abs(x - best) + abs(mean).max() + 1
        k = uniform_coefficients(
            System(1.0, R, np.full(n, H), 1, sd**2), theta, variant=variant
        )
        assert all_hold(k.recursion.hypotheses)
        bound, tracked = k.recursion.step((g, (e**2).max()))
        assert g_next <= bound * (1 + 1e-12)
        assert q_next <= tracked * (1 + 1e-12)


@variants
def test_the_trajectory_iterates_the_step_below_its_caps(
    rng: np.random.Generator, variant: Variant
) -> None:
    many, theta = random_system(rng, 50, 3)
    k = uniform_coefficients(many, theta, variant=variant)
    start = (many.cap * 2, 10 ** rng.uniform(-6, 6, 50))
    path = k.recursion.trajectory(start, 30)
    assert path.gap.shape == path.tracking.shape == (31, 50)
    np.testing.assert_array_equal(path.gap[0], start[0])
    again = k.recursion.step((path.gap[6], path.tracking[6]))
    np.testing.assert_array_equal(again, (path.gap[7], path.tracking[7]))
    assert (path.gap[1:] <= many.cap).all()
    assert (
        path.tracking
        <= tracking_cap(k.recursion.tracking, start[1], k.system.cap) * (1 + 1e-12)
    ).all()
    *own, start_met = path.hypotheses
    assert tuple(own) == k.recursion.hypotheses
    assert start_met.name == "u₀ ≤ f̄"
    assert not start_met.holds.any()


def test_variants_are_ordered(rng: np.random.Generator) -> None:
    """On [0, f̄], where ‖∇F‖² ≤ 2Lg ≤ 2Lf̄, each set of constants gives less."""
    many, theta = random_system(rng, 200, 3)
    state = (many.cap * rng.uniform(0, 1, 200), 10 ** rng.uniform(-6, 6, 200))
    paper, sharp, absorbed = (
        uniform_coefficients(many, theta, variant=v).recursion.step(state)
        for v in VARIANTS
    )
    assert (sharp[0] <= paper[0]).all()
    assert (absorbed[0] <= sharp[0] * (1 + 1e-15)).all()
    assert (sharp[1] <= paper[1]).all()
    assert (sharp[0] < 0.99 * paper[0]).any()


def test_hypotheses_name_what_fails() -> None:
    mixed = System(1.0, 1.0, [[2, 2], [2, 3], [2, 2]], [[1, 1], [1, 1], [1, 4]], 1.0)
    names = {
        h.name: h.holds.tolist()
        for h in uniform_coefficients(mixed, [0.06, 0.05, 0.05]).recursion.hypotheses
    }
    assert names == {
        "288ϑ² < 1": [False, True, True],
        "H_i = H": [True, False, True],
        "b_i = b": [True, True, False],
    }
    for variant in ("sharp", "absorbed", "joint"):
        k = uniform_coefficients(mixed, [0.06, 1.0, 1.1], variant=variant)
        assert all_hold(k.recursion.hypotheses).tolist() == [True, True, False]


def test_bad_input_is_named() -> None:
    one = System(1.0, 1.0, [2, 2], 1, 1.0)
    with pytest.raises(InvalidInputError, match="`amplitude` must be positive"):
        uniform_coefficients(one, 0.0)
    wide = uniform_coefficients(one, 0.06)
    assert tracking_cap(wide.recursion.tracking, 0.0, wide.system.cap) == np.inf
    with pytest.raises(InvalidInputError, match="`state` must be nonnegative"):
        uniform_coefficients(one, 0.05).recursion.step((-1.0, 0.0))
