"""Buckets, shards, and the products formed on them, in one process."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from hewfl import InvalidInputError, Outer
from hewfl.aggregate.gram import vector_products, weight_problem
from hewfl.aggregate.post_local import post_local_weights
from hewfl.aggregate.rows import as_rows, matrix_round
from hewfl.aggregate.variates import ControlVariates, variate_weights
from hewfl.core.checks import Array
from hewfl.core.displacements import OwnSum, RoundProducts
from hewfl.core.round import LocalPlan, Roster
from hewfl.torch.layout import plan_layout
from hewfl.torch.model import SMALL, SharedModel, moved
from hewfl.torch.shards import Shards, shard_products, summed
from hewfl.torch.sums import weighted_sum, weighted_sums

pytestmark = pytest.mark.torch


def model() -> list[torch.Tensor]:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    return [*conv.parameters(), nn.Parameter(torch.randn(101).bfloat16())]


@pytest.mark.parametrize("bucket_bytes", [1, 40, 150, 10**6])
def test_every_entry_lies_in_one_bucket(bucket_bytes: int) -> None:
    parameters = model()
    layout = plan_layout(parameters, bucket_bytes)
    seen = [np.zeros(p.numel(), dtype=int) for p in parameters]
    begin = 0
    for bucket in layout.buckets:
        assert bucket.size == sum(piece.size for piece in bucket.pieces)
        assert bucket.size <= max(1, bucket_bytes // bucket.dtype.itemsize)
        assert bucket.begin == begin
        begin += bucket.size
        for piece in bucket.pieces:
            assert parameters[piece.parameter].dtype == bucket.dtype
            seen[piece.parameter][piece.start : piece.start + piece.size] += 1
    assert all((counts == 1).all() for counts in seen)
    assert layout.parameters == sum(p.numel() for p in parameters)


def test_layouts_differ_where_models_do() -> None:
    first = plan_layout(model(), 100)
    assert first == plan_layout(model(), 100)
    other = [p.contiguous() for p in model()]
    assert first.signature != plan_layout(other, 100).signature


def test_displacements_and_models_go_through_any_memory_format() -> None:
    parameters = model()
    layout = plan_layout(parameters, 50)
    shared = SharedModel(parameters, layout, Outer())
    shared.take()
    start = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1)
    for b, bucket in enumerate(layout.buckets):
        away = torch.full((bucket.size,), torch.nan, dtype=bucket.dtype)
        shared.displacement(b, away)
        assert (away.float() - 1).abs().max() < 0.01
    shared.give()
    for parameter, value in zip(parameters, start, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("multiplies", [False, True])
def test_the_direct_way_is_the_general_one(
    path: str, large: bool, multiplies: bool
) -> None:
    """Sums that become the next x where they lie; small pieces are put together."""
    torch.manual_seed(5)
    shapes = [(SMALL, 5), (SMALL,)] if large else [(7, 3), (5,), (11,)]
    jobs = []
    for _ in range(2):
        torch.manual_seed(6)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        shared = SharedModel(parameters, plan_layout(parameters, 2**16), Outer())
        shared.take()
        for p in parameters:
            p.data = p.detach() + torch.randn(p.shape)  # memory of another place
        jobs.append(shared)
    direct, general = jobs
    assert direct.is_direct
    sizes = [bucket.size for bucket in direct.layout.buckets]
    steps = [torch.randn(size) for size in sizes]
    sums = [step.clone() for step in steps]
    before = [x.clone() for x in (*direct.anchor, *direct.parameters)]
    found = [direct.advance(b, s, multiplies=multiplies) for b, s in enumerate(sums)]
    for x, held in zip((*direct.anchor, *direct.parameters), before, strict=True):
        assert torch.equal(x, held)  # until it is accepted
    direct.accept(sums, max(far for _, far in found))
    assert general.fits(steps)
    product = general.move(steps, 0, multiplies=multiplies)
    assert sum(part for part, _ in found) == pytest.approx(product, rel=1e-4)
    assert (product != 0) == multiplies
    for one, other in zip(direct.parameters, general.parameters, strict=True):
        assert torch.equal(one, other)
    for x, other in zip(direct.anchor, general.anchor, strict=True):
        assert torch.equal(x, other)
    assert path


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_step_that_is_not_finite_shows(path: str, value: float) -> None:
    for place in (0, 3, 10):
        step = torch.zeros(11)
        step[place] = value
        assert not np.isfinite(moved(step, torch.ones(11), None)[1])
    assert moved(-torch.ones(11), -torch.ones(11), torch.zeros(11)) == (-11.0, 2.0)
    assert path


def test_odd_parameters_are_refused() -> None:
    gaps = nn.Parameter(torch.zeros(4, 4))[:, ::2]
    with pytest.raises(InvalidInputError, match="`parameters` must be without gaps"):
        plan_layout([gaps], 100)
    with pytest.raises(InvalidInputError, match="`parameters` must be at least one"):
        plan_layout([torch.zeros(0, 3)], 100)
    whole = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InvalidInputError, match="`parameters` must be floating; got"):
        plan_layout([whole], 100)


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
        parts.append(shard_products(rows[:, here].contiguous(), part, 2))
    found = summed(Alone(), parts)
    V = rows.double().numpy()
    if reference is not None:
        V = np.vstack([V, reference.double().numpy()])
    assert found.gram == pytest.approx((V - V[2]) @ (V - V[2]).T, abs=1e-10)
    assert found.linear == pytest.approx((V - V[2]) @ V[2], abs=1e-10)
    g = np.zeros(d) if reference is None else V[n]
    known = as_rows("rows", V[:n]).products(g, 1.7)
    problem = weight_problem(found, n, 1.7)
    w = rng.dirichlet(np.ones(n))

    def value(p: RoundProducts) -> float:
        return float(p.linear @ w + 0.85 * w @ p.gram @ w + p.offset)

    assert value(problem) == pytest.approx(value(known), abs=1e-10)


class Alone:
    """The way to no other rank."""

    def summed(self, values: Array) -> Array:
        return values


def spread(rows: Array, parts: int) -> Shards:
    """Vectors on one rank, in several buckets."""
    buckets = [torch.tensor(part) for part in np.array_split(rows, parts, axis=1)]
    return Shards(Alone(), buckets, np.arange(len(rows)), rows.shape[1])


def test_shards_answer_as_a_matrix_does(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((5, 40)) + 3
    v, u = rng.standard_normal(40), rng.dirichlet(np.ones(5))
    ours, known = spread(rows, 3), as_rows("rows", rows)
    assert (ours.n, ours.d) == (5, 40)
    assert ours.gram() == pytest.approx(known.gram(), rel=1e-12)
    assert ours.against(v) == pytest.approx(known.against(v), rel=1e-10)
    assert ours.combine(u) == pytest.approx(known.combine(u), rel=1e-12)
    assert np.concatenate(list(ours.blocks()), 1) == pytest.approx(rows)
    assert ours.dot(v, v) == pytest.approx(v @ v)
    members = np.array([3, 1])
    assert ours.take(members).gram() == pytest.approx(
        known.take(members).gram(), rel=1e-12
    )
    assert ours.like(2 * rows).gram() == pytest.approx(4 * known.gram(), rel=1e-12)
    some = np.array([0, 2, 5])  # the last is standing still
    null = ours.with_null().take(some)
    assert null.n == 3
    assert null.gram() == pytest.approx(known.with_null().take(some).gram(), rel=1e-12)


def test_a_common_part_takes_no_digits_from_shards(rng: np.random.Generator) -> None:
    rows = 1e3 + 1e-5 * rng.standard_normal((4, 50))
    g = rng.standard_normal(50)
    ours = spread(rows, 3).products(g, 1.0)
    known = as_rows("rows", rows).products(g, 1.0)
    w = rng.dirichlet(np.ones(4), 3)
    for a, b in itertools.pairwise(w):
        found, expected = ((a - b) @ p.linear for p in (ours, known))
        assert found == pytest.approx(expected, rel=1e-9)


def test_very_many_vectors_are_solved_with_the_other_ranks() -> None:
    """Rows of few entries have a solver that reads them; shards are no whole rows."""
    rng = np.random.default_rng(3)
    rows, half = rng.standard_normal((300, 20)), 10
    shared = as_rows("rows", rows)

    class Two:
        """Adds what the other rank has: products of the other half."""

        def summed(self, values: Array) -> Array:
            assert len(values) == 300 * 300 + 300 + 1
            return shared_products()

    def shared_products() -> Array:
        found = vector_products(shared, 0)
        return np.concatenate([found.gram.ravel(), found.linear, [found.offset]])

    own = Shards(Two(), [torch.tensor(rows[:, :half])], np.arange(300), 20)
    found = post_local_weights(own, None, 1.0)
    known = post_local_weights(rows, None, 1.0)
    assert found.weights == pytest.approx(known.weights, abs=1e-8)


@pytest.mark.parametrize("null", [False, True])
def test_weights_of_shards_are_those_of_the_matrix(
    null: bool, rng: np.random.Generator
) -> None:
    rows = -0.1 - 0.1 * rng.standard_normal((5, 40))
    for reference in (rng.standard_normal(40), None, OwnSum(np.full(5, -0.7))):
        ours, known = spread(rows, 3), as_rows("rows", rows)
        if null:
            ours, known = ours.with_null(), known.with_null()
            if isinstance(reference, OwnSum):
                reference = OwnSum(np.append(reference.weights, 0.0))  # noqa: PLW2901
        found = post_local_weights(ours, reference, 1.3)
        expected = post_local_weights(known, reference, 1.3)
        assert found.weights == pytest.approx(expected.weights, abs=1e-10)
        assert float(found.value) == pytest.approx(float(expected.value), rel=1e-10)


def test_a_vector_that_is_not_finite_spoils_itself_only(
    rng: np.random.Generator,
) -> None:
    V = rng.standard_normal((4, 50))
    V[1, 7], V[3, 9] = np.nan, np.inf
    found = vector_products(as_rows("vectors", V), 0)
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
