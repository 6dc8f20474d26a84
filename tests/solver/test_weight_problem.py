"""A prepared problem: exact units, a certificate that rational arithmetic confirms."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import known_solutions as problems

from hewfl.solver.least_norm import SimplexQP
from hewfl.solver.weight_problem import WeightProblem, scale_problem


@given(seed=st.integers(0, 10_000), decade=st.integers(-150, 150))
def test_units_are_powers_of_two(seed: int, decade: int) -> None:
    """H = ΛG 2^−k to one rounding, c = q 2^−k exactly, the larger in [1/2, 1)."""
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((5, 8))
    size = 10.0**decade
    G, q = D @ D.T * size, rng.standard_normal(5) * size
    problem = scale_problem(0.5 * (G + G.T), q, 3.7)
    k = problem.exponent
    assert np.array_equal(np.ldexp(problem.c, k), q)
    assert np.ldexp(problem.H, k) == pytest.approx(3.7 * G, rel=1e-15)
    top = max(np.diagonal(problem.H).max(), np.abs(problem.c).max())
    assert 0.25 <= top < 1


def test_extremes_neither_overflow_nor_vanish() -> None:
    for size, curvature in [(1e300, 1e-300), (1e-300, 1e300), (1e-320, 1.0)]:
        problem = scale_problem(size * np.eye(2), np.zeros(2), curvature)
        assert np.isfinite(problem.H).all()
        assert problem.H[0, 0] >= 0.25
    empty = scale_problem(np.zeros((2, 2)), np.zeros(2), 1.0)
    assert (empty.exponent, empty.size) == (0, 0.0)


def test_a_skew_part_is_averaged_out(rng: np.random.Generator) -> None:
    G = rng.standard_normal((4, 4))
    G = G @ G.T
    skewed = G + np.triu(np.full((4, 4), 0.5), 1) - np.tril(np.full((4, 4), 0.5), -1)
    problem = scale_problem(skewed, np.zeros(4), 1.0)
    assert np.array_equal(problem.H, problem.H.T)
    assert np.ldexp(problem.H, problem.exponent) == pytest.approx(G, abs=1e-15)


def exactly(G: np.ndarray, q: np.ndarray, w: np.ndarray) -> tuple[Fraction, Fraction]:
    """Value and gap at Λ = 2 in rational numbers."""
    weights = [Fraction(x) for x in w.tolist()]
    rows = [[Fraction(x) for x in row] for row in G.tolist()]
    linear = [Fraction(x) for x in q.tolist()]
    products = [sum(map(Fraction.__mul__, row, weights), Fraction()) for row in rows]
    gradient = [2 * p + c for p, c in zip(products, linear, strict=True)]
    pairs = list(zip(weights, gradient, strict=True))
    means = [(g + c) / 2 for g, c in zip(gradient, linear, strict=True)]
    value = sum(map(Fraction.__mul__, weights, means), Fraction())
    return value, sum((w * (g - min(gradient)) for w, g in pairs), Fraction())


@given(seed=st.integers(0, 10_000), shift=st.sampled_from([0.0, 1e6]))
def test_the_certificate_is_that_of_rational_arithmetic(
    seed: int, shift: float
) -> None:
    rng = np.random.default_rng(seed)
    instance = problems.gaussian_instance(rng, 6, 9)
    D = instance.displacements
    G, q = D @ D.T, instance.linear + shift
    G = 0.5 * (G + G.T)
    w = rng.dirichlet(np.ones(6))
    problem = scale_problem(G, q, 2.0)
    assert isinstance(problem, SimplexQP)
    multipliers, value, gap = problem.certificate(w)
    exact_value, exact_gap = exactly(G, q, w)
    assert value == pytest.approx(float(exact_value), rel=1e-13)
    assert gap == pytest.approx(float(exact_gap), rel=1e-12 + 1e-16 * shift)
    assert multipliers.min() == 0
    cost, scale = problem.reduced_costs(w)
    assert (cost + np.ldexp(gap, -problem.exponent)) == pytest.approx(
        np.ldexp(multipliers, -problem.exponent), abs=1e-13 * float(scale.max())
    )


def test_levelling_moves_a_minimiser_by_rounding_only(rng: np.random.Generator) -> None:
    instance = problems.constructed_instance(rng, 10, 30, 6)
    assert instance.weights is not None
    w = instance.weights
    problem = scale_problem(instance.gram, instance.linear, 1.0)
    noisy = np.where(w > 0, w + 1e-10 * rng.standard_normal(10), 0.0)
    noisy /= noisy.sum()
    level = problem.polish(noisy)
    assert np.abs(level - w).max() <= 1e-13 < np.abs(noisy - w).max()
    assert (level[w == 0] == 0).all()


def test_a_face_says_whether_it_is_independent(rng: np.random.Generator) -> None:
    D = rng.standard_normal((6, 3))
    problem = WeightProblem(D @ D.T, np.zeros(6), 0)
    assert problem.face_basis(np.arange(4)) is None
    basis = problem.face_basis(np.arange(6))
    assert basis is not None
    assert basis.shape == (6, 4)
