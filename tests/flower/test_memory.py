"""What the server needs to aggregate: vectors, never another matrix of the replies."""

import gc
import tracemalloc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from hewfl import HewHet, HewHom, ServerStep
from hewfl.core import native
from hewfl.displacements.chunked import RANGE
from hewfl.displacements.gram import STACK
from hewfl.flower import AlgorithmStrategy, HewStrategy
from tests.flower.federation import StubGrid, app_of
from tests.flower.stock import stock_app
from tests.simulation.toy import least_squares

N, LAYERS = 12, (60_000, 7, 140_000)
D = sum(LAYERS)
TOLD = {"num-examples": 10}


def model(vector: Any) -> ArrayRecord:
    return ArrayRecord(np.split(vector, np.cumsum(LAYERS)[:-1]))


def answered(question: Message, arrays: ArrayRecord, told: Any = TOLD) -> Message:
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})
    return Message(content, reply_to=question)


def second_round(corrected: bool, **changes: Any) -> tuple[Any, list[Message], Any]:
    """A strategy in its second round, replies to it, and where they end."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(D).astype(np.float32)
    ends = (x - 0.1 - 0.1 * rng.standard_normal((N, D))).astype(np.float32)
    method = HewHet(1.0, 0.5, start="zero") if corrected else HewHom(1.0, 0.5)
    strategy = AlgorithmStrategy(method, population=N, fraction_evaluate=0.0, **changes)
    grid = StubGrid(app_of(least_squares(3, n=N, d=4)), N)
    arrays = model(x)
    for t in (1, 2):
        questions = strategy.configure_train(t, arrays, ConfigRecord(), grid)
        replies = [answered(q, model(y)) for q, y in zip(questions, ends, strict=True)]
        if t == 1:
            arrays = strategy.aggregate_train(t, replies)[0]
    return strategy, replies, ends


@pytest.mark.skipif(
    not native.is_available(), reason="NumPy's blocks are larger than this model"
)
@pytest.mark.parametrize("corrected", [False, True])
def test_no_more_than_the_new_vectors(corrected: bool) -> None:
    tracemalloc.start()
    strategy, replies, _ = second_round(corrected)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    record, _ = strategy.aggregate_train(2, replies)
    models = (tracemalloc.get_traced_memory()[1] - before) / (4 * D)
    tracemalloc.stop()
    assert record is not None
    blocks = 8 * (RANGE + STACK * (N + 5) / N) / (4 * D) + 0.5
    # the model in its own precision and in float64, and the new one, less the last
    # two; blocks are never all there at the peak
    assert models <= 1 + blocks


@pytest.mark.skipif(
    not native.is_available(), reason="NumPy's blocks are larger than this model"
)
@pytest.mark.parametrize(
    "options",
    [{}, {"aggregator": "exact"}, {"aggregator": "trust"}, {"judge": "1"}],
    ids=str,
)
def test_at_most_four_models_beyond_the_replies(options: dict[str, Any]) -> None:
    d, n = 1_500_000, 4
    rng = np.random.default_rng(0)
    x = rng.standard_normal(d, dtype=np.float32)
    strategy = HewStrategy(fraction_evaluate=0.0, **options)
    grid = StubGrid(stock_app(), n)

    def split(vector: Any) -> ArrayRecord:
        return ArrayRecord(np.split(vector, [d // 2, d // 2 + 9]))

    told = TOLD | {"num-steps": 3}
    arrays = split(x)
    tracemalloc.start()  # the last model is freed on the way
    for t in (1, 2):
        replies = []
        for q in strategy.configure_train(t, arrays, ConfigRecord(), grid):
            y = x + 0.1 + 0.1 * rng.standard_normal(d, dtype=np.float32)
            replies.append(answered(q, split(y), told))
        if t == 1:
            arrays, _ = strategy.aggregate_train(t, replies)
    gc.collect()  # Flower's messages hold each other
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    record, _ = strategy.aggregate_train(2, replies)
    models = (tracemalloc.get_traced_memory()[1] - before) / (4 * d)
    tracemalloc.stop()
    assert record is not None
    assert models <= 4


@pytest.mark.parametrize("corrected", [False, True])
def test_arrays_in_pieces_step_as_one_vector(corrected: bool) -> None:
    strategy, replies, ends = second_round(corrected)
    x = strategy.state.anchor
    _, metrics = strategy.aggregate_train(2, replies)
    sent = x.astype(np.float32).astype(np.float64)
    step = np.array(metrics["weights"]) @ (ends - sent)
    np.testing.assert_allclose(strategy.state.anchor, sent + step, atol=1e-12)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("corrected", [False, True])
def test_the_outer_step_and_its_terms(corrected: bool, kernels: bool) -> None:
    server_step = ServerStep(step=0.7, momentum=0.5)
    with nullcontext() if kernels else native.disabled():
        strategy, replies, ends = second_round(corrected, server_step=server_step)
        x = strategy.state.anchor.astype(np.float32).astype(np.float64)  # as sent
        m = strategy.state.memory
        delta = ends - x.astype(np.float32).astype(np.float64)
        g = strategy.state.algorithm.server.copy() if corrected else None
        _, metrics = strategy.aggregate_train(2, replies)
    kept = 0.5 * m + np.array(metrics["weights"]) @ delta
    np.testing.assert_allclose(strategy.state.memory, kept, atol=1e-12)
    move = 0.7 * kept
    np.testing.assert_allclose(strategy.state.anchor, x + move, atol=1e-12)
    if g is None:  # Alg. 3: η_i is what was asked for, ϑ/(L H_i) with H_i = 1
        ground = 0.5 * np.array(metrics["steps"])
        g = -(delta / ground[:, None]).mean(axis=0)
    assert metrics["certificate_slope"] == pytest.approx(g @ move, rel=1e-9)
    bend = 0.5 * 1.25 * (move @ move)
    assert metrics["certificate_curvature"] == pytest.approx(bend, rel=1e-9)


def test_a_rejected_round_leaves_control_variates_as_they_were() -> None:
    strategy, replies, ends = second_round(corrected=True)
    own = strategy.state.algorithm.clients.copy()
    for message, y in zip(replies, ends, strict=True):
        message.content["arrays"] = model(np.where(y > 0, y, np.inf))
    record, metrics = strategy.aggregate_train(2, replies)
    assert record is None
    assert metrics["excluded-not-finite"] == N
    assert np.array_equal(strategy.state.algorithm.clients, own)
