"""Running statistics of normalisation layers: not judged, and never what one says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hewfl import InvalidInputError
from hewfl.flower import HewStrategy, load_model
from hewfl.server.array_layout import PARAMETERS, is_matched
from tests.flower.federation import StubGrid

N, FLIPPED, D = 6, 2, 8
MOVES = 1 + np.random.default_rng(1).standard_normal((N, D)) / 4
MEANS = 10 + np.random.default_rng(2).standard_normal((N, D))
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


def model() -> ArrayRecord:
    zeros, ones = np.zeros(D, np.float32), np.ones(D, np.float32)
    arrays = {"w": zeros, "bn.running_mean": zeros, "bn.running_var": ones}
    arrays["bn.num_batches_tracked"] = np.array(0)
    return ArrayRecord({name: Array(a) for name, a in arrays.items()})


def federation(lie: float = 1.0, flip: float = -1.0) -> StubGrid:
    """Six clients with large statistics; client 2 flips its update, and may lie."""

    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
        turned = flip if i == FLIPPED else 1.0
        ends = {
            "w": arrays["w"] + (turned * MOVES[i]).astype(np.float32),
            "bn.running_mean": MEANS[i].astype(np.float32),
            "bn.running_var": np.full(D, lie if i == FLIPPED else 2.0, np.float32),
            "bn.num_batches_tracked": np.array(5),
        }
        record = ArrayRecord({k: Array(a) for k, a in ends.items()})
        metrics = MetricRecord({"num-examples": 10, "partition-id": i})
        content = RecordDict({"arrays": record, "metrics": metrics})
        return Message(content, reply_to=message)

    app = ClientApp()
    app.train()(train)
    return StubGrid(app, N)


def run(rounds: int = 1, lie: float = 1.0, **options: Any) -> Any:
    strategy = HewStrategy(**QUIET, **options)
    return strategy.start(federation(lie), model(), rounds)


def numbers(arrays: ArrayRecord, name: str) -> Any:
    return arrays[name].numpy()


def test_statistics_hide_no_flipped_update() -> None:
    hidden = run(judge="*").train_metrics_clientapp[1]["weights"]
    assert hidden[FLIPPED] == pytest.approx(1 / N)  # the case that is mended
    judged = run().train_metrics_clientapp[1]["weights"]
    assert judged[FLIPPED] < 0.02


@pytest.mark.parametrize("rule", ["sieve", "trimmed-mean"])
@pytest.mark.parametrize("lie", [-1e30, 3e38])
def test_statistics_are_the_median_whatever_one_client_says(
    rule: str, lie: float
) -> None:
    arrays = run(lie=lie, aggregator=rule).arrays
    np.testing.assert_array_equal(numbers(arrays, "bn.running_var"), np.full(D, 2.0))
    median = np.median(MEANS.astype(np.float32), axis=0)
    np.testing.assert_allclose(numbers(arrays, "bn.running_mean"), median, rtol=1e-6)
    assert numbers(arrays, "bn.num_batches_tracked") == 0


def test_statistics_that_are_not_finite_exclude_the_client() -> None:
    metrics = run(lie=float("nan")).train_metrics_clientapp[1]
    assert metrics["excluded-not-finite"] == 1
    assert FLIPPED not in metrics["clients"] or len(metrics["clients"]) == N - 1


def test_layers_of_ones_own_stay_as_the_server_has_them() -> None:
    arrays = run(aggregate="!bn.*").arrays
    assert (numbers(arrays, "bn.running_mean") == 0).all()
    assert (numbers(arrays, "w") != 0).all()


def test_statistics_are_saved_and_resumed(tmp_path: Path) -> None:
    whole = run(3).arrays
    run(2, folder=tmp_path)
    resumed = run(3, folder=tmp_path).arrays
    saved = load_model(tmp_path)
    for name in model():
        np.testing.assert_array_equal(numbers(resumed, name), numbers(whole, name))
        np.testing.assert_array_equal(numbers(saved, name), numbers(whole, name))


def test_patterns() -> None:
    assert is_matched("conv.weight", PARAMETERS)
    assert not is_matched("layer1.0.bn1.running_var", PARAMETERS)
    assert is_matched("head.weight", ["head.*", "!*bias"])
    assert not is_matched("head.bias", ["head.*", "!*bias"])
    with pytest.raises(InvalidInputError, match="`arrays` must be a model with param"):
        run(judge="head.*")
    with pytest.raises(InvalidInputError, match="`judge` must be left out with"):
        HewStrategy(phases=2, aggregate="!bn.*")
