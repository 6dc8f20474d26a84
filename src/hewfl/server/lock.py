"""One process at a time in a run's folder.

The lock is the operating system's, on a file in the folder, so that it ends with the
process however that ends. A second file says who holds it; both go with the lock.
`filelock` is imported where a lock is taken: that takes longer than the rest of the
command needs to start.
"""

import contextlib
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

from hewfl.errors import DataError

NAME, HOLDER = ".lock", ".holder"
_PATIENCE, _PAUSE = 0.2, 0.02
"""Seconds. `holder_of` takes the lock for an instant; others wait that out."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; make it if it is not there, and remove it if left empty.

    Where the file system has no locks, a warning says so and nothing is held.

    Raises:
        DataError: another process holds it; the text names both.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import

    lock = FileLock(folder / NAME, poll_interval=_PAUSE, fallback_to_soft=False)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=_PATIENCE)
        except FileNotFoundError:  # whoever held it before removed the folder just now
            continue
        except Timeout as error:
            holder = holder_of(folder) or "another process"
            text = f"{folder} is in use by {holder}; wait for it, or end it"
            raise DataError(text) from error
        except OSError as error:
            text = f"no locks in {folder} ({error.strerror}); start each run once"
            warnings.warn(text, stacklevel=3)
        break
    try:
        who = f"process {os.getpid()} on {platform.node() or 'this machine'}"
        (folder / HOLDER).write_text(who, encoding="utf-8")
        yield
    finally:
        # Removed while still held: who opened the old file finds that it is gone and
        # tries anew. After the release it might be the next holder's lock.
        for name in (HOLDER, NAME):
            with contextlib.suppress(OSError):  # Windows keeps open files
                (folder / name).unlink()
        lock.release()
        with contextlib.suppress(OSError):  # not empty, as a rule
            folder.rmdir()


def holder_of(folder: Path) -> str | None:
    """Who holds a folder, in words; None if nobody does, or it cannot be told."""
    if not (folder / NAME).exists():
        return None
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import

    try:
        with FileLock(folder / NAME, timeout=0, fallback_to_soft=False):
            return None
    except Timeout:
        with contextlib.suppress(OSError):
            return (folder / HOLDER).read_text(encoding="utf-8") or "a process"
        return "a process"
    except OSError:  # no locks here, or a file that may not be opened
        return None
