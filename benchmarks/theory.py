"""The theory for many configurations at once against a loop over them.

    python benchmarks/theory.py [--quick] [--json FILE] [--markdown FILE]

The loop is what one writes first: the formulas on Python's floats, one configuration
after the other. Beside it, our own functions called for one configuration at a time.
One thread; medians of CPU seconds, all methods taking turns in fresh random order; both
sides return the same numbers, and how well they agree is part of the report.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from benchmarks import report
from benchmarks.report import Array, Outcome, power, ratio, seconds, table

from hewfl.theory import System, one_step, situation
from hewfl.theory.post_local import PostLocal, heterogeneous_coefficients

CLIENTS = 4
ALONE = 1000
"""Configurations for which our functions are called one by one."""
OURS, LOOP, SINGLE = "all at once", "loop on floats", "one call each"
Fields = dict[str, Array]


def random_fields(rng: np.random.Generator, count: int) -> Fields:
    """Systems, states and controls over a few decades."""
    shape = (count, CLIENTS)
    return {
        "L": 10 ** rng.uniform(-1, 1, count),
        "R": 10 ** rng.uniform(-1, 1, count),
        "U": 10 ** rng.uniform(-3, 0, count),
        "Q": 10 ** rng.uniform(-6, -2, count),
        "H": rng.integers(1, 9, shape).astype(np.float64),
        "v2": 10 ** rng.uniform(-3, 0, shape),
        "theta": 10 ** rng.uniform(-3, 0, shape),
        "w": rng.dirichlet(np.ones(CLIENTS), count),
        "step": 10 ** rng.uniform(-4, -1.3, count),
    }


# the certificate


def certificates(f: Fields) -> Array:
    system = System(f["L"], f["R"], f["H"], 1, f["v2"])
    at = situation(system, f["U"], f["Q"])
    return one_step((f["w"], f["theta"]), at).value


def certificates_by_loop(f: Fields) -> Array:
    rows = zip(*(f[k].tolist() for k in ("L", "R", "U", "Q")), strict=True)
    clients = [f[k].tolist() for k in ("w", "theta", "v2", "H")]
    values = []
    for (L, R, U, Q), *each in zip(rows, *clients, strict=True):
        cap = min(U, L * R * R / 2)
        J = cap
        for w, t, v2, H in zip(*each, strict=True):
            A, e, M = t / (2 * L * R * R), math.exp(2 * t), v2 / H
            s = A * cap * cap / (1 + A * cap)
            rho = 32 * e * t**3 * U + (16 * t + 64 * e * t**3) / L * Q
            rho += 8 * e * t**3 / L * M
            kappa = 16 * e * t**4 / L * U + 32 * e * t**4 / L**2 * Q
            kappa += (2 * t**2 + 4 * e * t**4) / L**2 * M
            J += L / 2 * w * w * kappa - w * (s - rho)
        values.append(J)
    return np.array(values)


# the recursion


def recursions(f: Fields, rounds: int) -> Array:
    """U_T of Algorithm 2; the whole trajectory of (U, Q) is computed and kept."""
    system = System(f["L"], f["R"], f["H"], 1, f["v2"])
    controls = PostLocal(f["step"], 2 * f["L"])
    uniform = np.full(CLIENTS, 1 / CLIENTS)
    k = heterogeneous_coefficients(system, controls, comparator=uniform)
    start = (np.minimum(f["U"], system.cap), f["Q"])
    return np.asarray(k.trajectory(start, rounds).gap[-1])


def recursions_by_loop(f: Fields, rounds: int) -> Array:
    n, values = CLIENTS, []
    numbers = zip(*(f[k].tolist() for k in ("L", "R", "U", "Q", "step")), strict=True)
    for (L, R, U, Q, t), v2, H in zip(numbers, f["v2"], f["H"], strict=True):
        M, h1, h2 = v2 / H, (H - 1) * (2 * H - 1) / (6 * H**2), (H - 1) / (2 * H)
        total, most, lam, cap = float(M.sum()), float(M.max()), 2 * L, L * R * R / 2
        A, beta = t / (2 * L * R * R), 192 * t**3 + 32 * lam / L * t**4
        gamma = 1 / (2 * (lam - L)) + 39 * t / L + 64 * lam / L**2 * t**4
        delta = 64 * t**3 / L * total / n + 16 * lam * t**2 / L**2 * total / n**2
        B = 24 * (1 + float(h1.max())) * L * t**2
        C = (48 * float(h1.max()) + 24 * (n + 1)) * t**2
        noise = 3 * most * (1 + 2 * float(h2.max()) * t**2) + 6 * t**2 * total
        u, q, path = min(U, cap), Q, []
        for _ in range(rounds):
            after = u / (1 + A * u) + beta * u + gamma * q + delta
            u, q = min(cap, after), noise + B * u + C * q
            path.append((u, q))
        values.append(path[-1][0])
    return np.array(values)


# the report


def alone(call: Callable[[Fields], Array], f: Fields) -> Array:
    """One call for each of a few configurations."""
    parts = [{k: v[i : i + 1] for k, v in f.items()} for i in range(ALONE)]
    return np.concatenate([call(part) for part in parts])


def compare(out: dict[str, Outcome], count: int) -> dict[str, Any]:
    """Times of all configurations, and how far the answers are apart."""
    ours, loop = out[OURS].result, out[LOOP].result
    assert ours is not None
    assert loop is not None
    apart = float(np.abs(ours / loop - 1).max())
    times = {name: o.cpu for name, o in out.items()}
    if SINGLE in times:
        times[SINGLE] *= count / ALONE
    return {"configurations": count, "cpu": times, "apart": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "theory.json")
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    info, rng = report.machine(), np.random.default_rng(0)
    many, few = 1_000_000 // CLIENTS // scale, 1000 // scale
    rounds = 10_000 // scale
    wide, narrow = random_fields(rng, many), random_fields(rng, few)
    results = {
        f"{many * CLIENTS:,} one-step coefficients": compare(
            report.interleave(
                {
                    OURS: lambda: certificates(wide),
                    LOOP: lambda: certificates_by_loop(wide),
                    SINGLE: lambda: alone(certificates, wide),
                },
                rng,
                rounds=5,
                budget=10.0,
            ),
            many,
        ),
        f"{rounds:,} rounds of (U, Q), {few:,} configurations": compare(
            report.interleave(
                {
                    OURS: lambda: recursions(narrow, rounds),
                    LOOP: lambda: recursions_by_loop(narrow, rounds),
                },
                rng,
                rounds=5,
                budget=10.0,
            ),
            few,
        ),
    }
    rows = []
    for task, values in results.items():
        cpu = values["cpu"]
        times = [seconds(cpu.get(name, math.nan)) for name in (OURS, LOOP, SINGLE)]
        gains = [ratio(cpu.get(name, math.nan) / cpu[OURS]) for name in (LOOP, SINGLE)]
        rows.append([task, *times, *gains, power(values["apart"])])
    heads = ["", OURS, LOOP, SINGLE, "loop / ours", "calls / ours", "apart"]
    note = f"Calls one by one: {ALONE:,} measured, scaled up. Apart: relative, at most."
    text = f"{report.describe(info)}\n\n{table(heads, rows)}\n\n{note}"
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    report.save(options.json, {"machine": info, "quick": options.quick} | results)


if __name__ == "__main__":
    main()
