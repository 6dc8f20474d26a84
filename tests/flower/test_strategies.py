"""What a round reports, how nodes are met, and stock Flower clients."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from hewfl import (
    FixedHorizons,
    HewHet,
    HewHom,
    InvalidInputError,
    QFedAvg,
    post_local_weights,
)
from hewfl.experiments.folder import open_folder
from hewfl.experiments.report import write_report
from hewfl.flower import (
    AlgorithmStrategy,
    FedNovaStrategy,
    HewStrategy,
    Local,
    Options,
    client_app,
)
from hewfl.flower.contacts import BRIEF
from hewfl.flower.protocol import INTRODUCE, TRAIN
from hewfl.flower.replies import MOST_CLIENTS
from tests.flower.federation import StubGrid, app_of, honest
from tests.sim.toy import least_squares

N, D = 5, 6
PROBLEM = least_squares(7, n=N, d=D)
L = PROBLEM.smoothness
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}
ENDS = np.random.default_rng(8).standard_normal((N, D)).astype(np.float32)
STEPS = (1, 2, 4, 8, 8)


def stock_app(*, steps: bool = True, told: bool = True, first: int = 0) -> ClientApp:
    """As Flower's templates write it: the model comes back, with its size."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # checked without flwr
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        model = message.content["arrays"].to_numpy_ndarrays()
        ends = [model[0] + ENDS[i, :4].reshape(2, 2), model[1] + ENDS[i, 4:]]
        metrics = {"num-examples": 10 + i, "train_loss": float(i)}
        metrics |= {"num-steps": STEPS[i]} if steps else {}
        metrics |= {"partition-id": first + i} if told else {}
        arrays = ArrayRecord(ends)
        content = RecordDict({"model": arrays, "numbers": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator]  # checked without flwr
    def evaluate(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        metrics = MetricRecord({"num-examples": i + 1, "accuracy": i / 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def model() -> ArrayRecord:
    return ArrayRecord([np.ones((2, 2), np.float32), np.ones(2, np.float32)])


def test_a_stock_client_needs_one_number_more() -> None:
    rate = 0.5
    strategy = HewStrategy(1.0, 1.0, options=Options(**QUIET))
    config = ConfigRecord({"lr": rate})
    result = strategy.start(StubGrid(stock_app(), N), model(), 1, train_config=config)
    local = -ENDS.astype(np.float64) / (rate * np.array(STEPS))[:, None]
    solution = post_local_weights(ENDS, local.mean(axis=0), 1.25)
    metrics = result.train_metrics_clientapp[1]
    np.testing.assert_allclose(metrics["weights"], solution.weights, atol=1e-5)
    moved = 1 + solution.weights @ ENDS
    np.testing.assert_allclose(strategy.state.anchor, moved, rtol=1e-5)
    assert metrics["clients"] == [0, 1, 2, 3, 4]
    sizes = np.arange(10, 10 + N)
    assert metrics["train_loss"] == pytest.approx(sizes @ np.arange(N) / sizes.sum())


def test_without_it_the_error_says_what_to_add() -> None:
    strategy = HewStrategy(1.0, 1.0, options=Options(**QUIET))
    grid = StubGrid(stock_app(steps=False), N)
    with pytest.raises(InvalidInputError, match=r'add `"num-steps": .* MetricRecord'):
        strategy.start(grid, model(), 1)


def test_nameless_clients_are_taken_in_order_of_their_ids() -> None:
    bits = set()
    for arrivals in (1, 2, 3):
        strategy = FedNovaStrategy(0.1, options=Options(**QUIET))
        strategy.start(StubGrid(stock_app(), N, seed=arrivals), model(), 2)
        bits.add(strategy.state.anchor.tobytes())
    assert len(bits) == 1
    nameless = FedNovaStrategy(0.1, options=Options(**QUIET))
    nameless.start(StubGrid(stock_app(told=False), N), model(), 2)
    np.testing.assert_allclose(nameless.state.anchor, strategy.state.anchor, rtol=1e-6)


def test_nameless_runs_can_be_kept_and_reported(tmp_path: Path) -> None:
    options = Options(folder=tmp_path / "run", **QUIET)
    FedNovaStrategy(0.1, options=options).start(StubGrid(stock_app(), N), model(), 3)
    write_report([open_folder(tmp_path / "run")], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_told_numbers_are_bounded_and_take_no_room(tmp_path: Path) -> None:
    first = MOST_CLIENTS - 3
    strategy = FedNovaStrategy(0.1, options=Options(folder=tmp_path, **QUIET))
    result = strategy.start(StubGrid(stock_app(first=first), N), model(), 1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["clients"] == [first, first + 1, first + 2]
    assert metrics["excluded-malformed"] == 2
    known = json.loads((tmp_path / "seed-0" / "constants.json").read_text())
    assert known["n"] == MOST_CLIENTS
    assert known["samples"] == []


def test_stock_clients_may_tell_arrays_by_place() -> None:
    """A counter lies before the parameters, and is none."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # checked without flwr
    def train(message: Message, context: Context) -> Message:
        del context
        count, w = message.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": 1, "num-steps": 1})
        arrays = ArrayRecord([count + 1, w + 1])
        return Message(RecordDict({"a": arrays, "m": metrics}), reply_to=message)

    begin = ArrayRecord([np.array([7]), np.zeros(2, np.float32)])
    strategy = FedNovaStrategy(0.1, options=Options(**QUIET))
    result = strategy.start(StubGrid(app, N), begin, 3)
    count, w = result.arrays.to_numpy_ndarrays()
    assert count == 7
    np.testing.assert_allclose(w, [3.0, 3.0])


def test_fednova_by_hand() -> None:
    strategy = FedNovaStrategy(0.1, options=Options(**QUIET))
    strategy.start(StubGrid(stock_app(), N), model(), 1)
    p = np.arange(10, 10 + N) / np.arange(10, 10 + N).sum()
    H = np.array(STEPS)
    expected = 1 + (p @ H) * (p / H) @ ENDS.astype(np.float64)
    np.testing.assert_allclose(strategy.state.anchor, expected, rtol=1e-6)


def test_a_stock_app_cannot_be_named() -> None:
    options = Options(population=N, wait_seconds=0.1, **QUIET)
    strategy = HewStrategy(1.0, 1.0, corrected=True, options=options)
    with pytest.raises(InvalidInputError, match=r"hewfl\.flower\.client_app"):
        strategy.start(StubGrid(stock_app(), N), model(), 1)


def test_evaluation_by_a_share_of_the_nodes() -> None:
    def asked(seed: int, fraction: float) -> tuple[list[int], Any]:
        options = Options(fraction_evaluate=fraction, seed=seed)
        grid = StubGrid(stock_app(), N)
        result = HewStrategy(1.0, 1.0, options=options).start(grid, model(), 3)
        kinds = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
        return [grid.partition_of(m) for m in kinds], result

    everybody, result = asked(0, 1.0)
    assert len(everybody) == 3 * N
    expected = np.arange(1, N + 1) @ np.arange(N) / 10 / 15
    found = result.evaluate_metrics_clientapp[2]["accuracy"]
    assert found == pytest.approx(expected)
    some, _ = asked(0, 0.4)
    assert len(some) == 6
    assert some == asked(0, 0.4)[0]
    assert some != asked(1, 0.4)[0]


def test_nodes_that_fail_to_evaluate_do_not_end_the_run() -> None:
    grid = StubGrid(app_of(PROBLEM), N)  # has no evaluate function
    options = Options(population=N, horizons=FixedHorizons(2))
    strategy = AlgorithmStrategy(HewHom(L, 0.4), options)
    result = strategy.start(grid, ArrayRecord([np.zeros(D)]), 2)
    assert result.evaluate_metrics_clientapp == {}
    assert result.train_metrics_clientapp[2]["accepted"] == 1


@pytest.mark.parametrize("method", [HewHom(L, 0.4), HewHet(L, 0.4)])
def test_certificate_terms_are_those_of_the_weight_problem(method: Any) -> None:
    options = Options(population=N, horizons=FixedHorizons(3), **QUIET)
    strategy = AlgorithmStrategy(method, options)
    grid = StubGrid(app_of(PROBLEM), N)
    heard = {}

    def keep(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == TRAIN:
            i = grid.partition_of(question)
            heard[i] = answer.content["displacement"]["0"].numpy()
        return [answer]

    grid.tamper = keep
    result = strategy.start(grid, ArrayRecord([np.zeros(D)]), 1)
    rows = np.stack([heard[i] for i in range(N)])
    if isinstance(method, HewHom):
        g = (-rows / (0.4 / L)).mean(axis=0)
    else:
        grid.tamper = honest
        again = AlgorithmStrategy(method, options)
        again._prepare(grid, ArrayRecord([np.zeros(D)]), None, 1.0)
        g = again.state.algorithm.server
    solution = post_local_weights(rows, g, 1.25 * L)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["certificate_change"] == pytest.approx(float(solution.value))
    parts = metrics["certificate_slope"] + metrics["certificate_curvature"]
    assert metrics["certificate_change"] == pytest.approx(parts)
    assert 0 <= metrics["gap"] < 1e-12


def test_methods_that_need_losses_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs neither losses"):
        AlgorithmStrategy(QFedAvg(L, 0.1, 1.0), Options())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"population": 0}, "`population` must be at least 1; got 0"),
        ({"min_replies": 0}, "`min_replies` must be at least 1; got 0"),
        ({"fraction_evaluate": 1.5}, "`fraction_evaluate` must be from 0 to 1"),
        ({"wait_seconds": 0.0}, "`wait_seconds` must be a positive finite number"),
    ],
)
def test_options_are_checked(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Options(**changes)


# ------------------------------------------------------------------ who does how much


def slow(seconds: float) -> ClientApp:
    def gradient(x: Any, moment: Any) -> Any:
        del moment
        time.sleep(seconds)
        return x * 0 + 1

    return client_app(lambda _: Local(gradient, 10, 2))


def steps_of(result: Any) -> dict[int, list[int]]:
    return {t: m["steps"] for t, m in result.train_metrics_clientapp.items()}


def test_nodes_may_say_how_much_they_do() -> None:
    strategy = HewStrategy(1.0, 1.0, options=Options(population=3, **QUIET))
    grid = StubGrid(slow(0.0), 3, config=lambda i: {"local-steps": 2 * i + 1})
    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 2)
    assert steps_of(result) == {1: [1, 3, 5], 2: [1, 3, 5]}
    orders = [m.content["config"] for m in grid.sent if "config" in m.content]
    assert all(o["step-size"] * o["local-steps"] == pytest.approx(1.0) for o in orders)


def test_or_how_much_time_they_have() -> None:
    strategy = HewStrategy(1.0, 1.0, options=Options(population=2, **QUIET))
    grid = StubGrid(slow(0.01), 2, config=lambda i: {"time-budget": 0.05 + 0.1 * i})
    steps = steps_of(strategy.start(grid, ArrayRecord([np.zeros(2)]), 3))
    assert steps[1] == [1, 1]  # speed is not known yet
    assert 1 <= steps[3][0] <= 5
    assert steps[3][0] < steps[3][1] <= 15


def test_the_servers_law_comes_first_and_the_clock_last() -> None:
    told = Options(population=2, horizons=FixedHorizons(50), **QUIET)
    strategy = HewStrategy(1.0, 1.0, options=told)
    grid = StubGrid(slow(0.01), 2, config=lambda _: {"time-budget": 0.05})
    steps = steps_of(strategy.start(grid, ArrayRecord([np.zeros(2)]), 1))
    assert all(1 <= h <= 6 for h in steps[1])  # stopped by the clock, and said so
    np.testing.assert_allclose(strategy.state.anchor, -max(steps[1]) / 50, atol=0.03)


def test_a_node_without_a_partition_id_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = StubGrid(slow(0.0), 2)
    grid.nodes[grid.node_of(1)].node_config.pop("partition-id")
    strategy = HewStrategy(1.0, 1.0, options=Options(population=2, **QUIET))
    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 1)
    assert result.train_metrics_clientapp[1]["clients"] == [0]
    assert '--node-config "partition-id=0"' in caplog.text


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

    grid = Watched(slow(0.0), 3)
    grid.tamper = lambda q, a: [] if grid.partition_of(q) == 1 else [a]
    told = Options(population=4, wait_for=3, wait_seconds=60.0, **QUIET)

    def newcomer(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        if server_round == 1:
            grid.connect(3)

    strategy = HewStrategy(1.0, 1.0, options=told)
    begin = ArrayRecord([np.zeros(2)])
    result = strategy.start(grid, begin, 2, evaluate_fn=newcomer)
    assert waits == [(3, 60.0), (1, BRIEF), (1, 60.0), (1, BRIEF)]
    assert result.train_metrics_clientapp[2]["clients"] == [0, 2, 3]


def test_of_two_nodes_with_one_id_the_newer_is_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = StubGrid(slow(0.0), 2)
    strategy = HewStrategy(1.0, 1.0, options=Options(population=2, **QUIET))

    def twin(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        if server_round == 1:
            grid.connect(1)

    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), 4, evaluate_fn=twin)
    assert result.train_metrics_clientapp[4]["clients"] == [0, 1]
    asked = [m.metadata.dst_node_id for m in grid.sent if "config" in m.content]
    newer = list(grid.nodes)[2]
    assert asked[3::2] == [newer] * 3
    assert "both are partition 1" in caplog.text
