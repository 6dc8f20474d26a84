"""Accounts of whole runs, client by client, and the named FedAvgM."""

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
    ServerStep,
    simulate,
)
from hewfl.problems import random_quadratic


def test_the_ledger_agrees_with_the_trace_and_splits_it_by_client() -> None:
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
        account, last = trace.communication(k), trace.of(k)[-1]
        assert account.total.scalars == last.scalars
        assert account.total.paper_scalars == last.paper_scalars
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
    entries = [FedAvgM(0.1 / L, momentum=0.8, server_learning_rate=0.5), by_hand]
    trace = simulate(problem, federation, entries, rounds=4, seed=0)
    assert trace.names == ("FedAvgM", "by hand")
    np.testing.assert_array_equal(trace.anchors[0], trace.anchors[1])
    with pytest.raises(InvalidInputError, match="`momentum` must be from 0 to below 1"):
        FedAvgM(0.1 / L, momentum=1.0)
