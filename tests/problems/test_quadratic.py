"""Quadratic problems: closed forms, and prescribed constants."""

from typing import Any

import numpy as np
import pytest
from tests.simulation.unchecked import unchecked

from hewfl import InvalidInputError
from hewfl.problems import Quadratic, random_quadratic

ROUNDING = 1e-11


def test_strong_convexity_is_that_of_the_mean(rng: np.random.Generator) -> None:
    problem = random_quadratic(2, 5, 4)
    mu, optimum = problem.strong_convexity, problem.optimum()
    x = optimum.x + rng.standard_normal((50, 4))
    gain = problem.objectives(x)[:, 0] - optimum.objective
    sq_distance = problem.distance_to_optimum(x) ** 2
    assert (gain >= 0.5 * mu * sq_distance * (1 - ROUNDING)).all()
    v = np.linalg.eigh(problem.hessians.mean(axis=0))[1][:, 0]
    tight = problem.objectives((optimum.x + v)[None, :])[0, 0] - optimum.objective
    assert tight == pytest.approx(0.5 * mu, rel=1e-9)


def test_smoothness_is_attained() -> None:
    problem = random_quadratic(2, 3, 4)
    values, vectors = np.linalg.eigh(problem.hessians)
    v = vectors[values[:, -1].argmax(), :, -1]
    change = problem.full_gradients(np.stack([v, 0 * v]))
    rate = np.linalg.norm(change[0] - change[1], axis=1).max()
    assert rate == pytest.approx(problem.smoothness, rel=ROUNDING)


def test_two_clients_by_hand() -> None:
    """F_1 = ½(x−1)², F_2 = (x+2)²: x* = (1 − 4)/3 = −1, F* = ½(2 + 1) = 1.5."""
    problem = Quadratic(
        hessians=np.array([[[1.0]], [[2.0]]]),
        centers=np.array([[1.0], [-2.0]]),
        noise=np.array([[3.0], [-3.0], [0.0]]),
        data_sizes=np.array([2, 1]),
    )
    optimum = problem.optimum()
    assert optimum.x == pytest.approx([-1.0])
    assert optimum.objective == pytest.approx(1.5)
    assert problem.pooled_optimum().x == pytest.approx([(2 * 1 - 1 * 4) / 4])
    assert problem.variance_bounds().tolist() == [9.0, 0.0]
    assert problem.heterogeneity() == pytest.approx(4.0)
    gradients = problem.minibatch_gradients(
        np.zeros((1, 2, 1)), np.array([[0], [2]]), np.array([1, 1])
    )
    assert gradients.ravel().tolist() == [2.0, 4.0]


def test_semidefinite_clients_are_welcome() -> None:
    A = np.array([[[1.0, 0], [0, 0]], [[0, 0], [0, 1.0]]])
    b = np.array([[1.0, 5], [7, 2]])
    problem = Quadratic(A, b, np.zeros((2, 2)), np.array([1, 1]))
    assert problem.optimum().x == pytest.approx([1.0, 2.0])
    assert problem.optimum().objective == pytest.approx(0.0, abs=1e-15)


def arguments(**changes: Any) -> dict[str, Any]:
    good = {
        "hessians": np.stack([np.eye(2), 2 * np.eye(2)]),
        "centers": np.zeros((2, 2)),
        "noise": np.array([[1.0, 0], [-1, 0], [0, 0]]),
        "data_sizes": np.array([2, 1]),
    }
    return {**good, **changes}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"hessians": np.eye(2)}, r"`hessians` must be of shape \(n, d, d\)"),
    ({"hessians": np.ones((2, 2, 3))}, r"`hessians` must be of shape \(2, 2, 2\)"),
    ({"centers": np.zeros((2, 3))}, r"`centers` must be of shape \(2, 2\); got"),
    ({"noise": np.zeros((4, 2))}, r"`noise` must be of shape \(3, 2\); got \(4, 2\)"),
    ({"data_sizes": np.array([3])}, r"`data_sizes` must be of shape \(2,\)"),
    ({"data_sizes": np.array([3, 0])}, "`data_sizes` must be at least 1; got 0"),
    ({"data_sizes": np.array([2.0, 1.0])}, "`data_sizes` must be whole numbers"),
    ({"noise": np.full((3, 2), np.nan)}, "`noise` must be finite"),
    ({"noise": np.ones((3, 2))}, r"`noise` must be of mean zero in every client; got"),
    ({"hessians": np.array([[[1.0, 1], [0, 1]]] * 2)}, "`hessians` must be symmetric"),
    (
        {"hessians": np.stack([np.eye(2), -np.eye(2)])},
        "`hessians` must be positive semidefinite",
    ),
    (
        {"hessians": np.stack([np.diag([1.0, 0])] * 2)},
        "`hessians` must be positive definite on average",
    ),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_arrays_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Quadratic(**arguments(**changes))


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
