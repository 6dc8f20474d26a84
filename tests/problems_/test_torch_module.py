"""Modules as federated problems: promises of the protocol, refusals, whole runs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hewfl import (
    ChoiceHorizons,
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
from hewfl.problems.problem import Branching, Problem
from hewfl.problems.torch_arrays import torch_from_arrays
from hewfl.problems.torch_layout import flatten, layout_of, unflatten
from hewfl.problems.torch_module import TorchModule
from hewfl.problems.torch_training import Training
from tests.sim.unchecked import unchecked

pytestmark = pytest.mark.torch
Array = NDArray[Any]
nn = torch.nn

ROUNDING = 1e-12
DIFFERENCES = 1e-7
"""Central differences with step 1e-5."""
LANES = 3


def mlp(*widths: int, dropout: float = 0.2) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        a, b, c = widths
        layers = nn.Linear(a, b), nn.Tanh(), nn.Dropout(dropout), nn.Linear(b, c)
        return nn.Sequential(*layers)


def data() -> tuple[Array, Array, list[Array]]:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 4)), rng.integers(0, 3, 40)
    return X, y, np.split(rng.permutation(40), [5, 20])


def small(**changes: Any) -> TorchModule:
    X, y, shards = data()
    given: dict[str, Any] = {"parts": {"test": (X, y)}}
    given["training"] = Training(weight_decay=0.1)
    module = changes.pop("module", mlp(4, 5, 3))
    return torch_from_arrays(module, X, y, shards, **given | changes)


def points(problem: TorchModule, *shape: int) -> Array:
    noise = np.random.default_rng(3).standard_normal((*shape, problem.d))
    return np.asarray(problem.start + 0.3 * noise)


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
    return unflatten(layout_of(problem.module), torch.tensor(x))


def close(found: Array, expected: Array, tolerance: float = ROUNDING) -> bool:
    scale = 1 + np.abs(expected).max()
    return bool(np.abs(np.asarray(found) - expected).max() <= tolerance * scale)


# ------------------------------------------------------------------ the protocol


def test_is_a_problem_with_branches_of_its_own() -> None:
    problem = small()
    assert isinstance(problem, Problem)
    assert isinstance(problem, Branching)
    assert (problem.n, problem.d) == (3, 43)
    assert problem.data_sizes.tolist() == [5, 15, 20]


def test_losses_and_metrics_against_the_module_itself() -> None:
    problem, (X, y, shards) = small(), data()
    x = points(problem, LANES)
    losses, found = problem.client_losses(x), problem.evaluate(x)
    assert set(found) == {
        *("train_loss", "train_accuracy", "test_loss", "test_accuracy")
    }
    for k in range(LANES):
        by_sample, hits = scored(problem, x[k], X, y)
        means = np.array([by_sample[rows].mean() for rows in shards])
        right = np.array([hits[rows].mean() for rows in shards])
        assert close(losses[k], means + 0.05 * (x[k] ** 2).sum())
        assert found["train_loss"][k] == pytest.approx(means.mean(), rel=ROUNDING)
        assert found["train_accuracy"][k] == pytest.approx(right.mean(), rel=ROUNDING)
        assert found["test_loss"][k] == pytest.approx(by_sample.mean(), rel=ROUNDING)
        assert found["test_accuracy"][k] == pytest.approx(hits.mean(), rel=ROUNDING)
    pooled = losses @ problem.data_sizes / 40
    assert close(problem.objectives(x), np.stack([losses.mean(1), pooled], axis=1))


def test_full_gradient_is_the_derivative_of_the_losses() -> None:
    problem, h = small(), 1e-5
    x = points(problem, 1)[0]
    steps = h * np.eye(problem.d)
    up, down = problem.client_losses(x + steps), problem.client_losses(x - steps)
    found = problem.full_gradients(x[None])[0]
    assert close((up - down).T / (2 * h), found, DIFFERENCES)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small()
    x = points(problem, LANES)
    whole = problem.full_gradients(x), *problem.evaluate(x).values()
    monkeypatch.setattr("hewfl.problems.torch_evaluation.BLOCK", 100)
    again = small()
    pieces = again.full_gradients(x), *again.evaluate(x).values()
    for one, other in zip(whole, pieces, strict=True):
        assert close(one, other)


def test_minibatch_gradient_is_clipped_then_decayed() -> None:
    """Without dropout: the mean over the first b_i samples, cut to length, plus λy."""
    problem = small(module=mlp(4, 5, 3, dropout=0.0), training=Training())
    y = points(problem, LANES, 2)
    samples, counts = np.array([[0, 1, 2], [7, 8, 9]]), np.array([2, 3])
    plain = problem.minibatch_gradients(y, samples, counts)
    for i, rows in enumerate(([0, 1], [7, 8, 9])):
        each = replace(problem, offsets=np.array(rows), data_sizes=np.ones_like(rows))
        for k in range(LANES):
            means = each.full_gradients(y[k, i][None])[0].mean(axis=0)
            assert close(plain[k, i], means)
    training = Training(weight_decay=0.1, clip=1.0)
    found = replace(problem, training=training).minibatch_gradients(y, samples, counts)
    norms = np.linalg.norm(plain, axis=2, keepdims=True)
    assert (norms > 1).any()
    assert (norms < 1).any()
    expected = plain * np.minimum(1, 1 / (norms + 1e-6)) + 0.1 * y
    assert close(found, expected)


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
        FedAvg(problem.smoothness, 1.0)
    for ask in (problem.optimum, problem.pooled_optimum):
        with pytest.raises(SolverError, match="no certified minimiser"):
            ask()


# ------------------------------------------------------------------ parameters


def test_vectors_and_state_dicts() -> None:
    problem = small()
    module = problem.module
    expected = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert (problem.start == expected.double().numpy()).all()
    layout = layout_of(module)
    assert torch.equal(flatten(layout, module.state_dict()), expected)
    assert torch.equal(flatten(layout, unflatten(layout, expected)), expected)
    x = points(problem, 1)[0]
    other = mlp(4, 5, 3)
    other.load_state_dict(problem.state_dict(x))
    loaded = nn.utils.parameters_to_vector(other.parameters()).detach().numpy()
    assert (loaded == x.astype(np.float32)).all()
    with pytest.raises(InvalidInputError, match=r"`vector` must be of shape \(43,\)"):
        problem.state_dict(x[1:])


def test_frozen_parameters_are_constants_and_tied_ones_count_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].requires_grad_(requires_grad=False)
    module[2].bias.requires_grad_(requires_grad=False)
    module[1].bias = module[0].bias
    problem = small(module=module)
    assert layout_of(module).names == ("1.weight", "2.weight")
    assert problem.d == 16 + 12
    assert problem.full_gradients(problem.start[None]).shape == (1, 3, 28)
    state = problem.state_dict(np.zeros(28))
    assert torch.equal(state["0.weight"], module[0].weight)
    assert not state["1.weight"].any()
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    tied[1].weight = tied[0].weight
    assert small(module=tied).d == 16 + 4 + 4 + 15


def test_the_module_is_copied() -> None:
    module = mlp(4, 5, 3)
    problem = small(module=module)
    before = problem.start.copy()
    with torch.no_grad():
        module[0].weight.zero_()
    x = points(problem, 1).astype(np.float64)
    problem.client_losses(x)
    assert (problem.start == before).all()
    assert problem.module[0].weight.any()


def test_any_loss_and_integer_features() -> None:
    """Regression on embedded tokens: no classes, no accuracy."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, (20, 3)), rng.standard_normal(20)

    def square(outputs: Any, labels: Any) -> Any:
        return (outputs[:, 0] - labels) ** 2

    module = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 1))
    shards = [np.arange(8), np.arange(8, 20)]
    problem = torch_from_arrays(module, X, y.astype(np.float32), shards, loss=square)
    found = problem.evaluate(problem.start[None])
    assert set(found) == {"train_loss"}
    federation = Federation(ChoiceHorizons((1, 3)), 4)
    trace = simulate(problem, federation, [FedAvg(20.0, 1.0)], rounds=8, seed=0)
    losses = [record.objective for record in trace.records]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < 0.9 * losses[0]


# ------------------------------------------------------------------ whole runs


def digits(route: Any = "auto") -> TorchModule:
    found = load("digits")
    X, y = found.features, found.labels
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


RATE = 0.2
METHODS: list[Any] = [
    FedAvg(1 / RATE, 1.0),
    HewHom(1 / RATE, 3.0),
    HewHet(1 / RATE, 3.0),
    MinibatchSGD(1 / RATE, 1.0),
]


def run(problem: TorchModule, rounds: int, **given: Any) -> Any:
    federation = Federation(ChoiceHorizons((1, 2, 6)), 16, SampledParticipation(4))
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
    trace = run(digits(), 30)
    accuracy = [
        [
            r.metrics["validation_accuracy"]
            for r in trace.records
            if r.lane == k and r.metrics
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
        federation = Federation(ChoiceHorizons((1, 2)), 4)
        lanes = [FedAvg(10.0, 1.0)]
        trace = simulate(problem, federation, lanes, rounds=2, seed=0, **given)
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
    problem = small()
    assert problem._route(8, 16) == "stacked"
    assert problem._route(7, 16) == "loop"
    assert problem._route(8, 2**16) == "loop"
    assert small(module=mlp(4, 3000, 3))._route(100, 1) == "loop"


# ------------------------------------------------------------------ refusals


class Noisy(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(self.layer(x), 0.5)


class Counting(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return self.layer(x)


X, Y, SHARDS = data()
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"module": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))},
        r"`module` must be free of running statistics, .*GroupNorm.*; got BatchNorm1",
    ),
    (
        {"module": nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True))},
        "got InstanceNorm1d at '0'",
    ),
    ({"module": nn.ReLU()}, "`module` must be one with trainable parameters; got ReLU"),
    ({"module": Noisy()}, "by torch.nn.Dropout layers alone; got one that uses"),
    ({"module": Counting()}, "whose buffers training leaves alone; got a change of 's"),
    ({"module": mlp(5, 5, 3)}, "`module, loss` must be such that they take these"),
    ({"module": mlp(4, 5, 2)}, "`labels` must be from 0 to 1; got 2"),
    ({"loss": nn.CrossEntropyLoss()}, r'reduction="none"\); got shape \(\) for 2'),
    ({"X": X * np.nan}, "`features` must be finite; got NaN"),
    ({"X": X[:0]}, r"`features` must be one entry per sample.*got shape \(0, 4\)"),
    ({"y": Y[:9]}, "`labels` must be one per sample, 40 of them; got 9"),
    ({"X": (X * 0).astype(np.uint8)}, r"`normalise` must be \(mean, deviation\) where"),
    ({"partition": []}, "`partition` must be one list of rows per client; got an empt"),
    ({"partition": [[0], []]}, r"`partition\[1\]` must be a nonempty vector of rows"),
    ({"partition": [[0, 40]]}, r"`partition\[0\]` must be rows from 0 to 39; got 40"),
    ({"parts": {"test": (X, Y - 9)}}, "`test labels` must be from 0 to 2; got -9"),
    ({"training": Training(route="graph")}, "`training.route` must be auto, stacked"),
    ({"normalise": 5}, r"`normalise` must be \(mean, deviation\); got 5"),
    ({"normalise": (0.0, 0.0)}, r"`normalise\[1\]` must be positive; got 0.0"),
    ({"partition": 5}, "`partition` must be one list of rows per client; got 5"),
    ({"partition": [[[0], []]]}, r"`partition\[0\]` must be a nonempty vector of row"),
    ({"X": ["a"]}, r"`features` must be an array of numbers; got \['a'\]"),
    ({"parts": (X, Y)}, "`parts` must be features and labels by name; got tuple"),
    ({"parts": {"v": X}}, r"`parts\['v'\]` must be a pair of features and labels"),
    ({"module": "net"}, "`module` must be a torch.nn.Module; got 'net'"),
    ({"module": nn.ReLU}, "`module` must be a torch.nn.Module; got <class"),
    ({"training": {"clip": 1.0}}, "`training` must be a Training; got {'clip': 1.0}"),
    ({"device": "gpu"}, '`device` must be a device .*"cpu" or "cuda"; got \'gpu\''),
    ({"device": "cuda:99"}, "`device` must be a device that torch has here"),
    ({"device": 1.5}, "`device` must be a device that torch has here, .*; got 1.5"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_problems_are_refused(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"module": mlp(4, 5, 3), "X": X, "y": Y}
    given |= {"partition": [np.arange(40)]} | changes
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        torch_from_arrays(**given)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"weight_decay": -1.0}, "`weight_decay` must be a nonnegative finite number"),
        ({"clip": 0.0}, "`clip` must be a positive finite number; got 0.0"),
        ({"client_chunk": 0}, '`client_chunk` must be "auto" or at least 1; got 0'),
        ({"client_chunk": "few"}, "`client_chunk` must be .*; got 'few'"),
        ({"client_chunk": 2.5}, "`client_chunk` must be .*; got 2.5"),
        ({"clip": "5"}, "`clip` must be a positive finite number; got '5'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], text: str) -> None:
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        Training(**changes)


def test_arrays_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="`features` must be a torch tensor; g"):
        TorchModule(mlp(4, 5, 3), X, Y, np.array([0]), np.array([40]))


def test_without_torch_there_is_one_clear_error() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import hewfl.problems\n"
        "try: import hewfl.problems.torch_module\n"
        "except hewfl.errors.MissingExtraError as error: print(error)\n"
    )
    call = [sys.executable, "-c", script]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert 'pip install "hewfl[torch]"' in done.stdout
