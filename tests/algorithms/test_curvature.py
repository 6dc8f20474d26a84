"""The secant estimate on quadratics, whose curvature is known."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import InvalidInputError
from hewfl.algorithms.online_curvature import (
    Curvature,
    first_curvature,
    mean_local_gradient,
    updated_curvature,
)
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.displacements.dense import matrix_round

Array = NDArray[Any]


def round_at(x: Array, gradients: Array) -> Round:
    """A round whose clients found these mean gradients, with unequal local work."""
    s = len(gradients)
    ones = np.ones(s, dtype=np.int64)
    cohort = Cohort(np.arange(s), np.arange(1, s + 1), ones, ones, s)
    eta = 0.1 + np.arange(s)
    ground = eta * cohort.horizons
    return matrix_round(x, -gradients * ground[:, None], cohort, LocalPlan(eta))


TILT = np.array([[1.0], [-2.0], [1.0]])
"""Three clients that agree on average."""


def followed(L: float, known: Curvature, rounds: int, **given: float) -> Curvature:
    """Gradient descent on (L/2)‖x‖²."""
    x = np.array([3.0, -4.0])
    for _ in range(rounds):
        known = updated_curvature(known, round_at(x, L * x + TILT), **given)
        x = x * 0.99
    return known


def test_gradient_of_a_round_is_the_plain_mean(rng: np.random.Generator) -> None:
    gradients = rng.standard_normal((3, 2))
    found = mean_local_gradient(round_at(np.zeros(2), gradients))
    assert found == pytest.approx(gradients.mean(axis=0), rel=1e-12)


@pytest.mark.parametrize("L", [0.01, 1.0, 300.0])
def test_finds_the_curvature_of_a_quadratic(L: float) -> None:
    found = followed(L, first_curvature(1.0, 2), 400)
    assert found.value == pytest.approx(L, rel=1e-9)


def test_follows_the_curvature_along_the_path(rng: np.random.Generator) -> None:
    """Between the eigenvalues always; in the end that of the steps taken."""
    eigenvalues = np.array([0.3, 2.0, 9.0])
    basis, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    A = basis @ np.diag(eigenvalues) @ basis.T
    x, known = basis @ np.array([1e-6, 1.0, 30.0]), first_curvature(4.0, 3)
    steep, met = 0.0, 0.0
    for _ in range(300):
        known = updated_curvature(known, round_at(x, A @ x + TILT))
        assert 0.3 - 1e-9 <= known.value <= 9.0 + 1e-9
        steep = max(steep, known.value)
        move = -0.01 * (A @ x)
        met = float(np.linalg.norm(A @ move) / np.linalg.norm(move))
        x = x + move
    assert steep > 8.9  # while the steep direction dominated
    assert known.value == pytest.approx(met, rel=1e-2)
    assert known.value < 2.1


def test_one_round_moves_it_little() -> None:
    start = first_curvature(1.0, 2)
    assert followed(1e9, start, 1).value == 1.0
    assert followed(1e9, start, 2).value == pytest.approx(4**0.2)
    given = {"memory": 0.0}
    assert followed(1e-9, start, 2, **given).value == pytest.approx(1 / 4)


def test_it_stays_above_its_floor() -> None:
    assert followed(1e-9, first_curvature(1.0, 2), 100, floor=0.25).value == 0.25


def test_a_standstill_teaches_nothing() -> None:
    x, g = np.ones(2), np.ones((2, 2))
    known = updated_curvature(first_curvature(5.0, 2), round_at(x, g))
    for gradients in (g, g + 1):
        assert updated_curvature(known, round_at(x, gradients)).value == 5.0
    same = updated_curvature(known, round_at(x + 1, g))
    assert same.value == 5.0
    assert (same.anchor == x + 1).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e200])
def test_what_is_not_finite_teaches_nothing(bad: float) -> None:
    x, g = np.ones(2), np.ones((2, 2))
    known = updated_curvature(first_curvature(5.0, 2), round_at(x, g))
    wild = updated_curvature(known, round_at(x + 1, g * bad))
    lost = updated_curvature(known, round_at(x * bad, g))
    for found in (wild, lost):
        assert found.value == 5.0
        assert np.isfinite(found.anchor).all()
        assert np.isfinite(found.gradient).all()
    back = updated_curvature(wild, round_at(x, g))
    back = updated_curvature(back, round_at(x + 1, g + 2.0))  # a secant of 2
    assert back.value < 5.0


@pytest.mark.parametrize(
    ("value", "given", "text"),
    [
        (1.0, {"memory": 1.0}, "`memory` must be at least 0 and below 1; got 1.0"),
        (1.0, {"floor": -1.0}, "`floor` must be a nonnegative finite number; got -1"),
    ],
)
def test_bad_numbers(value: float, given: dict[str, float], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        followed(1.0, first_curvature(value, 2), 1, **given)


@pytest.mark.parametrize("guess", [0.0, -1.0, np.nan, np.inf])
def test_a_guess_is_positive(guess: float) -> None:
    with pytest.raises(InvalidInputError, match="`guess` must be a positive finite"):
        first_curvature(guess, 2)
