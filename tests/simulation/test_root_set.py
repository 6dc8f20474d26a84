"""A root set: samples of the server, and the gradient that a rule gets from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl import (
    FedAvg,
    Federation,
    FixedSteps,
    FlippedLabels,
    InvalidInputError,
    LocalSGD,
    Method,
    RootSet,
    SampledParticipation,
    Scenario,
    simulate,
)
from hewfl.aggregators import ExactWeights
from hewfl.experiments.build_problem import build_federation
from hewfl.experiments.spec import spec_from_table
from hewfl.problems import random_quadratic, softmax_common_pool, softmax_from_arrays
from hewfl.simulation.rounds import Step
from tests.simulation.unchecked import unchecked

N, M, P, C = 4, 15, 3, 4
WRONG: Any = "12"
METHOD = Method(LocalSGD(0.2), ExactWeights("root", kappa=2.0))


def arrays() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(N * M, P)), rng.integers(C, size=N * M)


def softmax() -> Any:
    X, y = arrays()
    return softmax_from_arrays(X, y, np.array_split(np.arange(N * M), N), l2=0.01)


def run(problem: Any, federation: Federation, **options: Any) -> tuple[Any, list[Step]]:
    """A run of three rounds, and the steps that an observer saw."""
    steps: list[Step] = []

    def observe(step: Step) -> dict[str, float]:
        steps.append(step)
        return {}

    given: Any = {"rounds": 3, "seed": 5, "observers": [observe]} | options
    methods = given.pop("methods", [METHOD])
    return simulate(problem, federation, methods, **given), steps


def by_hand(problem: Any, rows: NDArray[np.int64], x: Any) -> NDArray[np.float64]:
    """The gradient of the mean softmax loss on some rows of the pooled arrays."""
    A, y, W = problem.features[rows], problem.labels[rows], x.reshape(C, P)
    scores = np.exp(A @ W.T)
    R = scores / scores.sum(axis=1, keepdims=True) - np.eye(C)[y]
    return np.asarray(R.T @ A / len(rows) + problem.l2 * W).ravel()


def test_the_root_is_the_gradient_at_the_model_on_samples_with_true_labels() -> None:
    problem, root = softmax(), RootSet(20)
    flipped = Scenario((FlippedLabels(0.5),))
    rows = root.draw(5, problem).rows
    assert len(set(rows.tolist())) == 20
    trace, steps = run(
        problem, Federation(FixedSteps(2), 4, scenario=flipped, root=root)
    )
    assert len(trace.records[0].scenario["faulty"]) == 2
    for step in steps:
        expected = by_hand(problem, rows, step.round.anchor)
        np.testing.assert_allclose(step.round.root, expected, atol=1e-12)
        decision, _ = ExactWeights("root", kappa=2.0).decide(step.round, None)
        np.testing.assert_array_equal(decision.weights, step.decision.weights)
    wrong = steps[1].problem  # with flipped labels the same rows give another gradient
    anchor = steps[1].round.anchor
    assert np.abs(by_hand(wrong, rows, anchor) - steps[1].round.root).max() > 0.01


def test_samples_depend_on_the_seed_alone_and_leave_classes_out() -> None:
    problem = softmax()
    first, again, other = (RootSet(12).draw(s, problem).rows for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    lacking = RootSet(1000, without=(0, 2)).draw(0, problem)
    assert set(problem.labels[lacking.rows].tolist()) == {1, 3}
    assert len(lacking.rows) == np.isin(problem.labels, (1, 3)).sum()


def test_each_sample_counts_once_in_the_client_that_holds_it() -> None:
    whole = RootSet(N * M)
    problem = softmax()
    x = np.random.default_rng(1).normal(size=(2, problem.d))
    np.testing.assert_allclose(
        whole.draw(0, problem).gradients(x),
        problem.full_gradients(x).mean(axis=1),  # clients of equal size
        atol=1e-12,
    )
    X, y = arrays()
    shared = softmax_common_pool(
        X, y, 3, l2=0.01
    )  # three clients with the same samples
    sample = whole.draw(0, shared)
    np.testing.assert_array_equal(sample.rows, np.arange(N * M))
    expected = shared.full_gradients(x)[:, 0]
    np.testing.assert_allclose(sample.gradients(x), expected, atol=1e-12)


def test_a_problem_without_classes_has_a_root_too() -> None:
    problem = random_quadratic(seed=0, n=4, d=3)
    everything = RootSet(10**6).draw(0, problem)
    x = np.ones((1, 3))
    shares = problem.data_sizes / problem.data_sizes.sum()
    expected = np.einsum("n,knd->kd", shares, problem.full_gradients(x))
    np.testing.assert_allclose(everything.gradients(x), expected, atol=1e-12)
    with pytest.raises(InvalidInputError, match="without classes"):
        RootSet(3, without=(1,)).draw(0, problem)


def test_clients_train_as_without_a_root_set() -> None:
    problem, plain = softmax(), FedAvg(0.2)
    federation = Federation(FixedSteps(2), 4)
    owning = Federation(FixedSteps(2), 4, root=RootSet(20))
    alone, _ = run(problem, federation, methods=[plain])
    beside, steps = run(problem, owning, methods=[plain, METHOD])
    np.testing.assert_array_equal(alone.anchors[0], beside.anchors[0])
    assert steps[0].round.root is None  # FedAvg does not look at it


def test_a_resumed_run_has_the_same_root(tmp_path: Path) -> None:
    problem = softmax()
    part = SampledParticipation(3)
    federation = Federation(FixedSteps(2), 4, part, root=RootSet(20))
    whole, _ = run(problem, federation)
    run(problem, federation, rounds=1, checkpoint=tmp_path)
    resumed, _ = run(problem, federation, checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.anchors, resumed.anchors)


def test_a_model_without_a_finite_root_gradient_stops_its_entry() -> None:
    X, y = arrays()
    problem = softmax_from_arrays(X, y, np.array_split(np.arange(N * M), N), l2=0.01)
    start = np.full(problem.d, 1e308)
    trace, _ = run(problem, Federation(FixedSteps(1), 4, root=RootSet(9)), start=start)
    assert "diverged" in trace.records[-1].status


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Federation(FixedSteps(1), root=WRONG), "`root` must be a RootSet"),
        (lambda: RootSet(0), "`size` must be"),
        (lambda: RootSet(9, without=WRONG), "`without` must be a list of classes"),
        (lambda: RootSet(9, without=(1, 1)), "`without` must be a list of different"),
        (lambda: RootSet(9, without=(4,)).draw(0, softmax()), "must be below 4"),
        (lambda: RootSet(9, without=range(4)).draw(0, softmax()), "sample is left"),
        (lambda: run(softmax(), Federation(FixedSteps(1))), "given a RootSet"),
    ],
)  # fmt: skip
def test_wrong_arguments(wrong: Any, sentence: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError, match=sentence):
        wrong()


def test_a_spec_has_a_root_set() -> None:
    table: dict[str, Any] = {
        "name": "rooted",
        "methods": [{"method": "exact", "reference": "root", "step_scale": 0.5}],
        "clients": {"n": 4, "root": {"size": 30, "without": [1, 2]}},
    }
    federation = build_federation(spec_from_table(table))
    assert federation.root == RootSet(30, without=(1, 2))
    for given, sentence in (
        (7, "`clients.root` must be a table with `size`"),
        ({"sizes": 3}, "`clients.root.sizes` must be one of size, without"),
        ({"size": -1}, "`clients.root.size` must be"),
    ):
        table["clients"]["root"] = given
        with pytest.raises(InvalidInputError, match=sentence):
            spec_from_table(table)
