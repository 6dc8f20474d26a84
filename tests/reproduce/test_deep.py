"""The deep-learning lines, small, on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.figures import figure_3, figure_4, figure_5, figure_6
from reproduce.specs import (
    cnn_equal_spec,
    cnn_spec,
    head_equal_spec,
    head_spec,
    quick_deep,
)

from hewfl import HewHom, InvalidInputError, LocalSGD
from hewfl.core.round import Cohort
from hewfl.experiments.build_problem import build_problem, entries_of
from hewfl.experiments.executor import Progress
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.results import Results, read_results
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import Spec


def test_the_lines_are_the_paper_s() -> None:
    cnn, head = cnn_spec(), head_spec()
    assert (cnn.rounds, cnn.seeds, cnn.clients.n) == (160, (42, 43, 44, 45), 40)
    assert (cnn.clients.alpha, cnn.clients.min_samples, cnn.clients.batch_size) == (
        *(0.5, 100),
        64,
    )
    assert (cnn.problem.weight_decay, cnn.problem.clip) == (1e-4, 5.0)
    assert cnn.problem.dropout == 0.15
    assert (head.rounds, head.clients.n, head.clients.participation) == (30, 30, 10)
    assert (head.clients.alpha, head.clients.min_samples, head.clients.batch_size) == (
        *(0.3, 64),
        16,
    )
    assert (head.problem.weight_decay, head.problem.clip) == (1e-2, 1.0)
    assert (head.tune.screen_rounds, head.tune.rounds, head.tune.seeds) == (
        *(4, 8),
        (42, 43),
    )
    assert head.clients.local_steps["clipped"]
    assert len(head.methods) == 9
    assert not set(cnn.tune.seeds) & set(cnn.seeds)
    assert (cnn.tune.screen_rounds, cnn.tune.screen_top_k, cnn.tune.rounds) == (
        40,
        2,
        160,
    )
    for spec in (cnn, head):
        assert all(1.75 in m.grid["kappa"] for m in spec.methods if "kappa" in m.grid)
        by_label = {m.label: m for m in spec.methods}
        minibatch: Any = by_label["minibatch SGD"].candidates()[0].entry(1.0).algorithm
        assert minibatch.local == LocalSGD(total=0.25, at_anchor=True)  # one step
    assert cnn.methods[1].method == "UniformLocalSGD"  # FedAvg of the text


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (cnn_spec, [2e-3, 2e-3]),
        (cnn_equal_spec, [4e-3, 1e-3]),
        (head_spec, [1e-3, 1e-3]),
        (head_equal_spec, [4e-3, 5e-4]),
    ],
)
def test_one_rate_for_all_or_one_total_step(make: Any, expected: list[float]) -> None:
    """One epoch and four, of eight samples each in batches of eight."""
    spec = make()
    cohort = Cohort(
        *(np.arange(2), np.array([1, 8]), np.array([8, 8]), np.array([8, 16]), 2)
    )
    (method,) = (m for m in spec.methods if m.label == "HEW (Alg. 3)")
    given = replace(method, grid={}, parameters={**method.parameters, "kappa": 1.0})
    (step,) = {"step_scale", "amplitude"} & {*method.grid}
    given = replace(given, parameters={**given.parameters, step: 2.0})
    (entry,) = entries_of(spec, [given], 1 / spec.problem.learning_rate)
    plan = entry.algorithm.plan(cohort, None)
    np.testing.assert_allclose(plan.step_sizes, expected)


def test_rates_of_a_module() -> None:
    spec = cnn_spec()
    spec = replace(spec, problem=replace(spec.problem, reference_steps=53.0))
    rate, h = spec.problem.learning_rate, spec.problem.reference_steps
    methods = [
        MethodSpec("FedAvg", "a", {"step_scale": 2.0}),
        MethodSpec("FedAvg", "b", {"amplitude": 2.0}),
        MethodSpec("HewHom", "c", {"amplitude": 1.0}),
    ]
    rules: list[Any] = [e.algorithm for e in entries_of(spec, methods, 1 / rate)]
    assert rules[0].local.learning_rate == pytest.approx(2 * rate)
    assert rules[1].local.total == pytest.approx(2 * rate * h)
    assert isinstance(rules[2], HewHom)
    assert rules[2].smoothness == pytest.approx(1 / (rate * h))
    with pytest.raises(InvalidInputError, match="step_scale"):
        MethodSpec("FedAvg", "a", {"step_scale": 0.0}).entry(1.0)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("medium_cnn", "784 and at most 10"),
        ("classifier_head", "768 and at most 4"),
    ],
)
def test_a_model_for_other_data_is_refused_by_name(model: Any, sizes: str) -> None:
    spec = cnn_spec()
    data, problem = replace(spec.data, name="digits"), spec.problem
    spec = replace(spec, data=data, problem=replace(problem, model=model))
    with pytest.raises(InvalidInputError) as error:
        build_problem(spec, 0)
    text = str(error.value)
    assert text.startswith("`problem.model` must be one for data.name = 'digits' (")
    assert "digits has 64 features and 10 classes" in text
    assert text.endswith(f'; {model} is for {sizes}); got "{model}"')


def ran(spec: Spec, root: Path, *, jobs: int) -> Results:
    known = quick_deep(spec)
    few = replace(
        known,
        methods=tuple(m for m in known.methods if m.label != "Uniform")[:4],
        rounds=2,
        seeds=spec.seeds[:1],
        data=replace(known.data, subsample=120),
        clients=replace(known.clients, n=4, min_samples=3, batch_size=8),
    )
    folder = folder_for(few, root)
    run_all([folder], jobs=jobs, progress=Progress())
    tuned = folder.tuned
    assert tuned is not None
    return read_results(tuned, {s: folder.of_seed(s) for s in tuned.seeds})


@pytest.mark.data
def test_line_1_runs_small(tmp_path: Path) -> None:
    results = ran(cnn_spec(), tmp_path, jobs=1)  # in another process
    assert results.counts_epochs
    for label in results.labels:
        assert 0 <= results.final(label, "validation_accuracy")[0] <= 1
        assert set(results.mass(label)) <= {1, 2, 3, 4}
    figure_5(results, tmp_path / "five")
    figure_6(results, results.labels[:2], tmp_path / "six")
    assert (tmp_path / "six.png").exists()


@pytest.mark.data
def test_line_2_runs_small(tmp_path: Path) -> None:
    results = ran(head_spec(), tmp_path, jobs=0)
    for label in results.labels:
        curve = results.curve(label, "objective")[0]
        assert np.isfinite(curve).all()
    figure_3(results, tmp_path / "three")
    figure_4(results, results.labels[:3], tmp_path / "four")
    assert (tmp_path / "four.pdf").exists()


@pytest.mark.data
@pytest.mark.parametrize("fraction", [1e-6, 1 - 1e-6])
def test_a_validation_part_has_rows_and_leaves_some(fraction: float) -> None:
    spec = quick_deep(cnn_spec())
    bad = replace(spec, data=replace(spec.data, validation_fraction=fraction))
    rule = r"`data.validation_fraction` must be 0, or hold out at least one of \d+ rows"
    with pytest.raises(InvalidInputError, match=rule):
        build_problem(bad, 42)


@pytest.mark.data
def test_modules_refuse_a_common_pool() -> None:
    spec = quick_deep(cnn_spec())
    pool = replace(spec, clients=replace(spec.clients, partition="pool"))
    with pytest.raises(InvalidInputError, match="one with shards for a module"):
        build_problem(pool, 42)
