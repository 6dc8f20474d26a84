"""The server's part of a round, for several algorithms and server steps."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from hewfl import (
    Decision,
    Demands,
    Entry,
    FedAvg,
    HewHet,
    HewHom,
    LocalPlan,
    ServerStep,
)
from hewfl.core.round import Cohort, Round
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.control_variates import in_place
from hewfl.displacements.dense import matrix_round
from hewfl.server.finish_round import finish_round
from hewfl.server.state import ServerState, initial_state
from tests.conformance.median import Median


def always(_: Any) -> bool:
    return True


def a_round(rng: np.random.Generator, d: int = 30) -> tuple[Round, Any]:
    ones = np.ones(4, dtype=np.int64)
    cohort = Cohort(np.arange(4), 2 * ones, ones, ones, 4)
    rows = -0.1 - 0.1 * rng.standard_normal((4, d))
    plan = LocalPlan(np.full(4, 0.25))
    return matrix_round(rng.standard_normal(d), rows, cohort, plan), rows


def started(entry: Entry, x: Any, rng: np.random.Generator) -> ServerState:
    return initial_state(entry.algorithm, x, 4, rng.standard_normal((4, len(x))))


@pytest.mark.parametrize(
    "server_step", [ServerStep(), ServerStep(0.5), ServerStep(0.7, 0.9, nesterov=True)]
)
@pytest.mark.parametrize("method", [FedAvg(0.5), HewHom(2.0, 0.5), Median()])
def test_the_move_is_the_server_step(
    method: Any, server_step: ServerStep, rng: np.random.Generator
) -> None:
    round_, rows = a_round(rng)
    entry = Entry(method, server_step)
    state = started(entry, round_.anchor, rng)
    outcome = finish_round(entry, state, round_, fits=always, with_move=True)
    assert outcome.decision is not None
    step = outcome.decision.weights @ rows
    if isinstance(method, Median):
        step = np.median(rows, axis=0)
    ahead = step + server_step.momentum * step if server_step.nesterov else step
    assert outcome.move == pytest.approx(server_step.step * ahead)
    assert outcome.state.anchor == pytest.approx(round_.anchor + outcome.move)
    assert state.anchor is round_.anchor  # as it was


@pytest.mark.parametrize("server_step", [ServerStep(), ServerStep(0.7, 0.9)])
@pytest.mark.parametrize("method", [HewHom(2.0, 0.5), HewHet(2.0, 0.5)])
def test_terms_are_those_of_the_bound(
    method: Any, server_step: ServerStep, rng: np.random.Generator
) -> None:
    round_, rows = a_round(rng)
    entry = Entry(method, server_step)
    state = started(entry, round_.anchor, rng)
    outcome = finish_round(
        entry, state, round_, fits=always, with_terms=True, with_move=True
    )
    g = -rows.mean(axis=0) / 0.5 if isinstance(method, HewHom) else None
    g = state.algorithm.server if g is None else g
    assert outcome.move is not None
    slope, bend = g @ outcome.move, 1.25 * outcome.move @ outcome.move
    assert outcome.terms["certificate_slope"] == pytest.approx(slope, abs=1e-12)
    assert outcome.terms["certificate_curvature"] == pytest.approx(bend)
    assert outcome.terms["certificate_change"] == pytest.approx(slope + bend, abs=1e-12)


def test_a_model_out_of_range_leaves_everything_as_it_was(
    rng: np.random.Generator,
) -> None:
    round_, rows = a_round(rng)
    parts = (tuple(np.ascontiguousarray(row) for row in rows),)
    round_ = Round(
        round_.anchor, ChunkedDisplacements(parts), round_.cohort, round_.plan
    )
    entry = Entry(HewHet(2.0, 0.5))
    state = started(entry, round_.anchor, rng)
    state = ServerState(state.anchor, state.memory, in_place(state.algorithm), 0, 0)
    before = state.algorithm.clients.copy()
    outcome = finish_round(entry, state, round_, fits=lambda _: False)
    assert (outcome.decision, outcome.kind) == (None, "diverged")
    assert outcome.state is state
    assert np.array_equal(state.algorithm.clients, before)
    outcome = finish_round(entry, state, round_, fits=always)
    assert outcome.state.algorithm.clients is state.algorithm.clients  # in place
    assert not np.array_equal(state.algorithm.clients, before)


@dataclass(frozen=True)
class Faulty:
    """A rule that answers nonsense."""

    answer: Any
    name: str = "mine"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> None:
        pass

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:  # noqa: ARG002
        return LocalPlan(np.ones(len(cohort.clients)))

    def decide(self, round_: Round, state: None) -> Any:  # noqa: ARG002
        return self.answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "a Decision and the next state; got None"),
        ((1, 2), "must be a Decision and the next state; got (1, 2)"),
        (
            (Decision.__new__(Decision), None),
            "weights",
        ),
    ],
)
def test_faulty_rules_are_named(
    answer: Any, text: str, rng: np.random.Generator
) -> None:
    if isinstance(answer, tuple) and isinstance(answer[0], Decision):
        answer = (Decision(np.ones(3), "three"), None)
        text = "its weights,` must be 4 real numbers; got dtype float64, shape (3,)"
    round_, _ = a_round(rng)
    entry = Entry(Faulty(answer))
    outcome = finish_round(
        entry, started(entry, round_.anchor, rng), round_, fits=always
    )
    assert (outcome.decision, outcome.kind) == (None, "refused")
    assert text in outcome.status
