"""What the server needs to aggregate: vectors, never another matrix of the replies."""

import tracemalloc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from hewfl import Outer
from hewfl.aggregate.pieces import RANGE
from hewfl.core import native
from hewfl.flower import HewStrategy, Options
from hewfl.flower.layout import flat, layout_of, lendable
from tests.flower.federation import StubGrid, app_of
from tests.sim.toy import least_squares

N, LAYERS = 12, (60_000, 7, 140_000)
D = sum(LAYERS)


def model(vector: Any) -> ArrayRecord:
    return ArrayRecord(np.split(vector, np.cumsum(LAYERS)[:-1]))


def answered(question: Message, arrays: ArrayRecord) -> Message:
    told = {"num-examples": 10, "num-steps": 1 + question.metadata.dst_node_id % 4}
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})
    return Message(content, reply_to=question)


def second_round(corrected: bool, **changes: Any) -> tuple[Any, list[Message], Any]:
    """A strategy in its second round, replies to it, and where they end."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(D).astype(np.float32)
    ends = (x - 0.1 - 0.1 * rng.standard_normal((N, D))).astype(np.float32)
    options = Options(population=N, fraction_evaluate=0.0, **changes)
    strategy = HewStrategy(1.0, 0.5, corrected=corrected, start="zero", options=options)
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
    blocks = 8 * RANGE / (4 * D) + 0.5
    assert models <= 2 + blocks  # the new anchor, of float64


@pytest.mark.parametrize("corrected", [False, True])
def test_arrays_in_pieces_step_as_one_vector(corrected: bool) -> None:
    strategy, replies, ends = second_round(corrected)
    x, layout = strategy.state.anchor, strategy._known.layout
    _, metrics = strategy.aggregate_train(2, replies)
    sent = x.astype(np.float32).astype(np.float64)
    step = np.array(metrics["weights"]) @ (ends - sent)
    np.testing.assert_allclose(strategy.state.anchor, x + step, atol=1e-12)
    assert layout.d == D


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("corrected", [False, True])
def test_the_outer_step_and_its_terms(corrected: bool, kernels: bool) -> None:
    outer = Outer(step=0.7, momentum=0.5)
    with nullcontext() if kernels else native.disabled():
        strategy, replies, ends = second_round(corrected, outer=outer)
        x, m = strategy.state.anchor, strategy.state.memory
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


def test_displacements_and_endpoints_in_one_round() -> None:
    strategy, replies, ends = second_round(corrected=False)
    x = strategy.state.anchor
    sent = x.astype(np.float32)
    moves = ends - sent.astype(np.float64)  # of endpoints, in full
    for k in range(0, N, 2):
        del replies[k].content["arrays"]
        replies[k].content["displacement"] = ArrayRecord([ends[k] - sent])
        moves[k] = ends[k] - sent
    _, metrics = strategy.aggregate_train(2, replies)
    assert metrics["clients"] == list(range(N))
    step = np.array(metrics["weights"]) @ moves
    np.testing.assert_allclose(strategy.state.anchor, x + step, atol=1e-12)


def test_replies_are_used_up() -> None:
    strategy, replies, _ = second_round(corrected=False)
    strategy.aggregate_train(2, replies)
    for message in replies:
        assert len(message.content["arrays"]) == 0
        assert message.content["metrics"]["num-examples"] == 10


def test_a_rejected_round_leaves_control_variates_as_they_were() -> None:
    strategy, replies, ends = second_round(corrected=True)
    own = strategy.state.algorithm.clients.copy()
    for message, y in zip(replies, ends, strict=True):
        message.content["arrays"] = model(np.where(y > 0, y, np.inf))
    record, metrics = strategy.aggregate_train(2, replies)
    assert record is None
    assert metrics["excluded-not-finite"] == N
    assert np.array_equal(strategy.state.algorithm.clients, own)


def test_arrays_that_kernels_cannot_read_are_copied() -> None:
    halves = np.arange(6, dtype=np.float16)
    assert lendable(halves).dtype == np.float32
    swapped = np.arange(6, dtype=">f8")
    assert lendable(swapped).dtype == np.float64
    assert lendable(swapped).dtype.isnative
    askew = np.frombuffer(b"." + np.arange(6.0).tobytes(), np.float64, 6, 1)
    assert lendable(askew).flags.aligned
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.shares_memory(lendable(plain), plain)
    for array in (halves, swapped, askew):
        assert np.array_equal(lendable(array), np.arange(6))
    record = ArrayRecord([halves, plain])
    assert flat(layout_of(record), record).dtype == np.float32
