"""A round that a rule rejects changes nothing, and the next one goes on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hewfl import (
    Aggregator,
    Decision,
    Federation,
    FixedSteps,
    LocalSGD,
    Method,
    ScaledUpdates,
    Scenario,
    ServerStep,
    simulate,
)
from hewfl.aggregators import Certified, CoordinateMedian, Krum, Mean, Trust
from hewfl.problems import random_quadratic

PROBLEM = random_quadratic(seed=0, n=7, d=4)
FEDERATION = Federation(FixedSteps(2), batch_size=8)


@dataclass(frozen=True)
class OnlyEven(Aggregator):
    """Rejects the rounds 1, 3, …, though its own state moves in each."""

    rule: Aggregator

    name: ClassVar[str] = "Only even"

    def init(self, n: int, d: int) -> Any:
        return self.rule.init(n, d)

    def decide(self, round_: Any, state: Any) -> tuple[Decision, Any]:
        decision, after = self.rule.decide(round_, state)
        odd = round_.cohort.round % 2 == 1
        numbers = {"measured_round": float(round_.cohort.round)}
        return replace(decision, rejected=odd, measured=numbers), after


@pytest.mark.parametrize(
    "server_step", [ServerStep(), ServerStep(0.7, 0.9, average="ema")]
)
@pytest.mark.parametrize("variates", [None, "zero"])
def test_model_and_states_stay(server_step: ServerStep, variates: Any) -> None:
    local = LocalSGD(0.02, variates=variates)
    method = Method(local, OnlyEven(Trust()), server_step)
    seen: list[int] = []

    def watch(step: Any) -> dict[str, float]:
        seen.append(step.round_number)
        return {}

    runs = [
        simulate(PROBLEM, FEDERATION, [method], rounds=r, seed=3, observers=[watch])
        for r in (1, 2, 3)
    ]
    one, two, three = (run.anchors[0] for run in runs)
    assert np.array_equal(one, two)
    assert not np.array_equal(two, three)
    assert np.array_equal(runs[0].averages, runs[1].averages)
    assert sorted(set(seen)) == [0, 2]
    record = runs[2].of(0)[2]
    assert record.status.startswith("rejected: ")
    assert record.weights == (0.0,) * 7
    assert record.clients == tuple(range(7))
    assert record.scalars > runs[2].of(0)[1].scalars  # the updates were sent
    assert runs[2].curve(0, "measured_round")[1:].tolist() == [0.0, 1.0, 2.0]
    assert record.objective == runs[2].of(0)[1].objective


def test_a_rejected_round_is_as_if_it_had_not_been() -> None:
    """An accepted round is that of the rule without the gate."""
    problem = random_quadratic(seed=1, n=5, d=3)
    full = Federation(FixedSteps(1))  # no noise: full gradients decide
    plain = Method(LocalSGD(0.05), Trust())
    gated = Method(LocalSGD(0.05), OnlyEven(Trust()))
    start = np.ones(3)
    even = simulate(problem, full, [gated], rounds=1, seed=0, start=start)
    expected = simulate(problem, full, [plain], rounds=1, seed=0, start=start)
    assert np.array_equal(even.anchors, expected.anchors)


def test_a_run_with_rejected_rounds_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    methods = [Method(LocalSGD(0.02), OnlyEven(Trust()), ServerStep(momentum=0.5))]
    whole = simulate(PROBLEM, FEDERATION, methods, rounds=6, seed=1)
    for rounds in (2, 4, 6):
        last = simulate(
            PROBLEM, FEDERATION, methods, rounds=rounds, seed=1, checkpoint=tmp_path
        )
    assert np.array_equal(last.anchors, whole.anchors)
    assert last.records == whole.records


def test_attacked_rounds_are_refused_and_clean_ones_accepted() -> None:
    attack = Federation(
        FixedSteps(2), batch_size=8, scenario=Scenario((ScaledUpdates(0.3, -50.0),))
    )
    certified = [
        Method(LocalSGD(0.02), Certified(rule, f=2, refuse_above=10.0), name=rule.name)
        for rule in (Mean(), CoordinateMedian(), Krum(f=0.3))
    ]
    trace = simulate(PROBLEM, attack, certified, rounds=5, seed=0, start=np.ones(4))
    mean, median, _ = (trace.of(k) for k in range(3))
    assert all("rejected: " in record.status for record in mean[1:])
    assert np.array_equal(trace.anchors[0], np.ones(4))
    assert (trace.curve("Mean", "kappa_lower")[1:] > 10).all()
    assert all(sum(record.weights) > 0.9 for record in median[1:])
    assert (trace.curve("Coordinate median", "kappa")[1:] < 10).all()
    clean = simulate(PROBLEM, FEDERATION, certified[:1], rounds=5, seed=0)
    assert all(sum(record.weights) > 0.9 for record in clean.of(0)[1:])
