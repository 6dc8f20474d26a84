"""`HewStrategy` in place of FedAvg: a stock app, its habits, wrappers and mods."""

import logging
from itertools import pairwise
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
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from hewfl import (
    HewHet,
    HewHom,
    InvalidInputError,
    LocalSGD,
    Method,
    ServerStep,
    robustness_certificate,
)
from hewfl.aggregators import (
    NAMES,
    Certified,
    CoordinateMedian,
    FedAdp,
    FedAWARE,
    Mean,
    QFedAvg,
    Trust,
    make,
)
from hewfl.experiments.run_folder import open_folder
from hewfl.flower import HewStrategy, load_model
from hewfl.flower.client_registry import ClientNumbers
from hewfl.report.page import write_report
from hewfl.server.trace import from_lines
from tests.flower.federation import StubGrid
from tests.flower.stock import MOVES, SIZES, STEPS, D, N, model, stock_app, vector

ROUNDING = 1e-6  # of single precision
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "max_share": 1.0}
"""`max_share` of 1: as FedAvg weighs."""
WITHOUT_STEPS = [
    name
    for name in (*NAMES, "clip+nnm+geometric-median", "arc+nnm+trimmed-mean")
    if name not in ("oracle", "qfedavg")
    and not make(name).needs & {"steps", "step_sizes", "losses", "clients", "root"}
]


def run(strategy: Any, rounds: int = 2, mods: Any = None, **more: Any) -> Any:
    return strategy.start(StubGrid(stock_app(mods), N), model(), rounds, **more)


def test_the_swap_is_the_import_and_the_class_name() -> None:
    def loudest(records: Any, key: str) -> MetricRecord:
        assert key == "num-examples"
        losses = [r.metric_records["numbers"]["train_loss"] for r in records]
        return MetricRecord({"loudest": max(losses)})

    options: dict[str, Any] = {
        "fraction_train": 1.0,
        "fraction_evaluate": 0.5,
        "min_train_nodes": N,
        "min_evaluate_nodes": 3,
        "min_available_nodes": N,
        "weighted_by_key": "num-examples",
        "arrayrecord_key": "arrays",
        "configrecord_key": "config",
        "train_metrics_aggr_fn": loudest,
        "max_share": 1.0,
    }
    expected = run(FedAvg(fraction_evaluate=0.0))
    result = run(HewStrategy(**options, aggregator="size-weighted"))
    np.testing.assert_allclose(
        vector(result.arrays), vector(expected.arrays), rtol=ROUNDING
    )
    assert result.train_metrics_clientapp[2]["loudest"] == 5.0
    assert "accuracy" in result.evaluate_metrics_clientapp[2]
    assert HewStrategy(0.5, 0.25, 3).min_train_nodes == 3  # by place, as FedAvg's


@pytest.mark.parametrize("rule", [None, *WITHOUT_STEPS])
def test_every_rule_needs_no_constant(rule: str | None) -> None:
    strategy = (
        HewStrategy(**QUIET) if rule is None else HewStrategy(aggregator=rule, **QUIET)
    )
    result = run(strategy, 1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["accepted"] == 1
    assert metrics["clients"] == list(range(N))
    step = vector(result.arrays) - 1
    assert step @ MOVES.mean(axis=0) > 0
    low, high = MOVES.min(axis=0), MOVES.max(axis=0)
    assert ((low - ROUNDING <= step) & (step <= high + ROUNDING)).all()


def test_the_default_is_fedavg_where_clients_agree() -> None:
    metrics = run(HewStrategy(**QUIET), 1).train_metrics_clientapp[1]
    shares = np.array(SIZES) / sum(SIZES)
    np.testing.assert_allclose(metrics["weights"], shares, rtol=1e-12)
    assert metrics["steps"] == list(STEPS)  # used because clients report them


@pytest.mark.parametrize("reported", [True, False])
def test_fast_honest_clients_are_not_shortened(
    reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps 2 to 40 along noisy directions; alone, a fast one must report them."""
    rng = np.random.default_rng(5)
    for steps in ([2, 4, 8, 13, 22, 40], [2, 2, 2, 2, 2, 40]):
        moves = np.outer(steps, np.ones(D)) + rng.standard_normal((N, D)) / 3

        def train(message: Message, context: Context) -> Message:
            i = int(context.node_config["partition-id"])
            x = message.content["arrays"].to_numpy_ndarrays()[0]
            told = {"num-examples": 10}
            told |= {"num-steps": steps[i]} if reported else {}  # noqa: B023 - called here
            ends = ArrayRecord([x + moves[i].astype(np.float32)])  # noqa: B023
            content = {"arrays": ends, "metrics": MetricRecord(told)}
            return Message(RecordDict(content), reply_to=message)

        app = ClientApp()
        app.train()(train)
        begin = ArrayRecord([np.zeros(D, np.float32)])
        strategy = HewStrategy(**QUIET)
        with caplog.at_level("WARNING", logger="flwr"):
            result = strategy.start(StubGrid(app, N), begin, 1)
        metrics = result.train_metrics_clientapp[1]
        assert metrics["excluded"] == 0
        expected = np.full(N, 1 / N)
        if steps[0] == steps[4] and not reported:
            assert 1 / 20 / N < min(metrics["weights"]) < 1 / 5 / N
        else:
            np.testing.assert_allclose(metrics["weights"], expected, rtol=1e-9)
    assert "num-steps" not in caplog.text  # a stock app is no reason for a warning


def test_plain_sgd_is_declared_by_the_rule_and_told_its_step_size() -> None:
    rule = HewHom(1.0, 1.0)
    with pytest.raises(
        InvalidInputError, match=r'train_config\["lr"\].* HEW \(plain\)'
    ):
        run(HewStrategy(aggregator=rule, **QUIET))
    config = ConfigRecord({"lr": 0.1})
    result = run(HewStrategy(aggregator=rule, **QUIET), train_config=config)
    assert result.train_metrics_clientapp[2]["steps"] == [1, 2, 4, 8, 8, 3]


def test_a_rule_that_asks_for_steps_says_what_to_add() -> None:
    def silent(question: Message, answer: Message) -> list[Message]:
        del question
        answer.content["numbers"].pop("num-steps")
        return [answer]

    grid = StubGrid(stock_app(), N, tamper=silent)
    text = 'add "num-steps": <optimiser steps taken>'
    with pytest.raises(InvalidInputError, match=text):
        HewStrategy(aggregator="normalized-mean", **QUIET).start(grid, model(), 1)
    assert run(
        HewStrategy(aggregator="normalized-mean", **QUIET), 1
    ).train_metrics_clientapp[1]["accepted"]


def test_a_rule_that_can_do_without_steps_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def silent(question: Message, answer: Message) -> list[Message]:
        if grid.partition_of(question) != talker:
            answer.content["numbers"].pop("num-steps")
        return [answer]

    weights = {}
    for talker in (-1, 2):  # one that reports its steps takes nothing from the others
        grid = StubGrid(stock_app(), N, tamper=silent)
        caplog.clear()
        with caplog.at_level("WARNING", logger="flwr"):
            rounds = HewStrategy(aggregator="trust", **QUIET).start(grid, model(), 2)
        assert caplog.text.count('few report "num-steps"') == 1
        for metrics in rounds.train_metrics_clientapp.values():
            assert metrics["clients"] == list(range(N))
            assert "steps" not in metrics
        weights[talker] = metrics["weights"]
    assert weights[-1] == weights[2]
    known = run(HewStrategy(aggregator="trust", **QUIET), 2).train_metrics_clientapp[2]
    assert known["steps"] == [1, 2, 4, 8, 8, 3]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"aggregator": "best"}, "`aggregator` must be one of mean, .*; got 'best'"),
        ({"aggregator": HewHet(1.0, 1.0)}, "without control variates"),
        ({"aggregator": Method(LocalSGD(1.0), QFedAvg(1.0))}, "needs no losses"),
        ({"aggregator": "oracle"}, "no truth"),
        ({"aggregator": Method(LocalSGD(1.0, prox=0.1), Mean())}, "or `at_anchor`"),
        ({"aggregator": Method(LocalSGD(1.0, at_anchor=True), Mean())}, "`at_anchor`"),
        ({"max_norm_ratio": 0.0}, "`max_norm_ratio` must be"),
        ({"rule": "sieve"}, "written as `aggregator`"),
        ({"longest": 3.0}, "written as `max_norm_ratio`"),
        ({"aggregator": "fedavg"}, "size-weighted"),
        ({"min_replies": 0}, "`min_replies` must be at least 1"),
        ({"phases": 3}, "`phases` must be 1, or 2"),
        ({"secure": True}, "`phases` must be 1, or 2 as `secure`"),
        (
            {"server_step": ServerStep(line_search_samples=8)},
            "clients are not asked for losses along the step",
        ),
        ({"phases": 2, "aggregator": "coordinate-median"}, "inner products only"),
        ({"max_share": 1.5}, "`max_share` must be above 0 and at most 1; got 1.5"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        HewStrategy(**QUIET | changes)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"folder": 3}, "`folder` must be the path of a folder; got 3"),
        ({"server_step": 0.9}, "`server_step` must be a ServerStep"),
        ({"on_round": 3}, "`on_round` must be a function"),
        ({"weighting": "steps"}, '`weighting` must be "equal" or "size"'),
    ],
)
def test_arguments_of_other_types_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        HewStrategy(**QUIET | changes)


# ------------------------------------------------------------------ what was sent


class Halved(HewStrategy):
    """A subclass that edits the model after every round."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        half = [a / np.float32(2) for a in arrays.to_numpy_ndarrays()]
        return ArrayRecord(half), metrics


def test_a_subclass_may_edit_the_model() -> None:
    strategy = Halved(aggregator="size-weighted", **QUIET)
    result = run(strategy, 3)
    x, mean = np.ones(6), np.array(SIZES) @ MOVES / sum(SIZES)
    for _ in range(3):
        x = (x + mean) / 2
    np.testing.assert_allclose(vector(result.arrays), x, rtol=ROUNDING)
    np.testing.assert_allclose(strategy.state.anchor, x, rtol=ROUNDING)


CLIP = 0.5
WRAPPERS: dict[str, tuple[Any, Any]] = {
    "server, fixed": (
        lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.0, CLIP, N),
        None,
    ),
    "client, fixed": (
        lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.0, CLIP, N),
        [fixedclipping_mod],
    ),
    "server, adaptive": (
        lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(
            inner, 0.0, N, initial_clipping_norm=CLIP, clip_norm_lr=1e-9
        ),
        None,
    ),
    "client, adaptive": (
        lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(
            inner, 0.0, N, initial_clipping_norm=CLIP, clip_norm_lr=1e-9
        ),
        [adaptiveclipping_mod],
    ),
    "mod alone": (lambda inner: inner, [LocalDpMod(CLIP, 0.0, 1.0, 1e-5)]),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_privacy_wrappers_and_mods_act_on_what_was_sent(name: str) -> None:
    """Without noise: every update is clipped, in every round and from its own model."""
    wrap, mods = WRAPPERS[name]
    result = run(wrap(HewStrategy(aggregator="size-weighted", **QUIET)), 3, mods)
    known = run(wrap(FedAvg(fraction_evaluate=0.0)), 3, mods)
    clipped = MOVES * np.minimum(1, CLIP / np.linalg.norm(MOVES, axis=1))[:, None]
    step = np.array(SIZES) @ clipped / sum(SIZES)
    np.testing.assert_allclose(vector(result.arrays), 1 + 3 * step, rtol=1e-5)
    np.testing.assert_allclose(vector(result.arrays), vector(known.arrays), rtol=1e-5)


def test_noise_that_a_wrapper_adds_is_part_of_the_next_round() -> None:
    """Updates are one and the same, so the model moves by it, from the noisy model."""
    inner = HewStrategy(aggregator="size-weighted", max_norm_ratio=1e6, **QUIET)
    noisy = DifferentialPrivacyServerSideFixedClipping(inner, 50.0, 1e3, N)
    models = [vector(model())]
    run(noisy, 3, evaluate_fn=lambda t, a: models.append(vector(a)) if t else None)
    mean = np.array(SIZES) @ MOVES / sum(SIZES)
    for before, after in pairwise(models):
        assert np.abs(after - before - mean).max() > 100  # noise of thousands is in it
    np.testing.assert_allclose(inner.state.anchor - mean, models[-2], rtol=1e-3)


def test_what_a_wrapper_hides_is_not_kept(tmp_path: Path) -> None:
    average = ServerStep(average="ema")
    for options in ({"folder": tmp_path}, {"server_step": average}):
        inner = HewStrategy(**options, **QUIET)
        wrapped = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, CLIP, N)
        with pytest.raises(InvalidInputError, match="left out inside a wrapper"):
            run(wrapped)


# ------------------------------------------------------------------ folder, log


def test_outer_steps_by_one_argument() -> None:
    mean = np.array(SIZES) @ MOVES / sum(SIZES)
    heavy = HewStrategy(
        aggregator="size-weighted", server_step=ServerStep(0.5, momentum=0.5), **QUIET
    )
    x = vector(run(heavy, 2).arrays)
    np.testing.assert_allclose(x, 1 + 0.5 * (1 + 1.5) * mean, rtol=1e-5)
    adam = ServerStep(0.1, 0.9, adapt="adam", tau=1e-3)
    step = 0.1 * 0.1 * mean / (np.sqrt(0.99 * 1e-6 + 0.01 * mean**2) + 1e-3)
    x = vector(
        run(
            HewStrategy(aggregator="size-weighted", server_step=adam, **QUIET), 1
        ).arrays
    )
    np.testing.assert_allclose(x, 1 + step, rtol=1e-5)


def test_the_averaged_model_is_evaluated_and_returned(tmp_path: Path) -> None:
    seen: dict[int, Any] = {}
    average = ServerStep(average="tail")
    options: dict[str, Any] = {
        "aggregator": "size-weighted",
        "server_step": average,
        "folder": tmp_path,
    }
    for rounds in (2, 3):  # and goes on where it was
        result = run(
            HewStrategy(**options, **QUIET),
            rounds,
            evaluate_fn=lambda t, arrays: seen.update({t: vector(arrays)}),
        )
    mean = np.array(SIZES) @ MOVES / sum(SIZES)
    for t in (1, 2, 3):
        np.testing.assert_allclose(seen[t], 1 + mean * (t + 1) / 2, rtol=1e-5)
    np.testing.assert_array_equal(vector(result.arrays), seen[3])
    np.testing.assert_array_equal(vector(load_model(str(tmp_path))), seen[3])


def test_a_run_is_kept_goes_on_and_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options: dict[str, Any] = {"aggregator": "agreement"}
    known = vector(run(HewStrategy(**options, **QUIET), 4).arrays)
    run(HewStrategy(**options, folder=str(folder)), 2)
    result = run(HewStrategy(**options, folder=folder, min_evaluate_nodes=3), 4)
    np.testing.assert_array_equal(vector(result.arrays), known)
    np.testing.assert_array_equal(vector(load_model(folder)), known)
    assert sorted(result.train_metrics_clientapp) == [3, 4]
    write_report([open_folder(folder)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Agreement ran, and no model was evaluated." in page


def test_rounds_can_be_followed_by_a_logger() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    log = lambda t, numbers: seen.append((t, dict(numbers)))  # noqa: E731 - as in the docs
    run(HewStrategy(aggregator="size-weighted", on_round=log, max_share=1.0), 2)
    assert [t for t, _ in seen] == [1, 1, 2, 2]  # after training, after evaluation
    trained, evaluated = seen[0][1], seen[1][1]
    assert trained["weight/5"] == pytest.approx(40 / 140)
    assert trained["excluded-error"] == 0
    assert evaluated["accuracy"] == pytest.approx((4 * 0.3 + 5 * 0.4 + 6 * 0.5) / 16)


def test_measures_that_are_none_do_not_spoil_the_mean(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = run(HewStrategy(max_share=1.0), 1)
    # of clients 0, 3, 4, 5: client 1 has NaN, client 2 other measures
    mean = (0 + 4 * 0.3 + 5 * 0.4 + 6 * 0.5) / 16
    metrics = result.evaluate_metrics_clientapp[1]
    assert metrics["accuracy"] == pytest.approx(mean)
    assert "finite numbers" in caplog.text


def test_what_a_client_counts_is_a_decision(caplog: pytest.LogCaptureFixture) -> None:
    def weights(**options: Any) -> Any:
        options = {"fraction_evaluate": 0.0, **options}
        strategy = HewStrategy(aggregator="size-weighted", **options)
        metrics = run(strategy, 2).train_metrics_clientapp[2]
        return np.array(metrics["weights"]), metrics["train_loss"]

    with caplog.at_level(logging.WARNING, logger="flwr"):
        equal, loss = weights(weighting="equal")
        np.testing.assert_allclose(equal, np.full(N, 1 / N))
        assert loss == pytest.approx(np.mean(range(N)))  # as the model, so the metrics
        free, loss = weights(max_share=1.0)
        np.testing.assert_allclose(free, np.array(SIZES) / sum(SIZES))
        assert loss == pytest.approx(free @ np.arange(N))
        assert "counts as" not in caplog.text
        capped, loss = weights()
    assert capped.max() == pytest.approx(0.2)
    assert loss == pytest.approx(capped @ np.arange(N))
    text = "client 5 reports 29 % of the data and counts as 20 %"
    assert caplog.text.count(text) == 1  # and not in every round


def test_a_client_that_did_nothing_is_idle_and_no_member() -> None:
    lazy = 2

    def idle(question: Message, answer: Message) -> list[Message]:
        if grid.partition_of(question) == lazy:
            answer.content["model"] = question.content["arrays"]
        if grid.partition_of(question) == 4:
            answer.content["numbers"]["num-examples"] = 0
        return [answer]

    grid = StubGrid(stock_app(), N, tamper=idle)
    metrics = HewStrategy(**QUIET).start(grid, model(), 1).train_metrics_clientapp[1]
    assert metrics["clients"] == [0, 1, 2, 3]  # numbers of those that are left
    assert metrics["excluded-idle"] == 2


def test_a_round_in_which_nobody_moves_is_accepted() -> None:
    def idle(question: Message, answer: Message) -> list[Message]:
        answer.content["model"] = question.content["arrays"]
        return [answer]

    grid = StubGrid(stock_app(), N, tamper=idle)
    result = HewStrategy(**QUIET).start(grid, model(), 1)
    assert result.train_metrics_clientapp[1]["accepted"] == 1
    np.testing.assert_array_equal(vector(result.arrays), vector(model()))


def test_metrics_of_other_shapes_or_sizes_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lies: dict[int, Any] = {0: [0.0, 1.0], 1: 1e300, 3: 7}

    def lie(question: Message, answer: Message) -> list[Message]:
        i = grid.partition_of(question)
        for name, record in answer.content.metric_records.items():
            numbers = dict(record)
            key = "train_loss" if "train_loss" in numbers else "accuracy"
            numbers = {
                "num-examples": 10,
                key: lies.get(i, 0.5),
                "list": [1.0, float(i)],
            }
            numbers["list"] = [1.0] if i == 4 else numbers["list"]
            answer.content[name] = MetricRecord(numbers)
        return [answer]

    grid = StubGrid(stock_app(), N, tamper=lie)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = HewStrategy().start(grid, model(), 1)
    metrics = result.train_metrics_clientapp[1]
    mean = pytest.approx((7 + 2 * 0.5) / 3)  # of clients 2, 3 and 5
    assert metrics["train_loss"] == mean
    assert metrics["list"] == pytest.approx([1.0, (2 + 3 + 5) / 3])
    assert len(metrics["clients"]) == N  # their models are used all the same
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == mean
    assert '"train_loss" is 1e+300' in caplog.text
    assert 'unlike most clients in "train_loss" (absent, or of' in caplog.text
    assert 'unlike most clients in "list" (absent, or of' in caplog.text


def test_clients_are_numbered_as_they_appear_whatever_their_ids() -> None:
    bits = set()
    for arrivals in (1, 2, 3):
        grid = StubGrid(stock_app(), N, seed=arrivals)
        result = HewStrategy(aggregator="agreement", **QUIET).start(grid, model(), 2)
        bits.add(vector(result.arrays).tobytes())
        assert result.train_metrics_clientapp[2]["clients"] == list(range(N))
    assert len(bits) == 1


@pytest.mark.parametrize("rule", [Trust(), FedAdp(), FedAWARE()], ids=type)
def test_rules_that_remember_clients_run_in_a_fleet_that_grows(rule: Any) -> None:
    rng, guessing = np.random.default_rng(3), 2

    def guess(question: Message, answer: Message) -> list[Message]:
        answer.content["numbers"]["num-steps"] = 4  # of all, as lengths are alike
        if grid.partition_of(question) == guessing:
            sent = question.content["arrays"].to_numpy_ndarrays()
            ends = [x + rng.standard_normal(x.shape).astype(x.dtype) for x in sent]
            answer.content["model"] = ArrayRecord(ends)
        return [answer]

    def join(t: int, numbers: Any) -> None:
        del numbers
        if t == 1 and len(grid.nodes) == 3:
            grid.connect(3)
            grid.connect(4)

    grid = StubGrid(stock_app(), 3, tamper=guess)
    strategy = HewStrategy(aggregator=rule, on_round=join, **QUIET)
    rounds = strategy.start(grid, model(), 3).train_metrics_clientapp
    assert [rounds[t]["clients"] for t in (1, 2, 3)] == [[0, 1, 2], *[[*range(5)]] * 2]
    assert all(rounds[t]["accepted"] for t in (1, 2, 3))
    if isinstance(rule, Trust):
        assert strategy.state.algorithm.rounds.tolist() == [3, 3, 3, 2, 2]
        weights = np.array(rounds[3]["weights"])
        assert weights[guessing] < 0.05 < np.delete(weights, guessing).min()


def test_clients_are_known_again_after_a_restart(tmp_path: Path) -> None:
    """Server and nodes restart: other node ids, and another order of arrival."""

    def steps(question: Message, answer: Message) -> list[Message]:
        answer.content["numbers"]["num-steps"] = 4
        if grid.partition_of(question) == 3:  # pulls the other way
            sent = question.content["arrays"].to_numpy_ndarrays()
            ends = answer.content["model"].to_numpy_ndarrays()
            pulled = [2 * x - y for x, y in zip(sent, ends, strict=True)]
            answer.content["model"] = ArrayRecord(pulled)
        return [answer]

    def strategy(**options: Any) -> HewStrategy:
        return HewStrategy(aggregator="trust", **options, **QUIET)

    grid = StubGrid(stock_app(), N, seed=1, tamper=steps)
    whole = strategy().start(grid, model(), 6)
    grid = StubGrid(stock_app(), N, seed=1, tamper=steps)
    strategy(folder=tmp_path).start(grid, model(), 3)
    grid = StubGrid(stock_app(), 0, seed=9, tamper=steps)
    for partition in (4, 3, 0, 5, 1, 2):
        grid.connect(partition)
    second = strategy(folder=tmp_path)
    resumed = second.start(grid, model(), 6)
    np.testing.assert_array_equal(vector(resumed.arrays), vector(whole.arrays))
    assert second.state.algorithm.rounds.tolist() == [6] * N
    assert resumed.train_metrics_clientapp[6]["clients"] == list(range(N))


def test_a_node_that_claims_a_partition_takes_no_place_of_another() -> None:
    numbers = ClientNumbers()
    numbers.register([70, 71], [(70, 0), (71, 1)])
    numbers.register([70, 71, 72], [(70, 0), (72, 1), (71, 1)])
    assert numbers.nodes == {70: 0, 71: 1, 72: 2}
    numbers.register([70, 73], [(73, 1), (70, 0)])  # 71 has gone, 73 is its restart
    assert numbers.nodes == {70: 0, 72: 2, 73: 1}
    numbers.register([74], [(74, None)])
    copy = ClientNumbers()
    copy.restore(numbers.arrays())
    assert (copy.nodes, copy.partitions, copy.count) == (numbers.nodes, {0: 0, 1: 1}, 4)


def test_measured_steps_are_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"`server_step.line_search_samples` must be left out"
    ):
        HewStrategy(server_step=ServerStep(line_search_samples=8), **QUIET)


def test_the_certificate_is_among_the_metrics_and_refuses_a_round() -> None:
    open_ = run(HewStrategy(aggregator=Certified(Mean(), f=1), **QUIET))
    first, second = (open_.train_metrics_clientapp[t] for t in (1, 2))
    expected = robustness_certificate(MOVES, 1, weights=np.full(N, 1 / N))
    assert first["kappa"] == pytest.approx(expected.kappa, rel=1e-4)
    assert first["kappa_lower"] <= first["kappa"] <= first["kappa_upper"]
    assert second["accepted"] == 1

    numbers: list[Any] = []
    rule = Certified(Mean(), f=1, refuse_above=0.5 * expected.kappa)
    strategy = HewStrategy(
        aggregator=rule,
        server_step=ServerStep(momentum=0.9),
        on_round=lambda _, values: numbers.append(values),
        **QUIET,
    )
    result = run(strategy, 3)
    assert np.array_equal(vector(result.arrays), vector(model()))
    assert not strategy.state.memory.any()
    for t in (1, 2, 3):
        metrics = result.train_metrics_clientapp[t]
        assert metrics["accepted"] == 0
        assert metrics["weights"] == [0.0] * N
        assert metrics["kappa"] > rule.refuse_above
    assert numbers[0]["kappa"] == result.train_metrics_clientapp[1]["kappa"]


def test_a_rejected_round_is_in_the_trace(tmp_path: Path) -> None:
    rule = Certified(CoordinateMedian(), f=1, refuse_above=1e-6)
    run(HewStrategy(aggregator=rule, folder=tmp_path, **QUIET))
    lines = (tmp_path / "seed-0" / "trace.jsonl").read_text().splitlines()
    record = from_lines(lines)[-1]
    assert record.status.startswith("rejected: median of every coordinate; kappa ")
    assert record.observed["kappa"] > 1e-6
    assert sum(record.weights) == 0
