"""Stop at any instant, go on later, same bits.

A run folder holds `trace.jsonl` (append-only), `state-<round>.safetensors` and
`manifest.json`. The manifest is replaced atomically and last; it names the state file,
its checksum and how much of the trace belongs to it. Whatever instant a process dies,
manifest and state fit each other, and a longer trace is cut back. All three are on the
disk before the manifest says so, for the power may go as well. Nothing is pickled.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hewfl.core.atomic import write_bytes
from hewfl.errors import DataError

FORMAT = 3
T = TypeVar("T")


def flatten(value: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of a state, by path: dataclasses, tuples, arrays, numbers, None."""
    if value is None:
        return {}
    if isinstance(value, np.ndarray):
        return {prefix: np.ascontiguousarray(value)}
    if isinstance(value, bool | int | float | np.generic):
        return {prefix: np.asarray(value)}
    if isinstance(value, tuple):
        parts = [flatten(part, f"{prefix}.{i}") for i, part in enumerate(value)]
    elif is_dataclass(value):
        named = [(f.name, getattr(value, f.name)) for f in fields(value)]
        parts = [flatten(part, f"{prefix}.{name}") for name, part in named]
    else:
        text = f"a state may not hold a {type(value).__name__} (at {prefix or 'top'})"
        raise TypeError(text)
    return {key: array for part in parts for key, array in part.items()}


def unflatten(like: T, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> T:
    """A state of the form of another one, filled from `flatten`'s arrays."""
    value: Any = like
    if value is None:
        return like
    if isinstance(value, np.ndarray):
        return cast(T, arrays[prefix])
    if isinstance(value, bool | int | float | np.generic):
        kind: Any = type(value)
        return cast(T, kind(arrays[prefix]))
    if isinstance(value, tuple):
        parts = (unflatten(v, arrays, f"{prefix}.{i}") for i, v in enumerate(value))
        return cast(T, tuple(parts))
    changes = {
        f.name: unflatten(getattr(value, f.name), arrays, f"{prefix}.{f.name}")
        for f in fields(value)
    }
    return cast(T, replace(value, **changes))


@final
@dataclass(frozen=True, slots=True)
class Saved:
    """What a manifest says.

    Attributes:
        round: rounds done.
        run: what must match to go on: seed, lanes, sizes.
        arrays: the state.
        trace_bytes: how much of the trace belongs to it.
    """

    round: int
    run: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    trace_bytes: int


def save_checkpoint(folder: Path, saved: Saved) -> None:
    """Write the state, then the manifest that makes it the current one.

    The trace that belongs to it was appended before; it is made sure of here.
    """
    _sync(folder / "trace.jsonl")
    data = save(dict(saved.arrays))
    name = f"state-{saved.round:08d}.safetensors"
    write_bytes(folder / name, data, sole_writer=True)
    manifest = {
        "format": FORMAT,
        "round": saved.round,
        "run": saved.run,
        "state": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "trace_bytes": saved.trace_bytes,
        "trace_sha256": _trace_digest(folder, saved.trace_bytes),
    }
    manifest["manifest_sha256"] = _digest(manifest)
    text = json.dumps(manifest, indent=1).encode()
    write_bytes(folder / "manifest.json", text, sole_writer=True)
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def _sync(trace: Path) -> None:
    """Have the system put the trace on the disk, if there is one."""
    if trace.exists():
        with trace.open("r+b") as file:
            os.fsync(file.fileno())


def load_checkpoint(folder: Path) -> Saved | None:
    """The last state of a run folder, None if it has none.

    Raises:
        DataError: the manifest or the state is damaged, or of another format.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    again = f"delete the folder {folder} to begin anew"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        form, own = manifest["format"], manifest.pop("manifest_sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"checkpoint {path} is damaged: {error!r}; {again}"
        raise DataError(text) from error
    if form != FORMAT:
        text = f"checkpoint {path} has format {form}; this version reads {FORMAT}"
        text += f"; {again}"
        raise DataError(text)
    if own != _digest(manifest):
        text = f"checkpoint {path} is damaged: its checksum does not match; {again}"
        raise DataError(text)
    state = folder / manifest["state"]
    data = state.read_bytes() if state.exists() else b""
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        text = f"checkpoint {state} is damaged: its checksum does not match; {again}"
        raise DataError(text)
    size = manifest["trace_bytes"]
    if _trace_digest(folder, size) != manifest["trace_sha256"]:
        trace = folder / "trace.jsonl"
        text = f"the trace {trace} is damaged or shorter than its checkpoint; {again}"
        raise DataError(text)
    return Saved(manifest["round"], manifest["run"], load(data), size)


def check_trace(folder: Path) -> None:
    """Require that a trace is as its last checkpoint left it, if there is one.

    Raises:
        DataError: the manifest is damaged, or the trace is another one or missing.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        size, known = manifest["trace_bytes"], manifest["trace_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        text = f"checkpoint {path} is damaged: {error!r}; delete the folder {folder}"
        raise DataError(text) from error
    if _trace_digest(folder, size) != known:
        text = f"the trace {folder / 'trace.jsonl'} is damaged or shorter than its "
        raise DataError(text + f"checkpoint; delete the folder {folder} to begin anew")


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _trace_digest(folder: Path, size: int) -> str:
    """Of the first bytes of the trace; no digest equals that of a shorter one."""
    trace = folder / "trace.jsonl"
    data = b""
    if trace.exists():
        with trace.open("rb") as file:
            data = file.read(size)
    return hashlib.sha256(data + str(len(data)).encode()).hexdigest()
