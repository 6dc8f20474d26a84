"""The threshold law: exact cases, proofs attached, relations, second opinions."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import clarabel
import numpy as np
import piqp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from tests.tolerances import GAP, SECOND_OPINION

from hewfl import InvalidInputError, SimplexSolution, threshold_weights
from hewfl.solver.threshold import LEAST_NORM, UNIQUE, threshold_law

Array = NDArray[np.float64]
Problem = tuple[Array, Array]

DIGITS = 1e-13
"""Relative error of a weight against exact arithmetic, about n roundings."""


@st.composite
def problems(draw: st.DrawFn, *, decades: float = 12, riskless: bool = True) -> Problem:
    """Gains and risks over many decades, with ties and riskless clients."""
    n = draw(st.integers(1, 12))
    common = draw(st.floats(-200, 200))
    power = st.floats(-decades, decades)
    risk = st.one_of(st.just(-np.inf), power) if riskless else power
    scale = draw(power)
    levels = draw(st.lists(st.integers(-40, 40), min_size=n, max_size=n))
    risks = draw(st.lists(risk, min_size=n, max_size=n))
    gains = np.array(levels) * 10.0 ** (common + scale)
    return gains, 10.0 ** (common + np.array(risks))


def relative_gap(solution: SimplexSolution, gains: Array, risks: Array) -> float:
    size = (risks * solution.weights).max(-1) + np.ptp(gains, axis=-1)
    return float(np.max(solution.gap / np.where(size > 0, size, 1.0)))


def exact_weights(gains: Array, risks: Array) -> list[Fraction]:
    """The law in rational arithmetic, by trying every support of the largest gains."""
    mu = [Fraction(float(x)) for x in gains]
    r = [Fraction(float(x)) for x in risks]
    order = sorted(range(len(mu)), key=lambda i: -mu[i])
    for k in range(1, len(mu) + 1):
        inside = order[:k]
        mass = sum((1 / r[i] for i in inside), Fraction(0))
        lam = (sum((mu[i] / r[i] for i in inside), Fraction(-1))) / mass
        if k == len(mu) or mu[order[k]] <= lam:
            return [max(mu[i] - lam, Fraction(0)) / r[i] for i in range(len(mu))]
    raise AssertionError


# ------------------------------------------------------------------ proofs


@given(problems())
def test_solution_is_proved(problem: Problem) -> None:
    gains, risks = problem
    solution = threshold_weights(gains, risks)
    w = solution.weights
    assert w.min() >= 0
    assert w.sum() == pytest.approx(1, abs=1e-15)
    assert relative_gap(solution, gains, risks) <= GAP
    gradient = risks * w - (gains - gains.max())
    expected = gradient - gradient.min()
    assert solution.multipliers == pytest.approx(expected, abs=GAP * gradient.max())
    assert float(solution.gap) == pytest.approx(float(w @ solution.multipliers))
    value = float(0.5 * w @ (risks * w) - w @ gains)
    assert float(solution.value) == pytest.approx(value, rel=1e-12, abs=1e-300)
    assert np.array_equal(solution.support, w > 0)
    assert int(solution.iterations) == 1


@given(problems(decades=6, riskless=False))
def test_weights_match_rational_arithmetic(problem: Problem) -> None:
    gains, risks = problem
    exact = exact_weights(gains, risks)
    w = threshold_weights(gains, risks).weights
    for approximate, fraction in zip(w, exact, strict=True):
        assert abs(Fraction(float(approximate)) - fraction) <= DIGITS * max(
            fraction, Fraction(1, 1000)
        )


def test_risks_over_many_decades(rng: np.random.Generator) -> None:
    for _ in range(200):
        n, span = int(rng.integers(1, 40)), float(rng.choice([24, 60, 120]))
        risks = 10 ** rng.uniform(-span / 2, span / 2, n)
        gains = rng.normal(size=n) * 10 ** rng.uniform(-span / 2, span / 2)
        gains = gains + float(rng.choice([0.0, 1e12]))
        solution = threshold_weights(gains, risks)
        assert relative_gap(solution, gains, risks) <= GAP


def test_a_nearly_riskless_client_takes_half() -> None:
    """λ is within 1e-24 of the second gain: a scalar λ in float64 gives (1, 0)."""
    w = threshold_weights([0.0, -1.0], [2.0, 1e-24]).weights
    assert w == pytest.approx([0.5, 0.5], rel=1e-15)


def test_a_client_exactly_at_the_threshold(rng: np.random.Generator) -> None:
    """One rounding of the threshold over a tiny risk must not become a weight."""
    for _ in range(500):
        n = int(rng.integers(1, 9))
        gains, risks = rng.normal(size=n), rng.uniform(0.1, 10, n)
        threshold = threshold_law(gains, risks).level
        gains, risks = np.append(gains, threshold), np.append(risks, 1e-30)
        assert relative_gap(threshold_weights(gains, risks), gains, risks) <= GAP


def test_a_hundred_thousand_clients(rng: np.random.Generator) -> None:
    gains, risks = rng.normal(size=100_000), rng.uniform(0.5, 1, 100_000) * 1e5
    solution = threshold_weights(gains, risks)
    assert relative_gap(solution, gains, risks) <= GAP
    assert 50_000 < solution.support.sum() < 100_000


# ------------------------------------------------------------------ known solutions


@pytest.mark.parametrize("difference", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_two_clients(difference: float) -> None:
    """w₁ = ½ + (μ₁ − μ₂)/(2r) up to one."""
    w = threshold_weights([difference, 0.0], [2.0, 2.0]).weights
    first = min(0.5 + difference / 4, 1.0)
    assert w == pytest.approx([first, 1 - first], abs=1e-16)


def test_equal_gains_share_inversely_to_risk(rng: np.random.Generator) -> None:
    risks = 10 ** rng.uniform(-6, 6, 9)
    w = threshold_weights(np.full(9, 3.7), risks).weights
    assert w == pytest.approx(1 / risks / (1 / risks).sum(), rel=1e-14)


@given(problems(decades=3, riskless=False), st.floats(-3, 3))
def test_a_chosen_solution_is_found(problem: Problem, threshold: float) -> None:
    """Gains μ_i = λ + r_i w_i on the support and below λ elsewhere."""
    levels, risks = problem
    risks = risks / risks.max()
    w = np.maximum(levels, 0)
    w = w / w.sum() if w.any() else np.eye(len(w))[0]
    gains = np.where(w > 0, threshold + risks * w, threshold - 1.0)
    answer_ = threshold_weights(gains, risks).weights
    assert risks * answer_ == pytest.approx(risks * w, abs=1e-14)


def test_one_client() -> None:
    for risk in (0.0, 1e-300, 1.0, 1e300):
        solution = threshold_weights([-5.0], [risk])
        assert solution.weights.tolist() == [1.0]
        assert float(solution.gap) == 0.0


def test_no_risk_takes_the_best_and_much_risk_spreads() -> None:
    gains = np.array([1.0, 3.0, 2.0])
    risks = np.array([1.0, 2.0, 4.0])
    assert threshold_weights(gains, 1e-9 * risks).weights.tolist() == [0.0, 1.0, 0.0]
    spread = threshold_weights(gains, 1e12 * risks).weights
    assert spread == pytest.approx(np.array([4, 2, 1]) / 7, rel=1e-11)


# ------------------------------------------------------------------ riskless (E-05)


def test_riskless_clients_split_what_the_others_leave() -> None:
    solution = threshold_weights([2.0, 1.0, 1.0, 0.5, 1.0], [4.0, 0.0, 0.0, 0.0, 1.0])
    assert solution.weights.tolist() == [0.25, 0.375, 0.375, 0.0, 0.0]
    assert solution.status == LEAST_NORM
    assert float(solution.gap) == 0.0


def test_a_single_riskless_client_is_unique() -> None:
    solution = threshold_weights([2.0, 1.0], [4.0, 0.0])
    assert solution.weights.tolist() == [0.25, 0.75]
    assert solution.status == UNIQUE


def test_riskless_clients_get_nothing_below_the_threshold() -> None:
    solution = threshold_weights([2.0, 1.0, 1.0], [0.5, 0.0, 0.0])
    assert solution.weights.tolist() == [1.0, 0.0, 0.0]
    assert solution.status == UNIQUE


def test_only_riskless_clients() -> None:
    solution = threshold_weights([1.0, 2.0, 2.0, 2.0], np.zeros(4))
    assert solution.weights == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert solution.status == LEAST_NORM


@given(problems(decades=4, riskless=False))
def test_riskless_is_the_limit_of_small_risk(problem: Problem) -> None:
    gains, risks = problem[0] / problem[1].max(), problem[1] / problem[1].max()
    risks[0] = 0.0
    exact = threshold_weights(gains, risks)
    risks[0] = 1e-280
    near = threshold_weights(gains, risks)
    size = float(np.ptp(gains) + (risks * exact.weights).max())
    tolerance = 1e-13 * size + 1e-280
    assert float(near.value) == pytest.approx(float(exact.value), abs=tolerance)


# ------------------------------------------------------------------ relations


@given(problems(), st.integers(0, 1000))
def test_permuting_clients_permutes_weights(problem: Problem, seed: int) -> None:
    gains, risks = problem
    order = np.random.default_rng(seed).permutation(len(gains))
    w = threshold_weights(gains, risks).weights
    permuted = threshold_weights(gains[order], risks[order]).weights
    assert permuted == pytest.approx(w[order], rel=1e-12, abs=1e-13)


@given(problems(decades=6), st.integers(-300, 300))
def test_scaling_by_a_power_of_two_changes_no_bit(problem: Problem, k: int) -> None:
    gains, risks = problem
    w = threshold_weights(gains, risks).weights
    scaled = threshold_weights(np.ldexp(gains, k), np.ldexp(risks, k)).weights
    assert np.array_equal(w, scaled)


@given(st.lists(st.integers(-64, 64), min_size=1, max_size=9), st.sampled_from([1, -1]))
def test_an_offset_of_the_gains_changes_no_bit(levels: list[int], sign: int) -> None:
    gains = np.array(levels) / 64
    risks = 1.0 + np.arange(len(levels))
    w = threshold_weights(gains, risks).weights
    assert np.array_equal(w, threshold_weights(gains + sign * 1e12, risks).weights)


def test_duplicates_share(rng: np.random.Generator) -> None:
    gains, risks = rng.normal(size=6), rng.uniform(0.5, 2, 6)
    w = threshold_weights(np.tile(gains, 3), np.tile(risks, 3)).weights.reshape(3, 6)
    assert np.array_equal(w[0], w[1])
    assert np.array_equal(w[0], w[2])
    merged = threshold_weights(gains, risks / 3).weights
    assert w.sum(0) == pytest.approx(merged, abs=1e-15)


def test_a_batch_is_its_problems(rng: np.random.Generator) -> None:
    gains = rng.normal(size=(4, 3, 7))
    risks = rng.uniform(0, 2, size=(3, 7)) * (rng.random((3, 7)) < 0.8)
    batch = threshold_weights(gains, risks)
    assert batch.weights.shape == (4, 3, 7)
    assert batch.gap.shape == batch.value.shape == batch.iterations.shape == (4, 3)
    for i, j in np.ndindex(4, 3):
        one = threshold_weights(gains[i, j], risks[j])
        assert np.array_equal(batch.weights[i, j], one.weights)
        assert batch.value[i, j] == one.value
        assert batch.gap[i, j] == one.gap


def test_arguments_are_not_written_to() -> None:
    gains, risks = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    threshold_weights(gains, risks)
    assert gains.tolist() == [1.0, 0.0]
    assert risks.tolist() == [0.0, 1.0]


# ------------------------------------------------------------------ second opinions


def clarabel_value(gains: Array, risks: Array) -> float:
    n = len(gains)
    constraints = sparse.csc_matrix(np.vstack([np.ones(n), -np.eye(n)]))
    right = np.concatenate([[1.0], np.zeros(n)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    P = sparse.csc_matrix(np.diag(risks))
    solver = clarabel.DefaultSolver(P, -gains, constraints, right, cones, settings)
    return float(solver.solve().obj_val)


def piqp_value(gains: Array, risks: Array) -> float:
    n = len(gains)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-10
    solver.setup(np.diag(risks), -gains, np.ones((1, n)), np.ones(1), x_l=np.zeros(n))
    solver.solve()
    x = np.asarray(solver.result.x)
    return float(0.5 * x @ (risks * x) - gains @ x)


@pytest.mark.parametrize("library", [clarabel_value, piqp_value])
def test_libraries_agree_on_diagonal_problems(
    library: Callable[[Array, Array], float], rng: np.random.Generator
) -> None:
    for n in (2, 5, 20, 60):
        gains, risks = rng.normal(size=n), 10 ** rng.uniform(-2, 2, n)
        value = float(threshold_weights(gains, risks).value)
        assert value == pytest.approx(library(gains, risks), abs=SECOND_OPINION)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("gains", "risks", "text"),
    [
        ([1.0, np.nan], [1.0, 1.0], r"`gains` must be finite; got nan at index \(1,\)"),
        ([1.0, 2.0], [1.0, np.inf], r"`risks` must be finite; got inf at index \(1,\)"),
        ([1.0, 2.0], [1.0, -0.5], r"`risks` must be nonnegative; got -0\.5"),
        (
            [1.0, 2.0],
            [1.0, 1.0, 1.0],
            r"`risks` must be of a shape that broadcasts with",
        ),
        ([], [], r"`gains` must be of shape \(\*batch, n\), n ≥ 1, with `risks`; got"),
        (
            1.0,
            1.0,
            r"`gains` must be of shape \(\*batch, n\), n ≥ 1, with `risks`; got",
        ),
        (["a"], [1.0], r"`gains` must be an array of real numbers; got"),
        ([1e308, -1e308], [1.0, 1.0], r"`gains` must be a finite distance apart; got"),
    ],
)
def test_bad_input_is_named(gains: Any, risks: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        threshold_weights(gains, risks)
