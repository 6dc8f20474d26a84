"""Gram matrix, slope and combination of a thin matrix on one GPU, against its memory.

    python benchmarks/gram_gpu.py [--quick] [--json FILE] [--markdown FILE]

n displacements of d numbers lie on the device. The kernels of hewfl.torch read them
once: that in CUDA C on the float64 matrix units, and the one in Triton on those of
bfloat16, for other GPUs. cuBLAS does the product alone, without origin or slope. The
measure is the
bandwidth of a plain read of the same data, `X.sum()`, or of `X.mean(dim=0)` where that
is faster. Times are medians by device events, the cache flushed in between. Errors are
relative to the lengths of the vectors, against float64 on the device. A grid of tile
shapes is timed as well: the constants in both modules are the best of it.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, no_type_check

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import power, seconds, table

from hewfl.aggregate.gpu import cuda_gram, triton_gram
from hewfl.aggregate.gram import vector_products
from hewfl.aggregate.rows import as_rows
from hewfl.core.displacements import RoundProducts

try:
    import triton
    import triton.language as tl
    from triton.testing import do_bench
except ImportError:
    triton = tl = do_bench = None

SHAPES = ((4, 10**7), (8, 10**7), (20, 10**6), (20, 10**7), (60, 10**7))
GRID = {
    "block": (32, 64, 128, 256),
    "warps": (1, 2, 4),
    "stages": (3, 1),
    "waves": (8, 16, 32),
}


if triton is not None:

    @triton.jit
    @no_type_check
    def _tf32x3_kernel(  # noqa: PLR0917 - kernels take pointers and sizes
        rows, out, n, s, stride, chunk, TILE: tl.constexpr, BLOCK: tl.constexpr
    ):
        """What one writes first: the product alone, by Triton's own float32 mode."""
        program = tl.program_id(0)
        i = tl.arange(0, TILE)
        starts = rows + i.to(tl.int64) * stride
        total = tl.zeros((TILE, TILE), tl.float32)
        first = program * chunk
        last = tl.minimum(first + chunk, s)
        for lo in range(first, last, BLOCK):
            k = lo + tl.arange(0, BLOCK)
            held = (i[:, None] < n) & (k[None, :] < last)
            x = tl.load(starts[:, None] + k[None, :], mask=held, other=0.0)
            total = tl.dot(x, tl.trans(x), total, input_precision="tf32x3")
        place = i[:, None] * TILE + i[None, :]
        tl.store(out + program * TILE * TILE + place, total)


def portable(X: Any, reference: Any, origin: int) -> RoundProducts:
    """The plain twin, in float64 throughout."""
    vectors = X if reference is None else [*X, reference]
    return vector_products(as_rows("vectors", vectors), origin)


def tf32x3(rows: torch.Tensor) -> Any:
    n, s = rows.shape
    tile, block = max(16, triton.next_power_of_2(n)), 64
    chunk = triton.cdiv(triton.cdiv(s, block), 132 * 16) * block
    programs = triton.cdiv(s, chunk)
    out = torch.empty((programs, tile, tile), device=rows.device)
    given = (rows, out, n, s, rows.stride(0), chunk)
    _tf32x3_kernel[(programs,)](*given, TILE=tile, BLOCK=block, num_warps=2)
    return out.sum(dim=0, dtype=torch.float64)[:n, :n]


def tried(call: Callable[[], float]) -> float:
    """What the call returns; infinite where it fails, with the reason printed."""
    try:
        return call()
    except Exception as failure:  # a kernel that does not compile is a result
        print(f"failed: {type(failure).__name__}: {failure}"[:2000], flush=True)
        return float("inf")


def timed(call: Callable[[], Any]) -> float:
    """Median seconds."""
    given = {"warmup": 20, "rep": 100, "return_mode": "median"}
    return tried(lambda: float(do_bench(call, **given)) / 1e3)


def error_of(K: Any, exact: Any) -> float:
    K, exact = np.asarray(K, dtype=np.float64), np.asarray(exact)
    size = np.sqrt(np.maximum(np.diagonal(exact), 1e-300))
    return float(np.abs((K - exact) / np.outer(size, size))[size > 1e-100].max())


def measured(n: int, d: int, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Times and errors of all methods on one shape."""
    torch.manual_seed(0)
    X = (torch.randn(n, d, device="cuda") + torch.randn(d, device="cuda")).to(dtype)
    w = np.random.default_rng(0).random(n)
    on_device = torch.tensor(w, device="cuda").to(dtype)
    twin = vector_products(as_rows("rows", X), 0).gram
    plain = (
        sum(
            X[:, k : k + 2**20].double() @ X[:, k : k + 2**20].double().T
            for k in range(0, d, 2**20)
        )
        .cpu()
        .numpy()
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    rest = slice(1, None)  # the origin's own row is zero
    found: dict[str, dict[str, float]] = {
        "read: X.sum()": {"time": timed(lambda: X.sum(dtype=torch.float32))},
        "read: X.mean(dim=0)": {"time": timed(lambda: X.mean(dim=0))},
        "Gram + slope, hewfl": {
            "time": timed(lambda: cuda_gram.block_sums(X, None, 0).sum(dim=0)),
            "error": tried(
                lambda: error_of(
                    cuda_gram.gram(X, None, 0).gram[rest, rest], twin[rest, rest]
                )
            ),
        },
        "Gram + slope, Triton": {
            "time": timed(lambda: triton_gram.program_sums(X, None, 0).sum(dim=0)),
            "error": tried(
                lambda: error_of(
                    triton_gram.gram(X, None, 0).gram[rest, rest], twin[rest, rest]
                )
            ),
        },
        "Gram + slope, to the host": {
            "time": timed(lambda: cuda_gram.gram(X, None, 0))
        },
        "Gram, cuBLAS": {
            "time": timed(lambda: X @ X.T),
            "error": error_of((X @ X.T).double().cpu(), plain),
        },
        "Gram, portable twin": {
            "time": timed(lambda: vector_products(as_rows("rows", X), 0))
        },
        "combine, hewfl": {"time": timed(lambda: triton_gram.combine(X, w))},
        "combine, cuBLAS": {"time": timed(lambda: on_device @ X)},
    }
    if dtype == torch.float32:
        found["Gram, Triton tf32x3"] = {
            "time": timed(lambda: tf32x3(X)),
            "error": tried(lambda: error_of(tf32x3(X).cpu(), plain)),
        }
    read = min(found[k]["time"] for k in ("read: X.sum()", "read: X.mean(dim=0)"))
    for one in found.values():
        one["GB/s"] = X.nbytes / one["time"] / 1e9
        one["share"] = read / one["time"]
    return found


def tuned_cuda(n: int, d: int) -> list[dict[str, Any]]:
    """The same for the kernel in CUDA C."""
    X = torch.randn(n, d, device="cuda")
    outcomes = []
    for loads, warps, resident in itertools.product((1, 2, 4), (4, 8, 16), (1, 2, 3)):
        shape = (loads, warps, resident)
        time = timed(_blocks(X, shape))
        outcomes.append({"loads, warps, resident": shape, "time": time})
    return sorted(outcomes, key=lambda one: one["time"])


def _blocks(X: torch.Tensor, shape: tuple[int, int, int]) -> Callable[[], Any]:
    return lambda: cuda_gram.block_sums(X, None, 0, shape).sum(dim=0)


def tuned(n: int, d: int, *, quick: bool) -> list[dict[str, Any]]:
    """All tile shapes on one matrix, the fastest first."""
    X = torch.randn(n, d, device="cuda")
    grid = {key: values[1:3] if quick else values for key, values in GRID.items()}
    outcomes = []
    for values in itertools.product(*grid.values()):
        given = dict(zip(grid, values, strict=True))
        call = _sums(X, given)
        outcomes.append({**given, "time": timed(call)})
    return sorted(outcomes, key=lambda one: one["time"])


def _sums(X: torch.Tensor, given: dict[str, int]) -> Callable[[], Any]:
    return lambda: triton_gram.program_sums(X, None, 0, **given).sum(dim=0)


def checks(kernels: Any) -> float:
    """The largest error over odd shapes, with and without a reference."""
    worst = 0.0
    for n, s, corrected in itertools.product(
        (1, 2, 15, 16, 33, 62), (1, 77, 4097, 300_000), (False, True)
    ):
        torch.manual_seed(n * s)
        X = torch.randn(n, s, device="cuda")
        c = torch.randn(s, device="cuda") if corrected else None
        K, exact = kernels.gram(X, c, n // 2), portable(X, c, n // 2)
        for a, b in ((K.gram, exact.gram), (K.linear, exact.linear)):
            scale = max(float(np.abs(exact.gram).max()), exact.offset)
            worst = max(worst, float(np.abs(a - b).max()) / scale)
    return worst


def _checked(kernels: Any) -> Callable[[], float]:
    return lambda: checks(kernels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "gram_gpu.json")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if triton is None or not torch.cuda.is_available():
        sys.exit("needs a CUDA device and Triton")
    info = report.machine() | {
        "device": torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
    saved: dict[str, Any] = {"machine": info, "tuning": {}, "tuning, CUDA": {}}
    for name, kernels in (("CUDA", cuda_gram), ("Triton", triton_gram)):
        worst = tried(_checked(kernels))
        saved[f"worst error, {name}"] = worst
        print(f"worst error over odd shapes, {name}: {worst:.1e}", flush=True)
    for n in (20,) if options.quick else (8, 20, 60):
        best = tuned(n, 10**7, quick=options.quick or n != 20)
        saved["tuning"][str(n)] = best
        saved["tuning, CUDA"][str(n)] = tuned_cuda(n, 10**7)
        for one in best[:6]:
            print(f"n = {n}: {one}", flush=True)
    rows = []
    shapes = SHAPES[3:4] if options.quick else SHAPES
    for dtype, (n, d) in itertools.product((torch.float32, torch.bfloat16), shapes):
        name = f"{n} x {d:.0e} {str(dtype)[6:]}".replace("e+0", "e")
        saved[name] = measured(n, d, dtype)
        for what, one in saved[name].items():
            numbers = [
                seconds(one["time"]),
                f"{one['GB/s']:.0f}",
                f"{one['share']:.2f}",
            ]
            rows.append([f"{name}: {what}", *numbers, power(one.get("error", np.nan))])
    heads = ["", "time", "GB/s", "share of read", "error"]
    head = (
        f"{info['device']}, torch {torch.__version__}, Triton {triton.__version__}.\n"
    )
    text = "\n".join([head, table(heads, rows)])
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    report.save(options.json, saved)


if __name__ == "__main__":
    main()
