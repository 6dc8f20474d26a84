"""Atomic file writes: a file is there whole or not at all."""

import json
import os
import secrets
from collections.abc import Iterator
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
