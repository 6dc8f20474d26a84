"""The client's branch is the engine's; torch and NumPy agree."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from flwr.app import Array, ArrayRecord

from hewfl import InvalidInputError
from hewfl.core.local_branch import BranchPlan, ClientObjective, StepContext, run_branch
from hewfl.core.round import Cohort, LocalPlan
from hewfl.flower.arrays import flat_views, layout_of, to_record, to_vector
from hewfl.flower.messages import GRADIENT_ROUND
from hewfl.flower.torch_client import torch_objective
from hewfl.simulation import engine
from hewfl.simulation.branches import run_branches_plain
from hewfl.simulation.draws import draw
from tests.flower.federation import local_of
from tests.simulation.toy import least_squares

PROBLEM = least_squares(9, n=4, d=5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    ("proximal", "hold"), [(0.0, False), (0.7, False), (0.0, True)]
)
def test_the_branch_is_the_reference_to_the_bit(
    *,
    dtype: Any,
    corrected: bool,
    proximal: float,
    hold: bool,
    rng: np.random.Generator,
) -> None:
    steps = np.array([1, 3, 2, 5])
    cohort = Cohort(np.arange(4), steps, np.full(4, 4), PROBLEM.data_sizes, 4)
    shift = rng.standard_normal((4, 5)) if corrected else None
    plan = LocalPlan(rng.uniform(0.01, 0.05, 4), shift, proximal, hold)
    anchor = rng.standard_normal(5).astype(dtype)
    drawn = draw(0, 6, cohort, PROBLEM.offsets)
    known = run_branches_plain(PROBLEM, anchor, cohort, plan, drawn)
    for i in range(4):
        told = BranchPlan(6, int(steps[i]), float(plan.step_sizes[i]), proximal, hold)
        own = None if shift is None else shift[i].astype(dtype)
        found, _ = run_branch(local_of(PROBLEM, 0, i, 4), anchor, told, own)
        np.testing.assert_array_equal(found - anchor, known[i])


def test_the_start_is_the_engines() -> None:
    assert engine._START == GRADIENT_ROUND


def test_layout_keeps_what_is_no_parameter(rng: np.random.Generator) -> None:
    arrays = {
        "w": rng.standard_normal((3, 2)).astype(np.float32),
        "seen": np.array(4),
        "b": np.asfortranarray(rng.standard_normal((2, 3))),
        "h": rng.standard_normal(2).astype(np.float16),
        "s": np.array(0.5, dtype=np.float32),
    }
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    layout = layout_of(record)
    assert layout.names == ("w", "b", "h", "s")
    assert layout.d == 15
    assert layout.dtype == np.dtype(np.float64)
    vector = to_vector(layout, record)
    back = to_record(layout, vector, record)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name].numpy(), array)
        assert back[name].dtype == str(array.dtype)
    assert list(back) == list(record)
    with pytest.raises(InvalidInputError, match="parameters of real numbers"):
        layout_of(ArrayRecord([np.arange(3)]))


def test_sizes_are_checked() -> None:
    with pytest.raises(InvalidInputError, match="`examples` must be at least 1; got 0"):
        ClientObjective(lambda x, _: x, 0)


@pytest.mark.torch
def test_torch_and_numpy_run_the_same_branch(rng: np.random.Generator) -> None:
    A, b = rng.standard_normal((8, 3)), rng.standard_normal(8)
    net = torch.nn.Linear(3, 1).to(torch.float64)

    def loss(model: Any, moment: StepContext) -> Any:
        rows = [moment.step, (moment.step + moment.round) % 8]
        x, y = torch.tensor(A[rows]), torch.tensor(b[rows])
        return 0.5 * ((model(x)[:, 0] - y) ** 2).mean()

    def gradient(x: Any, moment: StepContext) -> Any:
        rows = [moment.step, (moment.step + moment.round) % 8]
        residual = A[rows] @ x[:3] + x[3] - b[rows]
        return np.append(residual @ A[rows], residual.sum()) / 2

    local = torch_objective(net, loss, examples=8)
    anchor, shift = rng.standard_normal(4), rng.standard_normal(4)
    told = BranchPlan(2, 5, 0.1, 0.3)
    lifted = (local.lift(anchor), told, local.lift(shift))
    found = local.lower(local.finish(run_branch(local, *lifted)[0]))
    known, _ = run_branch(ClientObjective(gradient, 8), anchor, told, shift)
    np.testing.assert_allclose(found, known, rtol=1e-12)


@pytest.mark.torch
def test_running_statistics_and_shared_weights_travel_too() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    net.add_module("again", net[0])
    x = torch.randn(16, 2)
    local = torch_objective(net, lambda model, _: (model(x) ** 2).mean(), examples=16)
    record = ArrayRecord(net.state_dict())
    layout = layout_of(record)
    assert "1.num_batches_tracked" not in layout.names
    anchor = to_vector(layout, record)
    begin = anchor.copy()
    branch, _ = run_branch(local, local.lift(anchor), BranchPlan(0, 4, 0.1))
    moved = local.lower(local.finish(branch)) - anchor
    parts = {name: moved[place] for name, _, place, _ in layout.parts()}
    for name in ("0.weight", "1.weight", "1.running_mean", "1.running_var"):
        assert np.abs(parts[name]).max() > 1e-4
    np.testing.assert_array_equal(parts["0.weight"], parts["again.weight"])
    np.testing.assert_array_equal(anchor, begin)
    again, _ = run_branch(local, local.lift(anchor), BranchPlan(0, 4, 0.1))
    repeated = local.lower(local.finish(again)) - anchor
    np.testing.assert_array_equal(repeated, moved)


def test_arrays_that_kernels_cannot_read_are_copied() -> None:
    halves = np.arange(6, dtype=np.float16)
    swapped = np.arange(6, dtype=">f8")
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    record = ArrayRecord([halves, swapped, plain])
    layout = layout_of(record)
    found = flat_views(layout, record)
    assert [row.dtype for row in found] == [np.float32, np.float64, np.float32]
    assert all(row.dtype.isnative and row.flags.aligned for row in found)
    for row in found:
        np.testing.assert_array_equal(row, np.arange(6))
    with pytest.raises(InvalidInputError, match="`2` must be of shape"):
        flat_views(layout, ArrayRecord([halves, swapped, plain.T]))
