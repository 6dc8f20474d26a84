"""Weights from sketches: the value and the gap are of the data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hewfl import combine, data_gap, post_local_weights
from hewfl.aggregators import NAMES, make
from hewfl.core.displacements import Displacements, Distorted, LinearCombination
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import as_dense
from hewfl.displacements.estimated_products import EstimatedProducts, gram_source
from hewfl.errors import InvalidInputError

N, D = 12, 3000
SHORT = CountSketch(500, seed=3)


def make_rows(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(D)
    rows = -common + rng.uniform(0.5, 3, (N, 1)) * rng.standard_normal((N, D))
    return rows.astype(np.float32), common.astype(np.float32)


REFERENCES: dict[str, Callable[[Any], Any]] = {
    "vector": lambda g: g,
    "sum": lambda _: LinearCombination(-np.full(N, 1 / N)),
    "zero": lambda _: None,
}


@pytest.mark.parametrize("which", REFERENCES)
@pytest.mark.parametrize("seed", range(4))
def test_value_and_gap_are_of_the_data(which: str, seed: int) -> None:
    rows, g = make_rows(seed)
    reference = REFERENCES[which](g)
    exact = post_local_weights(rows, reference, 2.0)
    ours = post_local_weights(rows, reference, 2.0, gram=SHORT)
    step = combine(rows, ours.weights, wide=True)
    slope = (
        0.0
        if reference is None
        else reference @ step
        if isinstance(reference, np.ndarray)
        else combine(rows, reference.weights, wide=True) @ step
    )
    value = slope + 1.0 * step @ step
    assert ours.value == pytest.approx(value, rel=1e-12)
    assert exact.value - 1e-9 * abs(value) <= ours.value <= exact.value + ours.gap
    bound = data_gap(rows, reference, 2.0, ours.weights)
    assert ours.gap == pytest.approx(bound, rel=1e-9)
    scale = float(np.square(rows).sum(axis=1).max())  # of terms that sketches estimate
    assert 0 < ours.value - exact.value < 0.01 * scale
    assert "from sketches of 500 numbers" in ours.status
    assert ours.multipliers.min() == 0.0
    assert ours.weights.sum() == pytest.approx(1.0)


def test_no_sketch_of_vectors_that_are_shorter() -> None:
    rows, g = make_rows(0)
    exact = post_local_weights(rows, g, 2.0)
    ours = post_local_weights(rows, g, 2.0, gram="sketch")  # 2¹⁴ numbers
    assert np.array_equal(ours.weights, exact.weights)
    assert ours.status == exact.status


FORMS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "torch": torch.from_numpy,
    "bfloat16": lambda rows: torch.from_numpy(rows).to(torch.bfloat16),
    "chunked": lambda rows: ChunkedDisplacements(
        (tuple(rows[:, :1000].copy()), tuple(rows[:, 1000:].copy()))
    ),
    "fortran": np.asfortranarray,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_data_gives_the_same_weights(form: str) -> None:
    rows, g = make_rows(1)
    expected = post_local_weights(rows, g, 2.0, gram=SHORT)
    ours = post_local_weights(FORMS[form](rows), g, 2.0, gram=SHORT)
    near = 0.02 if form == "bfloat16" else 1e-5
    assert ours.weights == pytest.approx(expected.weights, abs=near)


def test_absent_clients_have_no_weight() -> None:
    rows, g = make_rows(2)
    solution = post_local_weights(rows, g, 2.0, active=[1, 4, 7], gram=SHORT)
    assert set(np.flatnonzero(solution.weights)) <= {1, 4, 7}
    few = post_local_weights(rows[[1, 4, 7]], g, 2.0, gram=SHORT)
    assert solution.weights[[1, 4, 7]] == pytest.approx(few.weights)


def test_the_case_that_hurts_a_sketch() -> None:
    """A long reference at nearly right angles: the products are below the error.

    A common part of the updates does no harm, since products are centred at an update:
    the sketch of a difference has the error of the difference.
    """
    rows, _ = make_rows(5)
    rng = np.random.default_rng(0)
    far = (rows + 100 * rng.standard_normal(D)).astype(np.float32)
    exact = post_local_weights(far, None, 1.0)
    ours = post_local_weights(far, None, 1.0, gram=SHORT)
    assert ours.value - exact.value < 1e-2 * exact.value
    across = 100 * rng.standard_normal(D)
    best = post_local_weights(rows, across, 1.0)
    lost = [
        float(post_local_weights(rows, across, 1.0, gram=CountSketch(500, s)).value)
        - float(best.value)
        for s in range(5)
    ]
    assert max(lost) > 0.3 * abs(best.value)  # little of the descent is left
    hurt = post_local_weights(rows, across, 1.0, gram=SHORT)
    assert hurt.value - best.value <= hurt.gap  # and it says so


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_takes_products_of_sketches(name: str) -> None:
    rule = make(name)
    if not rule.needs.isdisjoint(("truth", "variate")):
        pytest.skip("needs more than updates")
    rows, g = make_rows(3)
    rows[9:] *= -20
    given = {"root": -g} if "root" in rule.needs else {}
    if "losses" in rule.needs:
        given["losses"] = np.ones(N)
    exact, _ = rule(rows, **given)
    ours, _ = rule(rows, **given, gram=CountSketch(2800, seed=1))
    assert ours.weights.shape == (N,)
    assert ours.step == pytest.approx(exact.step, abs=0.25 * np.abs(exact.step).max())


def test_the_parts_of_the_protocol() -> None:
    rows, g = make_rows(4)
    data = EstimatedProducts(as_dense("rows", rows), SHORT)
    assert isinstance(data, Displacements)
    assert isinstance(data, Distorted)
    some = np.array([3, 1, 4])
    part = data.take(some).append_zero()
    assert (part.n, part.d) == (4, D)
    assert part.gram()[:3, :3] == pytest.approx(data.gram()[np.ix_(some, some)])
    assert np.abs(part.gram()[3]).max() == 0.0
    assert part.matrix()[:3] == pytest.approx(rows[some])
    assert data.inner(g) == pytest.approx(rows @ g, rel=1e-4)
    epsilon, stored = data.distortion(0.1)
    assert epsilon > 0.0
    assert stored > 0.0


@pytest.mark.parametrize("gram", ["sketches", 3, None, True, b"sketch", 2**14])
def test_other_values_are_named(gram: Any) -> None:
    with pytest.raises(InvalidInputError, match=r'`gram` must be "exact", "sketch" or'):
        gram_source(gram)
