"""Quadratics: every constant they claim, measured."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import InvalidInputError
from hewfl.problems import Problem, Quadratic, random_quadratic

Array = NDArray[np.floating]


@pytest.fixture(scope="module")
def problem() -> Quadratic:
    return random_quadratic(3, n=6, d=4, samples=10)


def sample_loss(problem: Quadratic, i: int, j: int, x: Array) -> float:
    away = x - problem.centers[i]
    return float(0.5 * away @ problem.hessians[i] @ away + problem.noise[j] @ x)


def rows(problem: Quadratic, i: int) -> range:
    return range(problem.offsets[i], problem.offsets[i] + problem.data_sizes[i])


def test_it_is_a_problem(problem: Quadratic) -> None:
    assert isinstance(problem, Problem)
    assert problem.smoothness == pytest.approx(1.0)


def test_losses_are_means_of_sample_losses(
    problem: Quadratic, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, problem.d))
    losses = problem.client_losses(x)
    for i in range(problem.n):
        mean = np.mean([sample_loss(problem, i, j, x[1]) for j in rows(problem, i)])
        assert losses[1, i] == pytest.approx(mean)
    sizes = problem.data_sizes
    objectives = problem.objectives(x)
    assert objectives[:, 0] == pytest.approx(losses.mean(axis=1))
    assert objectives[:, 1] == pytest.approx(losses @ sizes / sizes.sum())


def test_minibatch_gradients_by_finite_differences(
    problem: Quadratic, rng: np.random.Generator
) -> None:
    clients = [4, 0, 2]
    samples = np.stack([rng.choice(list(rows(problem, i)), 5) for i in clients])
    counts = np.array([5, 1, 3])
    y = rng.standard_normal((2, 3, problem.d))
    g = problem.minibatch_gradients(y, samples, counts)
    step = 1e-5 * np.eye(problem.d)
    for a, i in enumerate(clients):
        for k in range(problem.d):
            up, down = y[1, a] + step[k], y[1, a] - step[k]
            used = samples[a, : counts[a]]
            slope = np.mean(
                [
                    sample_loss(problem, i, j, up) - sample_loss(problem, i, j, down)
                    for j in used
                ]
            )
            assert g[1, a, k] == pytest.approx(slope / 2e-5, abs=1e-8)
    padded = samples.copy()
    padded[1, 1:] = samples[1, 0]
    again = problem.minibatch_gradients(y, padded, counts)
    assert np.array_equal(g[:, 1], again[:, 1])
    single = problem.minibatch_gradients(y[:1], samples, counts)
    assert np.abs(single[0] - g[0]).max() < 1e-14


def test_full_gradients_are_means_of_all_samples(
    problem: Quadratic, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((1, problem.d))
    exact = problem.full_gradients(x)[0]
    for i in range(problem.n):
        batch = np.array([list(rows(problem, i))])
        models = np.tile(x, (1, 1, 1))
        mean = problem.minibatch_gradients(models, batch, problem.data_sizes[i : i + 1])
        assert np.abs(mean[0, 0] - exact[i]).max() < 1e-12


def test_the_variance_is_exact_everywhere(
    problem: Quadratic, rng: np.random.Generator
) -> None:
    for x in rng.standard_normal((3, problem.d)) * 10:
        for i in range(problem.n):
            each = np.array([[j] for j in rows(problem, i)])
            m = len(each)
            g = problem.minibatch_gradients(
                np.tile(x, (1, m, 1)), each, np.ones(m, np.int64)
            )[0]
            spread = ((g - g.mean(axis=0)) ** 2).sum(axis=1).mean()
            assert spread == pytest.approx(problem.variance_bounds()[i])


def test_the_optimum_is_one(problem: Quadratic, rng: np.random.Generator) -> None:
    for best, column in ((problem.optimum(), 0), (problem.pooled_optimum(), 1)):
        assert best.residual < 1e-13
        others = best.x + rng.standard_normal((50, problem.d))
        assert (problem.objectives(others)[:, column] > best.objective).all()
        assert best.gap < 1e-20
    gradient = problem.full_gradients(problem.optimum().x[None])[0].mean(axis=0)
    assert np.abs(gradient).max() < 1e-13
    assert problem.evaluate(problem.optimum().x[None])["distance_to_optimum"][0] == 0


def test_smoothness_and_strong_convexity(
    problem: Quadratic, rng: np.random.Generator
) -> None:
    L, mu, best = problem.smoothness, problem.strong_convexity, problem.optimum()
    for _ in range(50):
        x, y = rng.standard_normal((2, problem.d))
        apart = problem.full_gradients(np.stack([x, y]))
        change = np.linalg.norm(apart[0] - apart[1], axis=1).max()
        assert change <= L * np.linalg.norm(x - y) * (1 + 1e-12)
        gap = problem.objectives(x[None])[0, 0] - best.objective
        assert gap >= 0.5 * mu * np.linalg.norm(x - best.x) ** 2 * (1 - 1e-9)


def test_knobs_of_the_generator() -> None:
    same = random_quadratic(0, n=3, d=3, heterogeneity=0.0, noise=0.0)
    assert np.ptp(same.centers, axis=0).max() < 1e-12
    assert same.variance_bounds().max() == 0
    assert same.optimum().objective < 1e-25
    shared = random_quadratic(0, n=3, d=3, common_hessian=True, conditioning=1.0)
    assert np.abs(shared.hessians - np.eye(3)).max() < 1e-12
    noisy = random_quadratic(0, n=3, d=4, heterogeneity=2.0, noise=[1.0, 2.0, 3.0])
    assert noisy.variance_bounds() == pytest.approx([1, 4, 9])
    assert noisy.heterogeneity() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hessians": -np.eye(2)[None]}, "`hessians` must be positive semidefinite"),
        ({"hessians": np.array([[[1.0, 1], [0, 1]]])}, "`hessians` must be symmetric"),
        ({"noise": np.ones((3, 2))}, "`noise` must be of mean zero in every client"),
        ({"data_sizes": np.array([2])}, "`noise` must be of shape"),
        ({"centers": np.array([[np.nan, 0.0]])}, "`centers` must be finite"),
    ],
)
def test_bad_arrays_are_named(change: dict[str, Array], text: str) -> None:
    good = {
        "hessians": np.eye(2)[None],
        "centers": np.zeros((1, 2)),
        "noise": np.zeros((3, 2)),
        "data_sizes": np.array([3]),
    }
    with pytest.raises(InvalidInputError, match=text):
        Quadratic(**(good | change))


def test_bad_knobs_are_named() -> None:
    with pytest.raises(InvalidInputError, match="`conditioning` must be at least 1"):
        random_quadratic(0, 2, 2, conditioning=0.5)
    with pytest.raises(InvalidInputError, match="`n, d` must be at least 1"):
        random_quadratic(0, 0, 2)
