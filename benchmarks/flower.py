"""Aggregation by our strategies against Flower's own FedAvg, on the same replies.

    python benchmarks/flower.py [--quick] [--more] [--json FILE]

Both get what stock clients send: models of eight arrays of float32, in Flower's own
messages. Timed is `aggregate_train` of a second round alone, one thread, all taking
turns in fresh random order; medians of CPU seconds. The default rule compares
directions; "mean" is one that needs all products. Beside them stand two floors of exact
weights: the n²d/2 multiplications of the Gram matrix at the speed of a BLAS product of
1000 × 512 numbers of float64 in cache, which is that of a well-shaped one; and, for
control variates, reading and writing n vectors of float64. In rounds of two phases the
time is that of weights from sketches and of the sum of updates as they come, without
what clients do. Memory is measured in a process for each: the peak while aggregating
over what the replies take, in models of 4d bytes.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from benchmarks import report
from benchmarks.report import ratio, seconds, table
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from hewfl import HewHet
from hewfl.displacements.count_sketch import CountSketch
from hewfl.flower import AlgorithmStrategy, HewStrategy
from hewfl.flower.secure_aggregation import SKETCH_WIDTH

FEDAVG, HEW, CORRECTED = "Flower FedAvg", "HewStrategy", "corrected"
TWO, EXACT = "two phases", "exact weights"
METHODS = (FEDAVG, HEW, EXACT, TWO, CORRECTED)
GRAM, VARIATES = "Gram arithmetic", "n float64 vectors"
FLOORS = (GRAM, VARIATES)
OTHERS = (*METHODS[1:], *FLOORS)
SHAPES = [
    *((10, 10**4), (10, 10**5), (10, 10**6), (10, 10**7)),
    *((50, 10**6), (100, 10**4), (100, 10**5), (100, 10**6)),
    *((100, 10**7), (1000, 10**4), (1000, 10**5), (1000, 10**6)),
]
QUICK = [(10, 10**4), (10, 10**6), (100, 10**4), (100, 10**5)]
MEMORY = [(10, 10**6), (100, 10**6)]
LARGEST_CORRECTED = 10**8
"""Numbers of all replies; control variates are as many numbers of float64."""
DISTINCT = 10**8
"""Numbers of replies that are all different; beyond, 20 of them come again and again,
for the sake of memory: they are read as often."""
LARGEST_GRAM = 2 * 10**11
"""Multiplications of all products; beyond, rules that need them take minutes in one
phase, and two are for that."""
TARGET = 1.5
CACHED = 1000, 512
"""Shape of the block whose BLAS product is timed; others count by multiplications."""
LAYERS = 8
"""Arrays of a model, as of a small network."""


class Nodes:
    """All of a Grid that is needed: ids, introductions, and a second phase."""

    def __init__(self, n: int, updates: list[ArrayRecord] | None = None) -> None:
        self.n, self.updates = n, updates or []
        self.waiting: dict[str, Message] = {}

    def push_messages(self, messages: list[Message]) -> list[str]:
        self.waiting = {str(k): message for k, message in enumerate(messages)}
        return list(self.waiting)

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        replies = []
        for number in numbers:
            arrays = self.updates[int(number) % len(self.updates)].copy()
            reply = make_reply(self.waiting.pop(number), arrays)
            reply.metadata.__dict__["_reply_to_message_id"] = number
            replies.append(reply)
        return replies

    def get_node_ids(self) -> list[int]:
        return list(range(2, self.n + 2))

    def send_and_receive(
        self, messages: list[Message], *, timeout: float | None = None
    ) -> list[Message]:
        del timeout
        return [self._describe_client(message) for message in messages]

    def _describe_client(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 2
        metrics = {"partition-id": client, "num-examples": 10, "batch-size": 1}
        metrics["local-steps"] = 1
        content = RecordDict({"metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)


def model(vector: NDArray[np.float32]) -> ArrayRecord:
    return ArrayRecord(np.array_split(vector, LAYERS))


def strategy_of(method: str, n: int) -> Any:
    if method == FEDAVG:
        return FedAvg()
    if method == CORRECTED:
        rule = HewHet(1.0, 0.5, start="zero")
        return AlgorithmStrategy(rule, population=n, fraction_evaluate=0.0)
    options: dict[str, Any] = {"aggregator": "exact"} if method == EXACT else {}
    return HewStrategy(
        phases=2 if method == TWO else 1, fraction_evaluate=0.0, **options
    )


def make_reply(question: Message, arrays: ArrayRecord) -> Message:
    metrics = {"num-examples": 10}
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=question)


def endpoints(n: int, d: int) -> tuple[ArrayRecord, list[ArrayRecord]]:
    """A model, and where n clients end: a common direction, and noise."""
    rng = np.random.default_rng([n, d])
    x, g = (rng.standard_normal(d, dtype=np.float32) for _ in range(2))
    ends = []
    for _ in range(n if n * d <= DISTINCT else 20):
        noise = rng.standard_normal(d, dtype=np.float32)
        ends.append(model(x - np.float32(0.1) * (g + noise)))
    return model(x), [ends[k % len(ends)] for k in range(n)]


def aggregation(
    method: str, begin: ArrayRecord, ends: list[ArrayRecord]
) -> Callable[[], Any]:
    """The aggregation of a second round, opened and with its replies at hand.

    The first one is over: control variates that are zero take no memory yet.
    """
    n = len(ends)
    strategy, arrays, sent = strategy_of(method, n), begin, ends
    x = np.concatenate(begin.to_numpy_ndarrays())
    moves = []
    if method == TWO:
        few = [np.concatenate(end.to_numpy_ndarrays()) - x for end in ends[:20]]
        moves = [model(move / np.float32(n)) for move in few]
    grid = Nodes(n, moves)
    for t in (1, 2):
        if method == TWO:
            sketch = CountSketch(SKETCH_WIDTH, t)
            short = [ArrayRecord([sketch.of([move])]) for move in few]
            sent = [short[k % len(short)] for k in range(n)]
        questions = strategy.configure_train(t, arrays, ConfigRecord(), grid)
        replies = [
            make_reply(q, a.copy()) for q, a in zip(questions, sent, strict=True)
        ]
        if t == 1:
            arrays = strategy.aggregate_train(t, replies)[0]
    return lambda: strategy.aggregate_train(2, replies)[0]


def floor(name: str, n: int, d: int) -> tuple[Callable[[], Any], float]:
    """What exact weights cannot do without, and how often it is to be counted."""
    if name == VARIATES:
        variates = np.zeros((n, d))
        variates += 1.0  # in memory, and not only promised
        return lambda: np.add(variates, 1.0, out=variates), 1.0
    rows, columns = CACHED
    block = np.random.default_rng(0).standard_normal(CACHED)
    gram = np.zeros((rows, rows), order="F")
    call = lambda: dsyrk(1.0, block.T, 1.0, gram, trans=1, overwrite_c=1)  # noqa: E731
    return call, n**2 * d / (rows**2 * columns)


def timed(n: int, d: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every run of each method and floor, in turns."""
    begin, ends = endpoints(n, d)
    rng = np.random.default_rng(0)
    small = n * d <= LARGEST_CORRECTED
    names = [x for x in (*METHODS, *FLOORS) if small or x not in (CORRECTED, VARIATES)]
    names = [x for x in names if n * n * d <= LARGEST_GRAM or x != EXACT]
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for k in rng.permutation(len(names)):
            if names[k] in FLOORS:
                call, count = floor(names[k], n, d)
                call()
            else:
                call, count = aggregation(names[k], begin, ends), 1.0
            before = time.process_time()
            call()
            if turn > 0:  # the first warms up
                times[names[k]].append(count * (time.process_time() - before))
    return times


# ------------------------------------------------------------------ memory


def resident(key: str) -> int:
    """Bytes of this process in memory: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(key))
    return 1024 * int(line.split()[1])


def peak(method: str, n: int, d: int) -> float:
    """Models of 4d bytes needed at most while aggregating, beyond the replies."""
    begin, ends = endpoints(n, d)
    call = aggregation(method, begin, ends)
    for record in ends:
        record.clear()  # the replies alone hold the arrays, as in a federation
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call()
    return (resident("VmHWM") - before) / (4 * d)


def peak_apart(method: str, n: int, d: int, *, trimmed: bool) -> float:
    """The same in a process of its own.

    `trimmed` has glibc give blocks of 64 kB and more back to the system when they are
    freed; else it keeps those that replies were in.
    """
    command = [sys.executable, __file__, "--peak", method, str(n), str(d)]
    env = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "65536"} if trimmed else {})
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(run.stdout.split()[-1])


# ------------------------------------------------------------------ report


def label(n: int, d: int) -> str:
    return f"n={n} d={d:.0e}".replace("e+0", "e")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "flower.json")
    parser.add_argument("--more", action="store_true", help="keep what the file has")
    parser.add_argument("--only", nargs=2, type=int, metavar=("N", "D"))
    parser.add_argument("--peak", nargs=3, metavar=("METHOD", "N", "D"))
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    if options.peak:
        method, n, d = options.peak
        print(peak(method, int(n), int(d)))
        return
    info, memory = report.machine(), list[dict[str, Any]]()
    saved: list[dict[str, Any]] = []
    if options.more and options.json.exists():
        saved = json.loads(options.json.read_text(encoding="utf-8"))["times"]
    content = {"machine": info, "times": saved, "memory": memory}
    shapes = QUICK if options.quick else SHAPES
    for n, d in [tuple(options.only)] if options.only else shapes:
        if any((row["n"], row["d"]) == (n, d) for row in saved):
            continue
        rounds = int(np.clip(3e8 / (n * d), 3, 15))
        times = {m: float(np.median(t)) for m, t in timed(n, d, rounds).items()}
        saved.append({"n": n, "d": d, "cpu": times, "rounds": rounds})
        report.save(options.json, content)  # kept where a run is stopped
        print(f"{label(n, d)} done", flush=True)
    rows = []
    for row in saved:
        base, cpu = row["cpu"][FEDAVG], row["cpu"]
        shown = [ratio(cpu[m] / base) if m in cpu else "-" for m in OTHERS]
        rows.append([label(row["n"], row["d"]), seconds(base), *shown])
    print(report.describe(info) + "\n")
    print(table(["replies", FEDAVG, *(f"{name} / it" for name in OTHERS)], rows))
    for method in METHODS[1:]:
        each = [row["cpu"] for row in saved if method in row["cpu"]]
        met = sum(times[method] <= TARGET * times[FEDAVG] for times in each)
        print(f"\n{method}: at most {TARGET} times FedAvg in {met} of {len(each)}.")
    print(flush=True)
    for n, d in MEMORY[:1] if options.quick or options.only else MEMORY:
        for trimmed in (False, True):
            models = {m: peak_apart(m, n, d, trimmed=trimmed) for m in METHODS}
            memory.append({"n": n, "d": d, "trimmed": trimmed, "models": models})
    head = ["models beyond the replies", *METHODS]
    lines = [
        [label(m["n"], m["d"]) + (", trimmed" if m["trimmed"] else "")]
        + [f"{m['models'][name]:.1f}" for name in METHODS]
        for m in memory
    ]
    print(table(head, lines))
    report.save(options.json, content)


if __name__ == "__main__":
    main()
