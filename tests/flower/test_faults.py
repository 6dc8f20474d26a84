"""Whatever a federation does, the round goes on or is rejected, and says why."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hewfl import (
    FedNova,
    FixedSteps,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    InvalidInputError,
    LocalSGD,
    Method,
    ProblemBounds,
    Scaffold,
)
from hewfl.aggregators import QFedAvg
from hewfl.flower import AlgorithmStrategy, ClientObjective, client_app
from hewfl.flower.arrays import layout_of, to_vector
from hewfl.flower.client_registry import SECOND_CHANCE
from hewfl.flower.messages import INTRODUCE, TRAIN
from hewfl.flower.replies import EXCLUSION_KINDS
from tests.flower.federation import StubGrid, Tamper, app_of
from tests.simulation.toy import least_squares

N, D = 5, 6
PROBLEM = least_squares(2, n=N, d=D)
L = PROBLEM.smoothness
VICTIM = 3


def run(
    tamper: Tamper | None = None,
    *,
    method: Any = None,
    rounds: int = 3,
    prepare: Callable[[StubGrid], None] | None = None,
    **options: Any,
) -> tuple[AlgorithmStrategy, Any]:
    """A run in which one client is not what it should be."""
    told: dict[str, Any] = {"population": N, "local_steps": FixedSteps(2)}
    told |= {"wait_seconds": 0.05, "fraction_evaluate": 0.0}
    method = HewHet(L, 0.4) if method is None else method
    strategy = AlgorithmStrategy(method, **{**told, **options})
    grid = StubGrid(app_of(PROBLEM), N)
    if tamper is not None:
        grid.tamper = of_victim(grid, tamper)
    if prepare is not None:
        prepare(grid)
    result = strategy.start(grid, ArrayRecord([np.zeros(D, np.float32)]), rounds)
    return strategy, result


def of_victim(grid: StubGrid, tamper: Tamper) -> Tamper:
    """Tamper with one client's answers to training rounds."""

    def only(question: Message, answer: Message) -> list[Message]:
        is_training = question.metadata.message_type == TRAIN
        if is_training and grid.partition_of(question) == VICTIM:
            return tamper(question, answer)
        return [answer]

    return only


def changed(answer: Message, **records: Any) -> Message:
    """The same answer with other records; None takes one out."""
    new = {k: v if v is None else v.copy() for k, v in records.items()}
    merged = {**answer.content, **new}
    answer.content = RecordDict({k: v for k, v in merged.items() if v is not None})
    return answer


def vector(*numbers: float, dtype: Any = np.float32) -> ArrayRecord:
    return ArrayRecord([np.array(numbers, dtype)])


def with_metrics(answer: Message, **changes: Any) -> Message:
    """The same answer with other numbers; None takes one out."""
    metrics = dict(answer.content["metrics"])
    for key, value in changes.items():
        metrics[key.replace("_", "-")] = value
    kept = {k: v for k, v in metrics.items() if v is not None}
    return changed(answer, metrics=MetricRecord(kept))


def gone(question: Message, answer: Message) -> list[Message]:
    """The SuperLink answers for a dead node, under its own id."""
    error = Message(Error(5, "Node Unavailable"), reply_to=question)
    error.metadata.__dict__["_src_node_id"] = 1
    error.metadata.__dict__["_reply_to_message_id"] = question.metadata.message_id
    del answer
    return [error]


def stranger(question: Message, answer: Message) -> list[Message]:
    del question
    answer.metadata.__dict__["_src_node_id"] = 12345
    answer.metadata.__dict__["_reply_to_message_id"] = "nobody's"
    return [answer]


def twice(question: Message, answer: Message) -> list[Message]:
    other = Message(RecordDict(dict(answer.content)), reply_to=question)
    return [answer, changed(other, arrays=vector(*range(D)))]


def set_to(**records: Any) -> Tamper:
    return lambda _, answer: [changed(answer, **records)]


def numbers(**values: Any) -> Tamper:
    return lambda _, answer: [with_metrics(answer, **values)]


def headed(text: str) -> ArrayRecord:
    """A vector of zeros under a NumPy header of our own."""
    head = text.encode()
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    data += np.zeros(D, np.float32).tobytes()
    return ArrayRecord({"0": Array("float32", (D,), "numpy.ndarray", data)})


HEAD = "{{'descr': '{}', 'fortran_order': False, 'shape': ({},)}}"
DAMAGED = {  # and what reading them raises
    "OverflowError": HEAD.format("<f4", 2**70),
    "SyntaxError": HEAD.format("<f4,(", D),
    "TokenError": "{",
    "nothing": HEAD.format("<f4", -1),
}
NAN = set_to(arrays=vector(*[0.0] * (D - 1), np.nan))
FAULTS: dict[str, tuple[Tamper, dict[str, int]]] = {
    "client raised": (
        lambda q, _: [Message(Error(2, "boom"), reply_to=q)],
        {"error": 1},
    ),
    "node gone": (gone, {"error": 1}),
    "no answer": (lambda *_: [], {"missing": 1}),
    "stranger": (stranger, {"unknown": 1, "missing": 1}),
    "twice": (twice, {"malformed": 1}),
    "NaN": (NAN, {"not-finite": 1}),
    "infinite": (
        set_to(arrays=vector(*[np.inf] * D)),
        {"not-finite": 1},
    ),
    "too long": (set_to(arrays=vector(*range(D + 1))), {"malformed": 1}),
    "whole numbers": (
        set_to(arrays=vector(*range(D), dtype=np.int64)),
        {"malformed": 1},
    ),
    "two arrays": (
        set_to(arrays=ArrayRecord([np.ones(D), np.ones(D)])),
        {"malformed": 1},
    ),
    "no arrays": (set_to(arrays=None), {"malformed": 1}),
    "no metrics": (set_to(metrics=None), {"malformed": 1}),
    "NaN examples": (numbers(num_examples=float("nan")), {"malformed": 1}),
    "huge examples": (numbers(num_examples=1e300), {"malformed": 1}),
    "no examples": (numbers(num_examples=None), {"malformed": 1}),
    "very long": (set_to(arrays=vector(*[1e9] * D)), {"implausible": 1}),
    "beyond squares": (
        set_to(arrays=vector(*[1e200] * D, dtype=np.float64)),
        {"implausible": 1},
    ),
    **{
        f"damaged, {error}": (set_to(arrays=headed(head)), {"malformed": 1})
        for error, head in DAMAGED.items()
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_is_left_out_and_counted(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    tamper, counts = FAULTS[fault]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy, result = run(tamper)
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["accepted"] == 1
        assert metrics["clients"] == [0, 1, 2, 4]
        found = {kind: metrics[f"excluded-{kind}"] for kind in EXCLUSION_KINDS}
        assert {k: v for k, v in found.items() if v} == counts
    assert np.isfinite(strategy.state.anchor).all()
    who = "a sender" if fault == "stranger" else f"client {VICTIM}"
    assert who in caplog.text
    kind = next(iter(counts))
    assert f"is left out, {kind}: " in caplog.text


def test_heads_of_our_own_are_read_where_they_are_right() -> None:
    record = headed(HEAD.format("<f4", D))
    np.testing.assert_array_equal(to_vector(layout_of(record), record), np.zeros(D))


@pytest.mark.parametrize("method", [HewHom(L, 0.4), HewHet(L, 0.4), FedNova(0.2 / L)])
@pytest.mark.parametrize(
    "lie", [{"step_size": 1e-30}, {"num_steps": 1}, {"step_size": 1e300}]
)
def test_what_the_server_ordered_is_what_it_uses(
    method: Any, lie: dict[str, Any]
) -> None:
    honest, _ = run(method=method)
    lied_to, result = run(numbers(**lie), method=method)
    np.testing.assert_array_equal(lied_to.state.anchor, honest.state.anchor)
    assert result.train_metrics_clientapp[1]["steps"] == [2] * N


def test_a_damaged_gradient_at_the_start_is_left_out() -> None:
    def damaged(grid: StubGrid) -> None:
        record = headed(DAMAGED["TokenError"])
        grid.tamper = lambda q, a: (
            [changed(a, arrays=record)]
            if q.metadata.message_type == "train.gradient"
            and grid.partition_of(q) == VICTIM
            else [a]
        )

    _, result = run(prepare=damaged, rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == [0, 1, 2, 3, 4]


def test_noise_by_client_goes_with_those_who_are_there() -> None:
    v = (1.0, 2.0, 3.0, 4.0, 5.0)
    method = HewFixed(total=0.4 / L, variance=v)
    _, result = run(method=method, prepare=lambda grid: grid.disconnect(VICTIM))
    worth = 1 / np.array([1.0, 2.0, 3.0, 5.0])  # equal steps and batches
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["clients"] == [0, 1, 2, 4]
        np.testing.assert_allclose(metrics["weights"], worth / worth.sum())


def test_leaving_out_is_as_if_the_client_had_not_been_asked() -> None:
    def only(grid: StubGrid) -> None:
        grid.disconnect(VICTIM)

    by_fault, _ = run(NAN, method=Scaffold(0.2 / L))
    absent, result = run(method=Scaffold(0.2 / L), prepare=only)
    np.testing.assert_array_equal(by_fault.state.anchor, absent.state.anchor)
    assert result.train_metrics_clientapp[1]["excluded-missing"] == 1


def test_too_few_replies_reject_the_round_and_leave_everything_as_it_was() -> None:
    strategy, result = run(NAN, min_replies=N, rounds=2, method=Scaffold(0.2 / L))
    np.testing.assert_array_equal(strategy.state.anchor, np.zeros(D))
    np.testing.assert_array_equal(
        strategy.state.algorithm.variates.clients, np.zeros((N, D))
    )
    assert result.train_metrics_clientapp[2]["accepted"] == 0
    np.testing.assert_array_equal(result.arrays["0"].numpy(), np.zeros(D))
    assert strategy.state.scalars > 0  # what was sent was sent


def test_nobody_there() -> None:
    def empty(grid: StubGrid) -> None:
        grid.nodes.clear()

    control = HewControl(ProblemBounds(L, 5.0, 1e-3, 1.0), 0.1, start="zero")
    run(prepare=empty, method=control, rounds=2)  # has no plan for nobody
    strategy, result = run(prepare=empty, method=HewHom(L, 0.4), rounds=2)
    assert result.train_metrics_clientapp[2]["excluded-missing"] == N
    assert result.train_metrics_clientapp[2]["accepted"] == 0
    np.testing.assert_array_equal(strategy.state.anchor, np.zeros(D))


def test_a_model_that_would_overflow_is_not_taken() -> None:
    """Everybody sends the same, so nobody is implausible."""

    def large(grid: StubGrid) -> None:
        grid.tamper = lambda q, a: (
            [changed(a, arrays=vector(*[1e18] * D))]
            if q.metadata.message_type == TRAIN
            else [a]
        )

    method = Scaffold(0.2 / L, server_learning_rate=1e25)
    strategy, result = run(prepare=large, method=method)
    assert result.train_metrics_clientapp[1]["accepted"] == 0
    assert result.train_metrics_clientapp[1]["excluded"] == 0
    np.testing.assert_array_equal(strategy.state.anchor, np.zeros(D))


def test_a_client_that_fails_at_the_start_begins_uncorrected() -> None:
    def broken(grid: StubGrid) -> None:
        grid.tamper = lambda q, a: (
            []
            if q.metadata.message_type == "train.gradient"
            and grid.partition_of(q) == VICTIM
            else [a]
        )

    strategy, result = run(prepare=broken, rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == [0, 1, 2, 3, 4]
    assert np.isfinite(strategy.state.anchor).all()


def test_starting_again_starts_from_the_beginning() -> None:
    strategy, _ = run(rounds=2)
    bits = strategy.state.anchor.tobytes()
    grid = StubGrid(app_of(PROBLEM), N)
    strategy.start(grid, ArrayRecord([np.zeros(D, np.float32)]), 2)
    assert strategy.state.anchor.tobytes() == bits


def test_the_population_is_checked() -> None:
    with pytest.raises(InvalidInputError, match="`population` must be at least 1"):
        AlgorithmStrategy(HewHet(L, 0.4), population=0)


def test_noise_by_client_is_of_the_whole_population() -> None:
    text = "`variance` must be one number or 3 of them; got 2 numbers"
    with pytest.raises(InvalidInputError, match=text):
        AlgorithmStrategy(HewFixed(total=0.4 / L, variance=(1.0, 2.0)), population=3)


def test_methods_that_need_losses_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs no losses"):
        AlgorithmStrategy(Method(LocalSGD(0.1 / L), QFedAvg(1.0)), population=2)


# ------------------------------------------------------------------ who is who


def still() -> ClientApp:
    return client_app(lambda _: ClientObjective(lambda x, _: x * 0 + 1, 10, 2))


ORDERED: dict[str, Any] = {"fraction_evaluate": 0.0, "wait_seconds": 60.0}


def test_nodes_may_say_how_much_they_do() -> None:
    strategy = AlgorithmStrategy(HewHom(1.0, 1.0), population=3, **ORDERED)
    grid = StubGrid(still(), 3, config=lambda i: {"local-steps": 2 * i + 1})
    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 2)
    assert result.train_metrics_clientapp[2]["steps"] == [1, 3, 5]
    orders = [m.content["config"] for m in grid.sent if "config" in m.content]
    assert all(o["step-size"] * o["local-steps"] == pytest.approx(1.0) for o in orders)


def test_a_node_without_a_partition_id_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = StubGrid(still(), 2)
    grid.nodes[grid.node_of(1)].node_config.pop("partition-id")
    strategy = AlgorithmStrategy(HewHom(1.0, 1.0), population=2, **ORDERED)
    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 1)
    assert result.train_metrics_clientapp[1]["clients"] == [0]
    assert '--node-config "partition-id=0"' in caplog.text


def test_a_stock_app_cannot_be_named() -> None:
    app = ClientApp()
    app.train()(lambda message, _: message)
    strategy = AlgorithmStrategy(HewHet(1.0, 1.0), population=2, **ORDERED)
    with pytest.raises(InvalidInputError, match=r"hewfl\.flower\.client_app"):
        strategy.start(StubGrid(app, 2), ArrayRecord([np.zeros(2)]), 1)


def test_only_newcomers_are_waited_for_in_full() -> None:
    waits: list[tuple[int, float | None]] = []

    class Watched(StubGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            out = list(messages)
            if any(m.metadata.message_type == INTRODUCE for m in out):
                waits.append((len(out), timeout))
            return super().send_and_receive(out, timeout=timeout)

    grid = Watched(still(), 3)
    grid.tamper = lambda q, a: [] if grid.partition_of(q) == 1 else [a]

    def newcomer(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        if server_round == 1:
            grid.connect(3)

    strategy = AlgorithmStrategy(
        HewHom(1.0, 1.0), population=4, min_available_nodes=3, **ORDERED
    )
    begin = ArrayRecord([np.zeros(2)])
    result = strategy.start(grid, begin, 2, evaluate_fn=newcomer)
    assert waits == [(3, 60.0), (1, SECOND_CHANCE), (1, 60.0), (1, SECOND_CHANCE)]
    assert result.train_metrics_clientapp[2]["clients"] == [0, 2, 3]


def test_of_two_nodes_with_one_id_the_one_that_answers_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = StubGrid(still(), 2)
    strategy = AlgorithmStrategy(HewHom(1.0, 1.0), population=2, **ORDERED)
    old = grid.node_of(1)

    def change(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        if server_round == 1:
            grid.connect(1)
        if server_round == 2:  # the old one keeps silent from now on
            grid.tamper = lambda q, a: [] if q.metadata.dst_node_id == old else [a]

    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 4, evaluate_fn=change)
    asked = [m.metadata.dst_node_id for m in grid.sent if "config" in m.content]
    assert asked[1::2] == [old, old, old, list(grid.nodes)[2]]
    heard = [m["clients"] for m in result.train_metrics_clientapp.values()]
    assert heard == [[0, 1], [0, 1], [0], [0, 1]]
    assert "claims partition 1 as well" in caplog.text


def test_a_node_that_comes_back_under_a_new_id_is_asked_at_once() -> None:
    """Its old id is still listed as connected, as after a kill."""
    grid = StubGrid(still(), 2)
    strategy = AlgorithmStrategy(HewHom(1.0, 1.0), population=2, **ORDERED)
    old = grid.node_of(1)
    grid.tamper = lambda q, a: (
        [] if _is_order(q) and q.metadata.dst_node_id == old else [a]
    )

    def change(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        if server_round == 1:
            grid.connect(1)

    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 3, evaluate_fn=change)
    heard = [m["clients"] for m in result.train_metrics_clientapp.values()]
    assert heard == [[0], [0, 1], [0, 1]]


def _is_order(question: Message) -> bool:
    return "config" in question.content
