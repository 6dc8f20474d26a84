"""Files that are there whole or not at all: the one writer of every room."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hewfl.errors import DataError


@contextmanager
def replacing(file: Path, *, sole_writer: bool = False) -> Iterator[IO[bytes]]:
    """Open a neighbour of a file, and rename it to the file when the block ends well.

    Args:
        file: what to make or replace; its folder is made if it is not there.
        sole_writer: whether no other process writes this file. The neighbour then has
            a fixed name, so that what a killed process left is replaced by the next
            write. Otherwise each writer takes a name of its own: two that shared one
            would mix their bytes.

    Yields:
        The stream to write to.

    Raises:
        OSError: the file cannot be written; what was there before is untouched.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    own = "" if sole_writer else f"-{os.getpid()}-{secrets.token_hex(4)}"
    neighbour = file.with_name(f".{file.name}{own}.partial")
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
    """Make or replace a file in one instant; arguments and errors of `replacing`."""
    with replacing(file, sole_writer=sole_writer) as stream:
        stream.write(content)


def write_text(file: Path, text: str) -> None:
    """Make or replace a file of UTF-8 text in one instant; errors of `replacing`."""
    write_bytes(file, text.encode("utf-8"))


def write_json(file: Path, value: Any) -> None:
    """Make or replace a JSON file in one instant, indented, keys in the order given.

    Raises:
        ValueError: the value holds a number that is not finite, which JSON has not.
        OSError: the file cannot be written.
    """
    write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(file: Path, *, missing: bool = False) -> Any:
    """What a JSON file holds; None where it is missing and `missing` allows that.

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
