"""One process at a time in a run's folder.

The lock is the operating system's, on a file in the folder, so that it ends with the
process however that ends; the file says who holds it, and goes when it is given back.
"""

import contextlib
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hewfl.errors import DataError

NAME = ".lock"
_TRIES, _PAUSE = 5, 0.02
"""`holder_of` holds the lock for an instant; those who want it wait that out."""

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30
    """Windows forbids reading locked bytes: one far behind the text is locked."""

    def _take(stream: BinaryIO) -> None:
        stream.seek(_FAR)
        try:
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:  # any failure reads the same there
            raise BlockingIOError(str(error)) from error
        finally:
            stream.seek(0)

else:
    import fcntl

    def _take(stream: BinaryIO) -> None:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; make it if it is not there, and remove it if left empty.

    Where the file system has no locks, a warning says so and nothing is held.

    Raises:
        DataError: another process holds it; the text names both.
    """
    with contextlib.ExitStack() as held:
        stream = held.enter_context(_opened(folder))
        stream.truncate(0)
        stream.write(_self().encode())
        stream.flush()
        held.callback(_give_back, folder)
        yield


def holder_of(folder: Path) -> str | None:
    """Who holds a folder, in words; None if nobody does."""
    try:
        with (folder / NAME).open("rb") as stream:
            try:
                _take(stream)
            except BlockingIOError:
                return stream.read().decode(errors="replace") or "a process"
            except OSError:  # no locks here
                return None
    except OSError:  # no file, or none that may be read
        return None
    return None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[BinaryIO]:
    """The lock file, held."""
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            stream = (folder / NAME).open("a+b")
        except FileNotFoundError:  # the folder went that moment
            continue
        with stream:
            try:
                _take(stream)
            except BlockingIOError:
                time.sleep(_PAUSE)
                continue
            except OSError as error:
                text = f"no locks in {folder} ({error.strerror}); start each run once"
                warnings.warn(text, stacklevel=4)
            if _is_there(stream, folder / NAME):
                yield stream
                return
    holder = holder_of(folder) or "another process"
    text = f"{folder} is in use by {holder}; wait for it, or end it"
    raise DataError(text)


def _give_back(folder: Path) -> None:
    """Remove the file while it is held: who opened it before finds that it is gone."""
    with contextlib.suppress(OSError):  # Windows keeps open files; they do no harm
        (folder / NAME).unlink()
    with contextlib.suppress(OSError):  # not empty, as a rule
        folder.rmdir()


def _is_there(stream: BinaryIO, file: Path) -> bool:
    """Whether the file held is the one in the folder, not one removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), file.stat())
    except FileNotFoundError:
        return False


def _self() -> str:
    return f"process {os.getpid()} on {platform.node() or 'this machine'}"
