"""Execution of tasks on a Dask cluster.

The client sends tasks and writes the files that they return, so that a run leaves the
same bytes as on one machine. Dask gives the task of a lost worker to another one. When
the scheduler is lost, the run ends with an error; the same command resumes it from the
files written so far.
"""

import contextlib
import hashlib
import json
import logging
import pickle
import queue
import time
import uuid
import warnings
from asyncio import CancelledError as AsyncCancelledError
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, final

from hewfl.core.plugins import code_files
from hewfl.core.validation import invalid
from hewfl.data import CATALOGUE
from hewfl.data.download import fetch, progress_bar
from hewfl.data.paths import file_sha256, find_file
from hewfl.errors import DataError, HewError, MissingExtraError
from hewfl.experiments.dask_tasks import (
    CODE_FOLDER,
    PACKAGES,
    RUN_TASK,
    STEPS_TOPIC,
    InputFile,
    TaskPayload,
    TaskResult,
    installed_versions,
    read_files,
    write_files,
)
from hewfl.experiments.executor import Note, Report, Task, pass_on_warning
from hewfl.experiments.spec import Spec
from hewfl.experiments.user_code import user_code_names

SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
"""Protocols of Dask addresses."""
FILE = "file:"
"""Prefix of the name of a scheduler file."""
NOTE_INTERVAL = 2.0
"""Seconds between two counts of the workers."""


@contextlib.contextmanager
def cluster_at(address: str) -> Iterator["Cluster"]:
    """A cluster by the address of its scheduler.

    Args:
        address: such as tcp://host:8786, or file:NAME for a scheduler file.

    Raises:
        InvalidInputError: the address is malformed.
        MissingExtraError: Dask Distributed is not installed.
        HewError: no scheduler answers.
    """
    cluster = Cluster(address)
    try:
        yield cluster
    finally:
        with contextlib.suppress(Exception):  # the connection may be broken
            cluster.client.close(timeout=2)


@final
class Cluster:
    """The workers of a Dask cluster, as an executor of tasks."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = _connect(address)
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._uploads: dict[str, Any] = {}
        self._max_workers = 0
        self.client.subscribe_topic(STEPS_TOPIC, lambda e: self._news.put(e[1]))

    @property
    def facts(self) -> Mapping[str, Any]:
        """Its entries in `times.json`."""
        return {"cluster": {"workers": self._max_workers}}

    def execute(self, tasks: Sequence[Task], report: Report, note: Note) -> list[Any]:
        """Run all tasks.

        Args:
            tasks: what to run.
            report: called with the number of a task and its steps so far.
            note: called with the number of finished tasks and of workers, in words.

        Returns:
            Results in the order of the tasks.

        Raises:
            HewError: a worker differs from this client, a task ended every worker that
                began it, or the scheduler is lost.
            Exception: the first that a task raises; the other tasks are cancelled.
        """
        results: dict[int, Any] = {}
        futures: dict[str, tuple[int, Any]] = {}
        try:
            for k, task in enumerate(tasks):
                if task.writes and task.done == task.steps:  # of an earlier run
                    results[k] = task.call(*task.arguments, lambda _: None)
                    report(k, task.steps)
                    continue
                future = self._submit(task)
                futures[future.key] = (k, future)
                future.add_done_callback(self._news.put)
            noted = 0.0
            while futures:
                if time.monotonic() - noted > NOTE_INTERVAL:
                    noted = time.monotonic()
                    note(self._progress(len(results), len(tasks)))
                ended = self._wait(futures, report)
                for key in ended:
                    k, future = futures[key]
                    if future.status == "error":
                        error = future.exception()
                        raise _clear_error(error, tasks[k]) from error
                outputs = self.client.gather([futures[key][1] for key in ended])
                for key, output in zip(ended, outputs, strict=True):
                    k, _ = futures.pop(key)
                    results[k] = _save(tasks[k], output)
                    report(k, tasks[k].steps)
            note(self._progress(len(results), len(tasks)))
        except _lost_connection() as error:
            raise self._lost() from error
        finally:
            with contextlib.suppress(Exception):  # the connection may be broken
                self.client.cancel([future for _, future in futures.values()])
        return [results[k] for k in range(len(tasks))]

    def _wait(
        self, futures: Mapping[str, tuple[int, Any]], report: Report
    ) -> list[str]:
        """Keys of tasks that ended, after a while; steps of others are reported."""
        ended: list[str] = []
        with contextlib.suppress(queue.Empty):
            while True:
                news = self._news.get(timeout=0 if ended else 0.5)
                is_step = isinstance(news, list | tuple)
                key = news[0] if is_step else news.key
                if key not in futures:  # of another client, or late
                    continue
                if is_step:
                    report(futures[key][0], news[1])
                else:
                    ended.append(key)
        if not ended and str(self.client.status) != "running":
            raise self._lost()
        return ended

    def _submit(self, task: Task) -> Any:
        specs = list(_specs(task.arguments))
        inputs = input_files(specs)
        files = {} if task.writes is None else read_files(task.writes)
        payload = TaskPayload(task.call, task.arguments, task.writes, files, inputs)
        needs_torch = any(s.device != "numpy" or s.problem.is_module for s in specs)
        packages = PACKAGES if needs_torch else PACKAGES[:-1]
        # Code that is named by module or entry point does not travel.
        code = [each for each in _user_code(specs) if not _is_file(each[0])]
        names = {
            "versions": installed_versions(packages, code),
            "payload": pickle.dumps(payload),
            "data": [self._upload(file) for file in inputs],
        }
        return self._send(eval, RUN_TASK, names)

    def _upload(self, file: InputFile) -> Any:
        """The content of a file as a future, sent once to each worker that needs it.

        It is a task, and not scattered data, so that Dask restores it when a worker is
        lost.
        """
        if file.path not in self._uploads:
            content = _client_path(file).read_bytes()
            self._uploads[file.path] = self._send(bytes, content)
        return self._uploads[file.path]

    def _send(self, call: Any, *arguments: Any) -> Any:
        with warnings.catch_warnings():  # about large arguments
            warnings.simplefilter("ignore")
            key = f"hewfl-{uuid.uuid4().hex}"
            return self.client.submit(call, *arguments, key=key)

    def _progress(self, done: int, count: int) -> str:
        workers = len(self.client.nthreads())
        self._max_workers = max(self._max_workers, workers)
        return f"{done}/{count} tasks, {workers} worker{'s' * (workers != 1)}"

    def _lost(self) -> HewError:
        text = f"the Dask scheduler at {self.address} is lost"
        return HewError(f"{text}; restart it and its workers, then the same command")


def _save(task: Task, output: TaskResult) -> Any:
    """Write the files of a task and show its warnings; the value of its call."""
    if task.writes is not None:
        write_files(task.writes, output.files)
    for warned in output.warned:
        pass_on_warning(warned)
    return output.value


def input_files(specs: Sequence[Spec]) -> tuple[InputFile, ...]:
    """Data files and code files that tasks of some specs read."""
    files: dict[InputFile, None] = {}
    for name in dict.fromkeys(spec.data.name for spec in specs):
        if name in CATALOGUE:
            files |= {InputFile(f.path, name): None for f in CATALOGUE[name].files}
        else:
            sha256 = _sha256(Path(name))
            files[InputFile(f"own/{sha256[:32]}/{Path(name).name}", name)] = None
    for name, group in _user_code(specs):
        if not _is_file(name):
            continue
        paths = code_files(name, group)
        names = "\n".join(f"{path.name} {file_sha256(path)}" for path in paths)
        folder = f"{CODE_FOLDER}/{hashlib.sha256(names.encode()).hexdigest()[:32]}"
        main = Path(name.rpartition(":")[0]).parent
        files |= {
            InputFile(f"{folder}/{p.relative_to(main).as_posix()}", str(p)): None
            for p in paths
        }
    return tuple(files)


def _sha256(file: Path) -> str:
    if not file.is_file():
        raise DataError(f"the data file {file} does not exist")
    status = file.stat()
    return _known_sha256(file, status.st_mtime_ns, status.st_size)


@cache  # asked for by every task
def _known_sha256(file: Path, changed: int, size: int) -> str:  # noqa: ARG001 - keys
    return file_sha256(file)


def _client_path(file: InputFile) -> Path:
    if file.source not in CATALOGUE:
        return Path(file.source)
    path = find_file(file.path)
    if path is None:
        with progress_bar() as report:
            fetch(CATALOGUE[file.source], report)
        path = find_file(file.path)
    assert path is not None, "downloaded above"
    return path


def _user_code(specs: Sequence[Spec]) -> list[tuple[str, str]]:
    return sorted({name for spec in specs for name in user_code_names(spec).values()})


def _is_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _specs(arguments: Sequence[Any]) -> Iterator[Spec]:
    for value in arguments:
        if isinstance(value, Spec):
            yield value
        elif isinstance(value, tuple):
            yield from _specs(value)


def _connect(address: str) -> Any:
    scheme, mark, rest = address.partition("://")
    is_file = address.startswith(FILE) and len(address) > len(FILE)
    is_url = mark and scheme in SCHEMES and rest.rpartition(":")[2].isdecimal()
    if not (is_file or is_url):
        rule = "an address such as tcp://host:8786, or file:scheduler.json"
        raise invalid("--cluster", rule, repr(address))
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        text = "--cluster needs Dask Distributed: install hewfl's extra cluster"
        raise MissingExtraError(text) from error
    for name in tuple(logging.root.manager.loggerDict):  # errors are raised instead
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    location = _scheduler_address(address) if is_file else address
    try:
        return distributed.Client(location, set_as_default=False, name="hewfl")
    except (OSError, TimeoutError) as error:
        text = f"no Dask scheduler answers at {address}"
        raise HewError(f"{text}; start one with: dask scheduler") from error
    except (TypeError, ValueError, RuntimeError) as error:  # such as TLS not set up
        text = f"no connection to the Dask scheduler at {address}"
        raise HewError(f"{text}: {' '.join(str(error).split())}") from error


def _scheduler_address(address: str) -> str:
    file = Path(address.removeprefix(FILE).removeprefix("//"))
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["address"])
    except FileNotFoundError as error:
        text = f"the scheduler file {file} does not exist"
        start = f"start the scheduler with: dask scheduler --scheduler-file {file}"
        raise DataError(f"{text}; {start}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no scheduler file: {error!r}") from error


def _lost_connection() -> tuple[type[BaseException], ...]:
    """Exceptions of Dask when a scheduler is lost or has forgotten a task."""
    closed = import_module("distributed.comm").CommClosedError
    return closed, CancelledError, AsyncCancelledError, TimeoutError


def _clear_error(error: BaseException, task: Task) -> BaseException:
    """The exception of a task, or a sentence for an error of Dask."""
    if isinstance(error, import_module("distributed").KilledWorker):
        text = f"{task.stage}, {task.name}: every worker that began it died"
        return HewError(f"{text}; check their logs, often memory is short")
    if isinstance(error, ImportError) and (error.name or "").startswith("hewfl"):
        text = f"a worker has no {error.name}; install the same hewfl on every worker"
        return HewError(text)
    return error
