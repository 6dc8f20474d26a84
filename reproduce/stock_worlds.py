"""What one strategy loses to another in stock Flower apps, over everything that hurts.

    python -m reproduce stock-worlds [--seeds 5] [--only TEXT ...] [--table]

    digits      two layers on digits, SGD with momentum 0.9
    digits-bn   the same with batch normalisation and AdamW
    news        bag of hashed words on AG News (`HEWFL_DATA`), two layers, plain SGD

The apps are what Flower's NumPy quickstart is: arrays by name, `num-examples`, nothing
of hewfl. 10 or 20 clients share the data by a Dirichlet law (0.3, or 0.2 for 20) and do
2 to 40 steps of 16 samples, 15 rounds. `WORLDS` says who is bad. Strategies are driven
through a Grid in this process; nothing but the strategy differs between two runs of one
app, world and seed. Seeds 0 to 4 are for the tables; the rule was chosen on others.

Every finished run is a line of reproduce/results/stock_worlds.jsonl: stopped at any
time, the same command goes on. `--table` puts what is there into the page.
"""

import argparse
import json
import math
import os
import random
import statistics
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, final

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np
from benchmarks.report import table
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from hewfl.data import ag_news_texts, dirichlet_partition, load, prepare
from hewfl.experiments.statistics import decide, measure
from hewfl.flower import HewStrategy
from reproduce.stock_grid import LocalGrid
from reproduce.stock_table import PAGE, between_marks

FILE = Path(__file__).parent / "results" / "stock_worlds.jsonl"
MARKS = "<!-- stock worlds: begin -->\n", "<!-- stock worlds: end -->\n"
QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}
STRATEGIES: dict[str, Callable[[], Any]] = {
    "FedAvg": lambda: flower.FedAvg(**QUIET),
    "majority-sieve": lambda: HewStrategy(**QUIET),
    "sieve": lambda: HewStrategy(aggregator="sieve", **QUIET),
    "geometric-median": lambda: HewStrategy(aggregator="geometric-median", **QUIET),
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(**QUIET),
}
FRAME, DEFAULT = "FedAvg", "majority-sieve"
ROUNDS, BATCH, WORDS, NEWS, HIDDEN = 15, 16, 512, 6000, 32
FULL_SEEDS = 5
Model = dict[str, Any]
Cell = tuple[str, str, str, int]
"""App, world, strategy, seed."""


@final
@dataclass(frozen=True, slots=True)
class World:
    """Who takes part, and who is bad.

    Attributes:
        n: clients.
        bad: how many of them are bad.
        fault: what these do; "" where all are honest.
        split: dirichlet, skew (very unequal amounts, one epoch each), or minority (a
            fifth of the clients owns a fifth of the classes).
        steps: spread (2 to 40), lone (one client does 40, the others 4), equal (8) or
            epoch.
        reports: whether clients report `num-steps`.
    """

    n: int = 10
    bad: int = 0
    fault: str = ""
    split: str = "dirichlet"
    steps: str = "spread"
    reports: bool = False


FAULTS = ("labels", "sign", "scale", "frozen", "nan", "size")
WORLDS = {
    "clean": World(),
    "clean, 20 clients": World(20),
    "clean, unequal amounts": World(split="skew", steps="epoch"),
    "clean, one fast": World(steps="lone"),
    "clean, one fast, reported": World(steps="lone", reports=True),
    "clean, minority classes": World(20, split="minority", steps="equal"),
    **{f"{k} {fault}": World(10, k, fault) for fault in FAULTS for k in (1, 2)},
    **{f"4 of 20 {fault}": World(20, 4, fault) for fault in ("ALIE", "IPM", "drift")},
}
"""labels: random; sign: y = x − Δ; scale: x + 10Δ; frozen: x itself; nan: one entry;
size: sign, and a claim of 2⁴⁰ samples. ALIE: mean − 1.5 standard deviations of the
honest; IPM: against their mean; drift: one fixed direction, three times the median
length; IPM is as long as the median update."""


# ------------------------------------------------------------------ data and model


@final
@dataclass(frozen=True, slots=True, eq=False)
class App:
    """An app of Flower's kind: data, model, optimiser."""

    data: Callable[[int], tuple[Any, Any, Any, Any]]
    optimiser: str
    rate: float
    normalised: bool = False
    relu: bool = True


@lru_cache(maxsize=1)
def digits(seed: int) -> tuple[Any, Any, Any, Any]:
    prepared = prepare(load("digits"), seed)
    assert prepared.test is not None, "digits are split"
    X, y = (np.asarray(a) for a in prepared.test)
    train = np.asarray(prepared.features, np.float32)[:, :64]
    return train, np.asarray(prepared.labels), X.astype(np.float32)[:, :64], y


@lru_cache(maxsize=1)
def news(seed: int) -> tuple[Any, Any, Any, Any]:
    texts, _ = ag_news_texts()
    rows = np.random.default_rng(seed).permutation(len(texts.texts))[: NEWS + 2000]
    X = np.zeros((len(rows), WORDS), np.float32)
    for k, row in enumerate(rows):
        for word in texts.texts[row].lower().split():
            X[k, zlib.crc32(word.encode()) % WORDS] += 1
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.asarray(texts.labels)[rows].astype(np.int64)
    return X[:NEWS], y[:NEWS], X[NEWS:], y[NEWS:]


APPS = {
    "digits": App(digits, "momentum", 0.3),
    "digits-bn": App(digits, "adamw", 1e-2, normalised=True),
    "news": App(news, "sgd", 1.0, relu=False),
}


def shards_of(world: World, y: Any, seed: int) -> list[Any]:
    """Rows of each client."""
    n, rng = world.n, np.random.default_rng([seed, 7])
    if world.split == "dirichlet":
        alpha = 0.2 if n == 20 else 0.3
        return list(dirichlet_partition(y, n, alpha, seed, min_samples=8))
    rows = rng.permutation(len(y))
    if world.split == "skew":
        amounts = rng.lognormal(0, 1.2, n)
        cuts = np.cumsum(amounts)[:-1] / amounts.sum() * len(rows)
        return [
            np.concatenate([part, rows[:8]])
            for part in np.split(rows, cuts.astype(int))
        ]
    classes = int(y.max()) + 1
    is_rare = y[rows] >= classes - max(1, classes // 5)
    few = np.array_split(rows[is_rare], n // 5)
    return [*few, *np.array_split(rows[~is_rare], n - n // 5)]


def steps_of(world: World, shards: list[Any], seed: int) -> Any:
    """H_i."""
    rng, n = np.random.default_rng([seed, 1]), world.n
    if world.steps == "spread":
        return np.geomspace(2, 40, n).astype(int)[rng.permutation(n)]
    if world.steps == "epoch":
        return np.array([max(1, len(rows) // BATCH) for rows in shards])
    steps = np.full(n, 4 if world.steps == "lone" else 8)
    if world.steps == "lone":
        steps[rng.integers(n)] = 40
    return steps


def first_model(app: App, inputs: int, classes: int, seed: int) -> Model:
    rng = np.random.default_rng([seed, 3])

    def draw(a: int, b: int) -> Any:
        return (rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32)

    zeros = partial(np.zeros, dtype=np.float32)
    model = {"w1": draw(inputs, HIDDEN), "b1": zeros(HIDDEN)}
    if app.normalised:
        ones = np.ones(HIDDEN, np.float32)
        model |= {"bn.weight": ones, "bn.bias": zeros(HIDDEN)}
        model |= {"bn.running_mean": zeros(HIDDEN), "bn.running_var": ones}
        model |= {"bn.num_batches_tracked": np.array(0)}
    return model | {"w2": draw(HIDDEN, classes), "b2": zeros(classes)}


def scores(app: App, model: Model, X: Any) -> Any:
    """Of the classes, as in evaluation."""
    z = X @ model["w1"] + model["b1"]
    if app.normalised:
        with np.errstate(invalid="ignore"):
            z = (z - model["bn.running_mean"]) / np.sqrt(model["bn.running_var"] + 1e-5)
        z = z * model["bn.weight"] + model["bn.bias"]
    return (np.maximum(z, 0) if app.relu else z) @ model["w2"] + model["b2"]


def gradients(app: App, model: Model, X: Any, y: Any) -> Model:
    """Of the mean cross-entropy of a batch; running statistics are updated in place."""
    z = X @ model["w1"] + model["b1"]
    if app.normalised:
        mean, var, n = z.mean(axis=0), z.var(axis=0), len(X)
        model["bn.running_mean"] = 0.9 * model["bn.running_mean"] + 0.1 * mean
        model["bn.running_var"] = 0.9 * model["bn.running_var"] + 0.1 * var * n / (
            n - 1
        )
        inverse = 1 / np.sqrt(var + 1e-5)
        unit = (z - mean) * inverse
        z = unit * model["bn.weight"] + model["bn.bias"]
    h = np.maximum(z, 0) if app.relu else z
    p = h @ model["w2"] + model["b2"]
    p = np.exp(p - p.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    found = {"w2": h.T @ p, "b2": p.sum(axis=0)}
    back = p @ model["w2"].T
    back = back * (z > 0) if app.relu else back
    if app.normalised:
        found |= {"bn.weight": (back * unit).sum(axis=0), "bn.bias": back.sum(axis=0)}
        back = back * model["bn.weight"]
        back -= back.mean(axis=0) + unit * (back * unit).mean(axis=0)
        back *= inverse
    return found | {"w1": X.T @ back, "b1": back.sum(axis=0)}


def train(app: App, model: Model, X: Any, y: Any, batches: Any) -> Model:
    """The model after local steps on these batches."""
    model, first, second = dict(model), dict[str, Any](), dict[str, Any]()
    for t, rows in enumerate(batches):
        for key, g in gradients(app, model, X[rows], y[rows]).items():
            if app.optimiser == "sgd":
                move = g
            elif app.optimiser == "momentum":
                move = first[key] = 0.9 * first.get(key, 0.0) + g
            else:
                m = first[key] = 0.9 * first.get(key, 0.0) + 0.1 * g
                v = second[key] = 0.999 * second.get(key, 0.0) + 0.001 * g * g
                v = np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8
                move = m / (1 - 0.9 ** (t + 1)) / v + 0.01 * model[key]
            model[key] = model[key] - np.float32(app.rate) * move
    return model


# ------------------------------------------------------------------ the federation


class Federation(LocalGrid):
    """A Grid that trains the clients of a world itself."""

    def __init__(self, app: App, world: World, seed: int) -> None:
        super().__init__()
        self.app, self.world, self.seed = app, world, seed
        X, y, *_ = app.data(seed)
        rng = np.random.default_rng([seed, 4])
        shards = shards_of(world, y, seed)
        self.steps, self.classes = steps_of(world, shards, seed), int(y.max()) + 1
        self.bad = rng.permutation(world.n)[: world.bad]
        self.held = [(X[rows], y[rows]) for rows in shards]
        if world.fault == "labels":
            for i in self.bad:
                wrong = rng.integers(self.classes, size=len(shards[i]))
                self.held[i] = (self.held[i][0], wrong)
        self.first = first_model(app, X.shape[1], self.classes, seed)
        self.drift = {k: rng.standard_normal(v.shape) for k, v in self.first.items()}

    def get_node_ids(self) -> Iterable[int]:
        return [i + 2 for i in range(self.world.n)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        sent = list(messages)
        if not sent:
            return []
        clients = [int(m.metadata.dst_node_id) - 2 for m in sent]
        start = {k: a.numpy() for k, a in sent[0].content["arrays"].items()}
        t = int(sent[0].content["config"]["server-round"])
        ends = {}
        for i in clients:
            X, y = self.held[i]
            draws = np.random.default_rng([self.seed, 2, t, i])
            batches = draws.integers(len(y), size=(self.steps[i], BATCH))
            ends[i] = train(self.app, start, X, y, batches)
        self.corrupt(start, ends)
        return [self.reply(m, i, ends[i]) for m, i in zip(sent, clients, strict=True)]

    def reply(self, message: Message, i: int, end: Model) -> Message:
        size = 2**40 if self.world.fault == "size" and i in self.bad else None
        told = {"num-examples": size or len(self.held[i][1])}
        if self.world.reports:
            told["num-steps"] = int(self.steps[i])
        arrays = ArrayRecord({k: Array(np.asarray(v)) for k, v in end.items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})
        return Message(content, reply_to=message)

    def corrupt(self, start: Model, ends: dict[int, Model]) -> None:
        """Put what bad clients send in place of what they trained."""
        fault, bad = self.world.fault, [i for i in self.bad if i in ends]
        keys = [k for k, v in start.items() if v.dtype.kind == "f"]
        if fault in ("sign", "size", "scale", "frozen"):
            factor = {"scale": 10.0, "frozen": 0.0}.get(fault, -1.0)
            for i in bad:
                moved = {k: start[k] + factor * (ends[i][k] - start[k]) for k in keys}
                ends[i] |= {k: v.astype(np.float32) for k, v in moved.items()}
        if fault == "nan":
            for i in bad:
                ends[i]["w1"] = ends[i]["w1"].copy()
                ends[i]["w1"][0, 0] = np.nan
        if fault not in ("ALIE", "IPM", "drift") or not bad:
            return
        honest = [end for i, end in ends.items() if i not in bad]
        moves = {k: np.stack([end[k] - start[k] for end in honest]) for k in keys}
        mean = {k: v.mean(axis=0) for k, v in moves.items()}
        lengths = np.sqrt(
            sum((v.reshape(len(honest), -1) ** 2).sum(1) for v in moves.values())
        )
        if fault == "ALIE":
            sends = {k: mean[k] - 1.5 * moves[k].std(axis=0) for k in keys}
        else:
            along, factor = (mean, -1.0) if fault == "IPM" else (self.drift, 3.0)
            whole = np.sqrt(sum(float((along[k] ** 2).sum()) for k in keys))
            scale = factor * float(np.median(lengths)) / whole
            sends = {k: scale * along[k] for k in keys}
        for i in bad:
            ends[i] |= {k: (start[k] + sends[k]).astype(np.float32) for k in keys}


def run(cell: Cell) -> dict[str, Any]:
    """One app under one strategy in one world with one seed."""
    name, world, strategy, seed = cell
    began, app = time.process_time(), APPS[name]
    grid = Federation(app, WORLDS[world], seed)
    random.seed(seed)  # Flower samples nodes by it
    *_, X, y = app.data(seed)
    curve = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        del server_round
        model = {k: a.numpy() for k, a in arrays.items()}
        right = scores(app, model, X).argmax(axis=1) == y
        curve.append(round(float(right.mean()), 4))

    begin = ArrayRecord({k: Array(v) for k, v in grid.first.items()})
    result = STRATEGIES[strategy]().start(grid, begin, ROUNDS, evaluate_fn=evaluate)
    rounds = result.train_metrics_clientapp.values()
    sums = [sum(m["weights"]) for m in rounds if m and "weights" in m]
    seconds = round(time.process_time() - began, 2)
    return {
        "cell": list(cell),
        "accuracy": curve,
        "weights": round(statistics.mean(sums), 3) if sums else None,
        "seconds": seconds,
    }


# ------------------------------------------------------------------ the table


def known() -> dict[Cell, dict[str, Any]]:
    """Finished runs; a line that was cut short is none."""
    runs = {}
    if FILE.exists():
        for line in FILE.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            runs[tuple(row["cell"])] = row
    return runs


def ends(runs: dict[Cell, dict[str, Any]], *cell: str) -> dict[int, float]:
    """Final accuracy by seed: the mean of the last three rounds."""
    return {
        k[3]: statistics.mean(row["accuracy"][-3:])
        for k, row in sorted(runs.items())
        if k[:3] == cell
    }


def section(runs: dict[Cell, dict[str, Any]]) -> str:
    """What stands between the marks of the page."""
    names = [name for name in STRATEGIES if any(cell[2] == name for cell in runs)]
    parts = []
    keys = [(app, world) for app in APPS for world in WORLDS]
    pairs = {}
    for key in keys:
        ours, theirs = ends(runs, *key, DEFAULT), ends(runs, *key, FRAME)
        both = [(ours[s], theirs[s]) for s in ours if s in theirs]
        first, second = zip(*both, strict=True) if both else ((), ())
        pairs[key] = measure(first, second, larger_is_better=True)
    pairs = decide(pairs)
    for app in APPS:
        rows = []
        for world in WORLDS:
            cells = []
            for name in names:
                values = list(ends(runs, app, world, name).values())
                spread = f" ± {statistics.stdev(values):.3f}" if values[1:] else ""
                cells.append(
                    f"{statistics.mean(values):.3f}{spread}" if values else "-"
                )
            c = pairs[app, world]
            mark = {"better": " ▲", "worse": " ▼"}.get(c.verdict, "")
            half = f" ± {c.half:.3f}" if math.isfinite(c.half) else ""
            rows.append([world, *cells, f"{c.mean:+.3f}{half}{mark}"])
        head = [app, *(f"{n} (default)" if n == DEFAULT else n for n in names)]
        parts.append(table([*head, "default less FedAvg"], rows))
    sums = [
        row["weights"]
        for cell, row in runs.items()
        if cell[2] == DEFAULT and cell[1] in ("clean", "clean, 20 clients")
    ]
    low = f"{min(sums):.3f}" if sums else "-"
    counts = [len(ends(runs, *key, DEFAULT)) for key in keys]
    low_count, high_count = min(counts), max(counts)
    seeds = f"{low_count} to {high_count} of the {FULL_SEEDS} seeds of the command"
    if low_count == high_count:
        seeds = f"{low_count} seeds"
    intro = (
        "Accuracy, mean ± standard deviation, the mean of the last three rounds, over "
        f"{seeds}. The last column is paired over seeds, with its 95 % interval where "
        "there are several; ▲ and ▼ by Holm's correction over all apps and worlds. The "
        "weights of the default sum, in the mean over the rounds of a run, to at least "
        f"{low} in all runs of «clean» and «clean, 20 clients»."
    )
    return "\n" + "\n\n".join([intro, *parts]) + "\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reproduce stock-worlds")
    parser.add_argument("--seeds", type=int, default=FULL_SEEDS)
    parser.add_argument("--only", nargs="*", default=[], help="app/world/strategy/seed")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        between_marks(PAGE, MARKS, section(known()))
        return
    done = known()
    first, rest = [FRAME, DEFAULT], [s for s in STRATEGIES if s not in (FRAME, DEFAULT)]
    cells: list[Cell] = [
        (app, world, strategy, seed)
        for strategies in (first, rest)
        for seed in range(options.seeds)
        for app in APPS
        for world in WORLDS
        for strategy in strategies
        if all(part in f"{app}/{world}/{strategy}/{seed}" for part in options.only)
    ]
    is_cut = FILE.exists() and FILE.read_bytes()[-1:] not in (b"", b"\n")
    with FILE.open("a", encoding="utf-8") as file:
        if is_cut:  # a line that was cut short is not continued
            file.write("\n")
        for cell in cells:
            if cell not in done:
                row = run(cell)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(*cell, row["accuracy"][-1], row["seconds"], flush=True)
