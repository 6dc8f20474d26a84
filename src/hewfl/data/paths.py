"""What is known of a published data set: its files, checksums, size and terms."""

import gzip
import hashlib
import os
import sys
import warnings
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from hewfl.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class DataFile:
    """One published file.

    Attributes:
        path: place below the data folder.
        size: bytes.
        sha256: checksums of the file in its known containers.
        content_sha256: checksum of the decompressed bytes, where containers that differ
            only in a gzip header are in circulation.
        urls: mirrors, tried in this order; none if nobody publishes the file.
    """

    path: str
    size: int
    sha256: tuple[str, ...]
    content_sha256: str | None = None
    urls: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """One data set.

    Attributes:
        name: what `load` takes.
        title: what people call it.
        files: all that must be there.
        samples: rows of the training and of the test part (0: none is published).
        features: numbers per row.
        classes: their names, in the order of the labels 0, 1, ...
        licence: the publisher's terms.
        citation: key in the bibliography of `PAPER.md`.
    """

    name: str
    title: str
    files: tuple[DataFile, ...]
    samples: tuple[int, int]
    features: int
    classes: tuple[str, ...]
    licence: str
    citation: str

    @property
    def is_downloadable(self) -> bool:
        """Whether every file has a mirror."""
        return all(file.urls for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


# ------------------ Where files are looked for, and whether they are what they

# Order: the folder named by the setting HEWFL_DATA, then the user cache. Both have the
# same layout, so a cache can be copied to a machine without network as its HEWFL_DATA.

_BLOCK = 1 << 20


def cache_root() -> Path:
    """The user cache: HEWFL_CACHE, or `hewfl` in the platform's cache folder."""
    if chosen := os.environ.get("HEWFL_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "hewfl"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hewfl"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home()) / "hewfl" / "Cache"
    return Path.home() / ".cache" / "hewfl"


def warn_of_cache(error: OSError) -> None:
    """Say, once, that the user cache cannot be written; work goes on without it."""
    why = error.strerror or error
    _warn(f"cannot write to the cache {cache_root()} ({why}); set HEWFL_CACHE")


@cache  # Python forgets what it has shown whenever somebody changes the filters
def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def download_root() -> Path:
    """Where downloads go: `files` in the user cache."""
    return cache_root() / "files"


def search_roots() -> tuple[Path, ...]:
    """Folders to search, in order."""
    chosen = os.environ.get("HEWFL_DATA")
    if not chosen:
        return (download_root(),)
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(f"HEWFL_DATA must be a folder; got {chosen}")
    return (folder, download_root())


def find(file: DataFile) -> Path | None:
    """The first place that has the file."""
    places = (root / file.path for root in search_roots())
    return next((place for place in places if place.is_file()), None)


def file_sha256(path: Path) -> str:
    """Checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def examine(path: Path, file: DataFile) -> tuple[str, str | None]:
    """The file's sha256, and what is wrong with it if anything is.

    A gzip container that is not a known one passes if its content is the known one.
    """
    found = file_sha256(path)
    if found in file.sha256:
        return found, None
    if file.content_sha256 is not None:
        try:
            if _content_sha256(path) == file.content_sha256:
                return found, None
        except (OSError, EOFError, zlib.error) as error:
            return found, f"must be a sound gzip file; got {error}"
    size = f"{path.stat().st_size} bytes of {file.size}"
    return found, f"must have sha256 {file.sha256[0]}; got {found} ({size})"


def is_sound(path: Path, file: DataFile) -> bool:
    """Whether a file is there and is what it claims to be."""
    return path.is_file() and examine(path, file)[1] is None


def how_to_get(entry: DatasetInfo) -> str:
    """The sentence that ends every message about absent or damaged files."""
    files = ", ".join(file.path for file in entry.files)
    by_hand = f"put {files} into a folder and set HEWFL_DATA to it"
    if entry.is_downloadable:
        return (
            f"run `hewfl data get {entry.name}` where there is a network, or {by_hand}"
        )
    return f"{by_hand} (not all of them can be downloaded)"


def _content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with gzip.open(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
