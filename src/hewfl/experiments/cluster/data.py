"""Data and own code by checksum: found on a worker's disk, or sent there once.

A worker looks in its HEWFL_DATA and its cache, as one machine does. What it has not is
sent by the client, piece by piece, into the worker's cache, where it stays for the runs
to come. Workers that share a disk receive it once together.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from hewfl.core.own_code import code_files
from hewfl.data import CATALOGUE
from hewfl.data.download import fetch, progress_bar
from hewfl.data.places import download_root, file_sha256, search_roots
from hewfl.errors import DataError
from hewfl.experiments.own import own_names
from hewfl.experiments.spec import Spec

PIECE = 1 << 23
"""Bytes sent at once: a worker answers its scheduler between two pieces."""

CODE = "code"
"""Folder of the cache for code of the user's own, by the checksum of all its files."""


@final
@dataclass(frozen=True, slots=True)
class DataPart:
    """One file that a task reads.

    Attributes:
        path: below a worker's data folders.
        data: name of the data set as the client's spec has it.
        sha256: checksum of a user's own file; empty for a file of the catalogue, whose
            checksums every worker knows.
    """

    path: str
    data: str
    sha256: str = ""


def parts_of_data(specs: Sequence[Spec]) -> tuple[DataPart, ...]:
    """The files that tasks of some specs read; the built-in digits are none."""
    found: dict[DataPart, None] = {}
    for name in dict.fromkeys(spec.data.name for spec in specs):
        if name in CATALOGUE:
            files = CATALOGUE[name].files
            found |= {DataPart(file.path, name): None for file in files}
        else:
            own = Path(name)
            if not own.is_file():
                raise DataError(f"the data file {own} does not exist")
            status = own.stat()
            sha256 = _sha256(own, status.st_mtime_ns, status.st_size)
            path = f"own/{sha256[:32]}/{own.name}"
            found[DataPart(path, name, sha256)] = None
    return (*found, *_parts_of_code(specs))


def _parts_of_code(specs: Sequence[Spec]) -> list[DataPart]:
    """Files of code that specs name by their path, with those that they import."""
    names = {name for spec in specs for name in own_names(spec).values()}
    found = []
    for name, group in sorted(names):
        if not is_file_name(name):
            continue
        files = {file: file_sha256(file) for file in code_files(name, group)}
        texts = [f"{file.name} {sha256}" for file, sha256 in files.items()]
        together = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
        found += [
            DataPart(f"{CODE}/{together}/{file.name}", str(file), sha256)
            for file, sha256 in files.items()
        ]
    return found


def is_file_name(name: str) -> bool:
    """Whether code is named by its file; else it must be installed at every worker."""
    return name.rpartition(":")[0].endswith(".py")


@lru_cache(maxsize=64)  # asked again for every task
def _sha256(file: Path, changed: int, size: int) -> str:  # noqa: ARG001 - for the cache
    return file_sha256(file)


def pieces_of(part: DataPart) -> Iterator[tuple[int, bytes, str]]:
    """A file of this machine in pieces: where each begins, its bytes, and the checksum.

    The checksum comes with the last piece; it is empty before.
    """
    place = _at_client(part)
    digest, size, begin = hashlib.sha256(), place.stat().st_size, 0
    with place.open("rb") as stream:
        while True:
            piece = stream.read(PIECE)
            digest.update(piece)
            is_last = begin + len(piece) >= size
            yield begin, piece, digest.hexdigest() if is_last else ""
            begin += len(piece)
            if is_last:
                return


def _at_client(part: DataPart) -> Path:
    if part.sha256:
        return Path(part.data)
    found = _among_roots(part.path)
    if found is None:
        with progress_bar() as report:
            fetch(CATALOGUE[part.data], report)
        found = _among_roots(part.path)
    assert found is not None, "fetched just now"
    return found


def _among_roots(path: str) -> Path | None:
    places = (root / path for root in search_roots())
    return next((place for place in places if place.is_file()), None)


# ------------------------------------------------------------------ in the worker


def place_of(part: DataPart) -> Path | None:
    """Where this machine has a file; None where it must be sent."""
    # Code imports what lies beside it, which may be another version at the same path.
    if part.sha256 and not part.path.startswith(CODE):
        same = Path(part.data)  # on a file system that client and worker share
        status = same.stat() if same.is_file() else None
        if status and part.sha256 == _sha256(same, status.st_mtime_ns, status.st_size):
            return same
    return _among_roots(part.path)


def receive(part: DataPart, begin: int, piece: bytes, sha256: str, sender: str) -> bool:
    """Take a piece of a file; the last one gives the file its name.

    Args:
        part: the file.
        begin: where in the file the piece belongs.
        piece: its bytes.
        sha256: of the whole file, with the last piece.
        sender: a name for who sends; two clients may send the same file.

    Returns:
        Whether more is wanted: not where another worker of this disk has received the
        file meanwhile.
    """
    if place_of(part) is not None:
        return False
    place = download_root() / part.path
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_name(f".{place.name}-{sender}.part")
    with half.open("r+b" if begin else "wb") as stream:
        stream.seek(begin)
        stream.write(piece)
    if not sha256:
        return True
    if file_sha256(half) != sha256:
        half.unlink()
        raise DataError(f"{place} did not arrive whole: its checksum does not match")
    half.replace(place)
    return False


def places_here(parts: Sequence[DataPart]) -> dict[str, str]:
    """Where this machine has a user's own files, by where the client has them."""
    return {part.data: str(place_of(part)) for part in parts if part.sha256}


def relocated(value: Any, places: Mapping[str, str]) -> Any:
    """A value with other places for files, wherever they are named in it."""
    if isinstance(value, str):
        file, colon, inside = value.rpartition(":")  # code is named by file and name
        if colon and file in places:
            return f"{places[file]}:{inside}"
        return places.get(value, value)
    if isinstance(value, Mapping):
        return {key: relocated(each, places) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(relocated(each, places) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        new = {name: relocated(each, places) for name, each in given.items()}
        return value if new == given else replace(value, **new)
    return value
