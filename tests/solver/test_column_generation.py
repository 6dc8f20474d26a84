"""Column generation and the compiled active set, against the whole problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import known_solutions as problems
from tests.solver.prepared import scaled_problem
from tests.tolerances import WEIGHTS

from hewfl.core import native
from hewfl.solver.active_set import active_set, active_set_compiled
from hewfl.solver.large import Columns, DenseColumns, column_generation

needs_kernels = pytest.mark.skipif(
    not native.is_available(),
    reason="the compiled kernels are switched off or not built",
)


@needs_kernels
@given(seed=st.integers(0, 10_000))
def test_the_active_sets_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 60))
    instance = problems.gaussian_instance(rng, n, d)
    H, c = instance.gram, instance.linear
    size = np.abs(H).max()
    H, c = H / size, c / size
    ours, twin = active_set_compiled(H, c), active_set(H, c)
    assert ours.solved
    assert twin.solved
    assert ours.pivots == twin.pivots
    assert np.abs(ours.weights - twin.weights).max() <= 1e-9


@needs_kernels
def test_bad_calls_of_the_kernel_fail_instead_of_crashing() -> None:
    kernels = native.library(native.SOLVER)
    assert kernels is not None
    with pytest.raises(TypeError):
        kernels.solve(1, 2, 3)
    H, c, w = np.eye(3), np.zeros(3), np.zeros(3)
    for short in ((H[:2], c, w), (H, c[:2], w), (H, c, w[:2])):
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.corral(*short, 3, False, 10)
    with pytest.raises(ValueError, match="n must be at least 1"):
        kernels.corral(H, c, w, 0, False, 10)
    stack = [H, c, np.ones(1), w, np.zeros(3), np.zeros(4), np.zeros(1, np.int64)]
    for k in range(len(stack)):
        short_stack = [part[:-1] if j == k else part for j, part in enumerate(stack)]
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.solve(*short_stack, 1, 3, False, 1e-10)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("batch", [1, 3, 16, 60])
def test_the_size_of_a_batch_changes_nothing(
    batch: int, rng: np.random.Generator
) -> None:
    H, c = scaled_problem(problems.gaussian_instance(rng, 60, 90))
    whole = active_set(H, c)
    problem = DenseColumns(H, c)
    assert isinstance(problem, Columns)
    result = column_generation(problem, batch)
    assert result.solved
    assert result.independent
    assert np.abs(result.weights - whole.weights).max() <= WEIGHTS


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("batch", [1, 4])
def test_a_chosen_support_is_met_column_by_column(
    batch: int, rng: np.random.Generator
) -> None:
    instance = problems.constructed_instance(rng, 40, 60, 9)
    assert instance.weights is not None
    result = column_generation(DenseColumns(*scaled_problem(instance)), batch)
    assert result.solved
    assert np.abs(result.weights - instance.weights).max() <= WEIGHTS


@pytest.mark.usefixtures("path")
def test_a_limit_on_pivots_is_kept_and_told(rng: np.random.Generator) -> None:
    H, c = scaled_problem(problems.constructed_instance(rng, 40, 60, 30))
    short = active_set_compiled(H, c, max_pivots=3)
    assert (short.solved, short.pivots) == (False, 3)
    assert short.weights.min() >= 0
    assert short.weights.sum() == pytest.approx(1)
