"""`solve_simplex_qp` against quadratic-programming libraries, in one interleaved run.

    python benchmarks/solvers.py [--quick] [--json FILE] [--markdown FILE]

One BLAS thread; medians of CPU seconds of the process; all solvers of an instance take
turns in fresh random order. A call is one-shot: set-up and the building of arguments
count, and so does the scaling (and the lift, where a code needs a positive definite
matrix) without which most libraries fail more often; the shift by the shortest row is
given to everybody. Every answer is judged by the same code, from the data, in 80-bit
arithmetic.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import clarabel
import daqp
import numpy as np
import osqp
import piqp
import quadprog
import scipy.sparse as sp
from benchmarks import instances, report
from benchmarks.instances import Case, Prepared, prepare, unprepared
from benchmarks.report import Outcome, power, ratio, seconds, table
from proxsuite import proxqp
from tests.known_solutions import (
    Array,
    QPInstance,
    componentwise_gap,
    degenerate_instances,
    permuted,
    random_degenerate,
    relative_gap,
    tie_instances,
)
from threadpoolctl import threadpool_limits

import hewfl
from hewfl.core import native

TIGHT = 1e-10  # tolerance asked of the iterative libraries
LOOP_GAP = 1e-9  # where the projected-gradient loop stops
LIMIT = 10.0  # seconds; a slower solver sits out the larger instances of its series
MOST_STEPS = 20_000  # of OSQP and of the loop
FAILURE = 1e-6  # relative gap
EXACT = 1e-9  # relative gap that counts as exact, generous to the libraries
ROUNDING = 1e-15
FUZZ_SEED = 4

Solver = Callable[[Prepared], Array]

# ------------------------------------------------------------------------- the solvers


def ours(p: Prepared) -> Array:
    return hewfl.solve_simplex_qp(p.gram, p.linear, curvature=p.curvature).weights


def ours_numpy(p: Prepared) -> Array:
    with native.disabled():
        return ours(p)


def from_data(instance: QPInstance) -> Array:
    D, g, lam = instance.displacements, instance.reference, instance.curvature
    return hewfl.post_local_weights(D, g, lam).weights


def from_data_numpy(instance: QPInstance) -> Array:
    with native.disabled():
        return from_data(instance)


def solve_quadprog(p: Prepared) -> Array:
    H, c = p.lifted()
    n = len(c)
    constraints = np.hstack([np.ones((n, 1)), np.eye(n)])
    bounds = np.append(1.0, np.zeros(n))
    lifted = H
    for ridge in (0.0, 1e-12, 1e-10):
        try:
            if ridge:
                H = lifted + ridge * np.diag(H).max() * np.eye(n)
            solution = quadprog.solve_qp(H, -c, constraints, bounds, 1)
            return np.asarray(solution[0])
        except ValueError as error:
            refusal = error
    raise refusal


def solve_daqp(p: Prepared) -> Array:
    H, c = p.lifted()
    n = len(c)
    upper = np.append(np.full(n, 1e30), 1.0)
    lower = np.append(np.zeros(n), 1.0)
    sense = np.append(np.zeros(n, np.intc), np.intc(5))  # 5: equality
    solution = daqp.solve(H, c, np.ones((1, n)), upper, lower, sense)
    return np.asarray(solution[0])


def solve_proxqp(p: Prepared) -> Array:
    H, c = p.problem()
    n = len(c)
    qp = proxqp.dense.QP(n, 1, 0, True)
    qp.settings.eps_abs, qp.settings.eps_rel = TIGHT, 0.0
    qp.settings.max_iter = 200  # it takes 5 to 20, or a minute and no answer
    ones, box = np.ones((1, n)), (np.zeros(n), np.ones(n))
    qp.init(H, c, ones, np.ones(1), None, None, None, *box)
    qp.solve()
    return np.asarray(qp.results.x)


def solve_piqp(p: Prepared) -> Array:
    H, c = p.problem()
    n = len(c)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = TIGHT
    ones = np.ones((1, n))
    solver.setup(H, c, ones, np.ones(1), x_l=np.zeros(n))
    solver.solve()
    return np.asarray(solver.result.x)


def _simplex_rows(n: int, sign: float) -> Any:
    ones = sp.csc_matrix(np.ones((1, n)))
    return sp.vstack([ones, sign * sp.identity(n, format="csc")], format="csc")


def solve_clarabel(p: Prepared) -> Array:
    H, c = p.problem()
    n = len(c)
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.time_limit, settings.max_threads = False, LIMIT, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TIGHT
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    P, b = sp.csc_matrix(np.triu(H)), np.append(1.0, np.zeros(n))
    A = _simplex_rows(n, -1.0)
    solver = clarabel.DefaultSolver(P, c, A, b, cones, settings)
    return np.array(solver.solve().x)


def solve_osqp(p: Prepared, **settings: Any) -> Array:
    H, c = p.problem()
    n = len(c)
    P, A = sp.csc_matrix(np.triu(H)), _simplex_rows(n, 1.0)
    lower, upper = np.append(1.0, np.zeros(n)), np.append(1.0, np.full(n, np.inf))
    solver = osqp.OSQP()
    solver.setup(P, c, A, lower, upper, verbose=False, **settings)
    return np.asarray(solver.solve(raise_error=False).x, np.float64)


def solve_osqp_tight(p: Prepared) -> Array:
    return solve_osqp(
        p,
        eps_abs=1e-9,
        eps_rel=1e-9,
        max_iter=MOST_STEPS,
        polishing=True,
        time_limit=LIMIT,
    )


def project(v: Array) -> Array:
    """Euclidean projection on the simplex, by sorting."""
    u = np.sort(v)[::-1]
    excess = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    level = excess[np.flatnonzero(u > excess)[-1]]
    return np.asarray(np.maximum(v - level, 0))


def projected_gradient(
    gradient: Callable[[Array], Array], n: int, smoothness: float, scale: float
) -> Array:
    """Accelerated projected gradient with restart, the loop one writes first."""
    start = time.process_time()
    w = y = np.full(n, 1 / n)
    t = 1.0
    for _ in range(MOST_STEPS):
        slope = gradient(y)
        if y.min() >= 0 and y @ slope - slope.min() <= LOOP_GAP * scale:
            return y
        if time.process_time() - start > LIMIT:
            break
        new = project(y - slope / smoothness)
        if (y - new) @ (new - w) > 0:  # overshot: forget the momentum
            y, t = w, 1.0
            continue
        t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
        y = new + (t - 1) / t_new * (new - w)
        w, t = new, t_new
    return w


def solve_loop(p: Prepared) -> Array:
    H, c = p.problem()
    scale = float(np.diag(H).max() + c.max() - c.min()) or 1.0
    smoothness = float(np.linalg.eigvalsh(H)[-1]) or 1.0
    return projected_gradient(lambda w: H @ w + c, len(c), smoothness, scale)


def loop_from_data(instance: QPInstance) -> Array:
    D, g, lam = instance.displacements, instance.reference, instance.curvature
    C = D - D[int(np.argmin(np.einsum("ij,ij->i", D, D)))]
    slope = g + lam * (D[0] - C[0])
    q = C @ slope
    scale = float(lam * np.einsum("ij,ij->i", C, C).max() + q.max() - q.min())
    smoothness = lam * float(np.linalg.eigvalsh(C.T @ C)[-1])
    f = partial(_data_gradient, C, slope, lam)
    return projected_gradient(f, len(D), smoothness, scale)


def _data_gradient(C: Array, slope: Array, lam: float, w: Array) -> Array:
    return C @ (slope + lam * (w @ C))


OURS: dict[str, Solver] = {"hewfl": ours, "hewfl, NumPy only": ours_numpy}
LIBRARIES: dict[str, Solver] = {
    "daqp": solve_daqp,
    "quadprog": solve_quadprog,
    "proxqp": solve_proxqp,
    "piqp": solve_piqp,
    "clarabel": solve_clarabel,
    "osqp 1e-9": solve_osqp_tight,
    "osqp default": solve_osqp,
    "loop 1e-9": solve_loop,
}
SOLVERS = OURS | LIBRARIES

# -------------------------------------------------------------------------- measuring


def judged(instance: QPInstance, outcome: Outcome) -> dict[str, Any]:
    """Times, gap and verdict of one answer, for the JSON file."""
    gap = float("inf")
    if outcome.result is not None:
        gap = relative_gap(instance, outcome.result)
    return {
        "cpu_s": outcome.cpu,
        "wall_s": outcome.wall,
        "rounds": outcome.rounds,
        "gap": gap,
        "failed": not gap <= FAILURE,
        "error": outcome.error,
    }


def judged_twice(instance: QPInstance, outcome: Outcome) -> dict[str, Any]:
    """The same with the componentwise gap, where columns differ widely in length."""
    componentwise = float("inf")
    if outcome.result is not None:
        componentwise = componentwise_gap(instance, outcome.result)
    return judged(instance, outcome) | {"componentwise_gap": componentwise}


class Stamina:
    """Which solver was too slow on a smaller instance of a series to try again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def allows(self, solver: str, case: Case) -> bool:
        """Whether growth from the last size stays below the limit."""
        n, cpu = self._seen.get((solver, case.series), (1, 0.0))
        growth = float(max(1.0, case.instance.n / n) ** 3.5)  # cubic and more steps
        return cpu * growth <= LIMIT

    def note(self, solver: str, case: Case, cpu: float) -> None:
        self._seen[solver, case.series] = case.instance.n, cpu


def measure_grams(
    cases: Iterable[Case], rng: np.random.Generator, *, rounds: int
) -> list[dict[str, Any]]:
    stamina, rows = Stamina(), []
    for case in cases:
        p = prepare(case.instance)
        calls = {
            name: partial(solver, p)
            for name, solver in SOLVERS.items()
            if stamina.allows(name, case)
        }
        outcomes = interleave(calls, rng, rounds=rounds)
        results = {}
        for name, outcome in outcomes.items():
            if outcome.rounds:
                stamina.note(name, case, outcome.cpu)
            results[name] = judged(case.instance, outcome)
        weights = outcomes["hewfl"].result
        support = 0 if weights is None else int(np.count_nonzero(weights))
        row = {"instance": case.instance.name, "n": case.instance.n}
        rows.append(row | {"support": support, "solvers": results})
        print(".", end="", flush=True)
    print()
    return rows


def interleave(
    calls: Mapping[str, Callable[[], Array]], rng: np.random.Generator, *, rounds: int
) -> dict[str, Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn; the judge decides
        return report.interleave(calls, rng, rounds=rounds)


def measure_degenerate(
    rng: np.random.Generator, *, rounds: int
) -> list[dict[str, Any]]:
    """Prepared and raw answers on the 23 cases."""
    rows = []
    for instance in degenerate_instances():
        p, raw = prepare(instance), unprepared(instance)
        calls = {name: partial(solver, p) for name, solver in SOLVERS.items()}
        calls["hewfl from the data"] = partial(from_data, instance)
        calls["hewfl from the data, NumPy only"] = partial(from_data_numpy, instance)
        outcomes = interleave(calls, rng, rounds=rounds)
        results = {name: judged_twice(instance, out) for name, out in outcomes.items()}
        calls = {name: partial(solver, raw) for name, solver in SOLVERS.items()}
        for name, out in interleave(calls, rng, rounds=1).items():
            verdict = judged(instance, out)
            results[name]["raw_gap"] = verdict["gap"]
            results[name]["raw_error"] = verdict["error"]
        if instance.weights is not None:
            for name, out in outcomes.items():
                results[name]["weight_error"] = _error(out.result, instance.weights)
        rows.append({"instance": instance.name, "n": instance.n, "solvers": results})
    return rows


def measure_fuzz(rng: np.random.Generator, count: int) -> dict[str, dict[str, Any]]:
    """Worst answers over random degenerate instances."""
    gaps: dict[str, list[tuple[float, float]]] = {name: [] for name in SOLVERS}
    troubles: dict[str, list[str]] = {name: [] for name in SOLVERS}
    for index in range(count):
        instance = random_degenerate(np.random.default_rng([FUZZ_SEED, index]))
        p = prepare(instance)
        calls = {name: partial(solver, p) for name, solver in SOLVERS.items()}
        for name, out in interleave(calls, rng, rounds=1).items():
            verdict = judged_twice(instance, out)
            pair = verdict["gap"], verdict["componentwise_gap"]
            gaps[name].append(pair)
            if not pair[0] <= EXACT or _is_hidden(*pair):
                trouble = f"{index}: {instance.name}: gap {pair[0]:.0e}, {pair[1]:.0e}"
                troubles[name].append(f"{trouble} {verdict['error']}".strip())
    return {
        name: {
            "instances": count,
            "worst_gap": max(gap for gap, _ in pairs),
            "failures": sum(not gap <= FAILURE for gap, _ in pairs),
            "inexact": sum(not gap <= EXACT for gap, _ in pairs),
            "componentwise_failures": sum(_is_hidden(*pair) for pair in pairs),
            "troubles": troubles[name],
        }
        for name, pairs in gaps.items()
    }


def _is_hidden(gap: float, componentwise: float) -> bool:
    """Wrong weights among ordinary columns, invisible in the global scale."""
    return not (componentwise <= FAILURE or gap <= ROUNDING)


def _error(weights: Array | None, expected: Array) -> float:
    if weights is None:
        return float("inf")
    return float(np.abs(weights - expected).max() / expected.max())


def measure_ties(rng: np.random.Generator, *, rounds: int) -> list[dict[str, Any]]:
    """Distance from the least-norm minimiser, and what reordering the clients does."""
    rows = []
    for instance in tie_instances():
        assert instance.weights is not None
        order = rng.permutation(instance.n)
        p, moved = prepare(instance), prepare(permuted(instance, order))
        calls = {name: partial(solver, p) for name, solver in SOLVERS.items()}
        again = {name: partial(solver, moved) for name, solver in SOLVERS.items()}
        outcomes = interleave(calls, rng, rounds=rounds)
        results = {}
        for name, out in interleave(again, rng, rounds=1).items():
            first = outcomes[name].result
            results[name] = judged(instance, outcomes[name]) | {
                "weight_error": _error(first, instance.weights),
                "permutation_error": float("inf")
                if first is None
                else _error(out.result, first[order]),
            }
        rows.append({"instance": instance.name, "n": instance.n, "solvers": results})
    return rows


def measure_large(rng: np.random.Generator, *, rounds: int) -> list[dict[str, Any]]:
    """n = 10,000 from the data."""
    rows = []
    for instance in instances.large_cases():
        calls = {
            "hewfl": partial(from_data, instance),
            "hewfl, NumPy only": partial(from_data_numpy, instance),
            "loop 1e-9": partial(loop_from_data, instance),
        }
        outcomes = interleave(calls, rng, rounds=rounds)
        results = {name: judged(instance, out) for name, out in outcomes.items()}
        if instance.weights is not None:
            for name, out in outcomes.items():
                results[name]["weight_error"] = _error(out.result, instance.weights)
        rows.append({"instance": instance.name, "n": instance.n, "solvers": results})
    return rows


def measure_batch(rng: np.random.Generator, *, rounds: int) -> dict[str, Any]:
    """25 problems with n = 20: one call for all, one call each, and one alone."""
    problems = [prepare(instance) for instance in instances.batch_cases()]
    gram = np.stack([p.gram for p in problems])
    linear = np.stack([p.linear for p in problems])
    curvature = np.array([p.curvature for p in problems])
    gram *= curvature[:, None, None]  # the solver takes one curvature for all problems
    stack = dataclasses.replace(problems[0], gram=gram, linear=linear, curvature=1.0)

    def each(solver: Solver) -> Array:
        return np.stack([solver(p) for p in problems])

    calls: dict[str, Callable[[], Array]] = {}
    for name, solver in OURS.items():
        calls[f"{name}: batched"] = partial(solver, stack)
        calls[f"{name}: one by one"] = partial(each, solver)
        calls[f"{name}: one alone"] = partial(solver, problems[0])
    calls["daqp: one by one"] = partial(each, solve_daqp)
    outcomes = interleave(calls, rng, rounds=rounds)
    result: dict[str, Any] = {"count": len(problems), "n": gram.shape[-1]}
    for name, out in outcomes.items():
        result[name] = {"cpu_s": out.cpu, "wall_s": out.wall, "error": out.error}
    return result


# -------------------------------------------------------------------------- reporting


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    if entry["error"]:
        return "refused"
    time_text = seconds(entry["cpu_s"])
    return (
        time_text if entry["gap"] <= EXACT else f"{time_text} ({power(entry['gap'])})"
    )


def _fastest_exact(row: Mapping[str, Any]) -> tuple[str, float]:
    """The fastest library that is exact on this instance."""
    times = {
        name: row["solvers"][name]["cpu_s"]
        for name in LIBRARIES
        if name in row["solvers"] and row["solvers"][name]["gap"] <= EXACT
    }
    name = min(times, key=times.__getitem__, default="none")
    return name, times.get(name, float("nan"))


def report_grams(rows: list[dict[str, Any]]) -> str:
    times, verdicts = [], []
    for row in rows:
        results = row["solvers"]
        label = f"{row['instance']} ({row['support']})"
        times.append([label, *(_cell(results.get(name)) for name in SOLVERS)])
        best, cpu = _fastest_exact(row)
        verdicts.append(
            [label, best, seconds(cpu)]
            + [ratio(results[name]["cpu_s"] / cpu) for name in OURS]
            + [power(results[name]["gap"]) for name in OURS]
        )
    summary = []
    for name in SOLVERS:
        entries = [row["solvers"][name] for row in rows if name in row["solvers"]]
        ratios = [
            row["solvers"][name]["cpu_s"] / row["solvers"]["hewfl"]["cpu_s"]
            for row in rows
            if name in row["solvers"] and not row["solvers"][name]["error"]
        ]
        gaps = [entry["gap"] for entry in entries]
        spread = f"{ratio(min(ratios))} to {ratio(max(ratios))}" if ratios else "-"
        middle = ratio(statistics.median(ratios)) if ratios else "-"
        failures = str(sum(entry["failed"] for entry in entries))
        gap_cells = [power(statistics.median(gaps)), power(max(gaps))]
        summary.append([name, str(len(entries)), middle, spread, *gap_cells, failures])
    heads = ["solver", "ran", "median time / hewfl", "range"]
    heads += ["median gap", "worst gap", "failures"]
    against = ["instance", "fastest exact library", "its time"]
    against += [f"{name}: time ratio" for name in OURS]
    against += [f"{name}: gap" for name in OURS]
    return "\n\n".join(
        [
            "### Gram matrices of local-SGD and Gaussian rounds",
            "Median CPU time to solve (support of the answer in brackets after the "
            f"instance); the relative gap is added where it exceeds {EXACT:g}; `-` = "
            f"over the {LIMIT:g} s limit.",
            table(["instance", *SOLVERS], times),
            "Our time over that of the fastest library that is exact there:",
            table(against, verdicts),
            "All instances together:",
            table(heads, summary),
        ]
    )


def report_degenerate(rows: list[dict[str, Any]], fuzz: Mapping[str, Any]) -> str:
    lines = []
    for name in rows[0]["solvers"]:
        entries = [row["solvers"][name] for row in rows]
        gaps = [entry["gap"] for entry in entries]
        hidden = sum(_is_hidden(e["gap"], e["componentwise_gap"]) for e in entries)
        raw = [entry["raw_gap"] for entry in entries if "raw_gap" in entry]
        errors = [entry["weight_error"] for entry in entries if "weight_error" in entry]
        times = [
            entry["cpu_s"] / row["solvers"]["hewfl"]["cpu_s"]
            for row, entry in zip(rows, entries, strict=True)
            if not entry["error"]
        ]
        checks = fuzz.get(name)
        lines.append(
            [
                name,
                str(sum(not gap <= FAILURE for gap in gaps)),
                str(sum(not gap <= EXACT for gap in gaps)),
                power(max(gaps)),
                str(hidden),
                power(max(errors)),
                str(sum(not gap <= FAILURE for gap in raw)) if raw else "-",
                ratio(statistics.median(times)),
                str(checks["failures"]) if checks else "-",
                str(checks["inexact"]) if checks else "-",
                str(checks["componentwise_failures"]) if checks else "-",
                power(checks["worst_gap"]) if checks else "-",
            ]
        )
    heads = ["solver", "gap > 1e-6", "gap > 1e-9", "worst gap", "hidden failures"]
    heads += ["worst weight error", "raw input: gap > 1e-6", "median time / hewfl"]
    heads += ["fuzz: gap > 1e-6", "gap > 1e-9", "hidden", "worst gap"]
    count = next(iter(fuzz.values()))["instances"]
    return "\n\n".join(
        [
            f"### {len(rows)} degenerate instances and {count} random ones",
            "Hidden failures: componentwise gap above 1e-6, wrong weights among the "
            "ordinary columns that the global scale does not show. Weight error: "
            "distance from the known least-norm minimiser over its largest entry.",
            table(heads, lines),
        ]
    )


def report_ties(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        cells = [row["instance"]]
        for name in SOLVERS:
            entry = row["solvers"][name]
            errors = f"{power(entry['weight_error'])}, "
            errors += power(entry["permutation_error"])
            timed = f", {seconds(entry['cpu_s'])}" if name in OURS else ""
            cells.append(errors + timed)
        lines.append(cells)
    return "\n\n".join(
        [
            "### Ties: distance from the least-norm minimiser",
            "Error, then what reordering the clients changes (both relative to the "
            "largest weight), and our time, tie-break included.",
            table(["instance", *SOLVERS], lines),
        ]
    )


def report_large(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        results = row["solvers"]
        cells = [row["instance"]]
        for entry in results.values():
            cells += [_cell(entry), power(entry["gap"])]
        slow = results["loop 1e-9"]["cpu_s"] / results["hewfl"]["cpu_s"]
        lines.append([*cells, ratio(slow)])
    heads = ["instance"]
    for name in rows[0]["solvers"]:
        heads += [name, "gap"]
    title = "### 10,000 clients, d = 400, from the data"
    return f"{title}\n\n" + table([*heads, "loop / hewfl"], lines)


def report_batch(result: Mapping[str, Any]) -> str:
    lines = []
    for name in OURS:
        batched, each, alone = (
            result[f"{name}: {kind}"] for kind in ("batched", "one by one", "one alone")
        )
        times = [seconds(entry["cpu_s"]) for entry in (alone, batched, each)]
        growth = ratio(batched["cpu_s"] / alone["cpu_s"])
        note = f" ({batched['error']})" if batched["error"] else ""
        lines.append([name + note, *times, growth])
    library = seconds(result["daqp: one by one"]["cpu_s"])
    heads = ["solver", "one alone", "25 batched", "25 one by one", "batched / one"]
    title = f"### A stack of {result['count']} problems with n = {result['n']}"
    return f"{title}\n\n{table(heads, lines)}\n\nDAQP, 25 one by one: {library}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="n ≤ 100, fewer rounds")
    parser.add_argument("--json", type=Path, default=report.RESULTS / "solvers.json")
    parser.add_argument("--markdown", type=Path, help="also write the tables here")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the turns")
    options = parser.parse_args()
    rounds = 7 if options.quick else 25
    rng = np.random.default_rng(options.seed)
    start = time.perf_counter()
    info = report.machine() | {"compiled_kernels": native.is_available()}
    results: dict[str, Any] = {"machine": info, "quick": options.quick}
    kernels = "in use" if native.is_available() else "not built: both rows are NumPy"
    parts = [f"{report.describe(info)} Compiled kernels: {kernels}."]
    print(parts[0], flush=True)

    def add(text: str) -> None:
        parts.append(text)
        print(f"\n{text}", flush=True)

    with threadpool_limits(1):
        cases = instances.gram_cases(quick=options.quick)
        results["gram"] = measure_grams(cases, rng, rounds=rounds)
        add(report_grams(results["gram"]))
        results["batch"] = measure_batch(rng, rounds=rounds)
        add(report_batch(results["batch"]))
        results["degenerate"] = measure_degenerate(rng, rounds=5)
        results["fuzz"] = measure_fuzz(rng, 30 if options.quick else 200)
        add(report_degenerate(results["degenerate"], results["fuzz"]))
        results["ties"] = measure_ties(rng, rounds=5)
        add(report_ties(results["ties"]))
        if not options.quick:
            results["large"] = measure_large(rng, rounds=3)
            add(report_large(results["large"]))
    results["seconds"] = time.perf_counter() - start
    report.save(options.json, results)
    if options.markdown:
        options.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"\n{results['seconds']:.0f} s; saved {options.json}")


if __name__ == "__main__":
    main()
