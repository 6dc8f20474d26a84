"""What every rule and pre-aggregation promises, on generated rounds."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hewfl import InvalidInputError, SolverError, aggregators
from hewfl.aggregators import PREAGGREGATIONS, Mean, Pipeline, make

OPTIONS: dict[str, dict[str, Any]] = {"qfedavg": {"q": 1.0}}
PIPELINES = (
    "clip+nnm+trimmed-mean",
    "arc+nnm+multi-krum",
    "softmix+geometric-median",
    "worker-momentum+nnm+coordinate-median",
)
RULES = (*aggregators.NAMES, *PIPELINES)
MAPS = tuple(name for name in PREAGGREGATIONS if name != "bucketing")
"""Those without random numbers."""
TRANSLATED = (
    *("mean", "geometric-median", "coordinate-median", "trimmed-mean", "krum"),
    *("multi-krum", "meamed", "bulyan", "mda", "caf", "dnc", "disagreement"),
)
"""Rules that compare updates with each other alone: a common part goes to the step."""
KINDS = ("normal", "grid", "twins", "zeros", "one moved", "line")
EXTREMES = ("denormal", "1e-150", "1e150", "one far", "mixed")

# in one dimension cosines of normal vectors cancel to zero or to rounding
planes = st.tuples(st.integers(1, 12), st.integers(2, 6), st.integers(0, 2**32 - 1))
rounds = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32 - 1))
every_rule = pytest.mark.parametrize("name", RULES)


@functools.cache
def rule_of(name: str) -> Any:
    return make(name, **OPTIONS.get(name, {}))


def rows_of(kind: str, n: int, d: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    if kind == "grid":
        rows = rng.integers(-1, 2, (n, d)).astype(np.float64)
    if kind == "twins":
        rows = rows[rng.integers(0, max(1, n // 2), n)]
    if kind in ("zeros", "one moved"):
        rows[int(kind == "one moved") :] = 0.0
    if kind == "line":
        rows = rng.standard_normal((n, 1)) * rows[0]
    if kind == "denormal":
        rows *= 1e-310
    if kind in ("1e-150", "1e150"):
        rows *= float(kind)
    if kind == "one far":
        rows[0] *= 1e150
    if kind == "mixed":
        rows *= 10.0 ** rng.integers(-150, 150, (n, 1))
    return rows


def decide(name: str, rows: Any, **more: Any) -> Any:
    n, d = rows.shape
    given = {"losses": 1.0 + np.arange(n), "root": -np.ones(d)} | more
    return rule_of(name)(rows, **given)[0]


@every_rule
@given(where=rounds, kind=st.sampled_from(KINDS + EXTREMES))
def test_steps_are_finite(name: str, where: Any, kind: str) -> None:
    rows = rows_of(kind, *where)
    try:
        decision = decide(name, rows)
    except (SolverError, InvalidInputError, RuntimeWarning):  # 300 decades in one QP
        assert name == "fedaware"
        assert kind in ("one far", "mixed")
        return
    assert decision.weights.shape == (len(rows),)
    assert np.isfinite(decision.weights).all()
    assert np.isfinite(decision.step).all()
    assert (decision.weights >= 0).all()


@every_rule
@given(where=planes)
def test_weights_move_with_the_clients(name: str, where: Any) -> None:
    """Numbers of clients go with them: memories and random streams do not matter."""
    rows = rows_of("normal", *where)
    order = np.random.default_rng(where[2]).permutation(len(rows))
    one = decide(name, rows)
    losses = (1.0 + np.arange(len(rows)))[order]
    other = decide(name, rows[order], losses=losses)
    np.testing.assert_allclose(other.weights, one.weights[order], atol=1e-6)
    np.testing.assert_allclose(other.step, one.step, atol=1e-6)


@every_rule
@pytest.mark.parametrize(("n", "equal"), [(7, 3), (150, 100)])
def test_equal_updates_weigh_the_same(name: str, n: int, equal: int) -> None:
    """Distances among them are rounding, in a round of many as well."""
    rng = np.random.default_rng(n)
    rows = 10 + rng.standard_normal((n, 50))
    twins = rng.permutation(n)[:equal]
    rows[twins] = rows[twins[0]]
    weights = decide(name, rows, losses=np.ones(n)).weights
    assert np.ptp(weights[twins]) <= 1e-9 * weights.max()


@pytest.mark.parametrize("name", TRANSLATED)
@given(where=rounds, kind=st.sampled_from(("normal", "grid", "twins")))
def test_a_common_part_moves_the_step(name: str, where: Any, kind: str) -> None:
    rows = rows_of(kind, *where)
    common = 3.0 * np.arange(1.0, rows.shape[1] + 1)
    one, other = decide(name, rows), decide(name, rows + common)
    np.testing.assert_allclose(other.step, one.step + common, atol=1e-5)


@pytest.mark.parametrize("name", MAPS)
@given(where=rounds, kind=st.sampled_from(KINDS + EXTREMES))
def test_maps_are_finite_averages_or_shorten(name: str, where: Any, kind: str) -> None:
    """Rows of A sum to one at most, and no map makes the longest update longer."""
    rows = rows_of(kind, *where)
    part = PREAGGREGATIONS[name]()
    decision, _ = Pipeline(part, Mean())(rows)
    assert np.isfinite(decision.step).all()
    assert (decision.weights >= 0).all()
    assert decision.weights.sum() <= 1 + 1e-9
    top = np.abs(rows).max()
    unit = rows / top if top > 1e-300 else rows
    longest = np.linalg.norm(unit, axis=1).max()
    step = decision.step / top if top > 1e-300 else decision.step
    assert np.linalg.norm(step) <= longest * (1 + 1e-9) + 1e-300


@pytest.mark.parametrize("name", MAPS)
@given(where=rounds)
def test_maps_move_with_the_clients(name: str, where: Any) -> None:
    rows = rows_of("normal", *where)
    order = np.random.default_rng(where[2]).permutation(len(rows))
    rule = Pipeline(PREAGGREGATIONS[name](), Mean())
    one, _ = rule(rows)
    other, _ = rule(rows[order])
    np.testing.assert_allclose(other.weights, one.weights[order], atol=1e-9)
