"""The aggregator behind NVFLARE's interface, without its processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)

from hewfl import aggregators
from hewfl.errors import InvalidInputError
from hewfl.nvflare import HewAggregator

MODEL: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros(3),
    "bn.running_var": np.ones(2, dtype=np.float32),
    "count": np.array([3]),
}


class Log:
    """Keeps the sentences that an aggregator logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        for name in ("info", "warning"):
            monkeypatch.setattr(
                HewAggregator, name, lambda _, text: self.lines.append(text)
            )

    def __contains__(self, words: str) -> bool:
        return any(words in line for line in self.lines)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def context(t: int = 0, client: str | None = None) -> FLContext:
    """What a workflow hands over."""
    fl_ctx = FLContext()
    fl_ctx.set_prop(AppConstants.CURRENT_ROUND, t, private=True, sticky=False)
    if client is not None:
        peer = FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, client, private=False, sticky=False)
        fl_ctx.set_prop(FLContextKey.PEER_CONTEXT, peer, private=True, sticky=False)
    return fl_ctx


def announce(
    aggregator: HewAggregator, model: dict[str, Any], clients: Any, t: int = 0
) -> None:
    """The workflow sends a model."""
    aggregator.reset_stats()
    for client in clients:
        fl_ctx = context(t, client)
        shareable = DXO(DataKind.WEIGHTS, data=dict(model)).to_shareable()
        key = AppConstants.TRAIN_SHAREABLE
        fl_ctx.set_prop(key, shareable, private=True, sticky=False)
        aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, fl_ctx)


def result(
    client: str, params: Any, kind: str = "FULL", steps: Any = None, **metrics: Any
) -> FLModel:
    meta = {"client_name": client}
    if steps is not None:
        meta["NUM_STEPS_CURRENT_ROUND"] = steps
    return FLModel(kind, params, metrics=metrics or None, meta=meta)


def moved(by: float, model: Any = MODEL) -> dict[str, Any]:
    """The model after training: parameters moved by a number."""
    return {k: v + by if v.dtype.kind == "f" else v + 1 for k, v in model.items()}


def one_round(
    aggregator: HewAggregator, params: Any, t: int = 0, model: Any = MODEL
) -> Any:
    """The arrays after a round, from whole models by client."""
    announce(aggregator, model, params, t)
    for client, given in params.items():
        aggregator.accept_model(result(client, given))
    return aggregator.aggregate_model().params


def test_the_new_model_is_that_of_the_aggregator(log: Log) -> None:
    rng = np.random.default_rng(0)
    ends = {f"site-{i}": moved(0) for i in range(5)}
    for end in ends.values():
        end["w"] = (MODEL["w"] + rng.normal(size=(2, 3))).astype(np.float32)
        end["b"] = MODEL["b"] + rng.normal(size=3)
    after = one_round(HewAggregator("multi-krum", {"f": 1}), ends)
    rows = [
        np.concatenate([(end[k] - MODEL[k]).astype(float).ravel() for k in ("w", "b")])
        for end in ends.values()
    ]
    step = aggregators.make("multi-krum", f=1)(np.array(rows))[0].step
    np.testing.assert_allclose((after["w"] - MODEL["w"]).ravel(), step[:6], atol=1e-6)
    np.testing.assert_allclose(after["b"], step[6:], atol=1e-6)
    assert {k: v.dtype for k, v in after.items()} == {
        k: v.dtype for k, v in MODEL.items()
    }
    assert after["count"] == 3  # whole numbers stay as the server has them
    assert "weights: site-0" in log


def test_differences_and_whole_models_mean_the_same(log: Log) -> None:
    whole, mixed = HewAggregator("mean"), HewAggregator("mean")
    expected = one_round(whole, {"a": moved(1.0), "b": moved(2.0)})
    announce(mixed, MODEL, "ab")
    mixed.accept_model(result("a", moved(1.0)))
    difference = {k: np.full_like(v, 2.0) for k, v in MODEL.items()}
    mixed.accept_model(result("b", difference, "DIFF"))
    found = mixed.aggregate_model()
    for name, array in expected.items():
        np.testing.assert_array_equal(found.params[name], array)
    np.testing.assert_array_equal(found.params["b"], np.full(3, 1.5))
    assert not any("left out" in line for line in log.lines)


BAD = {
    "other names": {"w": MODEL["w"]},
    "another shape": moved(1.0) | {"w": np.ones((3, 2), np.float32)},
    "not a number": moved(1.0) | {"b": np.array([0.0, np.nan, 0.0])},
    "infinite statistics": moved(1.0) | {"bn.running_var": np.array([1.0, np.inf])},
    "text": moved(1.0) | {"b": np.array(["a", "b", "c"])},
    "objects": moved(1.0) | {"b": np.array([None, {}, ()], dtype=object)},
    "lists": moved(1.0) | {"b": [[1.0], [2.0, 3.0]]},
    "no mapping": [1.0, 2.0],
    "too long": moved(1e6),
    "beyond the range of squares": moved(1.0) | {"b": np.full(3, 1e200)},
    "idle": dict(MODEL),
}


@pytest.mark.parametrize("params", BAD.values(), ids=BAD)
@pytest.mark.parametrize("name", ["mean", "sieve", "geometric-median", "trust"])
def test_a_bad_result_is_left_out(name: str, params: Any, log: Log) -> None:
    clients = ("a", "b", "c")
    aggregator, alone = HewAggregator(name), HewAggregator(name)
    for one, names in ((aggregator, (*clients, "z")), (alone, clients)):
        announce(one, MODEL, names)
        for i, client in enumerate(clients):
            one.accept_model(result(client, moved(1.0 + i / 8), steps=3))
    aggregator.accept_model(result("z", params, steps=3))
    found, expected = aggregator.aggregate_model(), alone.aggregate_model()
    for key, array in expected.params.items():
        np.testing.assert_array_equal(found.params[key], array)
    assert "z is left out" in log


def test_silent_clients_and_second_results(log: Log) -> None:
    aggregator = HewAggregator("mean")
    announce(aggregator, MODEL, "abcd")
    for client in ("a", "b", "b", "b", "c"):
        aggregator.accept_model(result(client, moved(1.0)))
    after = aggregator.aggregate_model().params
    np.testing.assert_array_equal(after["b"], np.ones(3))
    assert "b is left out, malformed: two results in one round" in log
    assert "d is left out, missing" in log


def test_a_rejected_round_changes_nothing(log: Log) -> None:
    aggregator = HewAggregator("mean", server_step={"momentum": 0.9}, min_results=2)
    after = one_round(aggregator, {"a": moved(1.0), "b": moved(np.nan)})
    assert "round rejected: 1 usable results" in log
    assert all(after[k] is MODEL[k] for k in MODEL)
    after = one_round(aggregator, {"a": moved(1.0), "b": moved(1.0)}, 1)
    np.testing.assert_array_equal(after["b"], np.ones(3))  # no momentum came of it


def test_a_model_that_does_not_fit_its_precision_is_rejected(log: Log) -> None:
    model = {"w": np.full(2, 3e38, dtype=np.float32)}
    aggregator = HewAggregator("mean", server_step={"step": 10.0})
    ends = {c: {"w": np.full(2, 3.3e38, np.float32)} for c in "abc"}
    after = one_round(aggregator, ends, model=model)
    assert "round rejected: the new model would not be finite" in log
    np.testing.assert_array_equal(after["w"], model["w"])


def test_running_statistics_take_the_median(log: Log) -> None:
    ends = {c: moved(1.0) for c in "abc"}
    ends["b"]["bn.running_var"] = np.full(2, -1e30, dtype=np.float32)
    after = one_round(HewAggregator("mean"), ends)
    np.testing.assert_array_equal(after["bn.running_var"], np.full(2, 2.0))
    fixed = one_round(HewAggregator("mean", aggregated="!bn*"), ends)
    assert fixed["bn.running_var"] is MODEL["bn.running_var"]
    assert not any("left out" in line for line in log.lines)


def test_a_size_counts_as_a_bounded_share() -> None:
    def moves(**given: Any) -> Any:
        aggregator = HewAggregator("size-weighted", **given)
        announce(aggregator, MODEL, "abcd")
        for client, steps in zip("abcd", (1, 1, 2, 10**9), strict=True):
            by = 9.0 if client == "d" else 1.0
            aggregator.accept_model(result(client, moved(by), steps=steps))
        return aggregator.aggregate_model().params["b"][0]

    assert moves(max_share=0.5) == pytest.approx(5.0)
    assert moves(weighting="equal") == pytest.approx(3.0)
    assert moves(max_share=1.0) == pytest.approx(9.0)


def test_metrics_are_means_without_implausible_values() -> None:
    aggregator = HewAggregator("mean")
    announce(aggregator, MODEL, "abc")
    for client, loss in zip("abc", (1.0, 3.0, 1e300), strict=True):
        one = result(client, moved(1.0), loss=loss, text="x", only=float("nan"))
        aggregator.accept_model(one)
    assert aggregator.aggregate_model().metrics == {"loss": 2.0}


def test_clients_are_known_by_name() -> None:
    """A rule with a memory: the same names in another order, and one that is absent."""
    rng = np.random.default_rng(1)
    ours, state = HewAggregator("centered-clipping"), None
    rule, names = aggregators.make("centered-clipping"), [f"s{i}" for i in range(4)]
    trust, model = HewAggregator("trust"), {"w": np.zeros(6)}
    memory, rule2 = None, aggregators.make("trust")
    for t in range(4):
        present = [name for i, name in enumerate(names) if t != 2 or i != 1]
        rows = {name: rng.normal(size=6) + 2 for name in present}
        order = rng.permutation(present).tolist()
        for aggregator, one in ((ours, rule), (trust, rule2)):
            announce(aggregator, model, order, t)
            for name in order:
                end = {"w": rows[name]}
                aggregator.accept_model(result(name, end, steps=2))
            after = aggregator.aggregate_model().params["w"]
            ids = [names.index(name) for name in present]
            options: dict[str, Any] = {"clients": ids, "round_number": t}
            if one is rule:
                decision, state = one(list(rows.values()), state, **options)
            else:
                options["steps"] = np.full(len(ids), 2)
                decision, memory = one(list(rows.values()), memory, **options)
            np.testing.assert_allclose(after, decision.step, rtol=1e-9)


def test_reported_steps_are_needed_where_the_rule_uses_them(log: Log) -> None:
    aggregator = HewAggregator("normalized-mean")
    announce(aggregator, MODEL, "ab")
    assert not aggregator.accept_model(result("a", moved(1.0)))
    assert not aggregator.accept_model(result("b", moved(1.0), steps=2.5))
    aggregator.aggregate_model()
    assert 'a is left out, malformed: `meta["NUM_STEPS_CURRENT_ROUND"]`' in log


def test_a_root_gradient_of_the_server(log: Log) -> None:
    aggregator = HewAggregator(
        "root-weights", root_fn="tests.nvflare.root:gradient", learning_rate=0.1
    )
    after = one_round(aggregator, {"a": moved(1.0), "b": moved(-1.0)})
    assert after["b"][0] > 0  # the root's gradient points to smaller parameters
    broken = HewAggregator(
        "root-weights", root_fn="tests.nvflare.root:broken", learning_rate=0.1
    )
    one_round(broken, {"a": moved(1.0)})
    assert "round rejected: the root gradient is not finite" in log


def test_scatter_and_gather(log: Log) -> None:
    """Through shareables, as the older workflow hands them over."""
    aggregator = HewAggregator("mean")
    announce(aggregator, MODEL, "ab", 4)

    def send(client: str, begun: int, content: Shareable) -> bool:
        peer = context(4, client).get_peer_context()
        content.set_peer_props(peer.get_all_public_props())
        content.add_cookie(AppConstants.CONTRIBUTION_ROUND, begun)
        return bool(aggregator.accept(content, context(4)))

    whole = DXO(DataKind.WEIGHTS, data=moved(1.0), meta={"client_name": "b"})
    assert send("a", 4, whole.to_shareable())
    assert not send("b", 3, whole.to_shareable())  # of an earlier round
    assert not send("b", 4, Shareable())
    fl_ctx = context(4)
    learnable = {"weights": dict(MODEL), "meta": {}}
    fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=True)
    after = aggregator.aggregate(fl_ctx)
    new = FullModelShareableGenerator().shareable_to_learnable(after, fl_ctx)
    assert from_shareable(after).data_kind == DataKind.WEIGHTS
    np.testing.assert_array_equal(new["weights"]["b"], np.ones(3))
    assert "b is left out, late: a result of round 3" in log
    assert "b is left out, malformed" in log
    aggregator.reset(fl_ctx)
    assert aggregator.aggregate_model().params["b"] is MODEL["b"]  # nobody: rejected


@pytest.mark.torch
def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = {"w": torch.zeros(3), "h": torch.zeros(2, dtype=torch.float16)}
    ends = {c: {k: v + 1 for k, v in model.items()} for c in "ab"}
    after = one_round(HewAggregator("mean"), ends, model=model)
    assert {k: (type(v), v.dtype) for k, v in after.items()} == {
        k: (type(v), v.dtype) for k, v in model.items()
    }
    assert after["w"].tolist() == [1.0, 1.0, 1.0]


class OnDisk:
    """What NVFLARE hands over where it keeps tensors on the disk."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def materialize(self) -> Any:
        return self.array


def test_arrays_on_the_disk_are_read() -> None:
    aggregator = HewAggregator("mean")
    end = {k: OnDisk(v) for k, v in moved(1.0).items()}
    np.testing.assert_array_equal(one_round(aggregator, {"a": end})["b"], np.ones(3))


def test_a_result_before_a_model_is_an_error() -> None:
    aggregator = HewAggregator()
    with pytest.raises(InvalidInputError, match="announces its model"):
        aggregator.aggregate_model()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"aggregator": "kurm"}, "did you mean krum"),
        ({"aggregator": "krum", "options": {"g": 1}}, "options"),
        ({"aggregator": "qfedavg"}, "one that needs no losses"),
        ({"server_step": {"moment": 0.9}}, "did you mean `momentum`"),
        ({"server_step": {"average": "ema"}}, "without `average`"),
        ({"max_share": 2.0}, "at most 1"),
        ({"min_results": 0}, "min_results"),
        ({"max_norm_ratio": -1.0}, "max_norm_ratio"),
        ({"aggregator": "fltrust", "learning_rate": 0.1}, "module:function"),
        ({"aggregator": "fltrust"}, "learning_rate"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"root_fn": "a:b"}, "left out for"),
    ],
)
def test_wrong_arguments(given: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        HewAggregator(**given)


def test_all_arguments_are_in_the_exported_job(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "aggregator": "clip+krum",
        "options": {"f": 0.3},
        "server_step": {"momentum": 0.5},
        "weighting": "equal",
        "max_share": 0.5,
        "judge": ["!head*"],
        "aggregated": "!bn*",
        "max_norm_ratio": 5.0,
        "min_results": 2,
        "learning_rate": 0.1,
    }
    script = Path(__file__).with_name("site.py")
    recipe = NumpyFedAvgRecipe(
        model=[0.0],
        min_clients=2,
        train_script=str(script),
        aggregator=HewAggregator(**given),
    )
    recipe.export(str(tmp_path))
    text = next(tmp_path.rglob("config_fed_server.json")).read_text()
    (workflow,) = json.loads(text)["workflows"]
    written = workflow["args"]["aggregator"]
    assert written["path"] == "hewfl.nvflare.aggregator.HewAggregator"
    assert written["args"] == given
    name = HewAggregator(**written["args"]).entry.name
    assert name == HewAggregator(**given).entry.name


@pytest.mark.unchecked
def test_arguments_of_another_type() -> None:
    with pytest.raises(InvalidInputError, match="a name; `options` are its fields"):
        HewAggregator(aggregators.make("krum"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match='"equal" or "size"'):
        HewAggregator(weighting="sizes")  # type: ignore[arg-type]
