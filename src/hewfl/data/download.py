"""Downloads that go on where they stopped and end in a verified file.

Bytes go to `<file>.part`; the finished part is checked against its sha256 and then
renamed, so a file with its proper name is always whole. A lock that the system frees
when its holder dies keeps two processes from writing one part.
"""

import contextlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from hewfl.data.paths import (
    DataFile,
    DatasetInfo,
    download_root,
    examine,
    find,
    how_to_get,
    is_sound,
)
from hewfl.errors import DataError

Report = Callable[[str, int, int], None]
"""Told the file, the bytes it has now and the bytes it will have."""

_NETWORK = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)
_BLOCK = 1 << 16
_TIMEOUT = 30.0
_ATTEMPTS = 4
_PAUSE = 0.5


def fetch(entry: DatasetInfo, report: Report | None = None) -> tuple[Path, ...]:
    """Places of all files of a data set, downloading those that are nowhere.

    A damaged download is replaced; a damaged file in HEWFL_DATA is the user's and is
    left for `load` to complain about.

    Args:
        entry: of the catalogue.
        report: told of every block that arrives.

    Returns:
        One place for each file.

    Raises:
        DataError: a file is on no mirror, or none of them delivered it.
    """
    return tuple(_placed(entry, file, report or _silent) for file in entry.files)


@contextlib.contextmanager
def progress_bar() -> Iterator[Report]:
    """A report that draws progress bars on standard error, if that is a terminal."""
    from rich import progress  # noqa: PLC0415 - only downloads need it
    from rich.console import Console  # noqa: PLC0415 - likewise

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    tasks: dict[str, progress.TaskID] = {}
    with progress.Progress(
        *columns, console=console, disable=not console.is_terminal
    ) as bars:

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield report


def _silent(_name: str, _done: int, _total: int) -> None:
    pass


def _placed(entry: DatasetInfo, file: DataFile, report: Report) -> Path:
    target = download_root() / file.path
    found = find(file)
    if found is not None and (found != target or is_sound(found, file)):
        return found
    if not file.urls:
        text = f"{entry.name}: {file.path} is nowhere to be found; {how_to_get(entry)}"
        raise DataError(text)
    from filelock import FileLock  # noqa: PLC0415 - only downloads need it

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not is_sound(target, file):
                _from_mirrors(entry, file, target, report)
    except OSError as error:  # network errors are dealt with below
        text = f"{entry.name}: cannot write {target} ({error}); set HEWFL_CACHE"
        raise DataError(text) from error
    return target


def _from_mirrors(
    entry: DatasetInfo, file: DataFile, target: Path, report: Report
) -> None:
    part = target.with_name(f"{target.name}.part")
    reasons = []
    for url in file.urls:
        reason = _from_mirror(url, file, part, report)
        if reason is None:
            part.replace(target)
            return
        reasons.append(f"{url}: {reason}")
    told = "; ".join(reasons)
    raise DataError(f"{entry.name}: no download ({told}); {how_to_get(entry)}")


def _from_mirror(url: str, file: DataFile, part: Path, report: Report) -> str | None:
    """Fill `part` from one mirror; the reason if that failed.

    An attempt that brought bytes is not counted: a bad line gets there in the end.
    """
    failures, reason = 0, ""
    while failures < _ATTEMPTS:
        before = _size(part)
        try:
            _transfer(url, file, part, report)
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            error.close()
            if error.code < 500 and error.code not in (408, 429):  # it means it
                return reason
        except _NETWORK as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            wrong = examine(part, file)[1]
            if wrong is None:
                return None
            part.unlink()  # nothing can be resumed from wrong bytes
            if before == 0:
                return wrong
            reason = wrong  # an old part may be to blame: once more from the start
        if _size(part) <= before:
            failures += 1
            time.sleep(_PAUSE * failures)
    return reason


def _transfer(url: str, file: DataFile, part: Path, report: Report) -> None:
    """Append what is missing, or all of it if the server cannot start midway."""
    have = _size(part)
    if have >= file.size:  # a whole or overlong part: the checksum decides
        return
    headers = {"User-Agent": "hewfl", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        resumed = response.status == 206
        done = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else file.size
        with part.open("ab" if resumed else "wb") as stream:
            while block := response.read(_BLOCK):
                stream.write(block)
                done += len(block)
                report(file.path, done, total)
    if done < total:  # `read` returns short blocks, not an error, on a cut connection
        raise ConnectionError(f"connection lost after {done} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
