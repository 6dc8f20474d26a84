"""Checksums of a finished run: a digit that changed later is noticed.

    checksums.json         sha256 of each file that holds results, by its name

Written last of all. A report reads no result that does not match, and a run that is
called again looks at all of them.
"""

from collections.abc import Sequence
from pathlib import Path

from hewfl.core.atomic import read_json, write_json
from hewfl.data.places import file_sha256
from hewfl.errors import DataError

NAME = "checksums.json"


def write_checksums(folder: Path, names: Sequence[str]) -> None:
    """Write down the checksums of some files of a run."""
    write_json(folder / NAME, {name: file_sha256(folder / name) for name in names})


def verify(folder: Path, names: Sequence[str] | None = None) -> None:
    """Compare files of a finished run, all if not told which, with their checksums.

    Runs of earlier versions have none, and are taken as they are.

    Raises:
        DataError: a file has changed since the run was finished, or is gone; the text
            says what to do.
    """
    known = read_json(folder / NAME, missing=True)
    if known is None:
        return
    if not isinstance(known, dict):
        raise DataError(f"{folder / NAME} is damaged: it is no table; delete it")
    for name in known if names is None else names:
        file = folder / name
        if not file.exists():
            raise DataError(f"{file} is missing: resume {folder}")
        if name in known and file_sha256(file) != known[name]:
            again = "put the old one back" if name == "spec.toml" else "delete it"
            text = "has changed since the run was finished: its checksum does not match"
            raise DataError(f"{file} {text}; {again}, then resume {folder}")
