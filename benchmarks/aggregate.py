"""Exact weights and their step against a plain weighted average, on one thread.

    python benchmarks/aggregate.py [--quick] [--warm] [--routes] [--json FILE]
                                   [--markdown FILE]

A plain average reads every displacement once: `w @ D` at the speed of the memory. Ours
reads them for the Gram matrix, solves, and reads them again for the step. Times are
medians of CPU seconds, all methods of one shape taking turns in fresh random order.
Small rounds are held in many copies used in turn, because displacements that have just
arrived are not in the cache (`--warm`: one copy).
"""

import argparse
import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from benchmarks import report
from benchmarks.report import Outcome, power, ratio, seconds, table
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import hewfl
from hewfl.core import native
from hewfl.displacements import gram
from hewfl.displacements.dense import as_dense

CHUNK = 1 << 15
CACHE = 3 << 27  # bytes; more than any cache of the processors in use
BEST, LOOP = "average: w @ D", "average: loop s = s + w*x"
ROUTES = [
    *((n, 10**5) for n in (2, 5, 10, 20, 50, 100, 150, 300)),
    *((10, 10**6), (50, 10**6), (20, 10**3), (100, 10**3), (300, 10**2), (1000, 10**2)),
]
ARRAY, LIST = "hewfl, array", "hewfl, list of vectors"

Array = NDArray[np.floating[Any]]
Single = NDArray[np.float32]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Displacements of one round; `data` is what the methods get, `exact` the judge."""

    label: str
    data: Any  # (n, d), float32 array or bfloat16 tensor
    exact: Single
    reference: Any
    curvature: float


def make_round(n: int, d: int, *, half: bool = False) -> Round:
    """Unequal multiples of a common descent direction plus what differs."""
    rng = np.random.default_rng([n, d])
    g = rng.standard_normal(d, dtype=np.float32)
    D = rng.standard_normal((n, d), dtype=np.float32)
    lengths = rng.uniform(0.2, 2.0, n).astype(np.float32)
    D -= g
    D *= lengths[:, None]
    label = f"n={n} d={d:.0e}".replace("e+0", "e")
    if not half:
        return Round(label, D, D, g, 1.0)
    tensor = torch.from_numpy(D).to(torch.bfloat16)
    exact = tensor.to(torch.float32).numpy()
    return Round(f"{label} bf16", tensor, exact, torch.from_numpy(g), 1.0)


# ------------------------------------------------------------------------- the methods


def loop(clients: list[Any], weights: list[float]) -> Any:
    """How frameworks average: one client after the other."""
    total = clients[0] * weights[0]
    for client, weight in zip(clients[1:], weights[1:], strict=True):
        total = total + client * weight
    return total


def ours(displacements: Any, r: Round) -> Any:
    solution = hewfl.post_local_weights(displacements, r.reference, r.curvature)
    return hewfl.combine(displacements, solution.weights)


def ours_numpy(displacements: Any, r: Round) -> Any:
    with native.disabled():
        return ours(displacements, r)


def weigh(r: Round) -> Any:
    return hewfl.post_local_weights(r.data, r.reference, r.curvature).weights


def weigh_numpy(r: Round) -> Any:
    with native.disabled():
        return weigh(r)


def methods(r: Round, weights: Any) -> dict[str, Callable[[], Any]]:
    """Everything that is timed, on one round."""
    n = len(r.data)
    clients = list(r.data)
    even = [1 / n] * n
    stack: Callable[..., Any] = np.stack
    if isinstance(r.data, torch.Tensor):
        w = torch.full((n,), 1 / n, dtype=r.data.dtype)
        stack = torch.stack
    else:
        w = np.full(n, 1 / n, np.float32)
        even = list(w)  # NumPy scalars keep the loop in float32
    calls: dict[str, Callable[[], Any]] = {
        BEST: lambda: w @ r.data,
        "average: D.mean(0)": lambda: r.data.mean(0),
        LOOP: partial(loop, clients, even),
        "average: stack(list).mean(0)": lambda: stack(clients).mean(0),
        ARRAY: partial(ours, r.data, r),
        LIST: partial(ours, clients, r),
        f"{ARRAY}, NumPy only": partial(ours_numpy, r.data, r),
        f"{LIST}, NumPy only": partial(ours_numpy, clients, r),
        "part: Gram matrix and weights": partial(weigh, r),
        "part: Gram matrix and weights, NumPy only": partial(weigh_numpy, r),
        "part: step": lambda: hewfl.combine(r.data, weights),
    }
    return calls


def in_turn(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """A call that makes the next of the given ones each time."""
    queue = itertools.cycle(calls)

    def call() -> Any:
        return next(queue)()

    return call


def cold_methods(r: Round) -> dict[str, Callable[[], Any]]:
    """The same on copies in turn, as displacements arrive: not in the cache."""
    count = max(1, math.ceil(CACHE / r.exact.nbytes))
    copies = [r]
    for _ in range(count - 1):
        data = r.data.clone() if isinstance(r.data, torch.Tensor) else r.data.copy()
        copies.append(dataclasses.replace(r, data=data))
    weights = weigh(r)
    each = [methods(copy, weights) for copy in copies]
    return {name: in_turn([calls[name] for calls in each]) for name in each[0]}


# --------------------------------------------------------------------------- the judge


def exact_step(r: Round, weights: Array) -> Array:
    """Σ w_i d_i summed in 80-bit arithmetic."""
    w = weights.astype(np.longdouble)
    step = np.empty(r.exact.shape[1])
    for start in range(0, len(step), CHUNK):
        part = r.exact[:, start : start + CHUNK].astype(np.longdouble)
        step[start : start + CHUNK] = w @ part
    return step


def blocked_gap(r: Round, weights: Array) -> float:
    """`tests.known_solutions.relative_gap` without a second copy of the data."""
    w = np.maximum(weights, 0).astype(np.longdouble)
    w /= w.sum()
    shortest = int(np.argmin([float(row @ row) for row in r.exact]))
    lam = np.longdouble(r.curvature)
    reference = np.asarray(r.reference, np.float32)
    products = np.zeros(len(w), np.longdouble)
    sq_norms, q = products.copy(), products.copy()
    for start in range(0, r.exact.shape[1], CHUNK):
        block = r.exact[:, start : start + CHUNK].astype(np.longdouble)
        smallest = block[shortest].copy()
        block -= smallest
        slope = reference[start : start + CHUNK] + lam * smallest
        x = w @ block
        products += (x - block) @ (slope + lam * x)
        sq_norms += np.einsum("ij,ij->i", block, block)
        q += block @ slope
    scale = lam * sq_norms.max() + q.max() - q.min()
    return float(products.max() / scale)


def judge(r: Round, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Gap of the weights, and errors of our step and of the float32 average."""
    weights = outcomes["part: Gram matrix and weights"].result
    plain = outcomes["part: Gram matrix and weights, NumPy only"].result
    assert weights is not None
    assert plain is not None
    weights, plain = np.asarray(weights), np.asarray(plain)
    step = exact_step(r, weights)
    even = torch.full((len(weights),), 1 / len(weights), dtype=torch.float32)
    if isinstance(r.data, torch.Tensor):
        even = even.to(r.data.dtype)
    average = exact_step(r, even.double().numpy())

    def errors(name: str, truth: Array) -> tuple[float, float]:
        """Largest error over the largest entry; share of entries rounded correctly."""
        result = outcomes[name].result
        if isinstance(result, torch.Tensor):
            rounded = torch.from_numpy(truth).to(result.dtype)
            correct = float((rounded == result).double().mean())
            result = result.double().numpy()
        else:
            result = np.asarray(result)
            correct = float(np.mean(truth.astype(result.dtype) == result))
        worst = float(np.abs(result - truth).max() / np.abs(truth).max())
        return worst, correct

    content: dict[str, Any] = {
        "gap": blocked_gap(r, weights),
        "gap_numpy": blocked_gap(r, plain),
        "weights_between_paths": float(np.abs(weights - plain).max()),
        "support": int(np.count_nonzero(weights)),
    }
    steps = {ARRAY: step, LIST: step, f"{ARRAY}, NumPy only": exact_step(r, plain)}
    for name, truth in (steps | {BEST: average}).items():
        worst, correct = errors(name, truth)
        content[name] = {"step_error": worst, "correctly_rounded": correct}
    return content


# ------------------------------------------------------------------------ measuring


def gram_and_slope(r: Round) -> tuple[Array, Array]:
    """G and q in float64, to time the solve alone."""
    n = len(r.exact)
    gram, linear = np.zeros((n, n)), np.zeros(n)
    for start in range(0, r.exact.shape[1], CHUNK):
        block = r.exact[:, start : start + CHUNK].astype(np.float64)
        gram += block @ block.T
        linear += block @ np.asarray(r.reference[start : start + CHUNK], np.float64)
    return gram, linear


def measure(
    r: Round, rng: np.random.Generator, *, rounds: int, warm: bool
) -> dict[str, Any]:
    calls = methods(r, weigh(r)) if warm else cold_methods(r)
    outcomes = report.interleave(calls, rng, rounds=rounds, budget=4.0)
    for name, outcome in outcomes.items():
        if outcome.error:
            print(f"{r.label}: {name} failed: {outcome.error}")
    base = outcomes[BEST].cpu
    times = {
        name: {"cpu_s": out.cpu, "wall_s": out.wall, "ratio": out.cpu / base}
        for name, out in outcomes.items()
    }
    gram, linear = gram_and_slope(r)
    lam = r.curvature
    alone: dict[str, Callable[[], Any]] = {
        "part: solve": lambda: (
            hewfl.solve_simplex_qp(gram, linear, curvature=lam).weights
        )
    }
    for name, out in report.interleave(alone, rng, rounds=rounds).items():
        ratio_to_best = out.cpu / base
        times[name] = {"cpu_s": out.cpu, "wall_s": out.wall, "ratio": ratio_to_best}
    return {
        "round": r.label,
        "n": len(r.data),
        "methods": times,
        "errors": judge(r, outcomes),
    }


def report_tables(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0]["methods"])
    times = []
    for name in names:
        cells = [name]
        for row in rows:
            entry = row["methods"][name]
            text = ratio(entry["ratio"])
            cells.append(f"1 ({seconds(entry['cpu_s'])})" if name == BEST else text)
        times.append(cells)
    checks = []
    for row in rows:
        e, m = row["errors"], row["methods"]
        checks.append(
            [
                row["round"],
                ratio(m[ARRAY]["ratio"]),
                ratio(m[ARRAY]["cpu_s"] / m[LOOP]["cpu_s"]),
                ratio(m[f"{ARRAY}, NumPy only"]["cpu_s"] / m[LOOP]["cpu_s"]),
                power(e["gap"]),
                power(e["gap_numpy"]),
                power(e[ARRAY]["step_error"]),
                f"{e[ARRAY]['correctly_rounded']:.2%}",
                f"{e[f'{ARRAY}, NumPy only']['correctly_rounded']:.2%}",
                power(e[BEST]["step_error"]),
                f"{e[BEST]['correctly_rounded']:.0%}",
                f"{e['support']} of {row['n']}",
            ]
        )
    heads = ["round", "hewfl / best average", "hewfl / loop", "NumPy only / loop"]
    heads += ["gap", "gap, NumPy only", "step error", "rounded correctly"]
    heads += ["the same, NumPy only", "w @ D: error", "rounded correctly", "support"]
    return "\n\n".join(
        [
            "### Time over that of one `w @ D`",
            table(["method", *(row["round"] for row in rows)], times),
            "### Against the best average and the usual loop, with errors",
            "Gap relative as in the solver benchmark; step error: distance from the "
            "80-bit sum with the same weights over its largest entry. The step has the "
            "type of the data; rounded correctly: equal to the 80-bit sum in that type,"
            " which takes sums in float64.",
            table(heads, checks),
        ]
    )


def gram_routes(rng: np.random.Generator) -> list[dict[str, Any]]:
    """The compiled kernel and BLAS for the products of a round, either way forced."""
    rows, default = [], gram.FEW_CLIENTS
    for n, d in ROUTES:
        data = as_dense("displacements", make_round(n, d).data)

        def by(few: int, data: Any = data) -> Array:
            gram.FEW_CLIENTS = few
            return np.asarray(data.products().gram)

        calls = {"compiled": partial(by, n), "BLAS": partial(by, 0)}
        cpu = {k: out.cpu for k, out in report.interleave(calls, rng, rounds=9).items()}
        rule = "compiled" if n <= default else "BLAS"
        rows.append({"n": n, "d": d, "cpu": cpu, "in_use": rule})
    gram.FEW_CLIENTS = default
    return rows


def routes_table(routes: list[dict[str, Any]]) -> str:
    rows = []
    for r in routes:
        times = map(seconds, r["cpu"].values())
        rows.append([f"n = {r['n']}, d = {power(r['d'])}", *times, r["in_use"]])
    return table(["products", "compiled", "BLAS", "in use"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="d = 1e5 only")
    parser.add_argument("--warm", action="store_true", help="data may stay in cache")
    parser.add_argument("--routes", action="store_true", help="the products alone")
    parser.add_argument("--json", type=Path, help="default: in benchmarks/results")
    parser.add_argument("--markdown", type=Path, help="also write the tables here")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the turns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    start = time.perf_counter()
    shapes = [(n, d, False) for d in (10**5, 10**6) for n in (5, 20, 100)]
    shapes += [(20, 10**6, True), (20, 10**7, False)]
    if options.quick or options.routes:
        shapes = [] if options.routes else shapes[:3]
    info = report.machine() | {"compiled_kernels": native.is_available()}
    kernels = "in use" if native.is_available() else "not built"
    head = f"{report.describe(info)} Compiled kernels: {kernels}."
    print(head, flush=True)
    rows = []
    with threadpool_limits(1):
        for n, d, half in shapes:
            r = make_round(n, d, half=half)
            rounds = 5 if d > 10**6 else 15
            rows.append(measure(r, rng, rounds=rounds, warm=options.warm))
            print(f"{r.label} done", flush=True)
        routes = gram_routes(rng)
    text = f"### Two routes to the products\n\n{routes_table(routes)}"
    text = f"{report_tables(rows)}\n\n{text}" if rows else text
    print(f"\n{text}")
    elapsed = time.perf_counter() - start
    content = {"machine": info, "quick": options.quick, "warm": options.warm}
    content |= {"rounds": rows, "routes": routes}
    default = "aggregate_routes.json" if options.routes else "aggregate.json"
    where = options.json or report.RESULTS / default
    report.save(where, content | {"seconds": elapsed})
    if options.markdown:
        options.markdown.write_text(f"{head}\n\n{text}\n", encoding="utf-8")
    print(f"\n{elapsed:.0f} s; saved {where}")


if __name__ == "__main__":
    main()
