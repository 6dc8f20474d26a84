"""What both benchmarks share: interleaved timing, tables, and results as JSON."""

import gc
import importlib.metadata
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

RESULTS = Path(__file__).resolve().parent / "results"
SHORTEST = 1e-3  # seconds; shorter calls are repeated inside one measurement
SINGLE = 1.0  # seconds; longer calls are measured once, without a warm-up
PACKAGES = (
    *("numpy", "scipy", "torch", "threadpoolctl"),
    *("quadprog", "daqp", "proxsuite", "piqp", "clarabel", "osqp"),
)
Array = NDArray[np.floating[Any]]


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """One method on one instance: its answer and median times in seconds."""

    result: Array | None
    error: str
    cpu: float
    wall: float
    rounds: int


def _clock(call: Callable[[], Array], repeats: int) -> tuple[Array, float, float]:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(repeats):
        result = call()
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return result, cpu / repeats / 1e9, wall / repeats / 1e9


def interleave(
    calls: Mapping[str, Callable[[], Array]],
    rng: np.random.Generator,
    *,
    rounds: int,
    budget: float = 1.0,
) -> dict[str, Outcome]:
    """Time all calls in turns, in fresh random order each round; medians.

    CPU seconds of the process, so that other load on the machine does not count. Each
    call runs once before, which gives its answer. `budget` seconds per call limit the
    number of rounds of slow ones.
    """
    answers: dict[str, Array | None] = {}
    errors: dict[str, str] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    plan: dict[str, tuple[int, int]] = {}  # rounds, repeats
    gc.collect()
    gc.disable()
    try:
        for name, call in calls.items():
            times[name] = []
            try:
                answers[name], cpu, wall = _clock(call, 1)
                if cpu < 0.1:  # the first call also pays for cold caches and imports
                    _, cpu, wall = _clock(call, 1)
            except Exception as failure:  # any failure is a result here
                answers[name] = None
                errors[name] = f"{type(failure).__name__}: {failure}"
                continue
            if cpu > SINGLE:
                times[name].append((cpu, wall))
                continue
            turns = max(1, min(rounds, int(budget / max(cpu, 1e-9))))
            plan[name] = turns, max(1, min(100, int(SHORTEST / max(cpu, 1e-9))))
        for turn in range(max((turns for turns, _ in plan.values()), default=0)):
            names = [name for name in plan if turn < plan[name][0]]
            for i in rng.permutation(len(names)):
                _, cpu, wall = _clock(calls[names[i]], plan[names[i]][1])
                times[names[i]].append((cpu, wall))
    finally:
        gc.enable()
    outcomes = {}
    for name, pairs in times.items():
        cpu = statistics.median(cpu for cpu, _ in pairs) if pairs else math.nan
        wall = statistics.median(wall for _, wall in pairs) if pairs else math.nan
        outcomes[name] = Outcome(
            answers[name], errors.get(name, ""), cpu, wall, len(pairs)
        )
    return outcomes


def machine() -> dict[str, Any]:
    """Processor, versions and threads, for the JSON file and the head of the report."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line for line in lines if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "blas_threads": 1,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "load_average": os.getloadavg(),
    }


def describe(info: Mapping[str, Any]) -> str:
    """The machine in two lines."""
    versions = ", ".join(f"{name} {v}" for name, v in info["versions"].items())
    return (
        f"{info['processor']}, {info['cores']} cores, one BLAS thread, "
        f"Python {info['python']}.\n{versions}."
    )


def seconds(value: float) -> str:
    """A time with two significant digits and its unit."""
    if not math.isfinite(value):
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            break
    scaled = value * factor
    return f"{scaled:.0f} {unit}" if scaled >= 9.95 else f"{scaled:.1f} {unit}"


def ratio(value: float) -> str:
    """A ratio with two significant digits."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def power(value: float) -> str:
    """A small error with one digit, zero as 0."""
    if math.isnan(value):
        return "-"
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "inf"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, readable in a terminal too."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(headers))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        others = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("| " + " | ".join([first, *others[1:]]) + " |")
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def _plain(value: object) -> object:
    """NumPy scalars and non-finite numbers for the JSON file."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(content), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
