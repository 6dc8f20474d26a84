"""Rules that leave displacements where they lie decide as on a matrix of them."""

from typing import Any

import numpy as np
import pytest

from hewfl import FedNova, HewFixed, HewHet, HewHom, Scaffold
from hewfl.core.round import Cohort, LocalPlan, Round
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.control_variates import commit, in_place
from hewfl.displacements.dense import matrix_round
from hewfl.methods.method import MethodState

METHODS = [
    HewHom(2.0, 0.5),
    HewHom(2.0, 0.5, null_endpoint=True),
    HewHet(2.0, 0.5, start="zero"),
    HewHet(2.0, 0.5, null_endpoint=True),
    HewFixed(total=0.5 / 2.0),
    HewFixed(total=0.5 / 2.0, variates="gradient"),
    FedNova(0.5 / 2.0),
    FedNova(0.5 / 2.0, by="equal"),
    Scaffold(0.5 / 2.0, server_learning_rate=0.7),
]


def variates(state: Any) -> Any:
    """The control variates in a state; None without them."""
    return state.variates if isinstance(state, MethodState) else state


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("changed", [False, True])
def test_pieces_and_matrix(
    method: Any, changed: bool, rng: np.random.Generator
) -> None:
    n, d = 6, 700
    x = rng.standard_normal(d).astype(np.float32)
    ends = (x - 0.1 - 0.1 * rng.standard_normal((n, d))).astype(np.float32)
    parts = tuple(
        tuple(np.ascontiguousarray(row) for row in part)
        for part in np.split(ends, [13, 500], axis=1)
    )
    ones = np.ones(n, dtype=np.int64)
    cohort = Cohort(np.arange(1, n + 1), 1 + np.arange(n), ones, ones, n + 2)
    plan = LocalPlan(0.25 / (1 + np.arange(n)))
    matrix = ends.astype(np.float64) - x
    state = method.init(n + 2, d, rng.standard_normal((n + 2, d)))
    anchor = x.astype(np.float64)
    decision, following = method.decide(
        matrix_round(anchor, matrix, cohort, plan), state
    )
    round_ = Round(anchor, ChunkedDisplacements(parts, x), cohort, plan)
    held = in_place(state) if changed else state
    found, put_off = method.decide(round_, held)
    np.testing.assert_allclose(found.weights, decision.weights, atol=1e-10)
    assert found.status == decision.status
    if changed and state is not None:  # nothing happens before the round is accepted
        before = variates(state).clients.copy()
        assert np.array_equal(variates(put_off).clients, before)
    after = variates(commit(put_off))
    following, state = variates(following), variates(state)
    if following is None:
        assert after is None
        return
    assert (after.clients is state.clients) == changed
    np.testing.assert_allclose(after.server, following.server, atol=1e-12)
    np.testing.assert_allclose(after.clients, following.clients, atol=1e-12)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("kind", [HewHom, HewHet])
def test_the_value_is_that_of_the_model(
    kind: Any, null: bool, rng: np.random.Generator
) -> None:
    method = kind(2.0, 0.5, null_endpoint=null)
    delta = -0.1 - 0.1 * rng.standard_normal((4, 30))
    ones = np.ones(4, dtype=np.int64)
    cohort = Cohort(np.arange(4), ones, ones, ones, 4)
    round_ = matrix_round(np.zeros(30), delta, cohort, LocalPlan(np.full(4, 0.25)))
    state = method.init(4, 30, rng.standard_normal((4, 30)))
    decision, _ = method.decide(round_, state)
    g = -delta.mean(axis=0) / 0.25 if kind is HewHom else state.server
    step = decision.weights @ delta
    assert decision.value == pytest.approx(g @ step + 1.25 * (step @ step), rel=1e-12)
