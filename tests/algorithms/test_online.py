"""Λ from successive server steps: the same rounds as the paper's, with ℓ̂ for L."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl import (
    ChoiceSteps,
    Federation,
    FixedSteps,
    HewFixed,
    HewHet,
    HewHom,
    InvalidInputError,
    SampledParticipation,
    simulate,
)
from hewfl.algorithms.online_curvature import OnlineCurvature, updated_curvature
from hewfl.experiments.method_spec import method_from_table, method_table
from hewfl.problems import random_quadratic
from hewfl.simulation.audit import pathwise_audit

RULES = [HewHom, HewHet]
each_rule = pytest.mark.parametrize("rule", RULES)


@each_rule
@pytest.mark.parametrize("guess", [0.05, 20.0])
def test_it_finds_the_curvature_of_a_quadratic(rule: Any, guess: float) -> None:
    """Exact gradients of one step: secants are those of the Hessian of F."""
    problem = random_quadratic(seed=0, n=6, d=8, noise=0.0, conditioning=5.0)
    eigenvalues = np.linalg.eigvalsh(problem.hessians.mean(axis=0))
    least, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    L = guess * largest
    seen = []

    def watch(step: Any) -> dict[str, float]:
        value = step.state.curvature.value
        seen.append(value)
        return {"curvature": value}

    simulate(
        *(problem, Federation(FixedSteps(1), 4)),
        [OnlineCurvature(rule(L, 0.1 * guess), curvature_floor=1e-3)],
        rounds=60,
        seed=0,
        observers=[watch],
    )
    assert seen[0] == L
    assert least * (1 - 1e-6) <= seen[-1] <= largest * (1 + 1e-6)


@each_rule
def test_a_round_is_the_rule_s_own_under_the_estimate(rule: Any) -> None:
    """Weights are those of the paper's rule at Λ = ratio · ℓ̂_t, state as it goes."""
    problem = random_quadratic(seed=1, n=6, d=8)
    L, checked = problem.smoothness, 0
    online = OnlineCurvature(rule(L, 0.5, 1.5), curvature_memory=0.5)

    def compare(step: Any) -> dict[str, float]:
        nonlocal checked
        seen = updated_curvature(
            step.state.curvature, step.round, memory=0.5, floor=0.01 * L
        )
        plain = replace(online.rule, smoothness=seen.value)
        decision, _ = plain.decide(step.round, step.state.rule)
        np.testing.assert_array_equal(step.decision.weights, decision.weights)
        eta = 0.5 / (L * step.round.cohort.horizons)
        np.testing.assert_array_equal(step.round.plan.step_sizes, eta)
        checked += seen.value != L
        return {}

    federation = Federation(ChoiceSteps((1, 2, 4)), 4, SampledParticipation(4))
    simulate(problem, federation, [online], rounds=8, seed=0, observers=[compare])
    assert checked == 7  # all but the first, which has nothing to compare with


@each_rule
def test_it_changes_the_weights_and_goes_down(rule: Any) -> None:
    problem = random_quadratic(seed=1, n=6, d=8)
    L = problem.smoothness
    given = rule(20 * L, 10.0)  # as if the learning rate were all one knew
    entries: list[Any] = [given, OnlineCurvature(given)]
    federation = Federation(ChoiceSteps((1, 2, 4)), 4)
    trace = simulate(problem, federation, entries, rounds=30, seed=0)
    assert trace.of(0)[1].weights == trace.of(1)[1].weights
    assert trace.of(0)[-1].weights != trace.of(1)[-1].weights
    curve = trace.curve(1, "objective")
    assert curve[-1] < curve[0]
    assert trace.names[1] == f"{given.name}, online curvature"
    assert trace.of(1)[-1].scalars == trace.of(0)[-1].scalars


@each_rule
def test_a_resumed_run_has_the_same_bytes(rule: Any, tmp_path: Path) -> None:
    problem = random_quadratic(seed=1, n=6, d=8)
    entries = [OnlineCurvature(rule(problem.smoothness, 0.5))]
    federation = Federation(ChoiceSteps((1, 2, 4)), 4, SampledParticipation(4))

    def run(folder: Path, rounds: int) -> None:
        simulate(problem, federation, entries, rounds=rounds, seed=0, checkpoint=folder)

    run(tmp_path / "whole", 10)
    for rounds in (1, 4, 10):
        run(tmp_path / "parts", rounds)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / path.name).read_bytes() == path.read_bytes()


def test_it_is_not_audited_as_a_bound() -> None:
    problem = random_quadratic(seed=1, n=6, d=8)
    entries = [OnlineCurvature(HewHom(problem.smoothness, 0.5))]
    federation = Federation(FixedSteps(2), 4)
    trace = simulate(
        problem, federation, entries, rounds=2, seed=0, observers=[pathwise_audit]
    )
    assert trace.of(0)[-1].observed == {}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"curvature_memory": 1.0}, "`curvature_memory` must be from 0 to below"),
        ({"curvature_floor": 0.0}, "`curvature_floor` must be a positive finite num"),
        (
            {"curvature_floor": 2.0},
            "`curvature_floor` must be above 0 and at most 1; got 2.0",
        ),
    ],
)
def test_bad_numbers(given: dict[str, float], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        OnlineCurvature(HewHom(1.0, 0.5), **given)


# ------------------------------------------------------------------ in a spec


def method(text: str) -> Any:
    return method_from_table(tomllib.loads(text), "methods[0]")


def test_a_spec_asks_for_it() -> None:
    spec = method(
        'method = "HewHet"\namplitude = 0.5\ncurvature_ratio = 1.5\n'
        'curvature = "online"\ncurvature_floor = 0.1\nmomentum = 0.5'
    )
    entry = spec.entry(4.0)
    expected = OnlineCurvature(HewHet(4.0, 0.5, 1.5), curvature_floor=0.1)
    assert entry.algorithm == expected
    assert entry.server_step.momentum == 0.5
    assert method_from_table(method_table(spec), "methods[0]") == spec


def test_tuning_may_choose() -> None:
    grid = 'grid = { curvature = ["given", "online"] }'
    spec = method(f'method = "HewHom"\namplitude = 0.5\n{grid}')
    kinds = [type(c.entry(1.0).algorithm) for c in spec.candidates()]
    assert kinds == [HewHom, OnlineCurvature]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('curvature = "guess"', "curvature` must be one of given, online; got 'guess'"),
        ("curvature_floor = 0.1", 'must be left out unless curvature = "online"'),
        (
            'curvature = "online"\ncurvature_floor = 3',
            r"\.curvature_floor` must be above",
        ),
        ('curvature = "online"\ncurvature_memory = "x"', "memory` must be a number"),
    ],
)
def test_bad_specs(text: str, error: str) -> None:
    with pytest.raises(InvalidInputError, match=error):
        method(f'method = "HewHom"\namplitude = 0.5\n{text}')


def test_fixed_weights_have_no_curvature() -> None:
    assert method('method = "HewFixed"\namplitude = 0.5').entry(1.0).algorithm == (
        replace(HewFixed(total=0.5), name="HewFixed")
    )
    with pytest.raises(InvalidInputError, match="curvature"):
        method('method = "HewFixed"\namplitude = 0.5\ncurvature = "online"')
