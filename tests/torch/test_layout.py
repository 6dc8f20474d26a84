"""Buckets, shards, and the products formed on them, in one process."""

import numpy as np
import pytest
import torch
from torch import nn

from hewfl import InvalidInputError, Outer
from hewfl.aggregate.from_products import (
    isometric_copy,
    variate_weights,
    vector_products,
)
from hewfl.aggregate.rows import matrix_round
from hewfl.aggregate.variates import ControlVariates
from hewfl.core.round import LocalPlan, Roster
from hewfl.torch.layout import plan_layout
from hewfl.torch.model import SharedModel
from hewfl.torch.products import (
    packed,
    shard_products,
    unpacked,
    weighted_sum,
    weighted_sums,
)

pytestmark = pytest.mark.torch


def model() -> list[torch.Tensor]:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    return [*conv.parameters(), nn.Parameter(torch.randn(101).bfloat16())]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("bucket_bytes", [1, 40, 150, 10**6])
def test_every_entry_lies_in_one_bucket(ranks: int, bucket_bytes: int) -> None:
    parameters = model()
    layout = plan_layout(parameters, ranks, bucket_bytes)
    seen = [np.zeros(p.numel(), dtype=int) for p in parameters]
    for bucket in layout.buckets:
        held = sum(piece.size for piece in bucket.pieces)
        assert 0 <= bucket.shard * ranks - held < ranks
        assert held <= max(ranks, bucket_bytes // bucket.dtype.itemsize)
        for piece in bucket.pieces:
            assert parameters[piece.parameter].dtype == bucket.dtype
            seen[piece.parameter][piece.start : piece.start + piece.size] += 1
    assert all((counts == 1).all() for counts in seen)
    assert layout.parameters == sum(p.numel() for p in parameters)


def test_layouts_differ_where_models_do() -> None:
    first = plan_layout(model(), 2, 100)
    assert first == plan_layout(model(), 2, 100)
    other = [p.contiguous() for p in model()]
    assert first.signature != plan_layout(other, 2, 100).signature


def test_displacements_and_models_go_through_any_memory_format() -> None:
    parameters = model()
    layout = plan_layout(parameters, 3, 50)
    shared = SharedModel(parameters, layout, Outer())
    shared.take()
    start = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1)
    moved = [
        shared.displacement(b, shared.scratch()) for b in range(len(layout.buckets))
    ]
    for b, bucket in enumerate(layout.buckets):
        held = sum(piece.size for piece in bucket.pieces)
        assert (moved[b][:held].float() - 1).abs().max() < 0.01
        assert (moved[b][held:] == 0).all()
    shared.give()
    for parameter, value in zip(parameters, start, strict=True):
        assert torch.equal(parameter, value)


def test_odd_parameters_are_refused() -> None:
    gaps = nn.Parameter(torch.zeros(4, 4))[:, ::2]
    with pytest.raises(InvalidInputError, match="`parameters` must be without gaps"):
        plan_layout([gaps], 2, 100)
    with pytest.raises(InvalidInputError, match="`parameters` must be at least one"):
        plan_layout([torch.zeros(0, 3)], 2, 100)
    whole = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InvalidInputError, match="`parameters` must be floating; got"):
        plan_layout([whole], 2, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("corrected", [False, True])
def test_products_of_shards_add_up(
    rng: np.random.Generator, dtype: torch.dtype, corrected: bool
) -> None:
    n, d = 5, 900
    rows = torch.tensor(rng.standard_normal((n, d))).to(dtype)
    reference = torch.tensor(rng.standard_normal(d)).float() if corrected else None
    parts = []
    for lo in range(0, d, 300):
        here = slice(lo, lo + 300)
        part = None if reference is None else reference[here]
        parts.append(packed(shard_products(rows[:, here].contiguous(), part, 2)))
    m = n + corrected
    found = unpacked(np.sum(parts, axis=0), m)
    V = rows.double().numpy()
    if reference is not None:
        V = np.vstack([V, reference.double().numpy()])
    assert found.gram == pytest.approx((V - V[2]) @ (V - V[2]).T, abs=1e-10)
    assert found.linear == pytest.approx((V - V[2]) @ V[2], abs=1e-10)
    copy = isometric_copy(found)
    assert copy.shape == (m, m + 1)
    assert copy @ copy.T == pytest.approx(V @ V.T, abs=1e-10)


def test_long_vectors_take_no_digits_from_short_ones(
    rng: np.random.Generator,
) -> None:
    V = rng.standard_normal((4, 50)) * np.array([[1e-6], [1e-6], [1e-6], [1e6]])
    copy = isometric_copy(vector_products(V, 0))
    short, expected = copy[:3] @ copy[:3].T, V[:3] @ V[:3].T
    assert short == pytest.approx(expected, rel=1e-9, abs=1e-21)


def test_a_vector_that_is_not_finite_spoils_itself_only(
    rng: np.random.Generator,
) -> None:
    V = rng.standard_normal((4, 50))
    V[1, 7], V[3, 9] = np.nan, np.inf
    found = vector_products(V, 0)
    assert np.isfinite(np.diagonal(found.gram)).tolist() == [True, False, True, False]
    assert np.isfinite(found.gram[np.ix_([0, 2], [0, 2])]).all()


def test_weighted_sums_skip_zero_weights(rng: np.random.Generator) -> None:
    rows = torch.tensor(rng.standard_normal((3, 20))).bfloat16()
    rows[1, 4] = torch.nan
    weights = np.array([0.25, 0.0, 0.75])
    found = weighted_sum(rows, weights)
    assert found.dtype == torch.float32
    expected = weights[[0, 2]] @ rows[[0, 2]].double().numpy()
    assert found.double().numpy() == pytest.approx(expected, rel=1e-6)
    assert (weighted_sum(rows, np.zeros(3)) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_sums_are_as_one_after_the_other(
    rng: np.random.Generator, dtype: torch.dtype
) -> None:
    rows = torch.tensor(rng.standard_normal((3, 500))).to(dtype)
    reference = torch.tensor(rng.standard_normal(500)).float()
    rows[1, 4] = torch.nan
    weights = np.array([[0.25, 0.0, 0.75, 0.0], [-1.0, 0.0, 2.0, 0.5]])
    step, other = weighted_sums(rows, reference, weights)
    assert torch.equal(step, weighted_sum(rows, weights[0, :3]))
    vectors = [*rows.double().numpy(), reference.double().numpy()]
    expected = -vectors[0] + 2 * vectors[2] + 0.5 * vectors[3]
    assert other.double().numpy() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert step.dtype == other.dtype == torch.float32


def test_the_servers_variate_is_the_pure_one(rng: np.random.Generator) -> None:
    n, d, heard = 5, 8, np.array([0, 2, 3])
    moved, eta, H = rng.standard_normal((3, d)), np.array([0.1, 0.2, 0.3]), [1, 4, 2]
    state = ControlVariates(rng.standard_normal(d), rng.standard_normal((n, d)))
    ones = np.ones(3, dtype=np.int64)
    roster = Roster(heard, np.array(H), ones, ones, n)
    pure = state.after(matrix_round(np.zeros(d), moved, roster, LocalPlan(eta)))
    kept, u = variate_weights(eta * np.array(H), n)
    assert kept * state.server + u @ moved == pytest.approx(pure.server, rel=1e-12)
