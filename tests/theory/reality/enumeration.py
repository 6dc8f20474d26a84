"""All minibatch paths of a small federation: expectations without error.

A client with H steps of b samples has (b + 1)^H different paths, and a round as many
joint paths as the product of its clients'. All are walked, from every state that the
rounds before may have led to. The weights of post-local rounds are those of
`hewfl.post_local_weights`; nothing else here comes from the code under test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb
from typing import final

import numpy as np
from tests.theory.reality.scenario import Scenario

from hewfl import post_local_weights
from hewfl.core.validation import Array, ArrayLike
from hewfl.theory.systems import System

ROUNDING = 1e-11
"""Forgiven in a comparison, over the size of its sides."""


# where a run stands


@final
@dataclass(frozen=True, slots=True)
class Cloud:
    """The law of (x_t, c_t,i): finitely many states and their probabilities."""

    anchors: Array
    variates: Array
    chances: Array

    def gap(self, scenario: Scenario) -> float:
        """The expectation g_t."""
        return float(self.chances @ scenario.gap(self.anchors))

    def tracking(self, scenario: Scenario) -> Array:
        """E‖c_i − ∇F_i(x)‖² of every client."""
        errors = self.variates - scenario.gradients(self.anchors)
        return np.asarray(self.chances @ (errors**2).sum(-1))

    @property
    def radius(self) -> float:
        return float(np.sqrt((self.anchors**2).sum(-1).max()))


def start(scenario: Scenario, rng: np.random.Generator, error: float) -> Cloud:
    """One anchor, and control variates that miss by about `error` gradients."""
    x = rng.normal(size=(1, 2)) * 10 ** rng.uniform(-1, 0.5)
    gradients = scenario.gradients(x)
    size = error * np.sqrt((gradients**2).mean())
    variates = gradients + size * rng.normal(size=gradients.shape)
    return Cloud(x, variates, np.ones(1))


# rounds


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What clients do in a round: θ_i, H_i, b_i, whether corrected, who takes part."""

    amplitudes: Array
    horizons: Sequence[int]
    batches: Sequence[int]
    heterogeneous_rule: bool = True
    active: tuple[bool, ...] = (True, True)

    def system(self, scenario: Scenario, radius: float) -> System:
        """What the theorems are told."""
        L, v2 = scenario.smoothness, scenario.variance
        return System(L, radius, self.horizons, self.batches, v2)


Rule = Callable[[Scenario, Work, Cloud, Array], Array]
"""Weights from the displacements of every state and joint path, shape (s, j, n)."""


@final
@dataclass(frozen=True, slots=True)
class RoundWork:
    """A round from every state and along every path.

    Attributes:
        branches: y_i^(ℓ) of each client, shape (s, p_i, H_i + 1, d).
        laws: the probabilities of a client's paths, which are the same in all states.
        displacements: Δ_i along joint paths, shape (s, j, n, d).
        chances: of the state and the joint path, shape (s, j).
        weights: shape (s, j, n).
        moves: Σ_i w_iΔ_i, shape (s, j, d).
        after: the law of the next state.
    """

    branches: tuple[Array, ...]
    laws: tuple[Array, ...]
    displacements: Array
    chances: Array
    weights: Array
    moves: Array
    after: Cloud


def play(scenario: Scenario, work: Work, cloud: Cloud, rule: Rule) -> RoundWork:
    """One round, all minibatches walked."""
    pairs = [_branch(scenario, work, cloud, i) for i in range(scenario.n)]
    branches, laws = (tuple(part) for part in zip(*pairs, strict=True))
    joint = np.indices([len(law) for law in laws]).reshape(scenario.n, -1)
    ends = [y[:, path, -1] for y, path in zip(branches, joint, strict=True)]
    moved = np.stack(ends, axis=2) - cloud.anchors[:, None, None]
    law = np.prod([law[path] for law, path in zip(laws, joint, strict=True)], axis=0)
    chances = cloud.chances[:, None] * law
    weights = rule(scenario, work, cloud, moved)
    server = cloud.variates.mean(1)[:, None, None]
    slopes = -scenario.smoothness * moved / work.amplitudes[:, None]
    kept = np.broadcast_to(cloud.variates[:, None], moved.shape)
    renewed = np.where(np.array(work.active)[:, None], kept - server + slopes, kept)
    moves = np.einsum("sjn,sjnd->sjd", weights, moved)
    d = moved.shape[-1]
    after = Cloud(
        (cloud.anchors[:, None] + moves).reshape(-1, d),
        renewed.reshape(-1, scenario.n, d),
        chances.ravel(),
    )
    return RoundWork(branches, laws, moved, chances, weights, moves, after)


def rounds(
    scenario: Scenario, work: Work, cloud: Cloud, rule: Rule, count: int
) -> list[Cloud]:
    """The laws of `count` rounds, that of the start first."""
    clouds = [cloud]
    for _ in range(count):
        clouds.append(play(scenario, work, clouds[-1], rule).after)
    return clouds


def _branch(
    scenario: Scenario, work: Work, cloud: Cloud, i: int
) -> tuple[Array, Array]:
    """All paths of client i from every state, and their probabilities."""
    if not work.active[i]:
        return cloud.anchors[:, None, None], np.ones(1)
    H, b = work.horizons[i], work.batches[i]
    # the mean of b draws of ±1 is 1 − 2k/b with probability C(b, k)/2ᵇ
    outcomes = [(1 - 2 * k / b, comb(b, k) / 2**b) for k in range(b + 1)]
    paths = np.array(list(product(outcomes, repeat=H)))  # p H 2
    correction = np.zeros(cloud.anchors.shape)
    if work.heterogeneous_rule:
        correction = cloud.variates[:, i] - cloud.variates.mean(1)
    y = [np.repeat(cloud.anchors[:, None], len(paths), axis=1)]
    for step in range(H):
        g = (
            scenario.gradients(y[-1])[..., i, :]
            + paths[:, step, :1] * scenario.shifts[i]
        )
        eta = work.amplitudes[i] / (scenario.smoothness * H)
        y.append(y[-1] - eta * (g - correction[:, None]))
    return np.stack(y, axis=2), paths[..., 1].prod(-1)


# rules


def fixed_rule(weights: Array) -> Rule:
    def rule(scenario: Scenario, work: Work, cloud: Cloud, moved: Array) -> Array:  # noqa: ARG001 - fixed
        return np.broadcast_to(weights, moved.shape[:-1])

    return rule


def heterogeneous_rule(curvature: float) -> Rule:
    """Algorithm 2: exact weights against the server's control variate."""

    def rule(scenario: Scenario, work: Work, cloud: Cloud, moved: Array) -> Array:  # noqa: ARG001 - c only
        server = cloud.variates.mean(1)[:, None]
        return _exact(moved, np.broadcast_to(server, moved[:, :, 0].shape), curvature)

    return rule


def homogeneous_rule(curvature: float) -> Rule:
    """Algorithm 3: exact weights against the mean local gradient."""

    def rule(scenario: Scenario, work: Work, cloud: Cloud, moved: Array) -> Array:  # noqa: ARG001 - Δ only
        return _exact(moved, mean_slope(scenario, work, moved), curvature)

    return rule


def mean_slope(scenario: Scenario, work: Work, moved: Array) -> Array:
    """The mean local gradient ḡ = −(1/n) Σ_i (L/θ_i)Δ_i."""
    slopes = -scenario.smoothness * moved / work.amplitudes[:, None]
    return np.asarray(slopes.mean(2))


def _exact(moved: Array, references: Array, curvature: float) -> Array:
    s, j, n, d = moved.shape
    pairs = zip(moved.reshape(-1, n, d), references.reshape(-1, d), strict=True)
    weights = [post_local_weights(D, g, curvature).weights for D, g in pairs]
    return np.array(weights).reshape(s, j, n)


# comparisons


def slack(bound: ArrayLike, truth: ArrayLike) -> Array:
    """(bound − truth) over the size of both: negative where the bound fails."""
    right, left = np.asarray(bound, np.float64), np.asarray(truth, np.float64)
    return np.asarray((right - left) / (np.abs(right) + np.abs(left) + 1e-300))
