"""Rules under step sizes that are not their own."""

from typing import Any

import numpy as np
import pytest
from hewfl.algorithms.paced import Paced

from hewfl import (
    ExactWeights,
    FedAvg,
    InvalidInputError,
    LocalSGD,
    Method,
    MinibatchSGD,
)
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.displacements.dense import matrix_round
from tests.simulation.unchecked import unchecked

ROSTER = Cohort(
    np.array([0, 2, 3]),
    np.array([2, 8, 5]),
    np.array([4, 4, 2]),
    np.array([8, 16, 10]),
    population=5,
)
"""One epoch, two and one."""
RULE = Method(
    LocalSGD(total=1.0),
    ExactWeights(kappa=2.0, normalize="total_step", cross_fit=False),
)


def round_of(plan: LocalPlan) -> Round:
    rows = np.random.default_rng(0).standard_normal((3, 6)) - 1.0
    return matrix_round(np.zeros(6), rows, ROSTER, plan)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [0.3, 0.3, 0.3]),
        ({"pace": "equal", "reference": 4.0}, [0.6, 0.15, 0.24]),
        ({"pace": "equal", "unit": "epochs", "reference": 2.0}, [0.6, 0.3, 0.6]),
    ],
)
def test_step_sizes(given: Any, expected: list[float]) -> None:
    plan = Paced(RULE, 0.3, **given).plan(ROSTER, None)
    np.testing.assert_allclose(plan.step_sizes, expected, rtol=1e-12)
    held = Paced(MinibatchSGD(1.0), 0.3, **given).plan(ROSTER, None)
    assert held.hold
    np.testing.assert_allclose(held.step_sizes, expected, rtol=1e-12)


def test_equal_ground_in_steps_is_the_rule_s_own() -> None:
    own = RULE.plan(ROSTER, None)
    paced = Paced(RULE, 1.0, "equal")
    np.testing.assert_allclose(paced.plan(ROSTER, None).step_sizes, own.step_sizes)
    seen, expected = (rule.decide(round_of(own), None)[0] for rule in (paced, RULE))
    assert np.array_equal(seen.weights, expected.weights)


def test_ground_is_counted_in_epochs() -> None:
    """Δ_i/(η·epochs) stands for a gradient; κ takes no notice of its unit."""
    paced = Paced(RULE, 0.3, unit="epochs")
    found = paced.decide(round_of(paced.plan(ROSTER, None)), None)[0]
    by_hand = LocalPlan(np.array([1.0, 2.0, 1.0]) / ROSTER.horizons)
    expected = RULE.decide(round_of(by_hand), None)[0]
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-10)
    steps = Paced(RULE, 0.3)
    other = steps.decide(round_of(steps.plan(ROSTER, None)), None)[0]
    assert np.abs(other.weights - found.weights).max() > 0.01


def test_variates_are_the_rule_s() -> None:
    rule = Method(
        LocalSGD(total=1.0, variates="gradient"), ExactWeights("variate", kappa=1.0)
    )
    paced = Paced(rule, 0.3, unit="epochs")
    assert paced.demands == rule.demands
    state = paced.init(5, 6, np.ones((5, 6)))
    assert paced.variates(state) is state
    plan = paced.plan(ROSTER, state)
    assert plan.correction is not None
    _, after = paced.decide(round_of(plan), state)
    assert np.array_equal(after.clients, state.after(round_of(plan)).clients)
    assert Paced(FedAvg(1.0), 0.3).variates(None) is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"step_size": 0.0}, "`step_size` must be a positive"),
        ({"pace": "slow"}, "`pace` must be one of plain, equal; got 'slow'"),
        ({"unit": "days"}, "`unit` must be one of steps, epochs; got 'days'"),
        ({"reference": 2.0}, "`reference` must be left out at pace plain; got 2.0"),
    ],
)
def test_bad_input(given: Any, told: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError, match=told):
        Paced(**{"rule": RULE, "step_size": 1.0, **given})
