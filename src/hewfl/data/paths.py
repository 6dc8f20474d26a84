"""Folders of data: HEWFL_DATA, the user cache, and files below them.

Files are searched for in the folder named by HEWFL_DATA, then in the user cache. Both
have the same layout, so a cache can be copied to a machine without network and serve
there as HEWFL_DATA.
"""

import hashlib
import os
import sys
import warnings
from functools import cache
from pathlib import Path

from hewfl.errors import DataError


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


def download_root() -> Path:
    """The folder of downloads: `files` in the user cache."""
    return cache_root() / "files"


def search_roots() -> tuple[Path, ...]:
    """Folders to search, in order.

    Raises:
        DataError: HEWFL_DATA is set to something that is not a folder.
    """
    chosen = os.environ.get("HEWFL_DATA")
    if not chosen:
        return (download_root(),)
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(f"HEWFL_DATA must be a folder; got {chosen}")
    return (folder, download_root())


def find_file(path: str) -> Path | None:
    """The first file with this path below one of the search folders."""
    files = (root / path for root in search_roots())
    return next((file for file in files if file.is_file()), None)


def file_sha256(path: Path) -> str:
    """Checksum of a file; of a folder, that of all names and contents in it."""
    if path.is_dir():
        digest = hashlib.sha256()
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            name = file.relative_to(path).as_posix()
            digest.update(f"{name}\0{file_sha256(file)}\n".encode())
        return digest.hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def warn_cache_not_writable(error: OSError) -> None:
    """Warn once that the user cache cannot be written."""
    reason = error.strerror or error
    _warn_once(f"cannot write to the cache {cache_root()} ({reason}); set HEWFL_CACHE")


@cache  # `warnings` forgets which warnings it has shown when its filters change
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=3)
