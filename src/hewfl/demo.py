"""One round on real data: what the exact weights do, in a few seconds.

Twenty clients share the handwritten digits unevenly and train a softmax model from a
common point, each for as many steps as it manages. The server then combines their
displacements by three fixed rules and by the exact rule, and everyone can compare the
objective that results.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from hewfl.core.checks import Array, Ints
from hewfl.core.post_local import combine, data_gap, post_local_weights
from hewfl.core.records import SimplexSolution

CLIENTS = 20
HORIZONS = (1, 2, 4, 8)
BATCH = 32
SKEW = 0.5
AMPLITUDE = 0.4
"""ϑ: with Λ = 1.25 L it meets the post-local theorems' Λϑ ≤ L/2."""
WARM_UP = 20
RIDGE = 1e-3


@final
@dataclass(frozen=True, slots=True)
class Digits:
    """Samples with a bias feature, their labels, and who holds which of them."""

    samples: Float64[Array, "m d"]
    labels: Int64[Ints, " m"]
    shards: tuple[NDArray[np.int64], ...]


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """One aggregation rule on the round.

    Attributes:
        rule: its name.
        weights: what it gives to each client.
        model_value: F(x) + Ψ(w), the model that the exact rule minimises.
        objective: F at the new point, measured.
        missed: certified bound on how far the rule is from the best weights, in Ψ.
    """

    rule: str
    weights: Float64[Array, " n"]
    model_value: float
    objective: float
    missed: float


@final
@dataclass(frozen=True, slots=True)
class Demo:
    """All that the command shows."""

    horizons: Int64[Ints, " n"]
    sizes: Int64[Ints, " n"]
    before: float
    solution: SimplexSolution
    outcomes: tuple[Outcome, ...]


def run_demo(seed: int = 0) -> Demo:
    """Play one round on the digits and aggregate it, by Algorithm 3 among others."""
    rng = np.random.default_rng(seed)
    digits = load_digits(rng)
    horizons = rng.choice(HORIZONS, CLIENTS)
    L = _smoothness(digits.samples)
    x = np.zeros((digits.samples.shape[1], 10))
    for _ in range(WARM_UP):
        x = x - _gradient(x, digits.samples, digits.labels) / L
    steps = AMPLITUDE / (L * horizons)
    branches = [
        _local_sgd(x, digits, i, int(horizons[i]), float(steps[i]), rng)
        for i in range(CLIENTS)
    ]
    displacements = np.stack(branches)
    local_gradients = -displacements / (steps * horizons)[:, None]
    reference = local_gradients.mean(axis=0)
    curvature = 1.25 * L
    solution = post_local_weights(displacements, reference, curvature)
    sizes = np.array([len(shard) for shard in digits.shards])
    rules = {
        "uniform": np.full(CLIENTS, 1 / CLIENTS),
        "by data size (FedAvg)": sizes / sizes.sum(),
        "by steps done": horizons / horizons.sum(),
        "exact weights": solution.weights,
    }
    before = _objective(x, digits)

    def outcome(rule: str, w: Float64[Array, " n"]) -> Outcome:
        step = combine(displacements, w)
        model = float(reference @ step + 0.5 * curvature * (step @ step))
        after = _objective(x + step.reshape(x.shape), digits)
        missed = data_gap(displacements, reference, curvature, w)
        return Outcome(rule, w, before + model, after, missed)

    outcomes = tuple(outcome(rule, w) for rule, w in rules.items())
    return Demo(horizons, sizes, before, solution, outcomes)


def load_digits(rng: np.random.Generator) -> Digits:
    """The 1,797 digits of scikit-learn, split by Dirichlet label skew."""
    from sklearn.datasets import load_digits as embedded  # noqa: PLC0415 - slow to import

    images, labels = embedded(return_X_y=True)
    samples = np.hstack([images / 16.0, np.ones((len(images), 1))])
    owner = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        of_label = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(CLIENTS, SKEW))
        owner[of_label] = rng.choice(CLIENTS, len(of_label), p=shares)
    owner[rng.permutation(len(owner))[: 2 * CLIENTS]] = np.repeat(np.arange(CLIENTS), 2)
    shards = tuple(np.flatnonzero(owner == i) for i in range(CLIENTS))
    return Digits(samples, labels.astype(np.int64), shards)


def _smoothness(samples: Float64[Array, "m d"]) -> float:
    """Half the largest eigenvalue of the second moment, plus the ridge."""
    top = np.linalg.eigvalsh(samples.T @ samples / len(samples))[-1]
    return float(0.5 * top + RIDGE)


def _residuals(
    x: Float64[Array, "d k"],
    samples: Float64[Array, "m d"],
    labels: Int64[Ints, " m"],
) -> Float64[Array, "m k"]:
    scores = samples @ x
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1.0
    return np.asarray(p)


def _gradient(
    x: Float64[Array, "d k"],
    samples: Float64[Array, "m d"],
    labels: Int64[Ints, " m"],
) -> Float64[Array, "d k"]:
    mean: Array = samples.T @ _residuals(x, samples, labels) / len(labels)
    return mean + RIDGE * x


def _local_sgd(
    x: Float64[Array, "d k"],
    digits: Digits,
    client: int,
    horizon: int,
    step: float,
    rng: np.random.Generator,
) -> Float64[Array, " p"]:
    """H_i minibatch steps from x; the displacement Δ_i."""
    y, shard = x, digits.shards[client]
    for _ in range(horizon):
        batch = rng.choice(shard, BATCH)
        y = y - step * _gradient(y, digits.samples[batch], digits.labels[batch])
    return (y - x).ravel()


def _objective(x: Float64[Array, "d k"], digits: Digits) -> float:
    """F(x): the clients' losses, averaged over clients, with the ridge."""
    scores = digits.samples @ x
    top = scores.max(axis=1)
    log_sum = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    loss = log_sum - scores[np.arange(len(scores)), digits.labels]
    mean = np.mean([loss[shard].mean() for shard in digits.shards])
    return float(mean + 0.5 * RIDGE * (x**2).sum())
