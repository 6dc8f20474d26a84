"""Two phases: weights from sketches, sums only, masked or not, and the certificate."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from hewfl import InvalidInputError, robustness_certificate
from hewfl.aggregators import Certified, ExactWeights, Mean
from hewfl.flower import HewStrategy, sketch_client_app
from hewfl.flower.secure_aggregation import FETCH_AT_ONCE
from tests.flower.federation import StubGrid
from tests.flower.stock import vector

N, D = 5, 9000
NOISE = np.array([0.3, 0.5, 1.0, 2.0, 0.4])
DRAWN = np.random.default_rng(2)
MOVES = 0.1 * (
    DRAWN.standard_normal(D) + NOISE[:, None] * DRAWN.standard_normal((N, D))
).astype(np.float32)
KAPPA = ExactWeights(kappa=3.0, by="size", cross_fit=False)
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "max_share": 1.0}


def train(message: Message, context: Context) -> Message:
    i = int(context.node_config["partition-id"])
    model = message.content["arrays"].to_numpy_ndarrays()
    ends = [model[0] + MOVES[i, :2000].reshape(20, 100), model[1] + MOVES[i, 2000:]]
    metrics = MetricRecord({"num-examples": 10 + i, "partition-id": i})
    content = RecordDict({"arrays": ArrayRecord(ends), "metrics": metrics})
    return Message(content, reply_to=message)


def model() -> ArrayRecord:
    return ArrayRecord([np.ones((20, 100), np.float32), np.zeros(7000, np.float32)])


def run(*, secure: bool = False, tamper: Any = None, **told: Any) -> Any:
    mods = [secaggplus_mod] if secure else []
    grid = StubGrid(sketch_client_app(train, mods), N)
    if tamper is not None:
        grid.tamper = tamper
    strategy = HewStrategy(phases=2, secure=secure, **told, **QUIET)
    return strategy.start(grid, model(), 2)


@pytest.mark.parametrize("rule", ["agreement", KAPPA])
def test_weights_are_those_of_one_phase_but_for_the_sketch(rule: Any) -> None:
    app = ClientApp()
    app.train()(train)
    known = HewStrategy(aggregator=rule, **QUIET).start(StubGrid(app, N), model(), 1)
    found = run(aggregator=rule)
    ours, exact = (r.train_metrics_clientapp[1]["weights"] for r in (found, known))
    np.testing.assert_allclose(ours, exact, atol=0.03)  # products are right to 1/√k
    assert not np.array_equal(ours, exact)
    first, second = (found.train_metrics_clientapp[t]["weights"] for t in (1, 2))
    step = np.array(first) @ MOVES + np.array(second) @ MOVES
    np.testing.assert_allclose(vector(found.arrays) - vector(model()), step, atol=1e-6)


def test_masked_sums_are_the_sums() -> None:
    clear, masked = run(aggregator=KAPPA), run(aggregator=KAPPA, secure=True)
    np.testing.assert_allclose(vector(masked.arrays), vector(clear.arrays), atol=1e-6)
    assert masked.train_metrics_clientapp[2]["accepted"] == 1


def test_no_update_is_sent_in_the_clear_under_secure_aggregation() -> None:
    seen: list[float] = []

    def watch(question: Message, answer: Message) -> list[Message]:
        del question
        if answer.has_content():
            for record in answer.content.array_records.values():
                seen.extend(a.numpy().size for a in record.values())
        return [answer]

    run(secure=True, tamper=watch)
    assert max(seen) == 4096  # a sketch, and no array of a model


def test_the_certificate_is_that_of_the_updates_themselves() -> None:
    metrics = run(aggregator=KAPPA, certify=True).train_metrics_clientapp[1]
    w = np.array(metrics["weights"])
    p = np.array([10.0, 11, 12, 13, 14]) / 60
    D_ = MOVES.astype(np.float64)
    r = 3.0 * (w @ D_) - p @ D_
    gap = w @ (D_ @ r) - (D_ @ r).min()
    assert metrics["gap"] == pytest.approx(gap, rel=1e-4)
    assert gap > 1e-6  # sketched weights are not exact


def test_a_client_lost_between_the_phases_leaves_the_others() -> None:
    def lose(question: Message, answer: Message) -> list[Message]:
        is_second = question.metadata.message_type == "train"
        lost = answer.has_content() and np.isclose(
            next(iter(answer.content.metric_records.values())).get("num-examples", 0), 1
        )
        if is_second and lost and len(lost_ones) < 1:
            lost_ones.append(1)
            return [Message(Error(2, "gone"), reply_to=question)]
        return [answer]

    lost_ones: list[int] = []
    result = run(aggregator="size-weighted", tamper=lose)
    step = vector(result.arrays) - vector(model())
    w = np.array(result.train_metrics_clientapp[1]["weights"])
    candidates = [
        np.delete(w, k) @ np.delete(MOVES, k, axis=0) / (1 - w[k]) + w @ MOVES
        for k in range(N)
    ]
    assert min(np.abs(step - c).max() for c in candidates) < 1e-5
    assert result.train_metrics_clientapp[1]["accepted"] == 1


STOCK = ClientApp()
STOCK.train()(train)
PLAIN, MASKED = sketch_client_app(train), sketch_client_app(train, [secaggplus_mod])


@pytest.mark.parametrize(
    ("app", "options", "text"),
    [
        (PLAIN, {}, "`phases` must be 2, for clients of sketch_client_app"),
        (MASKED, {}, "`phases` must be 2, with `secure=True`"),
        (STOCK, {"phases": 2}, r"`phases` must be 1, .* sketch_client_app\(train\)"),
        (STOCK, {"phases": 2, "secure": True}, "`phases` must be 1, .*secaggplus_mod"),
        (
            MASKED,
            {"phases": 2},
            r"`secure` must be True, .* sketch_client_app\(train\)",
        ),
        (
            PLAIN,
            {"phases": 2, "secure": True},
            "`secure` must be False, .*secaggplus_mod",
        ),
    ],
    ids=["one-two", "one-masked", "two-one", "masked-one", "two-masked", "masked-two"],
)
def test_clients_of_another_strategy_are_named_in_the_first_round(
    app: ClientApp, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        HewStrategy(**options, **QUIET).start(StubGrid(app, N), model(), 2)


def test_the_robustness_certificate_knows_that_it_is_from_sketches() -> None:
    certified = Certified(Mean(), f=1)
    metrics = run(aggregator=certified).train_metrics_clientapp[1]
    true = robustness_certificate(
        MOVES.astype(np.float64), 1, weights=np.full(N, 1 / N)
    )
    assert metrics["kappa_lower"] < true.kappa < metrics["kappa_upper"]
    epsilon = np.sqrt(N * (5 * N + 4) / (3 * 0.05 * 4096))  # numbers in a sketch
    ratio = (metrics["kappa_upper"] + 1) / (metrics["kappa"] + 1)
    assert ratio == pytest.approx((1 + epsilon) / (1 - epsilon), rel=1e-3)


def test_no_second_phase_after_a_rejection() -> None:
    kinds: list[str] = []

    def watch(question: Message, answer: Message) -> list[Message]:
        kinds.append(question.metadata.message_type)
        return [answer]

    rule = Certified(Mean(), f=1, refuse_above=1e-3)
    result = run(aggregator=rule, tamper=watch)
    assert np.array_equal(vector(result.arrays), vector(model()))
    assert result.train_metrics_clientapp[2]["accepted"] == 0
    assert set(kinds) == {"train.sketch"}


def test_an_update_longer_than_its_sketch_is_not_summed() -> None:
    def inflate(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "train" and not found:
            found.append(1)
            (name, record), *_ = answer.content.array_records.items()
            grown = [100 * array for array in record.to_numpy_ndarrays()]
            answer.content[name] = ArrayRecord(grown)
        return [answer]

    found: list[int] = []
    result = run(aggregator="size-weighted", tamper=inflate)
    step = vector(result.arrays) - vector(model())
    assert np.linalg.norm(step) < 2.5 * np.linalg.norm(MOVES, axis=1).max()


def test_the_server_holds_few_updates_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peak memory of the second phase does not grow with the number of clients."""
    for module in (
        "secure_aggregation",
        "strategy",
    ):  # sketches are short beside a real model
        monkeypatch.setattr(f"hewfl.flower.{module}.SKETCH_WIDTH", 64)
    peaks = []
    for n in (12, 36):

        def small(message: Message, context: Context) -> Message:
            x = message.content["arrays"].to_numpy_ndarrays()[0]
            i = int(context.node_config["partition-id"])
            content = {
                "a": ArrayRecord([x + np.float32(1 + i % 3)]),
                "m": MetricRecord({"num-examples": 1}),
            }
            return Message(RecordDict(content), reply_to=message)

        size = 200_000
        grid = StubGrid(sketch_client_app(small), n)
        strategy = HewStrategy(aggregator="size-weighted", phases=2, **QUIET)
        begin = ArrayRecord([np.zeros(size, np.float32)])
        questions = strategy.configure_train(1, begin, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(questions))
        tracemalloc.start()
        arrays, _ = strategy.aggregate_train(1, replies)
        peaks.append(tracemalloc.get_traced_memory()[1] / (4 * size))
        tracemalloc.stop()
        assert arrays is not None
    assert peaks[1] - peaks[0] < 3
    assert max(peaks) < 8 + 4 * FETCH_AT_ONCE
