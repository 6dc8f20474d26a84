"""What a scenario leaves: files by name, small, with every bit of their floats."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl import Trace, simulate

Files = dict[str, bytes]
Scenario = Callable[[Path], Files]
"""Runs in an empty folder of its own."""
HEAD = 4
"""Entries of a long array that are written out; the digest stands for the rest."""


def line(values: dict[str, Any]) -> bytes:
    """One line of JSON; floats keep every bit."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def described(array: NDArray[Any]) -> dict[str, Any]:
    """An array by its digest, its first entries and two sums that see all of it."""
    flat = np.ascontiguousarray(array).reshape(-1)
    wide = flat.astype(np.float64)
    signs = np.where(np.arange(len(wide)) % 2 == 0, 1.0, -1.0)
    return {
        "sha256": hashlib.sha256(flat.tobytes()).hexdigest()[:16],
        "dtype": str(array.dtype),
        "head": wide[:HEAD].tolist(),
        "sums": [float(np.abs(wide).sum()), float((signs * wide).sum())],
    }


def models_of(trace: Trace) -> bytes:
    """Final model and total traffic of every entry."""
    lines = []
    for k, (name, model) in enumerate(zip(trace.names, trace.anchors, strict=True)):
        ledger = trace.communication(k)
        sent = {"sent": ledger.sent.tolist(), "received": ledger.received.tolist()}
        lines.append(line({"entry": k, "name": name, **described(model), **sent}))
    return b"".join(lines)


def simulated(folder: Path, *given: Any, rounds: int, **more: Any) -> Files:
    """The trace that `simulate` writes into a folder, and the final models."""
    every = {"checkpoint_every": rounds} | more  # each checkpoint waits for the disk
    trace = simulate(*given, rounds=rounds, checkpoint=folder, **every)
    written = (folder / "trace.jsonl").read_bytes()
    return {"trace.jsonl": written, "models.jsonl": models_of(trace)}
