"""Downloads of published files, verified by checksum.

Bytes go to `<file>.part`. The part is checked against its sha256 and then renamed, so a
file under its own name is always whole. A file lock, which the system releases when its
holder dies, keeps two processes from writing the same part.
"""

import contextlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from hewfl.data.catalogue import DataFile, DatasetInfo, verify_file
from hewfl.data.paths import download_root, find_file
from hewfl.errors import DataError

Report = Callable[[str, int, int], None]
"""Called with the file, the bytes it has now and the bytes it will have."""

_NETWORK_ERRORS = (
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


def fetch(info: DatasetInfo, report: Report | None = None) -> tuple[Path, ...]:
    """Download the files of a data set that are not here.

    A damaged download is replaced. A damaged file in HEWFL_DATA belongs to the user:
    it stays, and `load` raises an error.

    Args:
        info: entry of the catalogue.
        report: called for every block that arrives.

    Returns:
        The path of each file.

    Raises:
        DataError: a file has no mirror, or no mirror delivered it.
    """
    return tuple(
        _fetch_file(info, file, report or (lambda *_: None)) for file in info.files
    )


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


def _fetch_file(info: DatasetInfo, file: DataFile, report: Report) -> Path:
    target = download_root() / file.path
    path = find_file(file.path)
    if path is not None and (path != target or _is_intact(target, file)):
        return path
    if not file.urls:
        raise DataError(f"{info.name}: {file.path} is not found; {info.how_to_get}")
    from filelock import FileLock  # noqa: PLC0415 - only downloads need it

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not _is_intact(target, file):
                _download(info, file, target, report)
    except OSError as error:  # network errors are handled in `_try_mirror`
        text = f"{info.name}: cannot write {target} ({error}); set HEWFL_CACHE"
        raise DataError(text) from error
    return target


def _is_intact(path: Path, file: DataFile) -> bool:
    return path.is_file() and verify_file(path, file)[1] is None


def _download(info: DatasetInfo, file: DataFile, target: Path, report: Report) -> None:
    part = target.with_name(f"{target.name}.part")
    reasons = []
    try:
        for url in file.urls:
            reason = _try_mirror(url, file, part, report)
            if reason is None:
                part.replace(target)
                return
            reasons.append(f"{url}: {reason}")
    finally:
        part.unlink(missing_ok=True)
    failures = "; ".join(reasons)
    raise DataError(f"{info.name}: no download ({failures}); {info.how_to_get}")


def _try_mirror(url: str, file: DataFile, part: Path, report: Report) -> str | None:
    """Download `part` from one mirror; the reason if every attempt failed."""
    reason = ""
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE * attempt)
        try:
            _transfer(url, file, part, report)
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            error.close()
            if error.code < 500 and error.code not in (408, 429):  # permanent
                return reason
        except _NETWORK_ERRORS as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            return verify_file(part, file)[1]
    return reason


def _transfer(url: str, file: DataFile, part: Path, report: Report) -> None:
    headers = {"User-Agent": "hewfl", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        done, total = 0, int(response.headers.get("Content-Length") or file.size)
        with part.open("wb") as stream:
            while block := response.read(_BLOCK):
                stream.write(block)
                done += len(block)
                report(file.path, done, total)
    if done < total:  # `read` returns a short block, not an error, on a cut connection
        raise ConnectionError(f"connection lost after {done} of {total} bytes")
