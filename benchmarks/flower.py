"""Aggregation by HewStrategy against Flower's own FedAvg, on the same replies.

    python benchmarks/flower.py [--quick] [--json FILE]

Both get what stock clients send: models of eight arrays of float32, in Flower's own
messages. Timed is `aggregate_train` alone, one thread, the two taking turns in fresh
random order; medians of CPU seconds. Memory is measured in a process for each: the peak
while aggregating over what the replies take, in models of 4d bytes.
"""

import argparse
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

from hewfl.flower import HewStrategy, Options

FEDAVG, HEW, CORRECTED = "Flower FedAvg", "HewStrategy, plain", "HewStrategy, corrected"
METHODS = (FEDAVG, HEW, CORRECTED)
SHAPES = [
    *((10, 10**4), (10, 10**5), (10, 10**6), (10, 10**7)),
    *((100, 10**4), (100, 10**5), (100, 10**6)),
    *((1000, 10**4), (1000, 10**5)),
]
QUICK = [(10, 10**4), (10, 10**6), (100, 10**4), (100, 10**5)]
MEMORY = [(10, 10**6), (100, 10**6)]
LARGEST_CORRECTED = 10**8
"""Numbers of all replies; control variates are as many numbers of float64."""
TARGET = 1.5
LAYERS = 8
"""Arrays of a model, as of a small network."""


class Nodes:
    """All of a Grid that is needed: ids, and introductions."""

    def __init__(self, n: int) -> None:
        self.n = n

    def get_node_ids(self) -> list[int]:
        return list(range(2, self.n + 2))

    def send_and_receive(
        self, messages: list[Message], *, timeout: float | None = None
    ) -> list[Message]:
        del timeout
        return [self._introduced(message) for message in messages]

    def _introduced(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 2
        told = {"partition-id": client, "num-examples": 10, "batch-size": 1}
        content = RecordDict({"metrics": MetricRecord(told)})
        return Message(content, reply_to=message)


def model(vector: NDArray[np.float32]) -> ArrayRecord:
    return ArrayRecord(np.array_split(vector, LAYERS))


def strategy_of(method: str, n: int) -> Any:
    if method == FEDAVG:
        return FedAvg()
    options = Options(population=n, fraction_evaluate=0.0)
    corrected = method == CORRECTED
    return HewStrategy(1.0, 0.5, corrected=corrected, start="zero", options=options)


def opened(method: str, n: int, begin: ArrayRecord) -> tuple[Any, list[Message]]:
    """A strategy that waits for its replies, and the questions."""
    strategy, grid = strategy_of(method, n), Nodes(n)
    return strategy, list(strategy.configure_train(1, begin, ConfigRecord(), grid))


def answered(question: Message, arrays: ArrayRecord) -> Message:
    told = {"num-examples": 10, "num-steps": 1 + question.metadata.dst_node_id % 4}
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})
    return Message(content, reply_to=question)


def endpoints(n: int, d: int) -> tuple[ArrayRecord, list[ArrayRecord]]:
    """A model, and where n clients end: a common direction, and noise."""
    rng = np.random.default_rng([n, d])
    x, g = (rng.standard_normal(d, dtype=np.float32) for _ in range(2))
    ends = []
    for _ in range(n):
        noise = rng.standard_normal(d, dtype=np.float32)
        ends.append(model(x - np.float32(0.1) * (g + noise)))
    return model(x), ends


def aggregation(
    method: str, begin: ArrayRecord, ends: list[ArrayRecord]
) -> Callable[[], Any]:
    """One aggregation; its round is opened and its replies are made beforehand."""
    strategy, questions = opened(method, len(ends), begin)
    replies = [answered(q, a.copy()) for q, a in zip(questions, ends, strict=True)]
    return lambda: strategy.aggregate_train(1, replies)[0]


def timed(n: int, d: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every run of each method, in turns."""
    begin, ends = endpoints(n, d)
    rng = np.random.default_rng(0)
    methods = [m for m in METHODS if m != CORRECTED or n * d <= LARGEST_CORRECTED]
    times: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(rounds + 1):
        for k in rng.permutation(len(methods)):
            call = aggregation(methods[k], begin, ends)
            before = time.process_time()
            call()
            if turn > 0:  # the first warms up
                times[methods[k]].append(time.process_time() - before)
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
    parser.add_argument("--peak", nargs=3, metavar=("METHOD", "N", "D"))
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    if options.peak:
        method, n, d = options.peak
        print(peak(method, int(n), int(d)))
        return
    info = report.machine()
    rows: list[list[str]] = []
    saved: list[dict[str, Any]] = []
    for n, d in QUICK if options.quick else SHAPES:
        rounds = int(np.clip(3e8 / (n * d), 3, 15))
        times = {m: float(np.median(t)) for m, t in timed(n, d, rounds).items()}
        base = times[FEDAVG]
        shown = [seconds(base), *(ratio(times[m] / base) for m in times if m != FEDAVG)]
        rows.append([label(n, d), *shown])
        rows[-1] += ["-"] * (4 - len(rows[-1]))
        saved.append({"n": n, "d": d, "cpu": times, "rounds": rounds})
    print(report.describe(info) + "\n")
    print(table(["replies", FEDAVG, f"{HEW} / it", f"{CORRECTED} / it"], rows))
    met = [row for row in saved if row["cpu"][HEW] <= TARGET * row["cpu"][FEDAVG]]
    print(f"\nAt most {TARGET} times FedAvg, plain: {len(met)} of {len(saved)}.\n")
    memory: list[dict[str, Any]] = []
    for n, d in MEMORY[:1] if options.quick else MEMORY:
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
    content = {"machine": info, "times": saved, "memory": memory}
    report.save(options.json, content)


if __name__ == "__main__":
    main()
