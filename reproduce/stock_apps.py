"""Three stock Flower apps, our rules beside Flower's own strategies.

    python -m reproduce stock-apps [--seeds 5] [--jobs 1] [--only TEXT ...] [--table]

    cnn-sgd     CNN on digits, Dirichlet 0.3, 6 clients, SGD with momentum 0.9
    cnn-adamw   the same with AdamW
    news        bag of hashed words on AG News, Dirichlet 0.3, 10 clients, plain SGD

Clients do 3 to 40 steps. Worlds: everybody is good; one client has random labels; one
sends its update with the sign turned; one sends it ten times as long. The apps know
nothing of hewfl: they are what Flower's templates write, and report `num-examples`. The
strategies are driven through a Grid in this process; nothing but the strategy differs
between two runs of one app, scenario and seed.

Every finished run is a line of reproduce/results/stock_apps.jsonl: stopped at any
time, the same command goes on. First come the seeds on which the numbers of `Sieve`
are chosen, then all seeds of the strategies that matter most. `--table` puts
tables and sentences of what is there into docs/results/flower.md. Delete the file when
a rule has changed: a line does not know the code it comes from.
"""

import argparse
import json
import os
import random
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, final

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from hewfl.aggregators import Agreement, ExactWeights, Sieve
from hewfl.data import ag_news_texts, dirichlet_partition, load, prepare
from hewfl.flower import HewStrategy
from reproduce.stock_grid import LocalGrid
from reproduce.stock_table import (
    CANDIDATES,
    FILE,
    SCENARIOS,
    TUNING,
    Cell,
    known,
    publish,
)

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}
AGGREGATORS: dict[str, Any] = {
    "size-weighted": "size-weighted",
    "exact, by size": ExactWeights(by="size", kappa=1.0, cross_fit=True),
    "agreement, power 1": Agreement(power=1.0),
    "disagreement": "disagreement",
    "geometric-median": "geometric-median",
    "multi-krum": "multi-krum",
    "trimmed-mean": "trimmed-mean",
    "centered-clipping": "centered-clipping",
}
"""By the label of tables."""
ROUNDS, BATCH, WORDS, NEWS = 15, 32, 2048, 6000
STRATEGIES: dict[str, Callable[[], Any]] = {
    "FedAvg": lambda: flower.FedAvg(**QUIET),
    "FedAvgM": lambda: flower.FedAvgM(
        server_learning_rate=0.1, server_momentum=0.9, **QUIET
    ),
    "FedAdam": lambda: flower.FedAdam(eta=0.01, **QUIET),
    "FedMedian": lambda: flower.FedMedian(**QUIET),
    "Krum": lambda: flower.Krum(num_malicious_nodes=1, **QUIET),
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(**QUIET),
    **{
        name: partial(HewStrategy, aggregator=aggregator, **QUIET)
        for name, aggregator in AGGREGATORS.items()
    },
    **{
        name: partial(HewStrategy, aggregator=Sieve(*numbers), **QUIET)
        for name, numbers in CANDIDATES.items()
    },
}
"""Steps of FedAvgM and FedAdam are a tenth of their defaults: FedAvgM with momentum 0.9
then moves as far as FedAvg in the long run, and with its default ends at chance."""
FIRST = (
    *("FedAvg", *CANDIDATES, "agreement, power 1", "geometric-median"),
    *("exact, by size", "disagreement"),
    *("FedAvgM", "FedAdam", "FedMedian", "Krum", "FedTrimmedAvg"),
)
"""Run before the others: all seeds, apps and scenarios of these."""


@final
@dataclass(frozen=True, slots=True)
class Data:
    """Training samples of each client, and a test part."""

    clients: tuple[tuple[Any, Any], ...]
    test: tuple[Any, Any]
    classes: int


@final
@dataclass(frozen=True, slots=True)
class App:
    """An app of Flower's kind: data, model, optimiser."""

    data: Callable[[int], Data]
    model: Callable[[], torch.nn.Module]
    optimiser: Callable[[Any], torch.optim.Optimizer]


class Digits(torch.nn.Module):  # type: ignore[misc]  # checked without torch
    """A small CNN."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.hidden = torch.nn.Linear(16 * 4 * 4, 32)
        self.last = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.max_pool2d(torch.relu(self.second(x)), 2)
        return self.last(torch.relu(self.hidden(x.flatten(1))))


class Words(torch.nn.Module):  # type: ignore[misc]  # checked without torch
    """The mean of the words' vectors, and one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Linear(WORDS, 32, bias=False)
        self.last = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.words(x))


def shared(X: Any, y: Any, test: Any, n: int, seed: int) -> Data:
    """Samples shared out by a Dirichlet law over classes."""
    shards = dirichlet_partition(y, n, 0.3, seed, min_samples=8)
    held = tuple((torch.tensor(X[s]), torch.tensor(y[s])) for s in shards)
    tested = torch.tensor(test[0]), torch.tensor(test[1])
    return Data(held, tested, int(y.max()) + 1)


@lru_cache(maxsize=2)
def digits(seed: int) -> Data:
    prepared = prepare(load("digits"), seed)
    X, test = prepared.features, prepared.test
    assert test is not None
    images = [a[:, :64].reshape(-1, 1, 8, 8) for a in (X, test[0])]
    return shared(images[0], prepared.labels, (images[1], test[1]), 6, seed)


@lru_cache(maxsize=2)
def news(seed: int) -> Data:
    texts, _ = ag_news_texts()
    rows = np.random.default_rng(seed).permutation(len(texts.texts))[: NEWS + 2000]
    X = np.zeros((len(rows), WORDS), np.float32)
    for k, row in enumerate(rows):
        words = texts.texts[row].lower().split()
        for word in words:
            X[k, zlib.crc32(word.encode()) % WORDS] += 1
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.asarray(texts.labels)[rows].astype(np.int64)
    return shared(X[:NEWS], y[:NEWS], (X[NEWS:], y[NEWS:]), 10, seed)


APPS = {
    "cnn-sgd": App(digits, Digits, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "cnn-adamw": App(digits, Digits, lambda p: torch.optim.AdamW(p, lr=1e-3)),
    "news": App(news, Words, lambda p: torch.optim.SGD(p, lr=2.0)),
}


# ------------------------------------------------------------------ the client


def client_of(app: App, scenario: str, seed: int) -> ClientApp:
    """The ClientApp, as Flower's template writes it; one node may be bad."""
    data = app.data(seed)
    n = len(data.clients)
    rng = np.random.default_rng([seed, 1])
    steps = np.geomspace(3, 40, n).astype(int)[rng.permutation(n)]
    bad = int(rng.integers(n)) if scenario != "clean" else -1
    wrong = torch.tensor(rng.integers(data.classes, size=10**5))
    client = ClientApp()

    @client.train()  # type: ignore[untyped-decorator]  # checked without flwr
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        X, y = data.clients[i]
        y = wrong[: len(y)] if scenario == "labels" and i == bad else y
        model = app.model()
        start = message.content["arrays"].to_torch_state_dict()
        model.load_state_dict(start)
        optimiser = app.optimiser(model.parameters())
        t = int(message.content["config"]["server-round"])
        draws = np.random.default_rng([seed, 2, t, i])
        for _ in range(steps[i]):
            rows = draws.integers(len(y), size=BATCH)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
            optimiser.step()
        end, factor = model.state_dict(), {"sign": -1.0, "scale": 10.0}.get(scenario)
        if i == bad and factor is not None:
            end = {k: start[k] + factor * (v - start[k]) for k, v in end.items()}
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(end), "metrics": metrics})
        return Message(content, reply_to=message)

    return client


class OneProcess(LocalGrid):
    """A Grid that runs the client app itself."""

    def __init__(self, client: ClientApp, n: int) -> None:
        super().__init__()
        self.client = client
        self.nodes = {
            i + 2: Context(1, i + 2, {"partition-id": i}, RecordDict(), {})
            for i in range(n)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return [self.client(m, self.nodes[m.metadata.dst_node_id]) for m in messages]


# ------------------------------------------------------------------ runs


def run(cell: Cell) -> dict[str, Any]:
    """One app under one strategy in one scenario with one seed."""
    name, scenario, strategy, seed = cell
    torch.set_num_threads(1)
    began, app = time.process_time(), APPS[name]
    data = app.data(seed)
    torch.manual_seed(seed)
    random.seed(seed)  # Flower samples nodes by it
    model = app.model()
    grid = OneProcess(client_of(app, scenario, seed), len(data.clients))
    curve = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        del server_round
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = model(data.test[0]).argmax(1) == data.test[1]
        curve.append(round(float(right.float().mean()), 4))

    begin = ArrayRecord(model.state_dict())
    STRATEGIES[strategy]().start(grid, begin, ROUNDS, evaluate_fn=evaluate)
    seconds = round(time.process_time() - began, 1)
    return {"cell": list(cell), "accuracy": curve, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="parts of app/scenario/rule"
    )
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rest = [name for name in STRATEGIES if name not in FIRST]
    order = [
        (TUNING, ["FedAvg", *CANDIDATES]),
        (range(options.seeds), FIRST),
        (range(options.seeds), rest),
    ]
    cells: list[Cell] = [
        (app, scenario, strategy, seed)
        for seeds, strategies in order
        for seed in seeds
        for app in APPS
        for scenario in SCENARIOS
        for strategy in strategies
    ]
    if options.table:
        print(publish())
        return
    wanted = [c for c in cells if all(part in "/".join(c[:3]) for part in options.only)]
    done = known()
    left = [cell for cell in wanted if cell not in done]
    FILE.parent.mkdir(exist_ok=True)
    with (
        ProcessPoolExecutor(options.jobs) as pool,
        FILE.open("a", encoding="utf-8") as file,
    ):
        futures = [pool.submit(run, cell) for cell in left]
        for k, future in enumerate(as_completed(futures)):
            row = future.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            end = row["accuracy"][-1]
            print(k + 1, len(left), *row["cell"], end, row["seconds"], flush=True)
