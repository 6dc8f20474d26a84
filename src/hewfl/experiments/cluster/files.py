"""Files that travel with a task: what a run has so far, and what a task made of it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from hewfl.core.atomic import write_bytes

LAST = "manifest.json"
"""Written when all it speaks of is there: a client may be killed at any instant."""


def files_of(place: Path) -> dict[str, bytes]:
    """What a task has written at a place so far, by path beside it.

    Args:
        place: a file, with a folder of its own name without suffix while the task goes
            on; or a folder.
    """
    found = [place] if place.is_file() else []
    folder = place.with_suffix("")
    if folder.is_dir():
        found += [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        file.relative_to(place.parent).as_posix(): file.read_bytes()
        for file in found
        if not file.name.endswith(".partial")
    }


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Make a place hold these files, each whole or not at all, and no others.

    Raises:
        OSError: a file cannot be written.
    """
    for name in sorted(files, key=lambda name: (name.endswith(LAST), name)):
        write_bytes(place.parent / name, files[name], sole_writer=True)
    folder = place.with_suffix("")
    if not folder.is_dir():
        return
    for file in folder.rglob("*"):
        if file.is_file() and file.relative_to(place.parent).as_posix() not in files:
            file.unlink()
    if not any(folder.iterdir()):
        shutil.rmtree(folder)
