"""Checkpoints: stop at any instant, resume later, same bits.

A run folder holds `trace.jsonl` (append-only), `state-<round>.safetensors` and
`manifest.json`. The manifest is replaced atomically and last; it names the state file,
its checksum and the length of the trace that belongs to it. If a process stops at any
instant, manifest and state fit each other, and a longer trace is cut back. State and
trace are synced to the disk before the manifest is replaced. Nothing is pickled.
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

FORMAT = 5
T = TypeVar("T")


def is_array(value: Any) -> bool:
    """Whether it is an array or has `__array__`."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def flatten(value: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of a state, by path: dataclasses, tuples, arrays, numbers, None.

    Parts with the mark `is_elsewhere` are left out: their owner saves them.
    """
    if value is None or hasattr(value, "is_elsewhere"):
        return {}
    if is_array(value):
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
    """A state of the same structure as another one, with the arrays of `flatten`."""
    value: Any = like
    if value is None or hasattr(value, "is_elsewhere"):
        return like
    if is_array(value):
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
class Checkpoint:
    """A saved state.

    Attributes:
        round: rounds done.
        run: what must match to resume: seed, entries, sizes.
        arrays: the state.
        trace_bytes: length of the trace that belongs to it.
    """

    round: int
    run: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    trace_bytes: int


def save_checkpoint(folder: Path, saved: Checkpoint) -> None:
    """Write the state, then the manifest that makes it the current one.

    The trace that belongs to it was appended before; it is synced here.
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
    """Sync the trace to the disk, if there is one."""
    if trace.exists():
        with trace.open("r+b") as file:
            os.fsync(file.fileno())


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The last state of a run folder, None if it has none.

    Raises:
        DataError: the manifest or the state is damaged, or of another format.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    state = folder / manifest["state"]
    data = state.read_bytes() if state.exists() else b""
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        what = "is damaged: its checksum does not match"
        raise _damage(f"checkpoint {state} {what}", folder)
    _compare_trace(folder, manifest)
    size = manifest["trace_bytes"]
    return Checkpoint(manifest["round"], manifest["run"], load(data), size)


def check_trace(folder: Path) -> None:
    """Require that a trace matches its last checkpoint, if there is one.

    Raises:
        DataError: the manifest is damaged, or the trace is missing or differs.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        _compare_trace(folder, manifest)


def _damage(what: str, folder: Path) -> DataError:
    return DataError(f"{what}; delete the folder {folder} to start again")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the last checkpoint, None if there is none.

    Its own checksum is compared first: a flipped bit in it must not accuse the state or
    the trace.

    Raises:
        DataError: it is damaged, or of another format.
    """
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        form, digest = manifest["format"], manifest.pop("manifest_sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damage(f"checkpoint {path} is damaged: {error!r}", folder) from error
    if form != FORMAT:
        what = f"has format {form}; this version reads {FORMAT}"
        raise _damage(f"checkpoint {path} {what}", folder)
    if digest != _digest(manifest):
        what = "is damaged: its checksum does not match"
        raise _damage(f"checkpoint {path} {what}", folder)
    return manifest


def _compare_trace(folder: Path, manifest: Mapping[str, Any]) -> None:
    if _trace_digest(folder, manifest["trace_bytes"]) != manifest["trace_sha256"]:
        what = f"the trace {folder / 'trace.jsonl'} is damaged or shorter than its"
        raise _damage(f"{what} checkpoint", folder)


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _trace_digest(folder: Path, size: int) -> str:
    """Of the first bytes of the trace and their number."""
    trace = folder / "trace.jsonl"
    data = b""
    if trace.exists():
        with trace.open("rb") as file:
            data = file.read(size)
    return hashlib.sha256(data + str(len(data)).encode()).hexdigest()
