"""A random quadratic problem has the constants it was built from."""

from typing import Any

import numpy as np
import pytest
from tests.simulation.unchecked import unchecked

from hewfl import InvalidInputError
from hewfl.problems import random_quadratic

ROUNDING = 1e-11


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize(("n", "d", "kappa"), [(1, 1, 1.0), (2, 3, 1.0), (7, 5, 1e4)])
def test_constants_are_as_asked(n: int, d: int, kappa: float, common: bool) -> None:
    noise = np.linspace(0, 3, n)
    problem = random_quadratic(
        5,
        n,
        d,
        samples=np.arange(n) + 2,
        smoothness=4.0,
        conditioning=kappa,
        heterogeneity=2.5,
        noise=noise,
        common_hessian=common,
    )
    spectra = np.linalg.eigvalsh(problem.hessians)
    assert problem.smoothness == pytest.approx(4.0, rel=ROUNDING)
    assert spectra.max() == pytest.approx(4.0, rel=ROUNDING)
    if d > 1:
        assert spectra.min() == pytest.approx(4.0 / kappa, rel=1e-14 * kappa + ROUNDING)
    assert np.abs(problem.variance_bounds() - noise**2).max() <= ROUNDING
    expected = 2.5**2 if n > 1 else 0.0
    assert problem.heterogeneity() == pytest.approx(expected, rel=1e-8, abs=1e-20)
    spread = np.ptp(problem.hessians, axis=0).max()  # with κ = 1 every A_i is 4I
    assert (spread <= ROUNDING) == (common or n == 1 or kappa == 1)
    assert problem.data_sizes.tolist() == [k + 2 for k in range(n)]
    start = problem.distance_to_optimum(np.zeros((1, d)))
    assert start == pytest.approx([1.0], rel=1e-8)
    assert problem.evaluate(np.zeros((1, d)))["distance_to_optimum"] == start


def test_a_seed_is_a_problem() -> None:
    one, same, other = (random_quadratic(seed, 3, 2) for seed in (1, 1, 2))
    assert (one.hessians == same.hessians).all()
    assert (one.noise == same.noise).all()
    assert (one.centers != other.centers).all()


def test_without_heterogeneity_clients_agree() -> None:
    problem = random_quadratic(1, 4, 3, heterogeneity=0.0, common_hessian=True)
    assert np.ptp(problem.client_losses(np.ones((2, 3))), axis=1).max() <= 1e-14
    assert problem.optimum().objective <= 1e-25


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n": 0}, "`n, d` must be at least 1"),
        ({"n": 2.5}, "`n` must be a whole number; got 2.5"),
        ({"d": "2"}, "`d` must be a whole number; got '2'"),
        ({"seed": -1}, "`seed` must be at least 0; got -1"),
        ({"smoothness": -1.0}, "`smoothness` must be a positive finite number"),
        ({"conditioning": 0.5}, "`conditioning` must be at least 1; got 0.5"),
        ({"heterogeneity": -1.0}, "`heterogeneity` must be a nonnegative"),
        ({"noise": [1.0, 2.0]}, r"`noise` must be a number or 3 of them; got shape"),
        ({"noise": -1.0}, "`noise` must be nonnegative; got -1.0"),
        ({"samples": 1}, "`samples` must be at least 2 where `noise` is positive"),
        ({"samples": 2.5}, "`samples` must be whole numbers of at least 1; got 2.5"),
    ],
)
def test_bad_recipes_are_refused(changes: dict[str, Any], text: str) -> None:
    arguments = {"seed": 0, "n": 3, "d": 2, **changes}
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        random_quadratic(**arguments)
