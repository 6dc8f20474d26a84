"""Files that are there whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hewfl.errors import DataError


def write_bytes(file: Path, content: bytes) -> None:
    """Write to a neighbour, then rename: readers never see half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(file: Path, text: str) -> None:
    """The same for text."""
    write_bytes(file, text.encode("utf-8"))


def write_json(file: Path, value: Any) -> None:
    """The same for JSON, readable, keys in the order given."""
    write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(file: Path, *, missing: bool = False) -> Any:
    """What a JSON file holds; None for a missing one if that is allowed.

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
