"""Tasks on the workers of a Dask cluster: payload in, result and files as bytes out.

A task is a pure function of its payload. It runs in a temporary folder of the worker,
which first holds the files of the run so far, and returns the files it leaves there.
The client writes them. Data files and user code travel with the task, by checksum.
"""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, final

import hewfl
from hewfl.core import native
from hewfl.core.atomic import write_bytes
from hewfl.core.plugins import code_files
from hewfl.data.catalogue import CATALOGUE
from hewfl.data.paths import download_root, find_file
from hewfl.errors import HewError
from hewfl.experiments.executor import THREADS, Warned
from hewfl.version import __version__

RUN_TASK = f"__import__('{__name__}', fromlist=['_']).run_task(versions, payload, data)"
"""Expression that a worker evaluates. A function object would break the connection of a
worker without hewfl; the expression raises an error in its task instead."""
STEPS_TOPIC = "hewfl-steps"
"""Topic of the Dask events that report progress."""
REPORT_INTERVAL = 0.5
"""Seconds between two reports of a task."""
CODE_FOLDER = "code"
"""Folder of user code in the cache, by the checksum of all its files."""
PACKAGES = ("numpy", "scipy", "torch")
"""Packages whose versions must agree; torch only if a spec needs it."""
LAST = "manifest.json"
"""Written last: it describes the other files, and a client may be killed."""


@final
@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that a task reads.

    Attributes:
        path: path below the data folders of a worker; contains the checksum of a
            user's file.
        source: path at the client, or name of a data set of the catalogue.
    """

    path: str
    source: str


@final
@dataclass(frozen=True, slots=True)
class TaskPayload:
    """The input of a task: a call, its files so far, and the files that it reads.

    `writes` is the argument that is the output path, None for none.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    writes: Path | None
    files: Mapping[str, bytes]
    inputs: tuple[InputFile, ...]


@final
@dataclass(frozen=True, slots=True)
class TaskResult:
    """The output of a task: value of the call, files at its output path, warnings."""

    value: Any
    files: Mapping[str, bytes]
    warned: tuple[Warned, ...]


def run_task(
    versions: Mapping[str, str], payload: bytes, data: Sequence[bytes]
) -> TaskResult:
    """Run a task in this worker.

    Args:
        versions: of the client, see `installed_versions`.
        payload: a pickled `TaskPayload`, opened after the versions were compared.
        data: contents of its input files.

    Raises:
        HewError: this worker differs from the client.
        Exception: any exception of the task.
    """
    worker = import_module("distributed").get_worker()
    check_worker(versions, worker.address)
    task: TaskPayload = pickle.loads(payload)
    inputs = list(zip(task.inputs, data, strict=True))
    stored = {file.source: store_input(file, content) for file, content in inputs}
    paths = {k: path for k, path in stored.items() if k not in CATALOGUE}  # by path
    # One task at a time: threads of a worker would share warnings and caches.
    with _lock, tempfile.TemporaryDirectory(dir=worker.local_directory) as folder:
        _forget_other_code({path.parent for path in paths.values()})
        output = None if task.writes is None else Path(folder) / task.writes.name
        if output is not None:
            write_files(output, task.files)
        arguments = [
            output if value == task.writes else relocate(value, paths)
            for value in task.arguments
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            value = task.call(*arguments, _step_reporter(worker))
        files = {} if output is None else read_files(output)
    warned = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
    return TaskResult(value, files, tuple(warned))


_lock = threading.Lock()


def _step_reporter(worker: Any) -> Callable[[int], None]:
    """A callback that reports steps to the client and ends a cancelled task."""
    key, last = worker.get_current_task(), time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last < REPORT_INTERVAL:
            return
        last = time.monotonic()
        known = worker.state.tasks.get(key)
        if known is None or known.state == "cancelled":
            raise HewError(f"{key} was cancelled")
        worker.log_event(STEPS_TOPIC, [key, done])

    return report


def read_files(path: Path) -> dict[str, bytes]:
    """The files that a task has written, by path relative to the parent of `path`.

    Args:
        path: a folder; or a file, with a folder of the same stem during the task.
    """
    folder = path.with_suffix("")
    files = [path] if path.is_file() else []
    files += [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        file.relative_to(path.parent).as_posix(): file.read_bytes()
        for file in files
        if not file.name.endswith(".partial")
    }


def write_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Write files atomically, and remove all others at the path.

    Raises:
        OSError: a file cannot be written.
    """
    for name in sorted(files, key=lambda name: (name.endswith(LAST), name)):
        write_bytes(path.parent / name, files[name], sole_writer=True)
    folder = path.with_suffix("")
    for file in folder.rglob("*"):
        if file.is_file() and file.relative_to(path.parent).as_posix() not in files:
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        shutil.rmtree(folder)


def store_input(file: InputFile, content: bytes) -> Path:
    """The path of an input file in this worker, written to its cache if absent."""
    path = find_file(file.path)
    if path is None:
        path = download_root() / file.path
        write_bytes(path, content)
    return path


def relocate(value: Any, paths: Mapping[str, Path]) -> Any:
    """A value in which paths of the client are replaced, in any record or list."""
    if isinstance(value, str):
        file, colon, name = value.rpartition(":")  # code is named as file:name
        if colon and file in paths:
            return f"{paths[file]}:{name}"
        return str(paths.get(value, value))
    if isinstance(value, Mapping):
        return {key: relocate(each, paths) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(relocate(each, paths) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        changed = {name: relocate(each, paths) for name, each in given.items()}
        return value if changed == given else replace(value, **changed)
    return value


def _forget_other_code(folders: set[Path]) -> None:
    """Unload user code of other tasks.

    `import helper` in an edited rule would find the loaded helper of the older version.
    """
    root = download_root() / CODE_FOLDER

    def is_other(path: Path) -> bool:
        return root in path.parents and path not in folders

    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and is_other(Path(file).parent):
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not is_other(Path(path))]


def installed_versions(
    packages: Sequence[str], code: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Versions of everything that results depend on, by name.

    Args:
        packages: names of Python packages.
        code: installed user code, by its name in a spec and its group.
    """
    return {
        "hewfl": f"{__version__} (code {_hewfl_digest()})",
        "compiled kernels": "used" if native.is_available() else "not used",
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{name: _version(name) for name in packages},
        **{f"{name} of {group}": _code_digest(name, group) for name, group in code},
    }


@cache
def _hewfl_digest() -> str:
    """Checksum of the source of hewfl: its version misses an edited copy."""
    root, digest = Path(str(hewfl.__file__)).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _code_digest(name: str, group: str) -> str:
    files = code_files(name, group)
    content = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest()[:12] if files else "missing"


def check_worker(versions: Mapping[str, str], worker: str) -> None:
    """Require the versions of the client, and one thread for linear algebra.

    Raises:
        HewError: naming the worker and each difference.
    """
    code = [
        (name.partition(" of ")[0], name.partition(" of ")[2])
        for name in versions
        if " of " in name
    ]
    packages = [name for name in PACKAGES if name in versions]
    here = installed_versions(packages, code)
    differences = [
        f"{name} {here[name]} there, {version} here"
        for name, version in versions.items()
        if here[name] != version
    ]
    if differences:
        text = f"worker {worker} differs from this client: {'; '.join(differences)}"
        raise HewError(f"{text}; install the same on both and restart the worker")
    many = [name for name in THREADS if os.environ.get(name) != "1"]
    if many:  # the rounding of a sum depends on the number of threads
        text = f"worker {worker} must be started with {'=1 '.join(many)}=1"
        raise HewError(f"{text}; `dask worker` sets them unless --no-nanny is given")
