"""Communication of rounds and of whole runs, per client."""

from typing import Any

import numpy as np
import pytest

from hewfl import (
    Entry,
    FedAvg,
    FedAvgM,
    Federation,
    FixedSteps,
    HewControl,
    HewHet,
    InvalidInputError,
    ProblemBounds,
    SampledParticipation,
    Scaffold,
    ServerStep,
    Traffic,
    simulate,
)
from hewfl.problems import random_quadratic
from hewfl.server.communication import RoundCommunication, round_communication


def test_a_round_counts_as_the_design_says() -> None:
    d, S = 1000, 7
    het = round_communication(HewHet(1.0, 0.4).demands.traffic, S, d)
    assert het.scalars == 2 * d + d * S + 1
    assert het.paper_scalars == 2 * d + 2 * d * S + 1
    assert het.up_per_client == d
    scaffold = round_communication(Scaffold(0.4).demands.traffic, S, d)
    assert (scaffold.scalars, scaffold.paper_scalars) == (9 * d, 16 * d)
    control = round_communication(Traffic(down=2, paper_up=2, down_scalars=1), S, d)
    assert control.paper_scalars == 2 * d + 2 * d * S + S  # eq:comm-main with ν = 0
    assert round_communication(Traffic(), 0, d) == RoundCommunication()


def test_communication_agrees_with_the_trace_and_splits_it_by_client() -> None:
    problem = random_quadratic(seed=0, n=6, d=4)
    L, d = problem.smoothness, problem.d
    bounds = ProblemBounds(L, 10.0, 0.01, 0.1)
    entries: list[Any] = [
        FedAvg(0.2 / L),
        HewHet(L, 0.5, start="gradient"),
        HewControl(bounds, variance=1.0),
    ]
    federation = Federation(FixedSteps(2), 2, SampledParticipation(4))
    trace = simulate(problem, federation, entries, rounds=5, seed=1)
    took_part = np.zeros(6, dtype=np.int64)
    for record in trace.of(0)[1:]:
        took_part[list(record.clients)] += 1
    for k in range(3):
        totals, last = trace.communication(k), trace.of(k)[-1]
        assert totals.total.scalars == last.scalars
        assert totals.total.paper_scalars == last.paper_scalars
    plain, corrected, control = (trace.communication(k) for k in range(3))
    np.testing.assert_array_equal(plain.sent, d * took_part)
    np.testing.assert_array_equal(plain.received, d * took_part)
    np.testing.assert_array_equal(corrected.sent, d + d * took_part)
    np.testing.assert_array_equal(corrected.paper_sent, d + 2 * d * took_part)
    np.testing.assert_array_equal(corrected.received, (2 * d + 1) * took_part)
    np.testing.assert_array_equal(control.received, (2 * d + 1) * took_part)
    assert plain.total.up == plain.sent.sum()


def test_fedavgm_is_fedavg_under_momentum() -> None:
    problem = random_quadratic(seed=0, n=4, d=3)
    L, federation = problem.smoothness, Federation(FixedSteps(2), 2)
    by_hand = Entry(FedAvg(0.1 / L), ServerStep(0.5, 0.8), "by hand")
    entries: list[Any] = [
        FedAvgM(0.1 / L, momentum=0.8, server_learning_rate=0.5),
        by_hand,
    ]
    trace = simulate(problem, federation, entries, rounds=4, seed=0)
    assert trace.names == ("FedAvgM", "by hand")
    np.testing.assert_array_equal(trace.anchors[0], trace.anchors[1])
    with pytest.raises(InvalidInputError, match="`momentum` must be from 0 to below 1"):
        FedAvgM(0.1 / L, momentum=1.0)
