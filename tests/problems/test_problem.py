"""Every problem against every promise of the protocol."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hewfl.problems import (
    Problem,
    Quadratic,
    Softmax,
    random_quadratic,
    softmax_common_pool,
    softmax_from_arrays,
)
from hewfl.problems.problem import Probed

Array = NDArray[Any]

ROUNDING = 1e-12
"""Two float64 evaluations of one formula, over the size of the result."""
NARROW = 2e-5
"""The same in float32."""
DIFFERENCES = 1e-7
"""Central differences with step 1e-5."""
MODELS = 3


def quadratic() -> Quadratic:
    sizes, noise = [5, 2, 9, 4], [0.5, 0.0, 2.0, 1.0]
    return random_quadratic(3, 4, 6, samples=sizes, noise=noise, conditioning=50.0)


def arrays(m: int = 60) -> tuple[Array, Array, list[Array]]:
    rng = np.random.default_rng(11)
    X = np.hstack([rng.standard_normal((m, 4)) * [0.3, 1, 2, 3], np.ones((m, 1))])
    y = (X @ rng.standard_normal((5, 3)) + rng.gumbel(size=(m, 3))).argmax(axis=1)
    owner = rng.choice(4, m, p=[0.1, 0.2, 0.3, 0.4])
    return X, y, [np.flatnonzero(owner == i) for i in range(4)]


def softmax() -> Softmax:
    X, y, shards = arrays()
    return softmax_from_arrays(X, y, shards, l2=0.05, test=(X[:20], y[:20]))


def common_pool() -> Softmax:
    X, y, _ = arrays(30)
    return softmax_common_pool(X, y, 3, l2=0.01)


PROBLEMS: dict[str, Problem] = {
    "quadratic": quadratic(),
    "softmax": softmax(),
    "pool": common_pool(),
}


@pytest.fixture(params=PROBLEMS, name="problem")
def problem_(request: pytest.FixtureRequest) -> Problem:
    return PROBLEMS[request.param]


def minibatches(problem: Problem, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows of every client and their counts; the padding holds other clients' rows."""
    counts = rng.integers(1, 7, problem.n)
    samples = (
        problem.offsets[:, None]
        + rng.integers(0, 2**30, (problem.n, 7)) % (problem.data_sizes[:, None])
    )
    foreign = rng.integers(0, problem.offsets[-1] + 1, samples.shape)
    return np.where(np.arange(7) < counts[:, None], samples, foreign), counts


def sample_gradients(problem: Problem, client: int, x: Array) -> Array:
    """∇φ_ij(x) for all samples j of a client, one minibatch each: shape (m_i, d)."""
    m, lo = problem.data_sizes[client], problem.offsets[client]
    rows = np.arange(lo, lo + m)[:, None]
    models = np.broadcast_to(x, (1, m, problem.d)).copy()
    return np.asarray(problem.minibatch_gradients(models, rows, np.ones(m, int))[0])


def close(actual: Array, expected: Array, tolerance: float = ROUNDING) -> bool:
    scale = 1 + np.abs(expected).max()
    return bool(np.abs(np.asarray(actual) - expected).max() <= tolerance * scale)


def test_is_a_problem(problem: Problem) -> None:
    assert isinstance(problem, Problem)


def test_minibatch_gradient_is_the_mean_of_sample_gradients(
    problem: Problem, rng: np.random.Generator
) -> None:
    models = rng.standard_normal((MODELS, problem.n, problem.d))
    samples, counts = minibatches(problem, rng)
    gradients = problem.minibatch_gradients(models, samples, counts)
    for k in range(MODELS):
        for i in range(problem.n):
            each = sample_gradients(problem, i, models[k, i])
            chosen = each[samples[i, : counts[i]] - problem.offsets[i]]
            assert close(gradients[k, i], chosen.mean(axis=0))


def test_models_are_independent(problem: Problem, rng: np.random.Generator) -> None:
    models = rng.standard_normal((MODELS, problem.n, problem.d))
    anchors = models[:, 0]
    draws = minibatches(problem, rng)
    gradients = problem.minibatch_gradients(models, *draws)
    for k in range(MODELS):
        one = slice(k, k + 1)
        assert close(gradients[one], problem.minibatch_gradients(models[one], *draws))
        for ask in (problem.full_gradients, problem.client_losses, problem.objectives):
            assert close(ask(anchors)[one], ask(anchors[one]))
        for name, values in problem.evaluate(anchors).items():
            assert close(values[one], problem.evaluate(anchors[one])[name])


def test_padding_is_ignored(problem: Problem, rng: np.random.Generator) -> None:
    models = rng.standard_normal((MODELS, problem.n, problem.d))
    samples, counts = minibatches(problem, rng)
    padding = np.arange(samples.shape[1]) >= counts[:, None]
    other = np.where(padding, problem.offsets[0], samples)
    gradients = problem.minibatch_gradients(models, samples, counts)
    assert (gradients == problem.minibatch_gradients(models, other, counts)).all()


def test_some_clients_in_any_order(problem: Problem, rng: np.random.Generator) -> None:
    models = rng.standard_normal((MODELS, problem.n, problem.d))
    samples, counts = minibatches(problem, rng)
    gradients = problem.minibatch_gradients(models, samples, counts)
    some = [2, 0]
    part = problem.minibatch_gradients(models[:, some], samples[some], counts[some])
    assert close(part, gradients[:, some])


def test_inputs_are_left_alone(problem: Problem, rng: np.random.Generator) -> None:
    models = rng.standard_normal((MODELS, problem.n, problem.d))
    samples, counts = minibatches(problem, rng)
    kept = [array.copy() for array in (models, samples, counts)]
    for array in (models, samples, counts):
        array.flags.writeable = False
    problem.minibatch_gradients(models, samples, counts)
    problem.full_gradients(models[:, 0])
    problem.evaluate(models[:, 0])
    for array, before in zip((models, samples, counts), kept, strict=True):
        assert (array == before).all()


def test_full_gradient_is_the_mean_over_all_samples(
    problem: Problem, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((1, problem.d))
    gradients = problem.full_gradients(x)[0]
    for i in range(problem.n):
        assert close(gradients[i], sample_gradients(problem, i, x[0]).mean(axis=0))


def test_full_gradient_is_the_derivative_of_the_losses(
    problem: Problem, rng: np.random.Generator
) -> None:
    x, h = rng.standard_normal(problem.d), 1e-5
    steps = h * np.eye(problem.d)
    up, down = problem.client_losses(x + steps), problem.client_losses(x - steps)
    differences = (up - down).T / (2 * h)
    assert close(differences, problem.full_gradients(x[None, :])[0], DIFFERENCES)


def test_objectives_are_the_two_means(
    problem: Problem, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((MODELS, problem.d))
    losses = problem.client_losses(x)
    pooled = losses @ problem.data_sizes / problem.data_sizes.sum()
    assert close(problem.objectives(x), np.stack([losses.mean(1), pooled], axis=1))


def test_smoothness_bounds_every_sample(
    problem: Problem, rng: np.random.Generator
) -> None:
    for scale in (1e-3, 1.0, 10.0):
        x = rng.standard_normal(problem.d)
        y = x + scale * rng.standard_normal(problem.d)
        for i in range(problem.n):
            change = sample_gradients(problem, i, x) - sample_gradients(problem, i, y)
            rate = np.linalg.norm(change, axis=1) / np.linalg.norm(x - y)
            assert rate.max() <= problem.smoothness * (1 + ROUNDING)


def test_variance_bounds_hold(problem: Problem, rng: np.random.Generator) -> None:
    assert isinstance(problem, Quadratic | Softmax)
    bounds = problem.variance_bounds()
    for scale in (0.0, 1.0, 30.0):
        x = scale * rng.standard_normal(problem.d)
        for i in range(problem.n):
            each = sample_gradients(problem, i, x)
            spread = ((each - each.mean(axis=0)) ** 2).sum(axis=1).mean()
            assert spread <= bounds[i] * (1 + ROUNDING) + ROUNDING * scale**2


@pytest.mark.parametrize("pooled", [False, True])
def test_optimum_is_stationary_and_lowest(
    problem: Problem,
    pooled: bool,
    rng: np.random.Generator,
) -> None:
    solution = problem.pooled_optimum() if pooled else problem.optimum()
    x, column = solution.x[None, :], int(pooled)
    weights = problem.data_sizes if pooled else np.ones(problem.n)
    gradient = weights @ problem.full_gradients(x)[0] / weights.sum()
    assert np.linalg.norm(gradient) <= ROUNDING * problem.smoothness
    assert solution.residual <= ROUNDING * problem.smoothness
    assert solution.gap <= ROUNDING
    value = problem.objectives(x)[0, column]
    assert solution.objective == pytest.approx(value, rel=1e-13, abs=1e-15)
    for scale in (1e-4, 1e-2, 1.0):
        near = solution.x + scale * rng.standard_normal((20, problem.d))
        assert (problem.objectives(near)[:, column] > value).all()


def test_narrow_models_give_narrow_answers(
    problem: Problem, rng: np.random.Generator
) -> None:
    wide = rng.standard_normal((MODELS, problem.n, problem.d))
    narrow, draws = wide.astype(np.float32), minibatches(problem, rng)
    gradients = problem.minibatch_gradients(narrow, *draws)
    assert gradients.dtype == np.float32
    assert close(gradients, problem.minibatch_gradients(wide, *draws), NARROW)
    full = problem.full_gradients(narrow[:, 0])
    assert full.dtype == np.float32
    assert close(full, problem.full_gradients(wide[:, 0]), NARROW)
    assert problem.objectives(narrow[:, 0]).dtype == np.float64
    assert close(
        problem.objectives(narrow[:, 0]), problem.objectives(wide[:, 0]), NARROW
    )


def in_torch(problem: Problem) -> Problem:
    if isinstance(problem, Quadratic):
        return Quadratic(
            torch.tensor(problem.hessians),
            torch.tensor(problem.centers),
            torch.tensor(problem.noise),
            problem.data_sizes,
        )
    assert isinstance(problem, Softmax)
    test = problem.test
    return Softmax(
        torch.tensor(problem.features),
        torch.tensor(problem.labels),
        problem.offsets,
        problem.data_sizes,
        problem.classes,
        problem.l2,
        None if test is None else (torch.tensor(test[0]), torch.tensor(test[1])),
    )


@pytest.mark.torch
@pytest.mark.parametrize("data", ["numpy", "torch"])
@pytest.mark.parametrize("models", ["numpy", "torch"])
def test_torch_gives_the_same_numbers(
    problem: Problem, data: str, models: str, rng: np.random.Generator
) -> None:
    y = rng.standard_normal((MODELS, problem.n, problem.d))
    samples, counts = minibatches(problem, rng)
    make: Any = torch.tensor if models == "torch" else np.asarray
    other = in_torch(problem) if data == "torch" else problem
    pairs = [
        (
            other.minibatch_gradients(make(y), make(samples), make(counts)),
            problem.minibatch_gradients(y, samples, counts),
        ),
        (other.minibatch_gradients(make(y), samples, counts),) * 2,
    ]
    for name in ("full_gradients", "client_losses", "objectives"):
        ask = getattr(other, name)(make(y[:, 0])), getattr(problem, name)(y[:, 0])
        pairs.append(ask)
    measures = other.evaluate(make(y[:, 0]))
    pairs += [(measures[k], v) for k, v in problem.evaluate(y[:, 0]).items()]
    for actual, expected in pairs:
        assert type(actual) is type(make(y))
        assert close(actual, np.asarray(expected))


@pytest.mark.torch
def test_torch_constants_are_the_same(problem: Problem) -> None:
    other = in_torch(problem)
    assert isinstance(problem, Quadratic | Softmax)
    assert isinstance(other, Quadratic | Softmax)
    assert other.smoothness == problem.smoothness
    assert (other.variance_bounds() == problem.variance_bounds()).all()
    assert close(other.optimum().x, problem.optimum().x)


@pytest.mark.torch
def test_narrow_torch_models(problem: Problem, rng: np.random.Generator) -> None:
    other, draws = in_torch(problem), minibatches(problem, rng)
    y = rng.standard_normal((MODELS, problem.n, problem.d))
    gradients = other.minibatch_gradients(torch.tensor(y, dtype=torch.float32), *draws)
    assert gradients.dtype == torch.float32
    assert close(gradients, problem.minibatch_gradients(y, *draws), NARROW)
    anchors = torch.tensor(y[:, 0], dtype=torch.float32)
    assert other.full_gradients(anchors).dtype == torch.float32
    assert other.objectives(anchors).dtype == torch.float64


def test_losses_on_chosen_samples_are_means_of_sample_losses(
    problem: Problem, rng: np.random.Generator
) -> None:
    """On all samples of a client, each once, they are its loss; twice, the same."""
    assert isinstance(problem, Probed)
    models = rng.standard_normal((MODELS, problem.d))
    whole = problem.client_losses(models)
    for i in range(problem.n):
        lo, m = problem.offsets[i], problem.data_sizes[i]
        rows = np.arange(lo, lo + m)
        losses = problem.sample_losses(models, np.stack([rows, rows[::-1]]))
        assert close(losses, whole[:, [i, i]])
        single = problem.sample_losses(models, rows[:, None])  # one sample each
        assert close(single.mean(axis=1), whole[:, i])
    tensors = problem.sample_losses(torch.tensor(models), rows[:, None])
    assert tensors.dtype == torch.float64
    assert close(tensors.numpy(), single)
