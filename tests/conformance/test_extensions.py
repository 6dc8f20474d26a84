"""The four extensions of docs/architecture.md, each in one file: this one.

A rule, a pre-aggregation, a server step and a transport are written as the page says,
outside of the library, and used by code of the library that is unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.conformance.rounds import root_of

from hewfl import (
    Aggregator,
    Cohort,
    Decision,
    Displacements,
    Entry,
    FedAvg,
    Federation,
    FixedSteps,
    HewHom,
    LocalSGD,
    Method,
    Pipeline,
    Round,
    ServerStep,
    Trace,
    aggregators,
    simulate,
)
from hewfl.aggregators import GeometricMedian, Mean, PreAggregation
from hewfl.core.displacements import LinearCombination, RoundProducts
from hewfl.problems import random_quadratic
from hewfl.server.finish_round import finish_round
from hewfl.server.state import as_entry, initial_state

PROBLEM = random_quadratic(seed=0, n=6, d=7)
WORK = LocalSGD(total=0.5 / PROBLEM.smoothness)


def run(method: Any) -> Trace:
    return simulate(PROBLEM, Federation(FixedSteps(2), 8), [method], rounds=3, seed=0)


# ------------------ a rule


@dataclass(frozen=True)
class NearTheMean(Aggregator):
    """Weights fall with the squared distance of an update from the mean update.

    Attributes:
        sharpness: how fast.
    """

    sharpness: float = 1.0
    name: ClassVar[str] = "Near the mean"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        G = round_.displacements.gram()
        distance = np.diagonal(G) - 2 * G.mean(axis=1) + G.mean()
        score = np.exp(-self.sharpness * distance / distance.mean())
        return Decision(score / score.sum(), "near the mean"), state


def test_a_rule_runs_alone_and_in_a_method() -> None:
    updates = np.array([[1.0, 0.0], [1.1, 0.0], [0.9, 0.1], [-9.0, 9.0]])
    decision, _ = NearTheMean()(updates)
    assert decision.weights[3] < 0.1
    np.testing.assert_allclose(decision.step, decision.weights @ updates)
    trace = run(Method(WORK, NearTheMean(sharpness=2.0)))
    assert np.isfinite(trace.curve(0, "objective")).all()
    flat = run(Method(WORK, NearTheMean(sharpness=0.0)))
    mean = run(Method(WORK, Mean()))
    np.testing.assert_allclose(flat.anchors, mean.anchors)


def test_a_rule_runs_in_flower() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from hewfl.flower import HewStrategy  # noqa: PLC0415 - needs Flower

    assert HewStrategy(aggregator=NearTheMean()) is not None


# ------------------ a pre-aggregation


@dataclass(frozen=True)
class NearestNeighbours(PreAggregation):
    """Each update becomes the mean of the `k` updates nearest to it (NNM)."""

    k: int = 3
    name: ClassVar[str] = "nearest neighbours"

    def linear_map(self, round_: Round) -> Any:
        G = round_.displacements.gram()
        distance = np.diagonal(G)[:, None] + np.diagonal(G) - 2 * G
        A = np.zeros_like(G)
        nearest = np.argsort(distance, axis=1, kind="stable")[:, : self.k]
        np.put_along_axis(A, nearest, 1 / self.k, axis=1)
        return A


@pytest.mark.parametrize("name", ["mean", "geometric-median", "coordinate-median"])
def test_a_pre_aggregation_is_a_linear_map(name: str) -> None:
    updates = np.random.default_rng(0).standard_normal((5, 4))
    rule, part = aggregators.make(name), NearestNeighbours()
    mixed, _ = Pipeline(part, rule)(updates)
    nearest = np.argsort(((updates[:, None] - updates) ** 2).sum(-1), axis=1)[:, :3]
    plain, _ = rule(updates[nearest].mean(axis=1))
    np.testing.assert_allclose(mixed.step, plain.step, atol=1e-7)
    trace = run(Method(WORK, Pipeline(part, GeometricMedian())))
    assert np.isfinite(trace.curve(0, "objective")).all()


# ------------------ a server step


@dataclass(frozen=True)
class SignStep(ServerStep):
    """Every entry of the model moves by γ in the direction of the momentum (Lion)."""

    beta: float = 0.9

    @property
    def memory(self) -> tuple[float, ...]:
        """One vector, which starts at zero."""
        return (0.0,)

    @property
    def is_plain(self) -> bool:
        """The move is not the aggregated step."""
        return False

    def apply(self, step: Any, memory: Any) -> tuple[Any, Any]:
        memory = self.beta * memory + (1 - self.beta) * step
        return self.step * ((memory > 0) * 1.0 - (memory < 0) * 1.0), memory


def test_a_server_step_is_used_by_every_method() -> None:
    step = SignStep(0.01)
    trace = run(Method(WORK, Mean(), step))
    moves = np.abs(trace.anchors[0]) / 0.01
    np.testing.assert_allclose(moves, moves.round(), atol=1e-9)
    assert moves.max() <= 3
    other = run(Entry(HewHom(PROBLEM.smoothness, 0.5), step))
    assert other.anchors.shape == trace.anchors.shape


# ------------------ a transport


class ListedDisplacements:
    """Updates as a list of vectors: all that `Displacements` asks for, no more."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def d(self) -> int:
        return len(self.rows[0])

    def gram(self) -> Any:
        return np.array([[u @ v for v in self.rows] for u in self.rows])

    def inner(self, vector: Any) -> Any:
        return np.array([row @ vector for row in self.rows])

    def combine(self, weights: Any) -> Any:
        pairs = zip(weights, self.rows, strict=True)
        return np.sum([w * row for w, row in pairs], axis=0)

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        if isinstance(reference, LinearCombination):
            reference = self.combine(reference.weights)
        shortest = self.rows[int(np.argmin(np.diagonal(self.gram())))]
        C = np.stack(self.rows) - shortest
        g = np.zeros(self.d) if reference is None else np.asarray(reference)
        linear = C @ (g + curvature * shortest)
        offset = float(g @ shortest + curvature / 2 * shortest @ shortest)
        return RoundProducts(C @ C.T, linear, offset, 0)

    def take(self, members: Any) -> "ListedDisplacements":
        return ListedDisplacements([self.rows[i] for i in members])

    def append_zero(self) -> "ListedDisplacements":
        return ListedDisplacements([*self.rows, np.zeros(self.d)])

    def blocks(self) -> Iterator[Any]:
        yield np.stack(self.rows)

    def column_chunks(self) -> Iterator[tuple[slice, "ListedDisplacements"]]:
        yield slice(0, self.d), self

    def dot(self, u: Any, v: Any) -> float:
        return float(u @ v)

    def from_matrix(self, rows: Any) -> "ListedDisplacements":
        return ListedDisplacements(list(rows))

    def matrix(self) -> Any:
        return np.stack(self.rows)


def federate(method: Any, updates: list[Any], rounds: int) -> Any:
    """A transport of a few lines: clients that send the same update every round."""
    n, d = len(updates), len(updates[0])
    entry, ones = as_entry(method), np.ones(n, dtype=np.int64)
    state = initial_state(
        entry.algorithm, np.zeros(d), n, None, None, entry.server_step
    )
    for t in range(rounds):
        cohort = Cohort(np.arange(n), ones, ones, ones, n, t)
        plan = entry.algorithm.plan(cohort, state.algorithm)
        data = ListedDisplacements(updates)
        round_ = Round(state.anchor, data, cohort, plan, root=root_of(updates))
        outcome = finish_round(entry, state, round_)
        assert outcome.kind == "ok", outcome.status
        state = outcome.state
    return state.anchor


NOT_SUPPLIED = {"oracle", "qfedavg"}
"""They need the truth and losses."""


@pytest.mark.parametrize("name", sorted({*aggregators.NAMES} - NOT_SUPPLIED))
def test_a_transport_runs_every_rule(name: str) -> None:
    updates = list(np.random.default_rng(1).standard_normal((5, 4)) + 1)
    assert isinstance(ListedDisplacements(updates), Displacements)
    rule = aggregators.make(name)
    new = federate(Method(LocalSGD(1.0), rule), updates, rounds=2)
    state, x = None, np.zeros(4)
    for _ in range(2):
        decision, state = rule(np.stack(updates), state, root=root_of(updates))
        x += np.asarray(decision.step)
    np.testing.assert_allclose(new, x, atol=1e-8)


def test_a_transport_runs_presets_and_algorithms() -> None:
    updates = list(np.random.default_rng(1).standard_normal((5, 4)) + 1)
    for method in (FedAvg(0.1), HewHom(1.0, 0.5)):
        assert np.isfinite(federate(method, updates, rounds=2)).all()
