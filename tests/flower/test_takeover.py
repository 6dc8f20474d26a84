"""Limits on one client: whatever it reports or sends, the next round is sane.

The property test sends fuzzed replies through `aggregate_train`, fifteen of them beside
sixteen honest ones in each round: two thousand in `make test`, ten thousand in
`make test-sweeps`.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from hewfl import HewHom
from hewfl.flower import HewStrategy
from tests.flower.federation import StubGrid
from tests.flower.stock import stock_app, vector

HONEST, BAD, D, MAX_NORM_RATIO = 16, 15, 5, 10.0
FUZZED = 10_000
MOST = 1001.0
"""Of the mean of losses up to 2: values are used up to 1,000 times max(1, median)."""
HUGE = (0.0, 1.0, -1.0, 1e-320, 1e38, -3e38, 1e200, 1e300, np.inf, -np.inf, np.nan)
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


def model(x: Any) -> ArrayRecord:
    x = np.asarray(x, np.float32)
    return ArrayRecord({"w": Array(x[:3]), "b": Array(x[3:])})


def reply(question: Message, arrays: Any, **told: Any) -> Message:
    numbers = {k.replace("_", "-"): v for k, v in told.items() if v is not None}
    content = {"arrays": arrays, "metrics": MetricRecord(numbers)}
    return Message(RecordDict(content), reply_to=question)


def honest(x: Any, rng: np.random.Generator) -> RecordDict:
    move = np.array([1.0, -0.5, 0.2, 0.7, 0.1]) + 0.3 * rng.standard_normal(D)
    told: dict[str, Any] = {"num-examples": int(rng.integers(50, 150)), "num-steps": 5}
    told["loss"] = float(rng.uniform(0.5, 2.0))
    arrays = model(x + 0.1 * move)
    return RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})


def fuzzed(question: Message, x: Any, rng: np.random.Generator) -> Message:
    """Anything: lies, garbage, other shapes and kinds, errors, half a message."""
    kind, scale = int(rng.integers(12)), 10.0 ** rng.integers(-30, 31)
    number: Callable[[], float] = lambda: rng.choice([*HUGE, 2**53, 7, 0.5])  # noqa: E731 - short
    told: dict[str, Any] = {"num_examples": 100, "num_steps": 5, "loss": 1.0}
    arrays = model(x + 0.1 * rng.standard_normal(D))
    if kind == 0:
        return Message(Error(2, "boom"), reply_to=question)
    if kind == 1:  # scaled, in double precision: beyond what float32 holds
        y = np.clip(x + scale * rng.standard_normal(D), -1e300, 1e300)
        arrays = ArrayRecord({"w": Array(y[:3]), "b": Array(y[3:])})
    if kind == 2:  # special numbers in some places
        y = np.where(rng.random(D) < 0.4, rng.choice(HUGE, D), x)
        arrays = ArrayRecord({"w": Array(y[:3]), "b": Array(y[3:])})
    if kind == 3:
        told["num_examples"] = float(number())
    if kind == 4:
        told |= {"num_steps": float(number()), "step_size": float(scale)}
    if kind == 5:  # other names, shapes, kinds
        shape = (int(rng.integers(0, 5)), int(rng.integers(1, 4)))
        names = rng.choice(["w", "b", "c"], int(rng.integers(1, 4)), replace=False)
        dtype = rng.choice(["float32", "int64", "complex64", "float16", "bool"])
        arrays = ArrayRecord({str(k): Array(np.ones(shape, dtype)) for k in names})
    if kind == 6:  # bytes that are no array
        data = rng.bytes(int(rng.integers(0, 200)))
        if rng.random() < 0.5:
            data = b"\x93NUMPY\x01\x00" + data
        held = {"w": Array("float32", (3,), "numpy.ndarray", data)}
        arrays = ArrayRecord({**held, "b": Array(np.zeros(2, np.float32))})
    if kind == 7:
        told = {str(k): float(number()) for k in rng.choice(["a", "num-examples"], 1)}
    if kind == 9:  # lists where others have numbers, and of any length
        told["loss"] = [float(number()) for _ in range(int(rng.integers(0, 4)))]
        told["num_steps"] = [5] if rng.random() < 0.5 else 5
    if kind == 10:  # sizes of any kind, and losses that would own the mean
        told["num_examples"] = rng.choice([0, 1, 2**53, 2**63 - 1]).item()
        told["loss"] = float(number())
    if kind == 8:
        arrays = MetricRecord({"extra": 1.0}) if rng.random() < 0.5 else ConfigRecord()
    return reply(question, arrays, **told)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("rule", "share"),
    [
        ("sieve", 0.5),
        ("size-weighted", 0.1),
        ("agreement", 0.2),
        (HewHom(1.0, 1.0), 0.2),
    ],
)
@pytest.mark.parametrize(
    "count", [FUZZED // 5, pytest.param(FUZZED, marks=pytest.mark.sweep)]
)
def test_after_any_reply_the_model_is_bounded_by_the_honest(
    rule: Any, share: float, count: int, rng: np.random.Generator
) -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # ten thousand warnings
    strategy = HewStrategy(aggregator=rule, max_norm_ratio=MAX_NORM_RATIO, **QUIET)
    grid = StubGrid(stock_app(), HONEST + BAD)
    config = ConfigRecord({"lr": 0.02})
    arrays = model(np.zeros(D))
    for t in range(1, int(share * count / BAD) + 2):
        if t % 40 == 1:  # honest replies are the same for a while: making them is slow
            x, sent = vector(arrays), arrays
            good = [honest(x, rng) for _ in range(HONEST)]
            ends = [vector(content["arrays"]) for content in good]
            longest = max(float(np.linalg.norm(y - x)) for y in ends)
        questions = list(strategy.configure_train(t, sent, config, grid))
        replies = [
            Message(content, reply_to=q)
            for q, content in zip(questions, good, strict=False)
        ]
        replies += [fuzzed(question, x, rng) for question in questions[HONEST:]]
        rng.shuffle(replies)
        arrays, metrics = strategy.aggregate_train(t, replies)
        assert arrays is not None
        assert metrics is not None
        assert metrics["accepted"] == 1
        assert len(metrics["clients"]) >= HONEST
        assert metrics["excluded"] <= BAD
        assert 0 <= metrics["loss"] <= MOST
        evaluated = strategy.aggregate_evaluate(t, replies)  # the same fuzz
        assert evaluated is not None
        assert 0 <= evaluated["loss"] <= MOST
        step = vector(arrays) - x
        assert np.linalg.norm(step) <= MAX_NORM_RATIO * longest * (1 + 1e-5)


def weights(lie: dict[str, Any], rule: Any, n: int = 6) -> Any:
    """Weights of a round in which client 0 lies, after a round that was honest."""
    strategy = HewStrategy(aggregator=rule, **QUIET)
    rng = np.random.default_rng(3)
    x, grid = np.zeros(D), StubGrid(stock_app(), n)
    config = ConfigRecord({"lr": 0.1})
    questions = list(strategy.configure_train(1, model(x), config, grid))
    moves = 1 + 0.2 * rng.standard_normal((n, D))
    replies = []
    for k, question in enumerate(questions):
        told: dict[str, Any] = {"num_examples": 100, "num_steps": 20, "partition_id": k}
        replies.append(
            reply(question, model(moves[k]), **(told | lie if k == 0 else told))
        )
    _, metrics = strategy.aggregate_train(1, replies)
    assert metrics is not None
    by_client = dict(zip(metrics["clients"], metrics["weights"], strict=True))
    numbers = {q.metadata.dst_node_id: k for k, q in enumerate(questions)}
    who = {numbers[node]: client for node, client in strategy._clients.items()}
    return {k: by_client[i] for k, i in who.items() if i in by_client}


@pytest.mark.parametrize(
    "rule", ["sieve", "size-weighted", "agreement", HewHom(1.0, 1.0)]
)
@pytest.mark.parametrize(
    "lie",
    [
        {"step_size": 0.05},
        {"step_size": 1e-30},
        {"num_steps": 1},
        {"num_steps": 2**53},
        {"num_examples": 2**53},
        {"num_examples": 1e-300},
    ],
)
def test_one_told_number_does_not_take_over(lie: dict[str, Any], rule: Any) -> None:
    found, told_truth = weights(lie, rule), weights({}, rule)
    assert found.get(0, 0.0) <= max(0.5, told_truth[0]) * (1 + 1e-12)


def test_steps_far_from_those_of_the_others_are_left_out() -> None:
    assert 0 not in weights({"num_steps": 1}, HewHom(1.0, 1.0))
    assert 0 in weights({"num_steps": 10}, HewHom(1.0, 1.0))
    assert 0 in weights({"num_steps": 1}, "size-weighted")  # it is not used
