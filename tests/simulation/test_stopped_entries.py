"""Lanes that cannot go on: they stop alone, say why, and no warning leaks out."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import FedAvg, HewHet, HewHom, LocalSGD, Method, SolverError, simulate
from hewfl.aggregators import QFedAvg
from hewfl.errors import RuleError
from tests.delegation import delegating
from tests.simulation.test_engine import FEDERATION, all_entries
from tests.simulation.toy import LeastSquares, least_squares

Array = NDArray[np.floating]


@delegating(LeastSquares)
@dataclass(frozen=True)
class Lowered:
    """The same problem with a constant taken off every loss."""

    inner: LeastSquares
    by: float

    def client_losses(self, anchors: Array) -> Array:
        return self.inner.client_losses(anchors) - self.by

    def objectives(self, anchors: Array) -> Array:
        return self.inner.objectives(anchors) - self.by


def lowered() -> Any:
    """Losses start above zero, and go below it after a few rounds."""
    inner = least_squares()
    first = inner.client_losses(np.zeros((1, inner.d))).min()
    return Lowered(inner, 0.8 * float(first))


def test_negative_losses_stop_q_fedavg_alone() -> None:
    problem = lowered()
    L = problem.smoothness
    entries: list[Any] = [Method(LocalSGD(0.3 / L), QFedAvg(1.0)), FedAvg(0.3 / L)]
    trace = simulate(problem, FEDERATION, entries, rounds=12, seed=1)
    alone = simulate(problem, FEDERATION, entries[1:], rounds=12, seed=1)
    assert np.abs(trace.anchors[1] - alone.anchors[0]).max() < 1e-12
    statuses = [record.status for record in trace.of(0)]
    at = next(t for t, status in enumerate(statuses) if status.startswith("refused"))
    assert at > 1  # it played while it could
    assert "`losses` must be nonnegative" in statuses[at]
    assert "got -" in statuses[at]
    assert set(statuses[at + 1 :]) == {"refused, stopped"}
    assert len(statuses) > at + 1
    refused, last = trace.of(0)[at], trace.of(0)[-1]
    assert refused.clients == trace.of(1)[at].clients
    assert set(refused.weights) == {0.0}
    assert last.scalars == refused.scalars  # it costs nothing any more
    assert trace.communication(0).total.scalars == last.scalars


def test_without_fairness_the_sign_of_losses_is_no_matter() -> None:
    problem = lowered()
    L = problem.smoothness
    entries = [Method(LocalSGD(0.3 / L), QFedAvg(0.0))]
    trace = simulate(problem, FEDERATION, entries, rounds=12, seed=1)
    plain = simulate(problem.inner, FEDERATION, entries, rounds=12, seed=1)
    assert np.array_equal(trace.anchors, plain.anchors)


@pytest.mark.parametrize("where", ["plan", "decide"])
def test_a_rule_that_fails_is_quoted(where: str) -> None:
    """Errors raised on purpose stop a entry; others are defects of the rule."""
    problem = least_squares()
    inner = HewHom(problem.smoothness, 0.4)

    @delegating(HewHom)
    @dataclass(frozen=True)
    class Failing:
        inner: HewHom
        error: Exception

        def plan(self, cohort: Any, state: Any) -> Any:
            if where == "plan":
                raise self.error
            return inner.plan(cohort, state)

        def decide(self, *_: Any) -> Any:
            raise self.error

    failing: Any = Failing(inner, SolverError("no weights"))
    trace = simulate(problem, FEDERATION, [failing, inner], rounds=3, seed=1)
    statuses = [record.status for record in trace.of(0)]
    assert statuses == ["start", "refused: no weights", *["refused, stopped"] * 2]
    assert trace.communication(0).total.scalars == trace.of(0)[-1].scalars
    assert (trace.of(0)[-1].scalars == 0) == (where == "plan")  # nobody was contacted
    assert (trace.anchors[0] == 0).all()
    assert (trace.anchors[1] != 0).all()
    defect: Any = Failing(inner, KeyError("a defect"))
    expected = (
        f"entry 'HEW .*', round 1, {where}: the rule .*Failing is wrong: .*a defect"
    )
    with pytest.raises(RuleError, match=expected):
        simulate(problem, FEDERATION, [defect], rounds=1, seed=1)


def test_a_refused_entry_stays_stopped_after_a_resume(tmp_path: Path) -> None:
    problem = lowered()
    L = problem.smoothness
    entries: list[Any] = [Method(LocalSGD(0.3 / L), QFedAvg(1.0)), FedAvg(0.3 / L)]
    whole = simulate(problem, FEDERATION, entries, rounds=12, seed=1)
    for rounds in (9, 12):
        part = simulate(
            problem, FEDERATION, entries, rounds=rounds, seed=1, checkpoint=tmp_path
        )
        assert part.of(0)[-1].status == "refused, stopped"
    assert part.records == whole.records


@pytest.mark.parametrize("evaluate_every", [None, 200])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_divergence_unseen_by_evaluation_warns_of_nothing(
    evaluate_every: int | None, dtype: Any
) -> None:
    """Warnings are errors here: steps a million times too long, for 200 rounds."""
    problem = least_squares()
    entries = all_entries(problem.smoothness / 1e6)
    trace = simulate(
        *(problem, FEDERATION, entries),
        rounds=200,
        seed=1,
        evaluate_every=evaluate_every,
        dtype=dtype,
    )
    assert np.isfinite(trace.anchors).all()
    last = [trace.of(k)[-1].status for k in range(len(entries))]
    assert sum(status.endswith(", stopped") for status in last) > len(entries) / 2
    weights = [w for record in trace.records for w in record.weights]
    assert np.isfinite(weights).all()


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    problem = least_squares()
    inner = HewHet(problem.smoothness, 0.4)

    @delegating(HewHet)
    @dataclass(frozen=True)
    class Endless:
        inner: HewHet

        def decide(self, round_: Any, state: Any) -> Any:
            decision, state = inner.decide(round_, state)
            return replace(decision, step=np.full(problem.d, np.inf)), state

    wild: Any = Endless(inner)
    trace = simulate(problem, FEDERATION, [wild], rounds=2, seed=1)
    assert trace.of(0)[1].status == "diverged: the new model would not be finite"
    assert trace.of(0)[2].status == "diverged, stopped"
    assert (trace.anchors == 0).all()
