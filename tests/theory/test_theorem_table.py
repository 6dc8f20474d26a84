from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from tests.theory.cases import RICH, rows

from hewfl.theory.post_local import PostLocal
from hewfl.theory.theorem_table import THEOREMS, Form, theorem_curve

DIGITS = 50
EXACT = 1e-12
"""Relative error of a closed formula of a few dozen roundings."""


def test_the_closed_direct_bound_is_the_text_with_q_at_its_cap() -> None:
    # th:direct-bellman with q ≤ q̄ of th:ho-main, closed by lem:scalar
    theta, q0, T = 0.01, 1e-3, 500
    case = replace(RICH, tracking=q0)
    with mp.workdps(DIGITS):
        t, n, M = mp.mpf(theta), 3, mp.mpf(1e-4) / 32
        a, beta = t / 2, 48 * t**3 + 32 * t**4 / n
        gamma = 96 * t**3 + 64 * t**4 / n
        delta = (16 * t**3 + 16 * t**2 / n) * M
        q = max(mp.mpf(q0), (6 * M + 144 * t**2 / 2) / (1 - 288 * t**2))
        root = mp.sqrt(beta**2 + 4 * a * (gamma * q + delta))
        m = (beta + root) / (2 * a)
        y = mp.mpf("0.5") - m
        for _ in range(T):
            y = y * (1 - root - a * y)
        rate = theorem_curve("th:direct-bellman", case, PostLocal(theta, 2.0)).rate(T)
        assert float(rate.floor) == pytest.approx(float(m), rel=EXACT)
    assert float(m + y) <= float(rate.value) <= float(m + 1.01 * y)
    assert rate.label == "th:direct-bellman"
    assert rate.holds


@rows
def test_no_recursion_exceeds_its_closed_bound(theorem: str, variant: Form) -> None:
    theta = np.geomspace(1e-4, 0.05, 9)
    bound = theorem_curve(theorem, RICH, PostLocal(theta, 2.0), variant)
    if bound.recursion is None:
        assert variant == "printed"
        return
    path = bound.recursion.trajectory(bound.start, 300).gap
    for T in (1, 10, 300):
        rate = bound.rate(T)
        closed = np.minimum(rate.value, 0.5)
        above = path[T] - closed
        assert rate.holds.any()
        assert (above[rate.holds] <= EXACT).all()
    assert (bound.floor <= bound.rate(1).floor).all()


@pytest.mark.parametrize("theorem", ["th:sur-cvx", "th:ho-main", "th:direct-bellman"])
def test_a_bound_that_is_undefined_is_infinite_and_says_why(theorem: str) -> None:
    rate = theorem_curve(theorem, RICH, PostLocal([0.01, 0.5], 2.0), "sharp").rate(10)
    assert np.isfinite(rate.value).tolist() == [True, False]
    assert rate.floor[1] == np.inf
    assert rate.vacuous[1]
    contracts = next(h for h in rate.hypotheses if h.name == "C < 1")
    h1 = 3 * 7 / (6 * 16)
    assert contracts.left[1] == pytest.approx(48 * (1 + h1) * 0.25, rel=EXACT)
    assert contracts.holds.tolist() == [True, False]
    for h in rate.hypotheses:
        if h.name.startswith("2am"):
            assert np.isnan(h.left).tolist() == [False, True]
            assert not h.holds[1]


def test_a_plain_branch_without_contraction_is_infinite() -> None:
    rate = theorem_curve("cor:realized-hom-PL", RICH, PostLocal([1e-3, 0.1], 2.0)).rate(
        10
    )
    assert np.isfinite(rate.value).tolist() == [True, False]
    contracts = next(h for h in rate.hypotheses if h.name == "0 < ρ")
    exact = 0.1 * 0.1 / 2 - 16 * 0.1**3 - 16 * 0.1**2
    assert contracts.right[1] == pytest.approx(exact, rel=EXACT)


@rows
def test_absent_clients_void_every_bound(theorem: str, variant: Form) -> None:
    full = theorem_curve(theorem, RICH, PostLocal(1e-3, 2.0), variant).rate(1)
    part = theorem_curve(
        theorem, replace(RICH, active=2), PostLocal(1e-3, 2.0), variant
    ).rate(1)
    assert full.holds
    assert not part.holds
    assert [h.name for h in part.hypotheses if not h.holds] == ["full participation"]


def test_fixed_shards_void_the_bounds_of_plain_branches_only() -> None:
    case = replace(RICH, sampling="fixed shards")
    held = {
        label: bool(theorem_curve(label, case, PostLocal(1e-3, 2.0)).rate(1).holds)
        for label in THEOREMS
    }
    assert held == {label: "hom" not in label for label in THEOREMS}
