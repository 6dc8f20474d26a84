"""Rounds in which there is nothing to choose, and arguments that rules refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.rounds import decide, make_cohort

from hewfl import (
    FedAvg,
    HewControl,
    InvalidInputError,
    LocalSGD,
    Method,
    ProblemBounds,
)
from hewfl.aggregators import (
    Clip,
    ExactWeights,
    FedAWARE,
    GeometricMedian,
    Oracle,
    Pipeline,
    Sieve,
    make,
)
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.core.algorithm import Truth


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
    nobody = rule.with_truth(np.ones(3), Truth(quality=np.zeros(3)))
    decision, _ = decide(rule, make_cohort([1, 2, 3]), moved, state=nobody)
    assert decision.weights == pytest.approx(np.full(3, 1 / 3))
    some = rule.with_truth(np.ones(3), Truth(quality=np.array([0.0, 1.0, 1.0])))
    decision, _ = decide(rule, make_cohort([1, 2, 3]), moved, state=some)
    assert decision.weights == pytest.approx([0.0, 0.4, 0.6])


BOX = ProblemBounds(1.0, 5.0, 1e-3, 1.0)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: Method(LocalSGD(0.1), Sieve), "`aggregator` must be"),  # type: ignore[arg-type]  # refused
    "no local work": (lambda: Method(0.1, Sieve()), "`local` must be local work"),  # type: ignore[arg-type]  # refused
    "no step size": (LocalSGD, "`learning_rate` must be given"),
    "two step sizes": (lambda: LocalSGD(0.1, total=0.5), "`total` must be left out"),
    "two curvatures": (lambda: ExactWeights(kappa=1.0, curvature=2.0), "`curvature`"),
    "shares of a root": (lambda: ExactWeights("root", by="size"), "`by` must be left"),
    "no reference": (lambda: ExactWeights("middle"), "`reference` must be one of mean"),
    "no rule": (lambda: Pipeline(Clip()), "`parts` must be pre-aggregations and, last"),
    "two rules": (lambda: Pipeline(Sieve(), Sieve()), "`parts` must be pre-aggregat"),
    "unknown name": (lambda: make("median"), "geometric-median or coordinate-median"),
    "unknown option": (lambda: make("sieve", tau=1.0), "`options` must be fields of"),
    "alpha": (
        lambda: Method(LocalSGD(1.0), FedAWARE(alpha=1.5)),
        "`alpha` must be above 0 and at",
    ),
    "source": (
        lambda: HewControl(BOX, 0.0, source="hearsay"),  # type: ignore[arg-type]  # refused
        "`source` must be one of surrogate, caps, oracle; got 'hearsay'",
    ),
    "online": (
        lambda: OnlineCurvature(FedAvg(1.0)),  # type: ignore[arg-type]  # refused
        "`rule` must be HewHom or HewHet",
    ),
}


@pytest.mark.unchecked  # the checks of tests would be first
@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_named(case: str) -> None:
    build, text = REFUSED[case]
    with pytest.raises(InvalidInputError, match=text):
        build()
