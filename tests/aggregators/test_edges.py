"""Rounds in which there is nothing to choose, and arguments that rules refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.rounds import decide, make_cohort

from hewfl import (
    FedAvg,
    HewControl,
    HewHom,
    InvalidInputError,
    LocalSGD,
    Method,
    ProblemBounds,
    Scaffold,
)
from hewfl.aggregators import (
    EqualGround,
    FedAWARE,
    GeometricMedian,
    Oracle,
    Sieve,
)
from hewfl.algorithms.online_curvature import OnlineCurvature


def test_equal_displacements_share_the_weight() -> None:
    moved = np.ones((4, 3))
    decision, _ = decide(
        Method(LocalSGD(1.0), GeometricMedian()), make_cohort([1] * 4), moved
    )
    assert decision.weights == pytest.approx(np.full(4, 0.25))
    assert "agree" in decision.status


def test_one_client_is_not_sieved(rng: np.random.Generator) -> None:
    decision, _ = decide(
        Method(LocalSGD(1.0), Sieve()), make_cohort([3]), rng.standard_normal((1, 4))
    )
    assert decision.weights.tolist() == [1.0]


def test_who_knows_that_nobody_is_good_takes_all_alike(
    rng: np.random.Generator,
) -> None:
    rule, moved = Method(LocalSGD(total=1.0), Oracle()), rng.standard_normal((3, 4))
    nobody = rule.acquainted(np.ones(3), np.zeros(3))
    decision, _ = decide(rule, make_cohort([1, 2, 3]), moved, state=nobody)
    assert decision.weights == pytest.approx(np.full(3, 1 / 3))
    some = rule.acquainted(np.ones(3), np.array([0.0, 1.0, 1.0]))
    decision, _ = decide(rule, make_cohort([1, 2, 3]), moved, state=some)
    assert decision.weights == pytest.approx([0.0, 0.4, 0.6])


BOX = ProblemBounds(1.0, 5.0, 1e-3, 1.0)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: EqualGround(FedAvg), "`rule` must be an algorithm"),  # type: ignore[arg-type]  # refused
    "variates": (lambda: EqualGround(Scaffold(0.1)), "without control variates"),
    "alpha": (
        lambda: Method(LocalSGD(1.0), FedAWARE(alpha=1.5)),
        "`alpha` must be above 0 and at",
    ),
    "source": (
        lambda: HewControl(BOX, 0.0, source="hearsay"),  # type: ignore[arg-type]  # refused
        "`source` must be one of surrogate, caps, oracle; got 'hearsay'",
    ),
    "by": (
        lambda: HewHom(1.0, 1.0, by="luck"),  # type: ignore[arg-type]  # refused
        "`by` must be one of rate, length; got 'luck'",
    ),
    "online": (
        lambda: OnlineCurvature(FedAvg(1.0)),  # type: ignore[arg-type]  # refused
        "`rule` must be HewHom or HewHet",
    ),
}


@pytest.mark.unchecked  # the checks of tests would be first
@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_named(case: str) -> None:
    make, text = REFUSED[case]
    with pytest.raises(InvalidInputError, match=text):
        make()
