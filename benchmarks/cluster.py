"""Seeds of an experiment on a Dask cluster of this machine: efficiency and overhead.

    python benchmarks/cluster.py [--workers 1 2 4] [--seeds 16] [--rounds 200]
                                 [--repeats 3] [--tasks 300] [--json FILE]

A scheduler and its workers are real processes on loopback, one cluster for each number
of workers, started before anything is measured. A turn runs the same spec on every
cluster and with `--jobs` on as many processes; turns are interleaved, and medians are
reported. Efficiency is the time on one worker over the total time of all workers. The
overhead of a task is measured with tasks that do nothing. All runs must leave the same
bytes.
"""

import argparse
import contextlib
import hashlib
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

from benchmarks import report

from hewfl.experiments.dask_executor import Cluster, cluster_at
from hewfl.experiments.executor import Executor, Progress, Task
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import Spec, spec_from_table

ROOT = Path(__file__).resolve().parents[1]
SPEC = """
name = "cluster-bench"
evaluate_every = 10
[problem]
solve_optimum = false
[clients]
n = 20
partition = "dirichlet"
alpha = 0.3
local_steps = { kind = "ChoiceSteps", choices = [1, 2, 4, 8] }
[[methods]]
method = "HewHom"
amplitude = 0.5
curvature_ratio = 1.5
[[methods]]
method = "HewHet"
amplitude = 0.5
[[methods]]
method = "FedAvg"
step_scale = 0.2
"""


def main() -> None:
    asked = _arguments()
    spec = _spec(asked.seeds, asked.rounds)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        os.environ["HEWFL_CACHE"] = str(place / "cache")
        clusters = {
            n: stack.enter_context(_cluster(n, place / f"cluster-{n}"))
            for n in asked.workers
        }
        times = _turns(spec, clusters, place, asked.repeats)
        overheads: dict[int, list[float]] = {n: [] for n in clusters}
        for _ in range(asked.repeats):
            for n, cluster in clusters.items():
                overheads[n].append(_overhead(cluster, asked.tasks))
    rows = _rows(times, overheads)
    print(_table(rows))
    if asked.json:
        setup = {"seeds": asked.seeds, "rounds": asked.rounds, "tasks": asked.tasks}
        content = {"machine": report.machine(), "setup": setup, "rows": rows}
        report.save(asked.json, content)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, default=16, help="tasks of a run")
    parser.add_argument("--rounds", type=int, default=200, help="of each seed")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--tasks", type=int, default=300, help="that do nothing")
    parser.add_argument("--json", type=Path, help="where results go")
    return parser.parse_args()


def _spec(seeds: int, rounds: int) -> Spec:
    given = tomllib.loads(SPEC) | {"seeds": list(range(seeds)), "rounds": rounds}
    return spec_from_table(given)


@contextlib.contextmanager
def _cluster(workers: int, place: Path) -> Iterator[Cluster]:
    """A scheduler with its workers, as processes; both end with the block."""
    place.mkdir()
    file = place / "scheduler.json"
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    begin = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0"]
    calls = [[*begin, "--host", "127.0.0.1", *common]]
    begin = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1"]
    for k in range(workers):
        local = ["--local-directory", str(place / str(k)), "--host", "127.0.0.1"]
        calls.append([*begin, *local, *common])
    with (place / "log").open("w") as log, contextlib.ExitStack() as stack:
        for call in calls:
            process = subprocess.Popen(call, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        while not file.exists():
            time.sleep(0.1)
        cluster = stack.enter_context(cluster_at(f"file:{file}"))
        cluster.client.wait_for_workers(workers, timeout=120)
        yield cluster


def _turns(
    spec: Spec, clusters: dict[int, Cluster], place: Path, repeats: int
) -> dict[str, dict[int, list[float]]]:
    """Seconds of the spec in each setting, turn by turn.

    Every worker has imported hewfl before. A pool starts its processes each time: that
    is part of the cost of `--jobs`.
    """
    times: dict[str, dict[int, list[float]]] = {"cluster": {}, "jobs": {}}
    digests = set()
    for n, cluster in clusters.items():
        warm = folder_for(_spec(4 * n, 20), place / f"warm-{n}")
        run_all([warm], jobs=n, progress=Progress(), cluster=cluster)
    for turn in range(repeats):
        for n, cluster in clusters.items():
            for kind, crew in (("cluster", cluster), ("jobs", None)):
                folder = folder_for(spec, place / f"{kind}-{n}-{turn}")
                began = time.perf_counter()
                run_all([folder], jobs=n, progress=Progress(), cluster=crew)
                seconds = time.perf_counter() - began
                times[kind].setdefault(n, []).append(seconds)
                digests.add(_digest(folder.path))
                print(f"turn {turn}: {kind} {n}: {seconds:.2f} s", flush=True)
    assert len(digests) == 1, "runs must leave the same bytes"
    return times


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != "times.json":
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _overhead(crew: Executor, tasks: int) -> float:
    """Milliseconds per empty task, of many that are submitted at once."""
    idle = [Task("idle", str(k), 1, operator.is_, (k,)) for k in range(tasks)]
    began = time.perf_counter()
    crew.execute(idle, lambda *_: None, lambda _: None)
    return 1e3 * (time.perf_counter() - began) / tasks


def _rows(
    times: dict[str, dict[int, list[float]]], overheads: dict[int, list[float]]
) -> list[dict[str, Any]]:
    """One row for each number of workers: seconds, efficiency, overhead."""
    medians = {
        kind: {n: statistics.median(all_) for n, all_ in by_number.items()}
        for kind, by_number in times.items()
    }
    first = min(medians["cluster"])
    rows = []
    for n, seconds in medians["cluster"].items():
        row: dict[str, Any] = {"workers": n, "overhead_ms": overheads[n]}
        for kind in times:
            alone = first * medians[kind][first]
            row[kind] = {
                "seconds": times[kind][n],
                "efficiency": alone / (n * medians[kind][n]),
            }
        row["cluster_over_jobs"] = seconds / medians["jobs"][n]
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]]) -> str:
    def cells(row: dict[str, Any]) -> list[str]:
        texts = [str(row["workers"])]
        for kind in ("cluster", "jobs"):
            texts.append(f"{statistics.median(row[kind]['seconds']):.2f}")
            texts.append(f"{row[kind]['efficiency']:.2f}")
        texts.append(f"{row['cluster_over_jobs']:.2f}")
        return [*texts, f"{statistics.median(row['overhead_ms']):.1f}"]

    heads = ("workers", "cluster s", "efficiency", "--jobs s", "efficiency", "ratio")
    return report.table((*heads, "ms of an empty task"), [cells(row) for row in rows])


if __name__ == "__main__":
    main()
