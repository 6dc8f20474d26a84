"""A matrix or a list of vectors of any library, through the protocol."""

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch

from hewfl.core.displacements import Displacements, LinearCombination
from hewfl.core.round import Cohort, LocalPlan
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import as_dense, matrix_round
from hewfl.displacements.estimated_products import EstimatedProducts
from hewfl.displacements.gram import sampled_sizes
from hewfl.displacements.mapped import MappedDisplacements
from hewfl.errors import InvalidInputError

pytestmark = pytest.mark.usefixtures("path")


FORMS: dict[str, Any] = {
    "matrix": lambda D: D,
    "list": list,
    "torch": torch.tensor,
    "torch list": lambda D: [torch.tensor(row) for row in D],
    "strict": strict.asarray,
    "pieces": lambda D: ChunkedDisplacements(
        (tuple(np.ascontiguousarray(row) for row in D),)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_rule_may_do_with_displacements(
    form: str, rng: np.random.Generator
) -> None:
    D, v = rng.standard_normal((5, 40)) + 2, rng.standard_normal(40)
    w = np.array([0.5, 0.0, 0.2, 0.1, 0.2])
    given = FORMS[form](D)
    data = (
        given
        if isinstance(given, ChunkedDisplacements)
        else as_dense("displacements", given)
    )
    assert isinstance(data, Displacements)
    there: Any = {"torch": torch.tensor, "torch list": torch.tensor}.get(form)
    vector = v if there is None else there(v)
    if form == "strict":
        vector = strict.asarray(v)
    assert (data.n, data.d) == D.shape
    assert data.gram() == pytest.approx(D @ D.T, rel=1e-12)
    assert data.inner(vector) == pytest.approx(D @ v, rel=1e-10)
    assert np.asarray(data.combine(w)) == pytest.approx(w @ D, rel=1e-12)
    assert data.dot(vector, vector) == pytest.approx(v @ v)
    assert np.concatenate(list(data.blocks()), axis=1) == pytest.approx(D)
    assert data.matrix() == pytest.approx(D)
    assert data.take(np.array([3, 1])).matrix() == pytest.approx(D[[3, 1]])
    null = data.append_zero()
    assert null.n == 6
    assert null.gram()[5] == pytest.approx(np.zeros(6))
    assert data.from_matrix(2 * D).gram() == pytest.approx(4 * D @ D.T, rel=1e-12)


@pytest.mark.parametrize("reference", ["vector", "sum", "none"])
def test_products_are_the_weight_problem(
    reference: str, rng: np.random.Generator
) -> None:
    D, lam = rng.standard_normal((5, 40)) + 2, 1.7
    u = rng.standard_normal(5)
    g = {"vector": rng.standard_normal(40), "sum": u @ D, "none": np.zeros(40)}
    given = {"vector": g["vector"], "sum": LinearCombination(u), "none": None}[
        reference
    ]
    result = as_dense("displacements", D).products(given, lam)
    for w in rng.dirichlet(np.ones(5), 4):
        step = w @ D
        known = g[reference] @ step + lam / 2 * step @ step
        value = result.linear @ w + lam / 2 * w @ result.gram @ w + result.offset
        assert value == pytest.approx(known, rel=1e-11)


def test_a_round_takes_arrays(rng: np.random.Generator) -> None:
    ones = np.ones(2, dtype=np.int64)
    cohort = Cohort(np.arange(2), 3 * ones, ones, ones, 2)
    D = rng.standard_normal((2, 4)).astype(np.float32)
    round_ = matrix_round(np.zeros(4), D, cohort, LocalPlan(np.array([0.1, 0.2])))
    assert round_.total_step == pytest.approx([0.3, 0.6])
    assert np.asarray(round_.displacements).dtype == np.float32
    assert np.array_equal(np.asarray(round_.displacements), D)
    with pytest.raises(InvalidInputError, match="`displacements` must be of shape"):
        matrix_round(np.zeros(4), D[0], cohort, round_.plan)


def test_nobody_is_a_set_too(rng: np.random.Generator) -> None:
    data = as_dense("displacements", rng.standard_normal((3, 4)))
    assert data.take(np.zeros(0, dtype=np.int64)).n == 0


@pytest.mark.parametrize("n", [1, 3])
def test_narrow_numbers_are_summed_wide(n: int, rng: np.random.Generator) -> None:
    """More columns than fit into one block, which do not divide into blocks."""
    D = rng.standard_normal((n, 70_001)).astype(np.float32)
    w = rng.standard_normal(n)
    result = as_dense("displacements", D).combine(w)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, w @ D.astype(np.float64), atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_is_spread_over_long_rows(form: str) -> None:
    D = np.stack([np.arange(5000.0), -np.arange(5000.0)])
    given = FORMS[form](D)
    data = (
        given
        if isinstance(given, ChunkedDisplacements)
        else as_dense("displacements", given)
    )
    spread = [*range(512), *range(1496, 2008), *range(2992, 3504), *range(4488, 5000)]
    size, squares = sampled_sizes(data)
    assert size == 4999.0
    np.testing.assert_allclose(squares, (D[:, spread] ** 2).sum(axis=1))


def test_vectors_stack_to_an_array(rng: np.random.Generator) -> None:
    D = rng.standard_normal((3, 4)).astype(np.float32)
    for given in (D, list(D), [torch.tensor(row) for row in D]):
        data = as_dense("displacements", given)
        assert np.asarray(data).dtype == np.float32
        assert np.array_equal(np.asarray(data), D)
        assert np.asarray(data, dtype=np.float64).dtype == np.float64


def test_vectors_are_of_one_library(rng: np.random.Generator) -> None:
    v = rng.standard_normal(4)
    text = (
        r"`displacements` must be vectors of one array library; got \['numpy', 'torch'"
    )
    with pytest.raises(InvalidInputError, match=text):
        as_dense("displacements", [v, torch.tensor(v)])


def test_a_rule_cannot_change_the_updates() -> None:
    """Products are kept: what changed in place would no longer belong to them."""
    data = np.arange(6.0).reshape(2, 3)
    updates, rows = as_dense("updates", data), as_dense("updates", list(data))
    arrays = [updates.matrix(), updates.row(0), *updates.stored_blocks(), rows.row(0)]
    for array in arrays:
        assert np.shares_memory(array, data)  # a guard that copies nothing
        with pytest.raises(ValueError, match="read-only"):
            np.multiply(array, 2, out=array)
    data *= 2  # its owner still can


@pytest.mark.parametrize("base", ["float32", "float64", "sketched"])
def test_mapped_columns_have_the_precision_of_the_data(
    base: str, rng: np.random.Generator
) -> None:
    """Coordinate-wise rules compare numbers of float32 where updates are such."""
    kind = "float64" if base == "float64" else "float32"
    rows = rng.standard_normal((5, 70_001)).astype(kind)
    data: Any = as_dense("displacements", rows)
    if base == "sketched":  # it has no stored blocks
        data = EstimatedProducts(data, CountSketch(64))
    A = rng.uniform(size=(4, 5))
    blocks = [*MappedDisplacements(data, A).stored_blocks()]
    narrow = base == "float32"
    assert {block.dtype.name for block in blocks} == {
        "float32" if narrow else "float64"
    }
    near = 1e-5 if narrow else 1e-13
    np.testing.assert_allclose(np.hstack(blocks), A @ rows.astype(float), atol=near)
