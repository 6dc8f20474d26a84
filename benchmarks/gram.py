"""Gram matrices against the speed of matrix products, and weights from sketches.

    python benchmarks/gram.py [--quick] [--rounds 15] [--json FILE]

One thread; medians of CPU seconds, all calls of a shape taking turns in fresh random
order. The limit is n(n + 1)d/2 multiply-adds in float64 at the speed of NumPy's product
of matrices of 1,024 rows, measured in the same turns. NumPy takes AVX-512 where the
processor has it; HEWFL_NATIVE=avx2 OPENBLAS_CORETYPE=Haswell measures both without.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from benchmarks import report

from hewfl import post_local_weights
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import round_products

SHAPES = [(20, 10**5), (20, 10**6), (50, 10**5), (100, 10**5), (300, 10**5)]
SQUARE = 1024


def measure(n: int, d: int, dtype: Any, rounds: int) -> dict[str, Any]:
    """Times of one shape, in seconds, and the gap that sketches leave."""
    rng = np.random.default_rng([n, d])
    X = rng.standard_normal((n, d)).astype(dtype)
    A, g, w = rng.standard_normal((SQUARE, SQUARE)), X.mean(axis=0), X[:, 0]
    data = as_dense("displacements", X)
    outcomes = report.interleave(
        {
            "product": lambda: A @ A,
            "gram": lambda: round_products(data, g, 1.0).gram,
            "average": lambda: w @ X,
            "exact": lambda: post_local_weights(X, g, 1.0).weights,
            "sketch": lambda: post_local_weights(X, g, 1.0, gram="sketch").weights,
        },
        rng,
        rounds=rounds,
        budget=rounds / 15,  # seconds of each call at most
    )
    times = {name: outcome.cpu for name, outcome in outcomes.items()}
    limit = times.pop("product") * n * (n + 1) / 2 * d / SQUARE**3
    sketched = post_local_weights(X, g, 1.0, gram="sketch")
    gap = float(sketched.gap) / abs(float(post_local_weights(X, g, 1.0).value))
    shape = {"n": n, "d": d, "dtype": np.dtype(dtype).name}
    return {**shape, "limit": limit, **times, "relative gap of sketches": gap}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, not saved")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=report.RESULTS / "gram.json")
    options = parser.parse_args()
    shapes = [(20, 10**4)] if options.quick else SHAPES
    info, results, cells = report.machine(), [], []
    info["HEWFL_NATIVE"] = os.environ.get("HEWFL_NATIVE", "")
    for n, d in shapes:
        for dtype in (np.float32, np.float64):
            row = measure(n, d, dtype, options.rounds)
            results.append(row)
            names = ("limit", "gram", "average", "exact", "sketch")
            times = [report.seconds(row[name]) for name in names]
            ratios = [row["gram"] / row["limit"]]
            ratios += [row[name] / row["average"] for name in ("exact", "sketch")]
            gap = f"{row['relative gap of sketches']:.0%}"
            shape = [f"{n} × {d:.0e} {row['dtype']}".replace("e+0", "e")]
            cells.append([*shape, *times, *map(report.ratio, ratios), gap])
            if not options.quick:
                report.save(options.json, {"machine": info, "results": results})
    headers = ["n × d", "limit", "Gram", "average", "exact", "sketch", "Gram / limit"]
    headers += ["exact / average", "sketch / average", "gap of sketches"]
    print(report.describe(info))
    print(report.table(headers, cells))


if __name__ == "__main__":
    main()
