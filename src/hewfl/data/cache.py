"""A cache of parsed arrays on disk.

Each source and parser has a folder: an `.npy` file per array and a manifest. A folder
is written under a temporary name and renamed when complete, so readers see all of it
or nothing. If several processes write the same folder, the first one wins and the
others read it. The cache may be deleted at any time.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Int64
from hewfl.core.validation import Ints
from hewfl.data.dataset import Samples
from hewfl.data.paths import cache_root, file_sha256, warn_cache_not_writable
from hewfl.errors import DataError

FORMAT = 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """The output of a parser; fields as in `Dataset`."""

    train: Samples
    test: Samples | None
    classes: tuple[str, ...]
    clients: Int64[Ints, " all"] | None = None
    client_names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays to store, by file name."""
        arrays = dict(zip(("features", "labels"), self.train, strict=True))
        if self.test is not None:
            arrays |= zip(("test_features", "test_labels"), self.test, strict=True)
        return arrays if self.clients is None else arrays | {"clients": self.clients}


def load_or_parse(name: str, key: Sequence[str], parse: Callable[[], Parsed]) -> Parsed:
    """The parsed arrays of a source, memory-mapped; parsed now if not cached.

    Args:
        name: readable prefix of the folder's name.
        key: all that the result depends on: checksums, parser, options.
        parse: called when the cache has no such entry.

    Returns:
        Arrays that must not be written to.
    """
    folder = _folder(name, key)
    parsed = _open(folder, list(key))
    if parsed is not None:
        return parsed
    parsed = parse()
    try:
        _publish(folder, list(key), parsed)
    except OSError as error:
        warn_cache_not_writable(error)
        return parsed
    return _open(folder, list(key)) or parsed


def verify_cached(name: str, key: Sequence[str]) -> None:
    """Compare the cached arrays with the checksums taken when they were written."""
    folder = _folder(name, key)
    manifest = _manifest(folder, list(key))
    for array, sha256 in (manifest or {}).get("sha256", {}).items():
        if file_sha256(folder / f"{array}.npy") != sha256:
            text = f"{folder / array}.npy has changed since it was written"
            raise DataError(f"{text}; delete {folder}")


def _folder(name: str, key: Sequence[str]) -> Path:
    digest = hashlib.sha256(json.dumps([FORMAT, *key]).encode()).hexdigest()
    return cache_root() / "parsed" / f"{name}-{digest[:16]}"


def _manifest(folder: Path, key: list[str]) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if manifest.get("key") == key else None


def _open(folder: Path, key: list[str]) -> Parsed | None:
    """The entry, or None if it is absent or incomplete."""
    manifest = _manifest(folder, key)
    if manifest is None:
        return None
    try:
        arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in manifest["sha256"]
        }
    except (OSError, ValueError, EOFError):
        return None
    test = None
    if "test_labels" in arrays:
        test = (arrays["test_features"], arrays["test_labels"])
    return Parsed(
        (arrays["features"], arrays["labels"]),
        test,
        tuple(manifest["classes"]),
        arrays.get("clients"),
        tuple(manifest.get("client_names", ())),
        tuple(manifest.get("shape", ())),
    )


def _publish(folder: Path, key: list[str], parsed: Parsed) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}-{os.getpid()}-{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        sha256 = {}
        for name, array in parsed.arrays.items():
            np.save(temporary / f"{name}.npy", np.ascontiguousarray(array))
            sha256[name] = file_sha256(temporary / f"{name}.npy")
        manifest = {
            "key": key,
            "classes": parsed.classes,
            "client_names": parsed.client_names,
            "shape": parsed.shape,
            "sha256": sha256,
        }
        text = json.dumps(manifest, indent=1)
        (temporary / "manifest.json").write_text(text, encoding="utf-8")
        _rename(temporary, folder, key)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, folder: Path, key: list[str]) -> None:
    """Move the new folder into place, unless a complete one is there already."""
    for attempt in range(3):
        try:
            temporary.rename(folder)
        except OSError:
            if _open(folder, key) is not None:
                return
            broken = temporary.with_name(f"{temporary.name}-broken-{attempt}")
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                folder.rename(broken)
            shutil.rmtree(broken, ignore_errors=True)
        else:
            return
