"""Files that travel with a task: what a run has so far, and what a task made of it."""

import hashlib
import os
import pickle
import platform
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, lru_cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, final

import hewfl
from hewfl.core import native
from hewfl.core.atomic import write_bytes
from hewfl.core.plugins import code_files
from hewfl.data import CATALOGUE
from hewfl.data.download import fetch, progress_bar
from hewfl.data.paths import download_root, file_sha256, search_roots
from hewfl.errors import DataError, HewError
from hewfl.experiments.executor import THREADS, Warned
from hewfl.experiments.spec import Spec
from hewfl.experiments.user_code import own_names
from hewfl.version import __version__

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


# ------------------ Data and own code by checksum: found on a worker's disk, or

# A worker looks in its HEWFL_DATA and its cache, as one machine does. What it has not is
# sent by the client, piece by piece, into the worker's cache, where it stays for the runs
# to come. Workers that share a disk receive it once together.

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


# ------------------ in the worker


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


# ------------------ Code of the user's own on a worker: the client's version of it,

Modules = Mapping[tuple[str, str], str]
"""Checksums of code that is installed, by its name in a spec and its group."""


def installed_code(specs: Sequence[Spec]) -> dict[tuple[str, str], str]:
    """Checksums of the code that specs name by module or entry point.

    Such code does not travel: it must be installed at every worker, and the same.
    """
    names = {name for spec in specs for name in own_names(spec).values()}
    return {name: _digest(*name) for name in sorted(names) if not is_file_name(name[0])}


def _digest(name: str, group: str) -> str:
    files = code_files(name, group)
    content = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest() if files else "missing"


def require_same_code(modules: Modules, worker: str) -> None:
    """Require that this worker has the client's version of installed code."""
    for (name, group), digest in modules.items():
        here = _digest(name, group)
        if here != digest:
            has = "no" if here == "missing" else "another version of"
            told = f"worker {worker} has {has} {name}, which the spec names"
            raise HewError(f"{told}; install the client's there, and start it again")


def forget_other_code(parts: Sequence[DataPart]) -> None:
    """Forget modules of code that came for other tasks.

    A worker lives long: `import helper` in an edited rule would find the helper of the
    version before among the modules that Python has loaded.
    """
    root = download_root() / CODE
    own = [
        place.parent for p in parts if (place := place_of(p)) and _below(place, root)
    ]
    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and _below(Path(file), root) and Path(file).parent not in own:
            del sys.modules[name]
    sys.path[:] = [
        path for path in sys.path if not _below(Path(path), root) or Path(path) in own
    ]


def _below(place: Path, root: Path) -> bool:
    return root in place.parents


# ------------------ Whether a worker would make the same bytes as this process:


@cache  # asked for by every task
def likeness(*, torch: bool = False) -> Mapping[str, str]:
    """All of a process that its results depend on, by a name that people know."""
    python = ".".join(platform.python_version_tuple()[:2])
    packages = ("numpy", "scipy", *(("torch",) if torch else ()))
    return {
        "hewfl": f"{__version__} (code {code_digest()})",
        "compiled kernels": "used" if native.is_available() else "not used",
        "Python": python,
        **{name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def code_digest() -> str:
    """Checksum of hewfl's own source: a version number alone misses an edited copy."""
    root = Path(str(hewfl.__file__)).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def require_like(client: Mapping[str, str], worker: str) -> None:
    """Require that this worker is like the client, and has one thread for its sums."""
    here = likeness(torch="torch" in client)
    differs = [
        f"{name} {here[name]} there, {value} here"
        for name, value in client.items()
        if here[name] != value
    ]
    if differs:
        told = f"worker {worker} is not like this client: {'; '.join(differs)}"
        raise HewError(f"{told}; install the same on both and start the worker again")
    many = [name for name in THREADS if os.environ.get(name) != "1"]
    if many:
        # Sums of several threads round otherwise, by how many cores there are.
        told = f"worker {worker} must be started with {'=1 '.join(many)}=1"
        raise HewError(f"{told}; `dask worker` sets them unless --no-nanny is given")


# ------------------ A task on its way to a worker and back, and what the worker

STEPS = "hewfl-steps"
"""Topic of Dask's events under which workers tell their steps."""
KEYS = "hewfl-"
"""How the keys of tasks begin."""
PERFORM = f"__import__('{__name__}', fromlist=['perform']).perform(client, errand)"
"""What a worker evaluates. A function of ours, sent as one, would break the connection
of a worker that has no hewfl or an older one: the text is an error of its task."""
TELL_EVERY = 0.5
"""Seconds between two such tellings of a task."""
_WAIT_FOR_DATA = 5.0
"""Seconds that a task waits for a file that its worker has asked for already: without
it, all tasks of the queue would run through the new worker and come back."""

_WAIT_FOR_CLIENT = 10.0
"""Seconds after which a worker does the next task though the last was not fetched."""


@final
@dataclass(frozen=True, slots=True)
class Errand:
    """What a worker is sent.

    Attributes:
        call: a function of a module, as a `Task` has it.
        arguments: of the call, as the client has them.
        writes: the argument that is a place to write to, None for none.
        files: what is there so far, as `files_of` says.
        data: files that the call reads.
        modules: checksums of installed code of the user's own that it needs.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    writes: Path | None
    files: Mapping[str, bytes]
    data: tuple[DataPart, ...]
    modules: Modules


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker sends back.

    Attributes:
        result: what the call returned.
        files: what is at the place now, as `files_of` says.
        warned: warnings that the call gave.
    """

    result: Any
    files: Mapping[str, bytes]
    warned: tuple[Warned, ...]


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """A worker's answer that it cannot begin before it has some files."""

    worker: str
    data: tuple[DataPart, ...]


class DroppedError(HewError):
    """Nobody waits for the task any more."""


# ------------------ in the worker

_one_at_a_time = threading.Lock()
_left_behind: set[str] = set()
_asked: dict[DataPart, float] = {}


def perform(client: Mapping[str, str], errand: bytes) -> Outcome | Wanted:
    """Do a task in a folder of this worker's own, and send back what it wrote.

    Args:
        client: `likeness` of the client.
        errand: an `Errand`, pickled: it is opened after the versions were compared, as
            another version may not have the same classes.

    Raises:
        HewError: this worker is not like the client; or what the task raises.
    """
    worker = import_module("distributed").get_worker()
    require_like(client, worker.address)
    given: Errand = pickle.loads(errand)
    require_same_code(given.modules, worker.address)
    wanted = _wanted(given.data)
    if wanted:
        return Wanted(worker.address, wanted)
    # A worker with several threads does one task after the other: they would share
    # caches and warnings, and gain nothing.
    with (
        _one_at_a_time,
        tempfile.TemporaryDirectory(dir=worker.local_directory) as own,
    ):
        _wait_until_fetched(worker)
        return _done(given, Path(own), _teller(worker))


def _wait_until_fetched(worker: Any) -> None:
    """Wait until the client has fetched what this worker has done before.

    A worker that dies takes along what was not fetched. So it is one task at most: the
    one that runs. Nobody fetches while the client is away: then work goes on.
    """
    end = time.monotonic() + _WAIT_FOR_CLIENT
    while kept := _kept(worker) - _left_behind:
        if time.monotonic() > end:
            _left_behind.update(kept)
        time.sleep(0.002)


def _kept(worker: Any) -> set[str]:
    """Keys of tasks of ours whose results are in this worker's memory."""
    known = tuple(worker.state.tasks.values())
    return {
        task.key
        for task in known
        if task.state == "memory" and str(task.key).startswith(KEYS)
    }


def _wanted(data: tuple[DataPart, ...]) -> tuple[DataPart, ...]:
    missing = [part for part in data if place_of(part) is None]
    until = max((_asked.get(part, 0.0) for part in missing), default=0.0)
    while missing and time.monotonic() < until:
        time.sleep(0.1)
        missing = [part for part in missing if place_of(part) is None]
    _asked.update(dict.fromkeys(missing, time.monotonic() + _WAIT_FOR_DATA))
    return tuple(missing)


def _done(given: Errand, own: Path, on_step: Callable[[int], None]) -> Outcome:
    place = None if given.writes is None else own / given.writes.name
    if place is not None:
        write_files(place, given.files)
    forget_other_code(given.data)
    places = places_here(given.data)
    arguments = [
        place if value == given.writes else relocated(value, places)
        for value in given.arguments
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        result = given.call(*arguments, on_step)
    return Outcome(
        result,
        {} if place is None else files_of(place),
        tuple((str(w.message), w.category, w.filename, w.lineno) for w in caught),
    )


def _teller(worker: Any) -> Callable[[int], None]:
    """What a task calls at each step: tells the client now and then.

    It ends a task that was cancelled: Dask itself cannot end a running one.
    """
    key, spoke = worker.get_current_task(), time.monotonic()

    def tell(done: int) -> None:
        nonlocal spoke
        now = time.monotonic()
        if now - spoke < TELL_EVERY:
            return
        spoke = now
        known = worker.state.tasks.get(key)
        if known is None or known.state == "cancelled":
            raise DroppedError(f"{key} was cancelled")
        worker.log_event(STEPS, [key, done])

    return tell
