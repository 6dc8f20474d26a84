"""Modules as federated problems: promises of the protocol, and whole runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.problems.module.small import Array, data, mlp, nn, points, small

from hewfl import (
    ChoiceSteps,
    FedAvg,
    Federation,
    HewHet,
    HewHom,
    InvalidInputError,
    MinibatchSGD,
    SampledParticipation,
    simulate,
)
from hewfl.data import load
from hewfl.errors import DataError, SolverError
from hewfl.problems.module import TorchModule, Training, torch_from_arrays
from hewfl.problems.module.network import parameter_layout, unflatten
from hewfl.problems.module.training import choose_route
from hewfl.problems.problem import Branching, Problem

pytestmark = pytest.mark.torch

ROUNDING = 1e-12
DIFFERENCES = 1e-7
"""Central differences with step 1e-5."""
MODELS = 3
RATE = 0.2
METHODS: list[Any] = [
    FedAvg(RATE),
    HewHom(1 / RATE, 3.0),
    HewHet(1 / RATE, 3.0),
    MinibatchSGD(1.0 / (1 / RATE)),
]


def scored(problem: TorchModule, x: Array, X: Any, y: Any) -> tuple[Array, Array]:
    """Losses and hits by loading x into the module itself."""
    module = mlp(4, 5, 3).double().eval()
    module.load_state_dict(
        {k: v.double() for k, v in unflatten_(problem, x).items()}, strict=True
    )
    with torch.no_grad():
        outputs = module(torch.tensor(X, dtype=torch.float64))
        losses = nn.functional.cross_entropy(outputs, torch.tensor(y), reduction="none")
    return np.asarray(losses), np.asarray(outputs.argmax(dim=1)) == y


def unflatten_(problem: TorchModule, x: Array) -> dict[str, Any]:
    return unflatten(parameter_layout(problem.module), torch.tensor(x))


def close(actual: Array, expected: Array, tolerance: float = ROUNDING) -> bool:
    scale = 1 + np.abs(expected).max()
    return bool(np.abs(np.asarray(actual) - expected).max() <= tolerance * scale)


def test_is_a_problem_with_branches_of_its_own() -> None:
    problem = small()
    assert isinstance(problem, Problem)
    assert isinstance(problem, Branching)
    assert (problem.n, problem.d) == (3, 43)
    assert problem.data_sizes.tolist() == [5, 15, 20]


def test_losses_and_metrics_against_the_module_itself() -> None:
    problem, (X, y, shards) = small(), data()
    x = points(problem, MODELS)
    losses, measures = problem.client_losses(x), problem.evaluate(x)
    assert set(measures) == {
        *("train_loss", "train_accuracy", "test_loss", "test_accuracy", "class")
    }
    for k in range(MODELS):
        by_sample, hits = scored(problem, x[k], X, y)
        means = np.array([by_sample[rows].mean() for rows in shards])
        right = np.array([hits[rows].mean() for rows in shards])
        assert close(losses[k], means + 0.05 * (x[k] ** 2).sum())
        assert measures["train_loss"][k] == pytest.approx(means.mean(), rel=ROUNDING)
        assert measures["train_accuracy"][k] == pytest.approx(
            right.mean(), rel=ROUNDING
        )
        assert measures["test_loss"][k] == pytest.approx(by_sample.mean(), rel=ROUNDING)
        assert measures["test_accuracy"][k] == pytest.approx(hits.mean(), rel=ROUNDING)
    pooled = losses @ problem.data_sizes / 40
    assert close(problem.objectives(x), np.stack([losses.mean(1), pooled], axis=1))


def test_full_gradient_is_the_derivative_of_the_losses() -> None:
    problem, h = small(), 1e-5
    x = points(problem, 1)[0]
    steps = h * np.eye(problem.d)
    up, down = problem.client_losses(x + steps), problem.client_losses(x - steps)
    gradients = problem.full_gradients(x[None])[0]
    assert close((up - down).T / (2 * h), gradients, DIFFERENCES)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small()
    x = points(problem, MODELS)
    whole = problem.full_gradients(x), *problem.evaluate(x).values()
    monkeypatch.setattr("hewfl.problems.module.scoring.BLOCK", 100)
    again = small()
    pieces = again.full_gradients(x), *again.evaluate(x).values()
    for one, other in zip(whole, pieces, strict=True):
        assert close(one, other)


def test_minibatch_gradient_is_clipped_then_decayed() -> None:
    """Without dropout: the mean over the first b_i samples, cut to length, plus λy."""
    problem = small(module=mlp(4, 5, 3, dropout=0.0), training=Training())
    y = points(problem, MODELS, 2)
    samples, counts = np.array([[0, 1, 2], [7, 8, 9]]), np.array([2, 3])
    plain = problem.minibatch_gradients(y, samples, counts)
    for i, rows in enumerate(([0, 1], [7, 8, 9])):
        each = replace(problem, offsets=np.array(rows), data_sizes=np.ones_like(rows))
        for k in range(MODELS):
            means = each.full_gradients(y[k, i][None])[0].mean(axis=0)
            assert close(plain[k, i], means)
    training = Training(weight_decay=0.1, clip=1.0)
    gradients = replace(problem, training=training).minibatch_gradients(
        y, samples, counts
    )
    norms = np.linalg.norm(plain, axis=2, keepdims=True)
    assert (norms > 1).any()
    assert (norms < 1).any()
    expected = plain * np.minimum(1, 1 / (norms + 1e-6)) + 0.1 * y
    assert close(gradients, expected)


def test_dropout_acts_in_training_alone_and_by_the_samples() -> None:
    problem = small()
    y = points(problem, 1, 1)
    rows = np.arange(5)[None], np.array([5])
    first, again = (problem.minibatch_gradients(y, *rows) for _ in range(2))
    turned = problem.minibatch_gradients(y, rows[0][:, ::-1].copy(), rows[1])
    assert (first == again).all()
    assert (first != turned).any()
    exact = problem.full_gradients(y[:, 0])[:, :1]
    assert (np.abs(first - exact) > 1e-3).any()


def test_answers_come_in_the_library_and_precision_of_the_models() -> None:
    problem = small()
    x, rows = points(problem, 2), (np.array([[0, 1]]), np.array([2]))
    for dtype in ("float32", "float64"):
        wide = x.astype(dtype)
        tensor = torch.tensor(wide)
        for ask in (problem.full_gradients, problem.client_losses):
            host, there = ask(wide), ask(tensor)
            assert isinstance(host, np.ndarray)
            assert isinstance(there, torch.Tensor)
            assert close(host, there.numpy())
        gradient = problem.minibatch_gradients(tensor[:, None], *rows)
        assert gradient.dtype == tensor.dtype
        assert problem.full_gradients(wide).dtype == wide.dtype
        assert problem.client_losses(wide).dtype == np.float64


def test_there_is_no_theory_here() -> None:
    problem = small()
    with pytest.raises(InvalidInputError, match="`smoothness` must be a positive fini"):
        HewHom(problem.smoothness, 0.5)
    for ask in (problem.optimum, problem.pooled_optimum):
        with pytest.raises(SolverError, match="no certified minimiser"):
            ask()


def test_any_loss_and_integer_features() -> None:
    """Regression on embedded tokens: no classes, no accuracy."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, (20, 3)), rng.standard_normal(20)

    def square(outputs: Any, labels: Any) -> Any:
        return (outputs[:, 0] - labels) ** 2

    module = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 1))
    shards = [np.arange(8), np.arange(8, 20)]
    problem = torch_from_arrays(module, X, y.astype(np.float32), shards, loss=square)
    measures = problem.evaluate(problem.start[None])
    assert set(measures) == {"train_loss"}
    federation = Federation(ChoiceSteps((1, 3)), 4)
    trace = simulate(problem, federation, [FedAvg(0.05)], rounds=8, seed=0)
    losses = [record.objective for record in trace.records]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < 0.9 * losses[0]


def digits(route: Any = "auto") -> TorchModule:
    X, y = load("digits").features, load("digits").labels
    shards = np.array_split(np.argsort(y[:600], kind="stable"), 6)
    return torch_from_arrays(
        mlp(64, 24, 10),
        X.astype(np.uint8),
        y,
        shards,
        parts={"validation": (X[600:800].astype(np.uint8), y[600:800])},
        normalise=(4.9, 6.0),
        training=Training(weight_decay=1e-3, clip=5.0, route=route),
    )


def run(problem: TorchModule, rounds: int, **given: Any) -> Any:
    federation = Federation(ChoiceSteps((1, 2, 6)), 16, SampledParticipation(4))
    return simulate(
        problem,
        federation,
        METHODS,
        rounds=rounds,
        seed=0,
        start=problem.start,
        dtype=np.float32,
        evaluate_every=10,
        **given,
    )


def test_methods_learn_in_the_engine() -> None:
    trace = run(digits(), 20)
    accuracy = [
        [
            r.metrics["validation_accuracy"]
            for r in trace.records
            if r.entry == k and r.metrics
        ]
        for k in range(len(METHODS))
    ]
    for path in accuracy[:3]:
        assert path[0] < 0.3
        assert path[-1] > 0.6


def test_a_run_starts_at_the_module(tmp_path: Path) -> None:
    """Of two layers without biases that are zero, neither ever gets a gradient."""
    layers = nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)
    problem = small(module=nn.Sequential(*layers), training=Training())

    def played(**given: Any) -> Array:
        federation = Federation(ChoiceSteps((1, 2)), 4)
        methods = [FedAvg(0.1)]
        trace = simulate(problem, federation, methods, rounds=2, seed=0, **given)
        return np.asarray(trace.anchors[0])

    zero = np.zeros(problem.d)
    assert (played(start=zero) == zero).all()
    moved = played(checkpoint=tmp_path)
    assert moved.any()
    assert (moved != problem.start).any()
    tensor = torch.tensor(problem.start, requires_grad=True)
    assert (played(start=tensor, checkpoint=tmp_path) == moved).all()
    with pytest.raises(DataError, match="another run: its start is"):
        played(start=zero, checkpoint=tmp_path)


def test_routes_agree_over_rounds() -> None:
    stacked, loop = (run(digits(route), 3).anchors for route in ("stacked", "loop"))
    assert np.abs(stacked - loop).max() <= 1e-5


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(digits(), 4)
    run(digits(), 2, checkpoint=tmp_path)
    resumed = run(digits(), 4, checkpoint=tmp_path)
    assert (resumed.anchors == whole.anchors).all()


def test_small_modules_are_stacked_on_a_cpu_and_large_ones_looped() -> None:
    task = small()._task(torch.float32)
    assert choose_route(task, 8, 16) == "stacked"
    assert choose_route(task, 7, 16) == "loop"
    assert choose_route(task, 8, 2**16) == "loop"
    large = small(module=mlp(4, 3000, 3))._task(torch.float32)
    assert choose_route(large, 100, 1) == "loop"


def test_variates_under_adamw_are_mean_gradients_and_are_paid_for() -> None:
    """Read off displacements they would be as long as Adam's directions, about √d."""
    training = Training(clip=1e-3, optimiser="adamw")
    problem = small(training=training)
    federation = Federation(ChoiceSteps((1, 2)), batch_size=2)
    norms: list[float] = []

    def observe(step: Any) -> dict[str, float]:
        if step.entry == 0:
            norms.append(float(np.linalg.norm(step.state.clients, axis=1).max()))
        return {}

    methods: list[Any] = [HewHet(1 / RATE, 3.0), HewHom(1 / RATE, 3.0)]
    given: Any = {"rounds": 3, "seed": 0, "observers": [observe]}
    trace = simulate(problem, federation, methods, **given)
    assert len(norms) == 3
    assert max(norms) <= 1e-3 * (1 + ROUNDING)  # as clipped
    n, d = problem.n, problem.d
    corrected, plain = (trace.of(k)[-1] for k in range(2))
    assert corrected.scalars == n * d + 3 * (2 * d + n * 2 * d + 1)
    assert corrected.paper_scalars == corrected.scalars
    assert plain.scalars == 3 * (d + n * d + 1)
    assert trace.communication(0).total.scalars == corrected.scalars
    sgd = replace(problem, training=Training())
    last = simulate(sgd, federation, methods[:1], rounds=3, seed=0).of(0)[-1]
    assert last.scalars == n * d + 3 * (2 * d + n * d + 1)
