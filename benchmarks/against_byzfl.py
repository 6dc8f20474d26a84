"""Rules and pre-aggregations against ByzFL's, on one thread.

    python benchmarks/against_byzfl.py [--quick] [--json FILE]

Needs byzfl (`pip install --no-deps byzfl`), NumPy arrays of float32 for both. Times are
medians of CPU seconds, both libraries taking turns in fresh random order. ByzFL's
geometric median stops after three steps by default, 2 % off; it agrees with ours, which
has converged, to 14 digits after 20 steps: both are measured. Its CAF takes one power
step for an eigenvector, ours is exact. MDA enumerates all subsets in ByzFL, which is
left out beyond 20 clients.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from benchmarks import report
from tests.aggregators.byzfl_library import load_byzfl

from hewfl import aggregators

SHAPES = [(20, 10**5), (100, 10**5), (50, 10**6)]
GRAM, COORDINATES = "products", "coordinates"
TARGETS = {GRAM: 5.0, COORDINATES: 1.0}
"""How many times faster ours is meant to be."""
CONVERGED = 20
"""Steps after which ByzFL's geometric median has the digits of ours."""
FEW = 20
"""Clients up to which ByzFL can enumerate subsets."""


def pairs(byzfl: Any, n: int, f: int) -> dict[str, tuple[str, Any, Any]]:
    """By name: the kind, our rule, and ByzFL's."""

    def after(first: Any, then: Any) -> Callable[[Any], Any]:
        return lambda rows: then(first(rows))

    given: dict[str, tuple[str, Any, Any]] = {
        "multi-krum": (GRAM, aggregators.MultiKrum(f=f), byzfl.MultiKrum(f)),
        "geometric-median": (
            GRAM,
            aggregators.GeometricMedian(),
            byzfl.GeometricMedian(T=CONVERGED),
        ),
        "geometric-median, 3 steps": (
            GRAM,
            aggregators.GeometricMedian(),
            byzfl.GeometricMedian(),
        ),
        "caf": (GRAM, aggregators.CAF(f=f), byzfl.CAF(f)),
        "mda": (GRAM, aggregators.MDA(f=f), byzfl.MDA(f)),
        "nnm+mean": (
            GRAM,
            aggregators.make("nnm+mean", f=f),
            after(byzfl.NNM(f), byzfl.Average()),
        ),
        "nnm+trimmed-mean": (
            GRAM,
            aggregators.make("nnm+trimmed-mean", f=f),
            after(byzfl.NNM(f), byzfl.TrMean(f)),
        ),
        "coordinate-median": (
            COORDINATES,
            aggregators.CoordinateMedian(),
            byzfl.Median(),
        ),
        "trimmed-mean": (
            COORDINATES,
            aggregators.TrimmedMean(f=f),
            byzfl.TrMean(f),
        ),
        "meamed": (COORDINATES, aggregators.Meamed(f=f), byzfl.Meamed(f)),
    }
    return {name: one for name, one in given.items() if name != "mda" or n <= FEW}


def updates(n: int, d: int, f: int) -> Any:
    """Honest clients around one direction, f of them replaced by colluders."""
    rng = np.random.default_rng([n, d])
    rows = rng.standard_normal((n, d), dtype=np.float32)
    rows += rng.standard_normal(d, dtype=np.float32)
    rows[:f] = -rows[f:].mean(axis=0) + 0.1 * rows[:f]
    return rows


def measure(byzfl: Any, n: int, d: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One row for each rule of a shape."""
    f = n // 5
    rows, rng = updates(n, d, f), np.random.default_rng(n)
    for name, (kind, ours, theirs) in pairs(byzfl, n, f).items():
        calls = {
            "hewfl": lambda rule=ours: rule(rows)[0].step,
            "byzfl": lambda rule=theirs: rule(rows),
        }
        both = report.interleave(calls, rng, rounds=rounds, budget=2.0)
        seconds = {library: outcome.cpu for library, outcome in both.items()}
        yield {
            "rule": name,
            "kind": kind,
            "n": n,
            "d": d,
            "f": f,
            **seconds,
            "ratio": seconds["byzfl"] / seconds["hewfl"],
            "rounds": both["hewfl"].rounds,
            "errors": [one.error for one in both.values() if one.error],
        }


def line(row: dict[str, Any]) -> str:
    """One result in words."""
    times = [report.seconds(row[library]) for library in ("hewfl", "byzfl")]
    missed = "" if row["ratio"] >= TARGETS[row["kind"]] else "  below the target"
    return (
        f"n={row['n']:4d} d={row['d']:.0e} {row['rule']:25s} hewfl {times[0]:>7s}  "
        f"byzfl {times[1]:>7s}  {report.ratio(row['ratio'])} times{missed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, not saved")
    parser.add_argument(
        "--json", type=Path, default=report.RESULTS / "against_byzfl.json"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    byzfl = load_byzfl()
    if byzfl is None:
        sys.exit("byzfl is not installed: pip install --no-deps byzfl")
    shapes = [(20, 10**3)] if options.quick else SHAPES
    rounds = 3 if options.quick else 9
    info = report.machine()
    results: list[dict[str, Any]] = []
    for n, d in shapes:
        for row in measure(byzfl, n, d, rounds):
            results.append(row)
            print(line(row), flush=True)
            if not options.quick:  # what is measured is kept
                report.save(options.json, {"machine": info, "results": results})
    headers = ["rule", "n", "d", "hewfl", "ByzFL", "times faster", "target"]
    cells = [
        [
            row["rule"],
            str(row["n"]),
            f"{row['d']:.0e}".replace("e+0", "e"),
            report.seconds(row["hewfl"]),
            report.seconds(row["byzfl"]),
            report.ratio(row["ratio"]),
            report.ratio(TARGETS[row["kind"]]),
        ]
        for row in results
    ]
    print(report.describe(info))
    print(report.table(headers, cells))


if __name__ == "__main__":
    main()
