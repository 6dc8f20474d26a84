"""A round with exact weights against averaging by all-reduce, on gloo over loopback.

    python benchmarks/allreduce.py [--quick] [--json FILE] [--markdown FILE]
        [--ranks 2 3 4] [--sizes 1e5 1e6] [--repeats 9] [--device cpu|cuda]

The peer is what `torch.distributed.algorithms.model_averaging` does: flatten, divide,
`dist.all_reduce`, unflatten. Ours are rounds of `HewLocalSGD`. All methods of a size
take turns in one run, in fresh random order; a round is timed on rank 0 from one
barrier to the next. Bytes are those that the loopback interface counted in that time,
headers and all, beside those that hewfl counts itself. Memory is what a round adds to
the resident set at its peak. On a GPU (NCCL, one rank: what a round costs beside its
collectives) it is not looked at.
"""

import argparse
import ctypes
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from benchmarks import report
from benchmarks.report import ratio, seconds, table
from torch import multiprocessing
from torch.distributed.algorithms.model_averaging import utils

from hewfl import ExactWeights, LocalSGD, Method
from hewfl.torch import HewLocalSGD, SyncOptions
from hewfl.torch.collectives import ring_bytes
from hewfl.torch.exchange import WHOLE_BYTES
from hewfl.torch.job import DEFAULT

PEER = "all-reduce average"
EXACT = ExactWeights(kappa=1.0, normalize="length", cross_fit=False)
VARIATE = Method(LocalSGD(1.0, variates="gradient"), ExactWeights("variate", kappa=1.0))
PARTS = (0.5, 0.25, 0.125, 0.0625, 0.0625)
"""Shares of the parameters in the tensors of the model."""
LARGE = 10**7
Sample = dict[str, float]


def parameters(d: int, device: str) -> list[torch.nn.Parameter]:
    sizes = [int(share * d) for share in PARTS[:-1]]
    sizes.append(d - sum(sizes))
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size).to(device)) for size in sizes]


@final
@dataclass(frozen=True)
class Timed:
    """A step away from the common model, and the round that is timed."""

    away: Callable[[], Any]
    round: Callable[[], int]


def methods(d: int, device: str) -> dict[str, Timed]:
    """Each with parameters and a group of its own, as in a job that has one.

    Few of the largest, for memory's sake.
    """
    plain = parameters(d, device)

    def ours(aggregator: Any, **options: Any) -> Timed:
        return local_method(parameters(d, device), aggregator, **options)

    made = {
        PEER: Timed(lambda: move(plain), lambda: average(plain)),
        "hewfl, default": ours(DEFAULT),
    }
    if d <= WHOLE_BYTES // 4:  # two buckets are not sent whole
        made["hewfl, default by sums"] = ours(DEFAULT, bucket_bytes=2 * d)
    if d <= LARGE:
        made["hewfl, exact"] = ours(EXACT)
        made["hewfl, mean"] = ours("mean")
        made["hewfl, bfloat16"] = ours(DEFAULT, compression="bfloat16")
        made["hewfl, exact, full"] = ours(EXACT, gram="full")
        made["hewfl, exact-variate"] = ours(VARIATE)
    return made


def move(params: list[torch.nn.Parameter]) -> None:
    """Every rank to a place of its own."""
    with torch.no_grad():
        for k, p in enumerate(params):
            p.mul_(1 + 1e-2 * np.sin(1 + dist.get_rank() + 3 * k))


def average(params: list[torch.nn.Parameter]) -> int:
    utils.average_parameters(iter(params), dist.group.WORLD)
    return ring_bytes(sum(p.nbytes for p in params), dist.get_world_size())


def local_method(
    params: list[torch.nn.Parameter], aggregator: Any, **options: Any
) -> Timed:
    optimizer = torch.optim.SGD(params, lr=0.1)
    for p in params:
        p.grad = torch.zeros_like(p)
    module = torch.nn.ParameterList(params)
    chosen = SyncOptions(**options)
    group = dist.new_group()
    local = HewLocalSGD(module, optimizer, 10**9, aggregator, group, chosen)
    local.__enter__()

    def away() -> None:
        optimizer.step()
        move(params)

    def call() -> int:
        report = local.sync()
        assert report is not None
        return report.bytes_sent

    return Timed(away, call)


def traffic() -> int:
    """Bytes sent over loopback by all processes of the machine so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[9])
    return 0


def memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def sample(method: Timed) -> Sample:
    """One round."""
    method.away()
    dist.barrier()
    passed = traffic()
    cpu, wall = time.process_time(), time.perf_counter()
    counted = method.round()
    cpu = time.process_time() - cpu
    dist.barrier()
    on_gpu = dist.get_backend() == "nccl"
    if on_gpu:
        torch.cuda.synchronize()
    wall, passed = time.perf_counter() - wall, traffic() - passed
    place = "cuda" if on_gpu else "cpu"
    total = torch.tensor([cpu], dtype=torch.float64, device=place)
    dist.all_reduce(total)
    return {
        "wall": wall,
        "cpu": float(total),
        "loopback": passed,
        "counted": counted,
    }


def peak(method: Timed) -> int:
    """Bytes that a round adds to the resident set; not timed, zero if unknown."""
    method.away()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory back, so that it counts again
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    except OSError:  # not every kernel can
        method.round()
        return 0
    resting = memory("VmRSS")
    method.round()
    return memory("VmHWM") - resting


def rank_main(
    rank: int,
    ranks: int,
    asked: tuple[list[int], int],
    device: str,
    port: int,
    out: str,
) -> None:
    torch.set_num_threads(1)
    sizes, repeats = asked
    store = f"tcp://127.0.0.1:{port}"  # what torchrun gives
    backend = "gloo" if device == "cpu" else "nccl"
    if device != "cpu":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    rng = np.random.default_rng(0)
    results: dict[int, dict[str, Sample]] = {}
    for d in sizes:
        calls = methods(d, device)
        samples: dict[str, list[Sample]] = {name: [] for name in calls}
        for turn in range(1 + (repeats if d <= LARGE else repeats // 2)):
            for k in rng.permutation(len(calls)):
                name = list(calls)[k]
                one = sample(calls[name])
                if turn > 0:  # the first also makes connections and fills caches
                    samples[name].append(one)
        results[d] = {
            name: medians(several) | {"peak": peak(calls[name])}
            for name, several in samples.items()
        }
    if rank == 0:
        report.save(Path(out, "results.json"), {str(d): f for d, f in results.items()})
    dist.destroy_process_group()


def medians(samples: list[Sample]) -> Sample:
    keys = samples[0]
    return {key: statistics.median(one[key] for one in samples) for key in keys}


def measure(ranks: int, sizes: list[int], repeats: int, device: str) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as out:
        given = ranks, (sizes, repeats), device, port, out
        multiprocessing.spawn(rank_main, given, nprocs=ranks, join=True)
        results: dict[str, Any] = json.loads(Path(out, "results.json").read_text())
    return results


def rows_of(ranks: int, d: int, results: dict[str, Sample]) -> list[list[str]]:
    peer, model = results[PEER], 4 * d
    rows = []
    for name, one in results.items():
        rows.append(
            [
                f"{d:.0e}, {ranks} ranks: {name}".replace("e+0", "e"),
                seconds(one["wall"]),
                ratio(one["wall"] / peer["wall"]),
                ratio(one["cpu"] / peer["cpu"]),
                f"{one['loopback'] / max(peer['loopback'], 1):.3f}",
                f"{one['counted'] / max(ring_bytes(model, ranks), 1):.4f}",
                ratio(max(one["peak"], 0) / model),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "allreduce.json")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--sizes", type=float, nargs="+", help="numbers of parameters")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    sizes = [10**5, 10**6, 10**7] + ([] if options.quick else [10**8])
    sizes = [int(d) for d in options.sizes or sizes]
    repeats = options.repeats or (3 if options.quick else 9)
    info = report.machine()
    results = {n: measure(n, sizes, repeats, options.device) for n in options.ranks}
    heads = ["parameters", "wall", "wall ratio", "CPU ratio", "bytes ratio"]
    rows = [
        row
        for n, by_size in results.items()
        for d, one in by_size.items()
        for row in rows_of(n, int(d), one)
    ]
    text = "\n".join(
        [
            report.describe(info) + "\n",
            table([*heads, "counted / ring", "peak / model"], rows),
        ]
    )
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    report.save(options.json, {"ranks": results, "machine": info})


if __name__ == "__main__":
    main()
