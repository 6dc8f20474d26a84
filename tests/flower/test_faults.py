"""Whatever a federation does, the round goes on or is rejected, and says why."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from hewfl import (
    EpochHorizons,
    FedAdp,
    FedAWARE,
    FedNova,
    FixedHorizons,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    InvalidInputError,
    ProblemBounds,
    Scaffold,
)
from hewfl.flower import AlgorithmStrategy, HewStrategy, Options
from hewfl.flower.layout import vector_of
from hewfl.flower.protocol import TRAIN
from hewfl.flower.replies import KINDS, STEP_SIZES
from tests.flower.federation import StubGrid, Tamper, app_of
from tests.sim.toy import least_squares

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
    told = {"population": N, "horizons": FixedHorizons(2), "fraction_evaluate": 0.0}
    told |= {"wait_seconds": 0.05}
    method = HewHet(L, 0.4) if method is None else method
    strategy = AlgorithmStrategy(method, Options(**{**told, **options}))
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


def late(question: Message, answer: Message) -> list[Message]:
    del question
    answer.metadata.__dict__["_group_id"] = "77"
    return [answer]


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
    return [answer, changed(other, displacement=vector(*range(D)))]


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
NAN = set_to(displacement=vector(*[0.0] * (D - 1), np.nan))
FAULTS: dict[str, tuple[Tamper, dict[str, int]]] = {
    "client raised": (
        lambda q, _: [Message(Error(2, "boom"), reply_to=q)],
        {"error": 1},
    ),
    "node gone": (gone, {"error": 1}),
    "no answer": (lambda *_: [], {"missing": 1}),
    "late": (late, {"late": 1, "missing": 1}),
    "stranger": (stranger, {"unknown": 1, "missing": 1}),
    "twice, differing": (twice, {"duplicate": 1}),
    "NaN": (NAN, {"not-finite": 1}),
    "infinite": (
        set_to(displacement=vector(*[np.inf] * D)),
        {"not-finite": 1},
    ),
    "too long": (set_to(displacement=vector(*range(D + 1))), {"malformed": 1}),
    "whole numbers": (
        set_to(displacement=vector(*range(D), dtype=np.int64)),
        {"malformed": 1},
    ),
    "two arrays": (
        set_to(displacement=ArrayRecord([np.ones(D), np.ones(D)])),
        {"malformed": 1},
    ),
    "no arrays": (set_to(displacement=None), {"malformed": 1}),
    "no metrics": (set_to(metrics=None), {"malformed": 1}),
    "no steps": (numbers(num_steps=None), {"malformed": 1}),
    "zero steps": (numbers(num_steps=0), {"malformed": 1}),
    "half a step": (numbers(num_steps=1.5), {"malformed": 1}),
    "NaN examples": (numbers(num_examples=float("nan")), {"malformed": 1}),
    "huge examples": (numbers(num_examples=1e300), {"malformed": 1}),
    "someone else": (numbers(partition_id=1), {"malformed": 1}),
    "more steps than ordered": (numbers(num_steps=3), {"malformed": 1}),
    "zero step size": (numbers(step_size=0.0), {"malformed": 1}),
    "tiny step size": (numbers(step_size=1e-300), {"malformed": 1}),
    "huge step size": (numbers(step_size=1e300), {"malformed": 1}),
    **{
        f"damaged, {error}": (set_to(displacement=headed(head)), {"malformed": 1})
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
        found = {kind: metrics[f"excluded-{kind}"] for kind in KINDS}
        assert {k: v for k, v in found.items() if v} == counts
    assert np.isfinite(strategy.state.anchor).all()
    who = "a sender" if fault == "stranger" else f"client {VICTIM}"
    assert who in caplog.text
    kind = next(iter(counts))
    assert f"({kind})" in caplog.text


def test_heads_of_our_own_are_read_where_they_are_right() -> None:
    found = vector_of(headed(HEAD.format("<f4", D)), D)
    np.testing.assert_array_equal(found, np.zeros(D))


def test_a_damaged_gradient_at_the_start_is_left_out() -> None:
    def damaged(grid: StubGrid) -> None:
        record = headed(DAMAGED["TokenError"])
        grid.tamper = lambda q, a: (
            [changed(a, displacement=record)]
            if q.metadata.message_type == "train.gradient"
            and grid.partition_of(q) == VICTIM
            else [a]
        )

    _, result = run(prepare=damaged, rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("offer", "heard"), [(2, [0, 1, 2, 4]), (None, [*range(N)])])
def test_without_a_law_an_offer_bounds_the_steps(
    offer: int | None, heard: list[int]
) -> None:
    def offering(grid: StubGrid) -> None:
        for context in grid.nodes.values():
            context.node_config.update({} if offer is None else {"local-steps": offer})

    more = numbers(num_steps=3)
    _, result = run(more, prepare=offering, horizons=None, method=HewHom(L, 0.4))
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["clients"] == heard


@pytest.mark.parametrize("size", STEP_SIZES)
@pytest.mark.parametrize(
    "method", [HewHom(L, 0.4), HewHet(L, 0.4), FedNova(L, 0.2), Scaffold(L, 0.2)]
)
def test_step_sizes_in_range_stay_in_floating_point(method: Any, size: float) -> None:
    strategy, result = run(numbers(step_size=size), method=method, rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["accepted"] == 1
    assert metrics["clients"] == [*range(N)]
    assert np.isfinite(strategy.state.anchor).all()


def test_noise_by_client_goes_with_those_who_are_there() -> None:
    v = (1.0, 2.0, 3.0, 4.0, 5.0)
    method = HewFixed(L, 0.4, variance=v)
    _, result = run(method=method, prepare=lambda grid: grid.disconnect(VICTIM))
    worth = 1 / np.array([1.0, 2.0, 3.0, 5.0])  # equal steps and batches
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["clients"] == [0, 1, 2, 4]
        np.testing.assert_allclose(metrics["weights"], worth / worth.sum())


def test_leaving_out_is_as_if_the_client_had_not_been_asked() -> None:
    def only(grid: StubGrid) -> None:
        grid.disconnect(VICTIM)

    by_fault, _ = run(NAN, method=Scaffold(L, 0.2))
    absent, result = run(method=Scaffold(L, 0.2), prepare=only)
    np.testing.assert_array_equal(by_fault.state.anchor, absent.state.anchor)
    assert result.train_metrics_clientapp[1]["excluded-missing"] == 1


def test_equal_answers_count_once() -> None:
    honest, _ = run()
    doubled, result = run(lambda q, a: [a, Message(a.content, reply_to=q)])
    np.testing.assert_array_equal(honest.state.anchor, doubled.state.anchor)
    assert result.train_metrics_clientapp[1]["excluded"] == 0


def test_too_few_replies_reject_the_round_and_leave_everything_as_it_was() -> None:
    strategy, result = run(NAN, min_replies=N, rounds=2, method=Scaffold(L, 0.2))
    np.testing.assert_array_equal(strategy.state.anchor, np.zeros(D))
    np.testing.assert_array_equal(strategy.state.algorithm.clients, np.zeros((N, D)))
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


@pytest.mark.parametrize("size", [1e38, 3e38])
def test_a_model_that_would_overflow_is_not_taken(size: float) -> None:
    tamper = set_to(displacement=vector(*[size] * D))
    strategy, result = run(tamper, method=Scaffold(L, 0.2, server_step=100.0))
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


def test_stock_clients_are_told_what_to_add() -> None:
    def silent(grid: StubGrid) -> None:
        grid.tamper = lambda q, a: (
            [with_metrics(a, num_steps=None)]
            if q.metadata.message_type == TRAIN
            else [a]
        )

    with pytest.raises(InvalidInputError, match='add `"num-steps": <optimiser steps'):
        run(prepare=silent, method=HewHom(L, 0.4))


def test_later_on_such_a_round_is_only_rejected() -> None:
    def forgetful(grid: StubGrid) -> None:
        def tamper(question: Message, answer: Message) -> list[Message]:
            is_second = question.metadata.group_id == "2"
            return [with_metrics(answer, num_steps=None) if is_second else answer]

        grid.tamper = tamper

    _, result = run(prepare=forgetful, method=HewHom(L, 0.4))
    accepted = [m["accepted"] for m in result.train_metrics_clientapp.values()]
    assert accepted == [1, 0, 1]


def test_starting_again_starts_from_the_beginning() -> None:
    strategy, _ = run(rounds=2)
    bits = strategy.state.anchor.tobytes()
    grid = StubGrid(app_of(PROBLEM), N)
    strategy.start(grid, ArrayRecord([np.zeros(D, np.float32)]), 2)
    assert strategy.state.anchor.tobytes() == bits


def test_control_variates_need_a_population() -> None:
    with pytest.raises(InvalidInputError, match="`population` must be given"):
        HewStrategy(1.0, 1.0, corrected=True)


@pytest.mark.parametrize("method", [FedAWARE(L, 0.2), FedAdp(L, 0.2)])
def test_so_do_memories_of_clients(method: Any) -> None:
    with pytest.raises(InvalidInputError, match="what it knows of clients"):
        AlgorithmStrategy(method)
    AlgorithmStrategy(method, Options(population=2))


def test_so_do_passes_over_the_data_of_a_client() -> None:
    with pytest.raises(InvalidInputError, match=r"`population` .* for EpochHorizons"):
        HewStrategy(1.0, 1.0, options=Options(horizons=EpochHorizons(1.0)))


@pytest.mark.parametrize(
    ("population", "text"),
    [
        (None, r"`population` must be given for HEW-Fixed \(horizon\)"),
        (3, "`variance` must be one number or 3 of them; got 2 numbers"),
    ],
)
def test_so_does_noise_by_client(population: int | None, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        AlgorithmStrategy(HewFixed(L, 0.4, variance=(1.0, 2.0)), Options(population))
