"""Branches in sample space: the same numbers as the plain twin."""

from typing import Any

import numpy as np
import pytest
import torch

from hewfl import (
    Federation,
    FixedSteps,
    HewHet,
    HewHom,
    SampledParticipation,
    UniformLocalSGD,
    simulate,
)
from hewfl.core import native
from hewfl.problems import LinearProblem, Softmax
from hewfl.simulation.branches import LINEAR_LANES, run_branches
from hewfl.simulation.branches_reference import run_branches_plain
from hewfl.simulation.draws import draw
from hewfl.simulation.linear_branches import run_linear_branches
from tests.simulation.test_engine import plans


def softmax(*, l2: float = 0.01, tensors: bool = False) -> Softmax:
    rng = np.random.default_rng(0)
    sizes = np.array([10, 25, 7, 40, 3])
    X, y = rng.standard_normal((85, 6)), rng.integers(0, 4, 85)
    offsets = np.cumsum(sizes) - sizes
    if tensors:
        return Softmax(torch.tensor(X), torch.tensor(y), offsets, sizes, 4, l2)
    return Softmax(X, y, offsets, sizes, 4, l2)


FEDERATION = Federation(FixedSteps([1, 2, 4, 4, 8]), [2, 3, 4, 4, 1])


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("tensors", [False, True])
def test_sample_space_equals_the_plain_twin(
    l2: float, tensors: bool, rng: np.random.Generator
) -> None:
    problem = softmax(l2=l2, tensors=tensors)
    assert isinstance(problem, LinearProblem)
    plain = softmax(l2=l2)
    cohort = FEDERATION.cohort(1, 0, problem.data_sizes)
    draws = draw(1, 0, cohort, problem.offsets)
    told = [p for p in plans(rng, 5, problem.d) for _ in range(2)]
    anchors = rng.standard_normal((len(told), problem.d))
    fast = run_linear_branches(problem, anchors, cohort, told, draws)
    for k, plan in enumerate(told):
        slow = run_branches_plain(plain, anchors[k], cohort, plan, draws)
        assert np.abs(fast[k] - slow).max() <= 1e-13
        assert np.abs(slow).max() > 1e-4


def test_many_entries_take_the_fast_path_and_agree_with_few() -> None:
    problem = softmax()
    L = problem.smoothness
    entries: list[Any] = [
        UniformLocalSGD((0.05 * k) / L) for k in range(1, LINEAR_LANES)
    ]
    entries += [HewHom(L, 0.4), HewHet(L, 0.4)]
    federation = Federation(FixedSteps([1, 2, 4, 4, 8]), 4, SampledParticipation(4))
    with native.disabled():  # the compiled kernel would be asked first
        together = simulate(problem, federation, entries, rounds=4, seed=1)
        for k, entry in enumerate(entries):
            alone = simulate(problem, federation, [entry], rounds=4, seed=1)
            assert np.abs(alone.anchors[0] - together.anchors[k]).max() < 1e-12


def test_float32_stays_float32(rng: np.random.Generator) -> None:
    problem = softmax()
    cohort = FEDERATION.cohort(1, 0, problem.data_sizes)
    draws = draw(1, 0, cohort, problem.offsets)
    told = plans(rng, 5, problem.d)
    anchors = rng.standard_normal((len(told), problem.d))
    wide = run_linear_branches(problem, anchors, cohort, told, draws)
    narrow = run_linear_branches(
        problem, anchors.astype(np.float32), cohort, told, draws
    )
    assert narrow.dtype == np.float32
    assert np.abs(wide - narrow).max() < 1e-5
    direct = run_branches(problem, anchors.astype(np.float32), cohort, told, draws)
    assert direct.dtype == np.float32
