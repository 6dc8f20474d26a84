"""A root gradient in Flower: `root_fn` from the model to a gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord

from hewfl import InvalidInputError
from hewfl.aggregators import ExactWeights
from hewfl.flower import HewStrategy, sketch_client_app
from tests.flower.federation import StubGrid
from tests.flower.stock import MOVES, N, model, stock_app, train, vector

RULE = ExactWeights("root", kappa=3.0)
TARGET = np.array([2.0, 0.5, 1.5, 1.0, 3.0, 1.0])
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


def gradient(arrays: ArrayRecord) -> list[Any]:
    """Of ½‖x − TARGET‖², in the arrays of the model."""
    away = vector(arrays) - TARGET
    return [away[:4].reshape(2, 2), away[4:]]


def run(root_fn: Any, rounds: int = 1, **more: Any) -> Any:
    strategy = HewStrategy(aggregator=RULE, root_fn=root_fn, **QUIET, **more)
    return strategy, strategy.start(StubGrid(stock_app(), N), model(), rounds)


def test_the_rule_gets_the_gradient_at_the_model_that_was_sent() -> None:
    asked: list[Any] = []

    def root_fn(arrays: ArrayRecord) -> list[Any]:
        asked.append(vector(arrays))
        return gradient(arrays)

    _, result = run(root_fn, rounds=2)
    x = np.ones(6)
    for before in asked:
        np.testing.assert_allclose(before, x, atol=1e-6)
        x = x + RULE(MOVES, root=x - TARGET)[0].step
    np.testing.assert_allclose(vector(result.arrays), x, atol=1e-5)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "form",
    [
        lambda arrays: ArrayRecord(gradient(arrays)),
        lambda arrays: dict(zip(arrays, gradient(arrays), strict=True)),
    ],
)
def test_a_mapping_is_a_gradient_too(form: Callable[[Any], Any]) -> None:
    plain, other = run(gradient)[1], run(form)[1]
    np.testing.assert_array_equal(vector(plain.arrays), vector(other.arrays))


def test_names_that_are_absent_count_as_zero() -> None:
    def first(arrays: ArrayRecord) -> dict[str, Any]:
        return {next(iter(arrays)): gradient(arrays)[0]}

    def padded(arrays: ArrayRecord) -> list[Any]:
        return [gradient(arrays)[0], np.zeros(2)]

    few, whole = run(first)[1], run(padded)[1]
    np.testing.assert_array_equal(vector(few.arrays), vector(whole.arrays))


@pytest.mark.parametrize(
    ("root_fn", "sentence"),
    [
        (lambda a: gradient(a)[:1], "`root_fn` must be 2 arrays"),
        (lambda a: gradient(a)[::-1], "of shape"),
        (lambda _: {"other": np.ones(2)}, "`root_fn` must be of the arrays"),
        (lambda _: [np.ones((2, 2)), np.array(["a", "b"])], "of real numbers"),
    ],
)
def test_a_gradient_of_another_form_is_an_error(root_fn: Any, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        run(root_fn)


def test_a_gradient_that_is_not_finite_rejects_the_round() -> None:
    def broken(arrays: ArrayRecord) -> list[Any]:
        return [np.nan * g for g in gradient(arrays)]

    strategy, result = run(broken)
    np.testing.assert_array_equal(strategy.state.anchor, np.ones(6))
    assert result.train_metrics_clientapp[1]["accepted"] == 0


def test_a_rule_that_needs_a_root_needs_the_function() -> None:
    with pytest.raises(InvalidInputError, match="`root_fn` must be a function"):
        HewStrategy(aggregator=RULE)


def test_in_two_phases_the_rule_gets_a_sketch_of_it() -> None:
    strategy = HewStrategy(aggregator=RULE, root_fn=gradient, phases=2, **QUIET)
    app = sketch_client_app(train)
    result = strategy.start(StubGrid(app, N), model(), 1)
    # sketches of six numbers are exact
    expected = np.ones(6) + RULE(MOVES, root=np.ones(6) - TARGET)[0].step
    np.testing.assert_allclose(vector(result.arrays), expected, atol=1e-5)
