import mpmath as mp
import numpy as np
import pytest

from hewfl import InvalidInputError
from hewfl.control.tracking import (
    Tracking,
    predictable_tracking,
    realised_tracking,
    server_move,
    tracking_cap,
)

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""


def fields(law: Tracking) -> list[float]:
    return [float(law.noise), float(law.gap), float(law.tracking)]


def draw(
    rng: np.random.Generator, n: int
) -> tuple[float, list[float], list[int], float]:
    theta, L = float(10 ** rng.uniform(-12, 0)), float(10 ** rng.uniform(-60, 60))
    M = [float(10 ** rng.uniform(-60, 60)) for _ in range(n)]
    return theta, M, [int(h) for h in rng.integers(1, 1000, n)], L


def factors(horizons: list[int]) -> tuple[mp.mpf, mp.mpf]:
    H = mp.mpf(max(horizons))
    return (H - 1) * (2 * H - 1) / (6 * H**2), (H - 1) / (2 * H)


def test_coefficients_agree_with_fifty_digits(rng: np.random.Generator) -> None:
    for n in (1, 2, 7, 40):
        theta, M, H, L = draw(rng, n)
        with mp.workdps(DIGITS):
            t2, top, (h1, h2) = mp.mpf(theta) ** 2, max(map(mp.mpf, M)), factors(H)
            sharp = [
                3 * top * (1 + 2 * h2 * t2 + 2 * t2),
                24 * (1 + h1) * mp.mpf(L) * t2,
                48 * (1 + h1) * t2,
            ]
            printed = [6 * top, 144 * mp.mpf(L) * t2, 288 * t2]
            realised = [
                3 * top * (1 + 2 * h2 * t2) + 6 * t2 * mp.fsum(M),
                24 * (1 + h1) * mp.mpf(L) * t2,
                (48 * h1 + 24 * (n + 1)) * t2,
            ]
            move = [2 * t2 * top, 8 * mp.mpf(L) * t2, 16 * t2]
            stated = [8 * t2 * top, 24 * mp.mpf(L) * t2, 48 * t2]
        pairs = [
            (predictable_tracking(theta, M, H, L), printed),
            (predictable_tracking(theta, M, H, L, variant="sharp"), sharp),
            (predictable_tracking(theta, M, H, L, variant="absorbed"), sharp),
            (realised_tracking(theta, M, H, L), realised),
            (realised_tracking(theta, M, H, L, printed=True), printed),
            (server_move(theta, M, L), stated),
            (server_move(theta, M, L, variant="sharp"), move),
        ]
        for law, exact in pairs:
            expected = [float(value) for value in exact]
            np.testing.assert_allclose(fields(law), expected, rtol=EXACT)


def test_noise_drift_and_move_add_up(rng: np.random.Generator) -> None:
    theta, M, H, L = draw(rng, 5)
    law = predictable_tracking(theta, M, [1] * 5, L, variant="sharp")
    move = server_move(theta, M, L, variant="sharp")
    parts = [3 * max(M) + 3 * fields(move)[0], *(3 * x for x in fields(move)[1:])]
    np.testing.assert_allclose(fields(law), parts, rtol=EXACT)
    assert H != [1] * 5
    longer = predictable_tracking(theta, M, H, L, variant="sharp")
    assert fields(longer)[2] > fields(law)[2]


def counterexample(n: int, theta: float) -> tuple[mp.mpf, list[mp.mpf]]:
    """E‖e₁‖² in erratum E-01's construction, exactly, and what its Q₁ is made of.

    F_i = x²/2, x₀ = c_i = 1, one of n samples is large. If any branch drew it, the
    weights reach d = −1/Λ, the minimiser of d + Λd²/2; else all branches agree.
    """
    Lambda, t = mp.mpf("1.01"), mp.mpf(theta)
    big = 1 / (Lambda * t) - 1
    small = -big / (n - 1)
    none_else = (1 - mp.mpf(1) / n) ** (n - 1)
    drew = mp.mpf(1) / n * (big + 1 / Lambda) ** 2
    another = (1 - none_else) * (small + 1 / Lambda) ** 2
    nobody = none_else * (small + t * (1 + small)) ** 2
    return drew + (1 - mp.mpf(1) / n) * (another + nobody), [big**2 / (n - 1)]


@pytest.mark.parametrize(
    ("n", "theta", "exact", "printed", "ratio"),
    [
        (1000, 0.055, 0.922, 1.954, 0.47),
        (5000, 0.055, 0.681, 0.565, 1.21),
        (10_000, 0.055, 0.651, 0.391, 1.66),
        (100_000, 0.03, 0.630, 0.126, 4.99),
        (10_000_000, 0.01, 0.621, 0.0130, 47.9),
    ],
)
def test_weights_chosen_afterwards_break_the_printed_recursion(
    n: int, theta: float, exact: float, printed: float, ratio: float
) -> None:
    with mp.workdps(DIGITS):
        error, (M,) = counterexample(n, theta)
    noise, H = np.full(n, float(M)), np.ones(n)
    claimed = float(realised_tracking(theta, noise, H, 1.0, printed=True).after(0.5, 0))
    ours = float(realised_tracking(theta, noise, H, 1.0).after(0.5, 0))
    assert float(error) == pytest.approx(exact, abs=6e-4)
    assert claimed == pytest.approx(printed, rel=4e-3)
    assert float(error) / claimed == pytest.approx(ratio, rel=6e-3)
    assert (float(error) > claimed) == (n >= 5000)
    assert float(error) <= ours
    assert 288 * theta**2 < 1
    assert 1.01 * theta < 0.5


@pytest.mark.parametrize("n", [1, 2, 5, 10, 11, 40])
def test_printed_coefficients_are_safe_for_few_clients_and_small_steps(n: int) -> None:
    # the worst case: equal noise and long branches
    M, H = np.ones(n), np.full(n, 10**9)
    limit = 1 / np.sqrt(2 * n + 1)
    for theta in (limit * (1 - 1e-6), limit * (1 + 1e-6)):
        printed = fields(realised_tracking(theta, M, H, 1.0, printed=True))
        ours = fields(realised_tracking(theta, M, H, 1.0))
        dominated = [p >= o for p, o in zip(printed, ours, strict=True)]
        assert dominated == [theta < limit, True, n <= 10]


def test_printed_noise_term_is_false_for_large_amplitudes() -> None:
    # n = H = 1, F = x²/2, U = Q = 0: the branch moves by −θξ, so e = (1 + θ)ξ
    for theta in (0.5, 1.0, 1.44, 1.46, 2.0, 8.0):
        law = predictable_tracking(theta, [1.0], [1], 1.0)
        assert ((1 + theta) ** 2 > float(law.after(0, 0))) == (theta > np.sqrt(6) - 1)
    for theta in (0.1, 1 / np.sqrt(3), 1.0):
        sharp = predictable_tracking(theta, [1.0], [1], 1.0, variant="sharp")
        assert (1 + theta) ** 2 <= float(sharp.after(0, 0))
    for H in (1, 2, 10**9):
        edge = 1 / np.sqrt(3)
        printed = fields(predictable_tracking(edge, [1.0], [H], 1.0))
        sharper = fields(predictable_tracking(edge, [1.0], [H], 1.0, variant="sharp"))
        assert all(p >= s * (1 - EXACT) for p, s in zip(printed, sharper, strict=True))


def test_the_cap_is_never_passed(rng: np.random.Generator) -> None:
    theta = rng.uniform(0, 0.058, 50)
    law = predictable_tracking(theta, rng.uniform(0, 3, (50, 4)), np.ones((50, 4)), 2.0)
    start, cap = rng.uniform(0, 5, 50), 0.7
    top = tracking_cap(law, start, cap)
    chi = start
    for _ in range(300):
        assert (chi <= top * (1 + EXACT)).all()
        chi = np.asarray(law.after(cap, chi), np.float64)
    limit = (law.noise + law.gap * cap) / (1 - law.tracking)
    np.testing.assert_allclose(top, np.maximum(start, limit), rtol=EXACT)


def test_without_contraction_there_is_no_cap() -> None:
    law = predictable_tracking(0.06, [1.0], [1], 1.0)
    assert tracking_cap(law, 0.0, 1.0) == np.inf
    several = predictable_tracking([0.01, 0.06, 0.02], [1.0], [1], 1.0)
    good, none, better = tracking_cap(several, [0.0, 0.0, 99.0], 1.0)
    assert good == tracking_cap(predictable_tracking(0.01, [1.0], [1], 1.0), 0.0, 1.0)
    assert none == np.inf
    assert better == 99
    assert predictable_tracking(1.0, [1.0], [1], 1.0).after(1.0, 1e308) == np.inf


@pytest.mark.parametrize("field", ["amplitude", "noise"])
def test_negative_inputs_are_named(field: str) -> None:
    theta, M = (-0.5, 1.0) if field == "amplitude" else (0.5, -0.5)
    with pytest.raises(InvalidInputError, match=f"`{field}` must be nonneg.*got -0.5"):
        realised_tracking(theta, [M], [1], 1.0)
    with pytest.raises(InvalidInputError, match=f"`{field}` must be nonneg.*got -0.5"):
        predictable_tracking(theta, [M], [1], 1.0)


def test_unknown_variants_are_named() -> None:
    with pytest.raises(InvalidInputError, match="`variant` must be one of paper"):
        predictable_tracking(0.1, [1.0], [1], 1.0, variant="best")  # type: ignore[arg-type]  # the point


def test_one_client_may_be_a_number() -> None:
    for law in (predictable_tracking, realised_tracking):
        assert fields(law(0.1, 0.1, 4, 1.0)) == fields(law(0.1, [0.1], [4], 1.0))
    assert fields(server_move(0.1, 0.1, 1.0)) == fields(server_move(0.1, [0.1], 1.0))


def test_a_count_stands_for_as_many_clients() -> None:
    each = realised_tracking(0.1, [0.1, 0.1, 0.1, 0.4], [2, 2, 2, 8], 1.0)
    kinds = realised_tracking(0.1, [0.1, 0.4], [2, 8], 1.0, count=[3, 1])
    np.testing.assert_allclose(fields(kinds), fields(each), rtol=EXACT)
