"""Atomic file writes: a file is there whole or not at all."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hewfl.errors import DataError


@contextmanager
def atomic_write(file: Path, *, sole_writer: bool = False) -> Iterator[IO[bytes]]:
    """Open a neighbour of a file, and rename it to the file when the block ends well.

    Args:
        file: to create or replace, with its folder.
        sole_writer: whether no other process writes this file. The neighbour then has
            a fixed name, so that the next write replaces the rest of a killed process.
            Otherwise each writer takes a name of its own: two with one name would mix
            their bytes.

    Yields:
        The stream to write to.

    Raises:
        OSError: the file cannot be written; an older one is unchanged.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    suffix = "" if sole_writer else f"-{os.getpid()}-{secrets.token_hex(4)}"
    neighbour = file.with_name(f".{file.name}{suffix}.partial")
    try:
        with neighbour.open("wb") as stream:
            yield stream
            stream.flush()
            # Without this the new name may reach the disk before the bytes do: after a
            # power cut the file would be there, and empty.
            os.fsync(stream.fileno())
        neighbour.replace(file)
    except BaseException:
        neighbour.unlink(missing_ok=True)
        raise


def write_bytes(file: Path, content: bytes, *, sole_writer: bool = False) -> None:
    """Create or replace a file; arguments and errors of `atomic_write`."""
    with atomic_write(file, sole_writer=sole_writer) as stream:
        stream.write(content)


def write_text(file: Path, text: str) -> None:
    """Create or replace a file of UTF-8 text; errors of `atomic_write`."""
    write_bytes(file, text.encode("utf-8"))


def write_json(file: Path, value: Any) -> None:
    """Create or replace a JSON file, indented, keys in the order given.

    Raises:
        ValueError: the value holds a number that is not finite.
        OSError: the file cannot be written.
    """
    write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(file: Path, *, missing: bool = False) -> Any:
    """The value in a JSON file; None where it is missing and `missing` allows that.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if missing:
            return None
        raise DataError(f"{file} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is damaged: {error}; delete it") from error


def write_checksums(file: Path, checksums: Mapping[str, str]) -> None:
    """Write checksums of files, by name, with one of the table itself."""
    table = dict(checksums)
    write_json(file, {"files": table, "sha256 of files": _table_sha256(table)})


def read_checksums(file: Path) -> dict[str, str]:
    """The table that `write_checksums` wrote; empty where there is no file.

    Raises:
        DataError: the table is damaged, rather than one of the files.
    """
    content = read_json(file, missing=True)
    if content is None:
        return {}
    table: Any = content.get("files") if isinstance(content, dict) else None
    is_table = isinstance(table, dict) and all(
        isinstance(value, str) for value in table.values()
    )
    if not is_table or content.get("sha256 of files") != _table_sha256(table):
        text = "this table of checksums has changed; delete it"
        raise DataError(f"{file} is damaged: {text}")
    return dict(table)


def _table_sha256(table: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()
