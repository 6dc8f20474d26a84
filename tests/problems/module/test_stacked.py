"""Stacked branches of a module against the plain twin, torch's SGD and the engine's."""

import copy
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hewfl.core.round import Cohort, LocalPlan
from hewfl.problems.module import TorchModule, Training, torch_from_arrays
from hewfl.problems.module.stacked import (
    ModelStack,
    StackedBranches,
    advance,
    chunk_size,
    empty_stack,
    fill,
    form_of,
)
from hewfl.problems.module.training import LocalTask
from hewfl.simulation.branches import run_branches_plain
from hewfl.simulation.draws import Draws

pytestmark = pytest.mark.torch
Array = NDArray[Any]
nn = torch.nn

ROUNDING = 1e-12
"""Two float64 evaluations of a branch, over the size of the result."""
LOOSE = 1e-6
"""The same where Adam divides by gradients that may be nearly zero."""
NARROW = 1e-4
"""The same in float32, after some steps."""
HALF = 0.05
"""bfloat16 has eight bits; a clipped step has the length of its clip."""


def net(dropout: float = 0.3) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            *(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()),
            *(nn.Dropout2d(dropout), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 3)),
        )


def problem_of(training: Training, dropout: float = 0.3) -> TorchModule:
    rng = np.random.default_rng(2)
    X = rng.integers(0, 17, (60, 64), dtype=np.uint8)
    shards = np.split(rng.permutation(60), [10, 25, 33, 50])
    y = rng.integers(0, 3, 60)
    given: dict[str, Any] = {"normalise": (8.0, 5.0), "training": training}
    return torch_from_arrays(net(dropout), X, y, shards, **given)


def cohort_of(problem: TorchModule) -> Cohort:
    clients = np.array([0, 1, 3, 4])
    horizons, batches = np.array([2, 5, 1, 3]), np.array([4, 6, 1, 3])
    return Cohort(clients, horizons, batches, problem.data_sizes[clients], problem.n)


def part_of(cohort: Cohort, some: slice) -> Cohort:
    names = "clients", "horizons", "batch_sizes", "data_sizes"
    kept = {name: getattr(cohort, name)[some] for name in names}
    return replace(cohort, **kept)


def samples_of(problem: TorchModule, cohort: Cohort) -> Array:
    rng = np.random.default_rng(4)
    steps, width = int(cohort.horizons.max()), int(cohort.batch_sizes.max())
    shape = steps, len(cohort.clients), width
    sizes = cohort.data_sizes[:, None]
    picks: Array = rng.integers(0, 2**30, shape) % sizes
    return picks + problem.offsets[cohort.clients][:, None]


def plans_of(problem: TorchModule, cohort: Cohort) -> list[LocalPlan]:
    rng = np.random.default_rng(3)
    eta = rng.uniform(0.1, 0.5, len(cohort.clients))
    correction = 0.05 * rng.standard_normal((len(cohort.clients), problem.d))
    return [
        LocalPlan(eta),
        LocalPlan(eta, correction),
        LocalPlan(eta, proximal=0.7),
        LocalPlan(eta, correction, proximal=0.2, hold=True),
    ]


def anchors_of(problem: TorchModule, models: int, dtype: Any = np.float64) -> Array:
    rng = np.random.default_rng(6)
    noise = 0.1 * rng.standard_normal((models, problem.d))
    return np.asarray(problem.start + noise, dtype=dtype)


def close(actual: Array, expected: Array, tolerance: float) -> bool:
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


CASES = [
    (Training(), "auto"),
    (Training(weight_decay=0.1), "auto"),
    (Training(clip=0.5), "auto"),
    *((Training(weight_decay=0.1, clip=0.5), chunk) for chunk in ("auto", 1, 3, 4, 9)),
    *(
        (Training(weight_decay=0.1, clip=0.5, optimiser="adamw"), chunk)
        for chunk in ("auto", 3)
    ),
]


@pytest.mark.parametrize(("training", "chunk"), CASES)
def test_stacked_is_plain(training: Training, chunk: Any) -> None:
    """All kinds of plans in one call, in groups of clients and of models."""
    problem = problem_of(training)
    cohort = cohort_of(problem)
    given = cohort, plans_of(problem, cohort), samples_of(problem, cohort)
    adaptive = training.optimiser == "adamw"  # signs of small numbers come out at η
    narrow = ((np.float32, NARROW),) if chunk == "auto" and not adaptive else ()
    for dtype, tolerance in ((np.float64, LOOSE if adaptive else ROUNDING), *narrow):
        anchors = anchors_of(problem, 4, dtype)
        results = [
            replace(
                problem, training=replace(training, route=route, client_chunk=chunk)
            ).branches(anchors, *given)
            for route in ("stacked", "loop")
        ]
        assert results[0].dtype == results[1].dtype == dtype
        assert close(results[0], results[1], tolerance)


@pytest.mark.parametrize("route", ["stacked", "loop"])
def test_branches_are_those_of_the_engine(route: Any) -> None:
    """One client and one step at a time, from `minibatch_gradients` alone."""
    training = Training(weight_decay=0.1, clip=0.5, route=route)
    problem = problem_of(training)
    cohort = cohort_of(problem)
    plans, samples = plans_of(problem, cohort), samples_of(problem, cohort)
    anchors = anchors_of(problem, len(plans))
    moved = problem.branches(anchors, cohort, plans, samples)
    draws = Draws(samples, cohort.batch_sizes)
    for k, plan in enumerate(plans):
        expected = run_branches_plain(problem, anchors[k], cohort, plan, draws)
        assert close(moved[k], expected, ROUNDING)


@pytest.mark.parametrize("route", ["stacked", "loop"])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_branches_are_those_of_torch(route: Any, optimiser: Any) -> None:
    """torch.optim.SGD or AdamW with decay after `clip_grad_norm_`; no dropout."""
    given: Any = {"weight_decay": 0.1, "clip": 0.5, "optimiser": optimiser}
    problem = problem_of(Training(**given, route=route), dropout=0.0)
    cohort = cohort_of(problem)
    samples, x = samples_of(problem, cohort), anchors_of(problem, 1)
    eta = np.array([0.1, 0.2, 0.3, 0.4]) / (20 if optimiser == "adamw" else 1)
    moved = problem.branches(x, cohort, [LocalPlan(eta)], samples)[0]
    make = torch.optim.AdamW if optimiser == "adamw" else torch.optim.SGD
    for i in range(len(cohort.clients)):
        module = copy.deepcopy(problem.module).double()
        module.load_state_dict(
            {k: v.double() for k, v in problem.state_dict(x[0]).items()}
        )
        nn.utils.vector_to_parameters(torch.tensor(x[0]), module.parameters())
        stepper: Any = make(module.parameters(), lr=eta[i], weight_decay=0.1)
        for step in range(cohort.horizons[i]):
            rows = torch.tensor(samples[step, i, : cohort.batch_sizes[i]])
            stepper.zero_grad()
            inputs = (problem.features[rows].double() - 8) / 5
            nn.CrossEntropyLoss()(module(inputs), problem.labels[rows]).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            stepper.step()
        y = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        limit = 1e-10 if optimiser == "sgd" else LOOSE
        assert close(moved[i], y - x[0], limit)


@pytest.mark.parametrize(("route", "chunk"), [("stacked", 3), ("loop", "auto")])
def test_mean_gradients_are_those_along_the_branch(route: Any, chunk: Any) -> None:
    """Before correction, pull and Adam, clipped, without decay; corrected models only.

    A branch whose steps are too small to move it has all its gradients at the anchor.
    """
    training = Training(0.1, 0.5, "adamw", route=route, client_chunk=chunk)
    problem = problem_of(training)
    cohort = cohort_of(problem)
    samples, x = samples_of(problem, cohort), anchors_of(problem, 4)
    plans = [
        replace(plan, step_sizes=1e-13 * plan.step_sizes)
        for plan in plans_of(problem, cohort)
    ]
    moved, means = problem.measured_branches(x, cohort, plans, samples)
    assert moved.shape[0] == 4
    assert means.shape == (2, *moved.shape[1:])
    for mean, anchor in zip(means, x[[1, 3]], strict=True):
        for i, (H, b) in enumerate(
            zip(cohort.horizons, cohort.batch_sizes, strict=True)
        ):
            models = np.tile(anchor, (1, H, 1))
            counts = np.full(H, b)
            each = problem.minibatch_gradients(models, samples[:H, i], counts)[0]
            assert close(mean[i], each.mean(axis=0), 1e-9)
    plain = replace(problem, training=replace(training, optimiser="sgd"))
    assert not plain.hides_gradients
    assert len(plain.measured_branches(x, cohort, plans, samples)[1]) == 0


@pytest.mark.parametrize("route", ["stacked", "loop"])
def test_padding_and_later_steps_are_ignored(route: Any) -> None:
    problem = problem_of(Training(route=route))
    cohort = cohort_of(problem)
    samples, x = samples_of(problem, cohort), anchors_of(problem, 1)
    other = samples.copy()
    for i, (H, b) in enumerate(zip(cohort.horizons, cohort.batch_sizes, strict=True)):
        other[H:, i], other[:, i, b:] = 7, 9
    plan = plans_of(problem, cohort)[:1]
    results = [problem.branches(x, cohort, plan, draws) for draws in (samples, other)]
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("route", ["stacked", "loop"])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_inputs_are_left_alone_and_rounds_do_not_mix(
    route: Any, optimiser: Any
) -> None:
    problem = problem_of(Training(route=route, clip=0.5, optimiser=optimiser))
    cohort = cohort_of(problem)
    samples, x = samples_of(problem, cohort), anchors_of(problem, 4)
    plans = plans_of(problem, cohort)
    for array in (samples, x):
        array.flags.writeable = False
    first = problem.branches(x, cohort, plans, samples)
    kept = first.copy()
    few = part_of(cohort, slice(0, 2))
    two = [LocalPlan(p.step_sizes[:2], None, p.proximal, p.hold) for p in plans]
    problem.branches(x, few, two, samples[:, :2])
    assert (first == kept).all()
    assert (problem.branches(x, cohort, plans, samples) == kept).all()


def test_models_and_clients_share_no_more_than_their_draws() -> None:
    """A client's branch is the same alone, with one model, as among all others."""
    problem = problem_of(Training(clip=0.5, route="stacked"))
    cohort = cohort_of(problem)
    samples, x = samples_of(problem, cohort), anchors_of(problem, 4)
    plans = plans_of(problem, cohort)
    moved = problem.branches(x, cohort, plans, samples)
    one = slice(1, 2)
    alone = part_of(cohort, one)
    correction = plans[1].correction
    assert correction is not None
    plan = LocalPlan(plans[1].step_sizes[one], correction[one])
    single = problem.branches(x[1:2], alone, [plan], samples[:, one])
    assert close(single[0, 0], moved[1, 1], ROUNDING)


def test_a_client_with_no_steps_to_go_stays() -> None:
    """Captured steps run more rows than are busy: those must not move."""
    problem = problem_of(Training())
    cohort = cohort_of(problem)
    plans, x = plans_of(problem, cohort), torch.tensor(anchors_of(problem, 4))
    task = problem._task(torch.float64)
    stack = empty_stack(form_of(task, plans, 6, torch.float64), 6, problem.d, "cpu")
    order = np.argsort(-cohort.horizons)
    fill(stack, x, cohort, plans, order)
    batches = samples_of(problem, cohort)
    for step in range(5):
        before = stack.moved.clone()
        stack.batch[:4, :-1].copy_(torch.tensor(batches[step, order]))
        advance(task, stack, 6)
        moved = (stack.moved != before).any(dim=2).any(dim=1)
        assert moved.tolist() == [*(cohort.horizons[order] > step), False, False]


@final
@dataclass(frozen=True)
class Replay:
    """What a captured graph does, by hand."""

    task: LocalTask
    stack: ModelStack
    rows: int
    log: list[int]

    def replay(self) -> None:
        self.log.append(self.rows)
        advance(self.task, self.stack, self.rows)


def test_graphs_are_capture_once_for_each_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bookkeeping around graphs, with steps replayed by hand on the CPU."""
    problem = problem_of(Training(weight_decay=0.1, clip=0.5, route="loop"))
    cohort = Cohort(np.arange(5), np.arange(5) + 1, np.full(5, 2), np.ones(5, int), 5)
    rounds = [replace(cohort, horizons=cohort.horizons[::-1].copy()), cohort]
    log, captured = list[int](), list[int]()
    task = problem._task(torch.float64)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", tuple)
    stepper = StackedBranches(task, graphs=True)
    x, eta = torch.tensor(anchors_of(problem, 1)), np.full(5, 0.2)

    def capture(stack: ModelStack, rows: int) -> Replay:
        captured.append(rows)
        return Replay(task, stack, rows, log)

    monkeypatch.setattr(stepper, "_capture", capture)
    monkeypatch.setattr("hewfl.problems.module.stacked.bucket", lambda k: k + k % 2)
    for each in rounds:
        samples = np.random.default_rng(each.horizons[0]).integers(0, 60, (5, 5, 2))
        moved, _ = stepper.branches(x, each, [LocalPlan(eta)], samples)
        expected = problem.branches(x.numpy(), each, [LocalPlan(eta)], samples)
        assert close(moved, expected, ROUNDING)
    assert captured == [6, 4, 2]
    assert log == [6, 4, 4, 2, 2] * 2


def test_bfloat16_is_near_and_other() -> None:
    problem = problem_of(Training(clip=0.5))
    cohort = cohort_of(problem)
    samples, x = samples_of(problem, cohort), anchors_of(problem, 4, np.float32)
    plans = plans_of(problem, cohort)
    full = problem.branches(x, cohort, plans, samples)
    for route in ("stacked", "loop"):
        training = Training(clip=0.5, precision="bfloat16", route=route)
        low = replace(problem, training=training)
        moved = low.branches(x, cohort, plans, samples)
        assert moved.dtype == np.float32
        assert (moved != full).any()
        assert np.linalg.norm(moved - full) <= HALF * np.linalg.norm(full)


def test_auto_chunks_fit_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    task = problem_of(Training())._task(torch.float32)
    whole = chunk_size(task, 64)
    monkeypatch.setattr("hewfl.problems.module.stacked.HOST_MEMORY", 2**24)
    assert 1 < chunk_size(task, 64) < whole / 60
    monkeypatch.setattr("hewfl.problems.module.stacked.HOST_MEMORY", 1)
    assert chunk_size(task, 64) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["full", "bfloat16"])
def test_graphs_are_stacked_steps(precision: Any) -> None:
    """Replayed graphs, twice and with another round between, against the CPU's loop."""
    training = Training(weight_decay=0.1, clip=0.5, precision=precision)
    here = problem_of(training)
    parts = here.features.cuda(), here.labels.cuda()
    ranges = here.offsets, here.data_sizes
    there = TorchModule(
        here.module, *parts, *ranges, normalise=here.normalise, training=training
    )
    cohort = cohort_of(here)
    samples, x = samples_of(here, cohort), anchors_of(here, 4, np.float32)
    plans = plans_of(here, cohort)
    expected = here.branches(x, cohort, plans, samples)
    tolerance = NARROW if precision == "full" else HALF
    first = there.branches(x, cohort, plans, samples)
    there.branches(2 * x, cohort, plans[::-1], samples[:, :, ::-1].copy())
    assert np.linalg.norm(first - expected) <= tolerance * np.linalg.norm(expected)
    again = there.branches(x, cohort, plans, samples)
    assert close(again, first, 1e-6)
