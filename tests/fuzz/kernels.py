"""Damaged calls of the compiled kernels: an error, or an answer, never a crash.

    make fuzz [SECONDS=60]

builds the kernels with the sanitizers of addresses and of undefined behaviour and runs

    python -m tests.fuzz.kernels [--seconds 60] [--seed 0]

Public functions are called with drawn problems, and what they hand to the kernels is
kept. Then each kept call is repeated with damage: numbers that are too large, negative
or not finite, buffers that are too short, types that are not there, lists with holes. A
kernel may raise one of ERRORS or answer; whatever it reads or writes out of bounds ends
the process with the sanitizer's report, and the last line says which call it was.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from hewfl import (
    Entry,
    Federation,
    FixedSteps,
    HewHet,
    HewHom,
    Scaffold,
    simulate,
    solve_simplex_qp,
)
from hewfl.aggregators import GeometricMedian, TrimmedMean
from hewfl.core import native
from hewfl.core.displacements import LinearCombination
from hewfl.displacements.chunked import ChunkedDisplacements
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import sampled_sizes
from hewfl.displacements.weighted_sum import inner_with_sum, slopes_at
from hewfl.problems import softmax_from_arrays
from hewfl.problems.softmax import kernel as softmax_kernel

Call = tuple[str, Callable[..., object], tuple[Any, ...]]
ERRORS = (ValueError, TypeError, IndexError, OverflowError, MemoryError, BufferError)
WHOLE = (-(2**63), -(2**31), -1, 0, 1, 2, 2**31, 2**40, 2**62, 2**63 - 1)
REAL = (np.nan, np.inf, -np.inf, 0.0, -1.0, 5e-324, 1e308)
KEPT: dict[str, Call] = {}
"""The last call of each kernel for each kind of arguments."""


def _spied(load: Callable[[str], Any]) -> Callable[[str], Any]:
    """`native.load`, with modules that keep what they are called with."""
    made: dict[str, Any] = {}

    def loaded(name: str) -> Any:
        module = load(name)
        if module is None or name in made:
            return made.get(name)
        kernels = {
            key: _keeping(f"{name}.{key}", value)
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        }
        made[name] = SimpleNamespace(**kernels)
        return made[name]

    return loaded


def _keeping(name: str, kernel: Callable[..., object]) -> Callable[..., object]:
    def call(*given: Any) -> object:
        kinds = ",".join(str(getattr(a, "dtype", type(a).__name__)) for a in given)
        KEPT[f"{name}({kinds})"] = (name, kernel, tuple(_copied(a) for a in given))
        return kernel(*given)

    return call


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value


def draw_calls(rng: np.random.Generator) -> None:
    """Call the public functions that use kernels, with drawn problems."""
    n, p, classes = (int(rng.integers(1, top)) for top in (9, 40, 12))
    classes = max(classes, 2)
    samples = max(4 * n, classes)
    dtype = np.float32 if rng.integers(2) else np.float64
    X = rng.standard_normal((samples, p)).astype(dtype)
    labels = rng.integers(0, classes, samples)
    labels[:classes] = np.arange(classes)
    parts = np.array_split(np.arange(samples), n)
    problem = softmax_from_arrays(X, labels, parts, l2=1e-3)
    law = FixedSteps(rng.integers(1, 4, n).tolist())
    entries = [
        Entry(HewHom(4.0, 1.0)),
        Entry(HewHet(4.0, 1.0)),
        Entry(Scaffold(1.0 / 4.0)),
    ]
    federation = Federation(law, 2)
    simulate(problem, federation, entries, rounds=2, seed=0, dtype=np.dtype(dtype))
    A = rng.standard_normal((3, n, n))
    solve_simplex_qp(A @ np.swapaxes(A, 1, 2), rng.standard_normal((3, n)))
    vector = rng.standard_normal(int(rng.integers(1, 5000))).astype(np.float32)
    CountSketch(64).of([vector])
    CountSketch(64).add(np.zeros(64), vector, 0, vector, out=np.empty_like(vector))
    moved = ChunkedDisplacements(
        ((vector, 2 * vector), (vector, vector)), np.tile(vector, 2)
    )
    for weights in (None, np.ones(2)):
        inner_with_sum(moved, weights)
    rows = np.round(rng.standard_normal((int(rng.integers(1, 9)), len(vector))), 1)
    rows = rows.astype(dtype)
    TrimmedMean()(rows)
    GeometricMedian()(rows)
    sketch = CountSketch(64, int(rng.integers(9)))
    sketch.of_all(as_dense("rows", rows))
    sketch.of_all(moved)
    references: list[Any] = [None, rows[0], LinearCombination(np.ones(len(rows)))]
    for reference in references:
        slopes_at(as_dense("rows", rows), np.ones(len(rows)), reference, 2.0)
    slopes_at(moved, np.ones(2), None, 1.0)
    sampled_sizes(as_dense("rows", rows))


def damaged(rng: np.random.Generator, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with one to three of them damaged."""
    changed = [_copied(a) for a in given]
    for _ in range(int(rng.integers(1, 4))):
        k = int(rng.integers(len(changed)))
        changed[k] = _damage(rng, changed[k])
    return tuple(changed)


def _damage(rng: np.random.Generator, value: Any) -> Any:
    pick = rng.integers
    if isinstance(value, bool | int | np.integer):
        near = (int(value) - 1, int(value) + 1, 2 * int(value))
        return (*WHOLE, *near)[pick(len(WHOLE) + 3)]
    if isinstance(value, float):
        return REAL[pick(len(REAL))]
    if isinstance(value, bytes):
        return bytes(pick(0, 256, pick(0, len(value) + 2), dtype=np.uint8))
    if isinstance(value, list | tuple):
        items = list(value)
        if items and pick(2):
            k = int(pick(len(items)))
            items[k] = _damage(rng, items[k]) if pick(4) else None
        return type(value)(items[: pick(len(items) + 1)] if pick(2) else items)
    if isinstance(value, np.ndarray) and value.size:
        return _damaged_array(rng, value)
    return None


def _damaged_array(
    rng: np.random.Generator, value: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    flat = value.reshape(-1).copy()
    kind = int(rng.integers(4))
    if kind == 0:
        return flat[: rng.integers(flat.size)].copy()
    if kind == 1:
        return flat.astype(np.float32 if flat.dtype != np.float32 else np.int8)
    if kind == 2:
        return np.concatenate([flat, flat])
    wrong = REAL if flat.dtype.kind == "f" else WHOLE
    k = rng.integers(flat.size)
    with np.errstate(all="ignore"):
        flat[k] = np.array(wrong[rng.integers(len(wrong))]).astype(flat.dtype)
    return flat.reshape(value.shape)


def calls(rng: np.random.Generator, until: float) -> Iterator[Call]:
    """Damaged calls until a time."""
    while time.monotonic() < until:
        draw_calls(rng)
        for name, kernel, given in list(KEPT.values()):
            for _ in range(200):
                yield name, kernel, damaged(rng, given)
                if time.monotonic() > until:
                    return


def main() -> None:
    """Damage calls for some seconds and count what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    native.load = _spied(native.load)  # type: ignore[assignment]
    softmax_kernel.LIBRARY = native.load("hewfl.problems.softmax._softmax")
    counts: dict[str, list[int]] = {}
    rng = np.random.default_rng(given.seed)
    np.seterr(all="ignore")
    for name, kernel, arguments in calls(rng, time.monotonic() + given.seconds):
        count = counts.setdefault(name, [0, 0])
        try:
            kernel(*arguments)
            count[0] += 1
        except ERRORS:
            count[1] += 1
    if not counts:
        raise SystemExit("no compiled kernel was called: are they built?")
    for name, (answered, refused) in sorted(counts.items()):
        print(f"{name:45} {answered:8} answered {refused:8} refused")


if __name__ == "__main__":
    main()
