"""The secant estimate on quadratics, whose curvature is known."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import InvalidInputError
from hewfl.core.round import LocalPlan, Roster, Round
from hewfl.problems.torch_curvature import (
    Curvature,
    mean_local_gradient,
    updated_curvature,
)

pytestmark = pytest.mark.torch
Array = NDArray[Any]


def round_at(x: Array, gradients: Array) -> Round:
    """A round whose clients found these mean gradients, with unequal local work."""
    s = len(gradients)
    ones = np.ones(s, dtype=np.int64)
    roster = Roster(np.arange(s), np.arange(1, s + 1), ones, ones, s)
    eta = 0.1 + np.arange(s)
    ground = eta * roster.horizons
    return Round(x, -gradients * ground[:, None], roster, LocalPlan(eta))


def followed(L: float, known: Curvature, rounds: int, **given: float) -> Curvature:
    """Gradient descent on (L/2)‖x‖², seen by three clients that agree on average."""
    x = np.array([3.0, -4.0])
    tilt = np.array([[1.0], [-2.0], [1.0]])
    for _ in range(rounds):
        known = updated_curvature(known, round_at(x, L * x + tilt), **given)
        x = x * 0.99
    return known


def test_gradient_of_a_round_is_the_plain_mean(rng: np.random.Generator) -> None:
    gradients = rng.standard_normal((3, 2))
    found = mean_local_gradient(round_at(np.zeros(2), gradients))
    assert found == pytest.approx(gradients.mean(axis=0), rel=1e-12)


@pytest.mark.parametrize("L", [0.01, 1.0, 300.0])
def test_finds_the_curvature_of_a_quadratic(L: float) -> None:
    assert followed(L, Curvature(1.0), 400).value == pytest.approx(L, rel=1e-9)


def test_one_round_moves_it_little() -> None:
    start = Curvature(1.0)
    assert followed(1e9, start, 1).value == 1.0
    assert followed(1e9, start, 2).value == pytest.approx(2**0.1)
    given = {"memory": 0.0, "most": 3.0}
    assert followed(1e-9, start, 2, **given).value == pytest.approx(1 / 3)


def test_a_standstill_teaches_nothing() -> None:
    x, g = np.ones(2), np.ones((2, 2))
    known = updated_curvature(Curvature(5.0), round_at(x, g))
    for gradients in (g, g + 1, g * np.inf):
        with np.errstate(invalid="ignore"):
            found = updated_curvature(known, round_at(x, gradients))
        assert found.value == 5.0
    same = updated_curvature(known, round_at(x + 1, g))
    assert same.value == 5.0
    assert same.anchor is not None
    assert (same.anchor == x + 1).all()


@pytest.mark.parametrize(
    ("value", "given", "text"),
    [
        (0.0, {}, "`value` must be a positive finite number; got 0.0"),
        (1.0, {"memory": 1.0}, "`memory` must be at least 0 and below 1; got 1.0"),
        (1.0, {"most": 1.0}, "`most` must be above 1; got 1.0"),
    ],
)
def test_bad_numbers(value: float, given: dict[str, float], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        followed(1.0, Curvature(value), 1, **given)
