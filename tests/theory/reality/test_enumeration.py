"""The enumeration plays the same algorithms as the engine: runs end where it says."""

from typing import Any

import numpy as np
import pytest
from tests.theory.reality.enumeration import (
    Cloud,
    Rule,
    Work,
    fixed_rule,
    heterogeneous_rule,
    homogeneous_rule,
    rounds,
)
from tests.theory.reality.scenario import Scenario, random_scenario

from hewfl import Algorithm, Federation, FixedSteps, HewFixed, HewHet, HewHom, simulate
from hewfl.problems import Quadratic


def as_problem(scenario: Scenario) -> Quadratic:
    """The same clients: ½ (x − b_i)ᵀA_i(x − b_i) with A_i b_i = Σ_k z_ik a_ik + t."""
    pull = np.einsum("nk,nkd->nd", scenario.offsets, scenario.rows) + scenario.tilt
    centers = np.linalg.solve(scenario.hessians, pull[..., None])[..., 0]
    noise = np.concatenate([[xi, -xi] for xi in scenario.shifts])
    return Quadratic(scenario.hessians, centers, noise, np.full(2, 2))


@pytest.mark.parametrize("method", ["corrected", "plain", "fixed"])
def test_every_run_ends_in_a_state_of_the_enumeration(method: str) -> None:
    rng = np.random.default_rng(16)
    scenario, x, theta = random_scenario(rng, "quadratic"), rng.normal(size=2), 0.3
    L = scenario.smoothness
    methods: dict[str, tuple[Algorithm[Any], Rule]] = {
        "corrected": (HewHet(L, theta, 1.5, "zero"), heterogeneous_rule(1.5 * L)),
        "plain": (HewHom(L, theta, 1.5), homogeneous_rule(1.5 * L)),
        "fixed": (
            HewFixed(total=theta / L, power=0.0, variates="zero"),
            fixed_rule(np.full(2, 0.5)),
        ),
    }
    algorithm, rule = methods[method]
    work = Work(np.full(2, theta), (1, 2), (1, 1), heterogeneous_rule=method != "plain")
    first = Cloud(x[None], np.zeros((1, 2, 2)), np.ones(1))
    last = rounds(scenario, work, first, rule, 2)[-1]
    assert last.chances.sum() == pytest.approx(1, abs=1e-12)
    problem, federation = as_problem(scenario), Federation(FixedSteps((1, 2)), 1)
    assert problem.smoothness == pytest.approx(L, rel=1e-12)
    np.testing.assert_allclose(problem.variance_bounds(), scenario.variance)
    np.testing.assert_allclose(problem.optimum().x, 0, atol=1e-12)
    reached = set()
    for seed in range(12):
        trace = simulate(problem, federation, [algorithm], rounds=2, seed=seed, start=x)
        away = np.abs(last.anchors - trace.anchors[0]).max(-1)
        assert away.min() <= 1e-12
        gap = trace.curve(0, "objective")[-1] - problem.optimum().objective
        np.testing.assert_allclose(gap, scenario.gap(trace.anchors[0]), rtol=1e-9)
        reached.add(int(away.argmin()))
    assert len(reached) > 3
