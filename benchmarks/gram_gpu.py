"""Gram matrix, slope and weighted sum of a thin matrix on one GPU, against its memory.

    python benchmarks/gram_gpu.py [--quick] [--grid sums|products] [--json FILE]

n displacements of d numbers lie on the device. The kernels of
hewfl.displacements.gpu read them once, in float64. The peer is cuBLAS in the precision
of the data: the product alone, without origin or slope. The measure is the
bandwidth of a plain read of the same data, `X.sum()`, or of `X.mean(dim=0)` where that
is faster. Times are medians by device
events, the cache flushed in between. Errors are relative to the lengths of the vectors,
against float64 on the device. With --grid other settings of a kernel are timed as well:
the constants in hewfl.displacements.gpu are the best of them.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import power, seconds, table

from hewfl import combine, post_local_weights
from hewfl.displacements import gpu
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import vector_products, weight_problem

SHAPES = ((4, 10**7), (8, 10**7), (20, 10**6), (20, 10**7), (32, 10**7), (60, 10**7))
GRIDS: dict[str, list[tuple[int, ...]]] = {
    "products": list(itertools.product((1, 2, 4), (4, 8, 16), (1, 2, 3))),
    "sums": list(itertools.product((1, 2, 4, 8), (128, 256, 512))),
}
CACHE = 2**28
"""Bytes written between two measurements: several times the cache of the device."""


def tried(call: Callable[[], float]) -> float:
    """What the call returns; infinite where it fails, with the reason printed."""
    try:
        return call()
    except Exception as failure:  # a kernel that does not compile is a result
        print(f"failed: {type(failure).__name__}: {failure}"[:2000], flush=True)
        return float("inf")


def timed(call: Callable[[], Any], budget: float = 0.1) -> float:
    """Median seconds of as many calls as take the budget; infinite where one fails."""

    def median() -> float:
        _taken(call, 3)
        once = max(_taken(call, 1)[0], 1e-5)
        return statistics.median(_taken(call, min(200, max(10, int(budget / once)))))

    return tried(median)


def _taken(call: Callable[[], Any], times: int) -> list[float]:
    """Seconds on the device; it is not waited for in between, so that its queue is
    full and the host's own time does not count."""
    cache = torch.empty(CACHE, dtype=torch.int8, device="cuda")
    events = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        start.record()
        call()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]


def error_of(K: Any, exact: Any) -> float:
    K, exact = np.asarray(K, dtype=np.float64), np.asarray(exact)
    size = np.sqrt(np.maximum(np.diagonal(exact), 1e-300))
    return float(np.abs((K - exact) / np.outer(size, size))[size > 1e-100].max())


def kernel_gram(X: torch.Tensor) -> Any:
    products = gpu.vector_products(X, None, 0)
    assert products is not None
    return products.gram


def measure(n: int, d: int, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Times and errors of all methods on one shape."""
    torch.manual_seed(0)
    X = (torch.randn(n, d, device="cuda") + torch.randn(d, device="cuda")).to(dtype)
    w = np.random.default_rng(0).random((3, n))
    on_device = torch.tensor(w, device="cuda").to(dtype)
    g = X[0].float() if dtype != torch.float32 else X[0].double()
    twin = vector_products(as_dense("rows", X), 0)
    plain = weight_problem(twin, n, 1.0).uncentred_gram()
    torch.backends.cuda.matmul.allow_tf32 = False
    rest = (slice(1, None),) * 2  # the origin's own row is zero
    results: dict[str, dict[str, float]] = {
        "read: X.sum()": {"time": timed(lambda: X.sum(dtype=torch.float32))},
        "read: X.mean(dim=0)": {"time": timed(lambda: X.mean(dim=0))},
        "Gram + slope, hewfl": {
            "time": timed(lambda: gpu.block_sums(X, None, 0).sum(dim=0)),
            "error": tried(lambda: error_of(kernel_gram(X)[rest], twin.gram[rest])),
        },
        "Gram + slope, to the host": {"time": timed(lambda: kernel_gram(X))},
        "Gram, reference of another precision": {
            "time": timed(lambda: gpu.vector_products(X, g, 0))
        },
        "Gram, cuBLAS": {
            "time": timed(lambda: X @ X.T),
            "error": error_of((X @ X.T).double().cpu(), plain),
        },
        "Gram, portable twin": {
            "time": timed(lambda: vector_products(as_dense("rows", X), 0))
        },
        "sum, hewfl": {"time": timed(lambda: gpu.weighted_sum(X, w[0]))},
        "sum, cuBLAS": {"time": timed(lambda: on_device[0] @ X)},
        "3 sums, hewfl": {"time": timed(lambda: gpu.weighted_sum(X, w))},
        "3 sums, cuBLAS": {"time": timed(lambda: on_device @ X)},
        "post_local_weights": {"time": timed(lambda: post_local_weights(X, X[0], 1.0))},
        "combine": {"time": timed(lambda: combine(X, w[0]))},
    }
    read = min(results[k]["time"] for k in ("read: X.sum()", "read: X.mean(dim=0)"))
    for one in results.values():
        one["GB/s"] = X.nbytes / one["time"] / 1e9
        one["share"] = read / one["time"]
    return results


def tuned(n: int, dtype: torch.dtype, grid: str) -> list[dict[str, Any]]:
    """One kernel with all its settings on 10⁷ columns, the fastest first."""
    X, w = torch.randn(n, 10**7, device="cuda").to(dtype), np.ones(n)

    def call(setting: Any) -> Any:
        if grid == "sums":
            return gpu.weighted_sum(X, w, setting)
        return gpu.block_sums(X, None, 0, setting).sum(dim=0)

    def outcome(setting: tuple[int, ...]) -> dict[str, Any]:
        return {"setting": setting, "time": timed(lambda: call(setting), budget=0.02)}

    return sorted(map(outcome, GRIDS[grid]), key=lambda one: one["time"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one shape")
    parser.add_argument("--grid", choices=GRIDS, help="other settings of a kernel")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "gram_gpu.json")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    info = report.machine() | {
        "device": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
    }
    saved: dict[str, Any] = {"machine": info, "tuning": {}}
    floats = (torch.float32, torch.bfloat16, torch.float64)
    for dtype, n in itertools.product(floats, (8, 20, 60) if options.grid else ()):
        best = saved["tuning"][f"{n} {str(dtype)[6:]}"] = tuned(n, dtype, options.grid)
        shown = [f"{one['setting']} {seconds(one['time'])}" for one in best]
        print(f"n = {n}, {dtype}, {options.grid}: {'; '.join(shown)}", flush=True)
    rows = []
    shapes = SHAPES[3:4] if options.quick else SHAPES
    for dtype, (n, d) in itertools.product(floats, shapes):
        name = f"{n} x {d:.0e} {str(dtype)[6:]}".replace("e+0", "e")
        saved[name] = measure(n, d, dtype)
        for what, one in saved[name].items():
            numbers = [
                seconds(one["time"]),
                f"{one['GB/s']:.0f}",
                f"{one['share']:.2f}",
            ]
            rows.append([f"{name}: {what}", *numbers, power(one.get("error", np.nan))])
    heads = ["", "time", "GB/s", "share of read", "error"]
    head = f"{info['device']}, torch {torch.__version__}.\n"
    text = "\n".join([head, table(heads, rows)])
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    report.save(options.json, saved)


if __name__ == "__main__":
    main()
