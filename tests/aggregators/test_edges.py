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
    RuleError,
)
from hewfl.aggregators import (
    Clip,
    ExactWeights,
    FedAWARE,
    GeometricMedian,
    Oracle,
    Pipeline,
    PreAggregation,
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


# ------------------------------------------------------------------ calls on arrays


def test_a_call_accepts_bfloat16_and_torch_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.tensor(rng.standard_normal((5, 40)), dtype=torch.bfloat16)
    decision, _ = GeometricMedian()(rows)
    wide, _ = GeometricMedian()(rows.to(torch.float64).numpy())
    assert decision.weights == pytest.approx(wide.weights, abs=1e-9)
    listed, _ = GeometricMedian()(list(rows))
    assert listed.weights == pytest.approx(wide.weights, abs=1e-9)


def test_clipping_holds_in_any_unit(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((6, 8))
    rows[2] *= 1e4
    lengths = np.linalg.norm(rows, axis=1)
    short = rows * np.minimum(1, np.median(lengths) / lengths)[:, None]
    for scale in (1e-150, 1.0, 1e150):
        decision, _ = Pipeline(Clip(), make("mean"))(scale * rows)
        assert decision.step / scale == pytest.approx(short.mean(axis=0), rel=1e-9)
    limit = float(np.median(lengths))
    by_length, _ = Pipeline(Clip(max_norm=limit), make("mean"))(rows)
    assert by_length.step == pytest.approx(short.mean(axis=0), rel=1e-9)


def test_what_a_call_refuses(rng: np.random.Generator) -> None:
    rows, state = rng.standard_normal((3, 4)), make("trust")(np.eye(3, 4))[1]
    refused: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: make("trust")(rows, clients=[1, 2, 10**12]),
            "`clients` must be below",
        ),
        (lambda: make("trust")(rows, clients=[1, 1, 2]), "3 different numbers"),
        (lambda: make("fedadp")(rows, state), "`state` must be one that this rule"),
        (lambda: make("sieve")(rows, sizes=[1, 2]), "`sizes` must be of shape"),
        (lambda: make("sieve")(rows * np.nan), "`updates` must be finite"),
        (lambda: make("oracle")(rows), "needs neither the truth"),
        (lambda: make("exact", reference="root")(rows, root=rows), "`root` must be of"),
        (lambda: make("fedaware")(rows, make("fedaware")(rows[:, :2])[1]), "`state`"),
    ]
    for call, text in refused:
        with pytest.raises(InvalidInputError, match=text):
            call()


def test_a_pipeline_tells_its_rule_the_truth() -> None:
    rule = Method(LocalSGD(total=1.0), Pipeline(Clip(), Oracle()))
    state = rule.with_truth(rule.init(3, 4, None), Truth(quality=np.array([0.0, 1, 1])))
    decision, _ = decide(rule, make_cohort([1, 1, 1]), np.eye(3, 4), state=state)
    assert decision.weights == pytest.approx([0.0, 0.5, 0.5])


def test_a_map_of_another_shape_is_refused(rng: np.random.Generator) -> None:
    class Halves(PreAggregation):
        def linear_map(self, round_: Any) -> Any:
            n = round_.displacements.n
            return np.full((2, n), 1 / n)

    with pytest.raises(RuleError, match="linear_map"):
        Pipeline(Halves(), make("mean"))(rng.standard_normal((4, 5)))


def test_exact_weights_of_a_vector_are_a_value() -> None:
    one, other = ExactWeights([1.0, 2.0], curvature=1.0), ExactWeights([1.0, 2.5])
    assert one == ExactWeights(np.array([1.0, 2.0]), curvature=1.0)
    assert repr(one) != repr(other)
