"""The scheduler of a Dask cluster: its address, and a connection to it."""

import contextlib
import hashlib
import json
import logging
import pickle
import queue
import time
import warnings
from asyncio import CancelledError as AsyncCancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, final

from hewfl.core.validation import invalid
from hewfl.errors import DataError, HewError, MissingExtraError
from hewfl.experiments.dask_tasks import (
    KEYS,
    PERFORM,
    STEPS,
    DroppedError,
    Errand,
    Outcome,
    Wanted,
    files_of,
    installed_code,
    likeness,
    parts_of_data,
    pieces_of,
    receive,
    write_files,
)
from hewfl.experiments.executor import Note, Report, Task, pass_on_warning
from hewfl.experiments.spec import Spec

SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
"""Of addresses that Dask knows."""
FILE = "file:"
"""Begins the name of a scheduler file."""
PATIENCE = 600.0
"""Seconds to wait for a scheduler that was lost: it may be restarted by hand. Dask's
setting `hewfl.patience` changes it (DASK_HEWFL__PATIENCE in the environment)."""


def dask(name: str = "distributed") -> Any:
    """A module of Dask, which a machine without a cluster need not have."""
    try:
        return import_module(name)
    except ImportError as error:
        text = "--cluster needs Dask Distributed: install hewfl's extra cluster"
        raise MissingExtraError(text) from error


def check_address(address: str) -> str:
    """Require an address of a scheduler, or a scheduler file."""
    scheme, mark, rest = address.partition("://")
    if address.startswith(FILE) and len(address) > len(FILE):
        return address
    if not (mark and scheme in SCHEMES and rest.rpartition(":")[2].isdecimal()):
        rule = "an address such as tcp://host:8786, or file:json"
        raise invalid("--cluster", rule, repr(address))
    return address


def connect(address: str) -> Any:
    """A client of the scheduler at an address.

    The time limit is Dask's own, `distributed.comm.timeouts.connect`: 30 seconds.

    Raises:
        MissingExtraError: Dask Distributed is not installed.
        HewError: nobody answers within the time limit.
    """
    limit = _seconds("distributed.comm.timeouts.connect", 30.0)
    return _connected(address, limit)


def reconnect(address: str) -> Any:
    """A client of a scheduler that was lost, when it is there again.

    Raises:
        HewError: it is not there after `PATIENCE`.
    """
    limit = _seconds("hewfl.patience", PATIENCE)
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        try:
            return _connected(address, max(1.0, min(left, 10.0)))
        except HewError:
            if left <= 0:
                told = f"the scheduler at {address} is gone for {limit:g} s"
                raise HewError(f"{told}; start it and the command again") from None
            time.sleep(0.2)


def _connected(address: str, limit: float) -> Any:
    distributed = dask()
    # Its words on connections that break are ours to say, in one line.
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        return distributed.Client(
            _location(address), timeout=limit, set_as_default=False, name="hewfl"
        )
    except (OSError, TimeoutError) as error:
        told = f"no Dask scheduler answers at {address} within {limit:g} s"
        raise HewError(f"{told}; start one with: dask scheduler") from error
    except (TypeError, ValueError, RuntimeError) as error:  # TLS not set up, say
        told = f"no connection to the Dask scheduler at {address}"
        raise HewError(f"{told}: {' '.join(str(error).split())}") from error


def _location(address: str) -> str:
    """The address, read anew from a scheduler file: a restarted one has another."""
    if not address.startswith(FILE):
        return address
    file = Path(address.removeprefix(FILE).removeprefix("//"))
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["address"])
    except FileNotFoundError as error:
        told = f"the scheduler file {file} does not exist"
        start = f"start the scheduler with: dask scheduler --scheduler-file {file}"
        raise DataError(f"{told}; {start}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no scheduler file: {error!r}") from error


def _seconds(setting: str, default: float) -> float:
    dask()  # brings its settings
    config = dask("dask.config")
    parse = dask("dask.utils").parse_timedelta
    return float(parse(config.get(setting, default)))


def close(client: Any) -> None:
    """End a connection, whatever is left of it."""
    with contextlib.suppress(Exception):  # it may be broken in any way
        client.close(timeout=2)


# ------------------ One stage of a run on a cluster: its tasks, from their sending

AT_ONCE = 32
"""Results fetched together, where many tasks ended."""
LOOK_EVERY = 2.0
"""Seconds between two looks at who is at work."""


class LostError(Exception):
    """The scheduler is gone, or knows nothing of our tasks any more."""


@final
class Stage:
    """Tasks that are done together, with the results so far."""

    def __init__(self, tasks: Sequence[Task], report: Report) -> None:
        self.tasks = tasks
        self.results: dict[int, Any] = {}
        self._report = report
        self._client: Any = None
        self._futures: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}
        self._inherited: set[str] = set()
        self._tries = [0] * len(tasks)
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve(self, client: Any, look: Callable[[], None]) -> None:
        """Do the tasks that are left, through a client of the scheduler.

        Raises:
            LostError: the scheduler was lost; call again with a new client.
            HewError: a worker is not like this process, or a task ended several.
            Exception: the first that a task raises; the others are dropped.
        """
        self._client, self._news = client, queue.SimpleQueue()
        self._futures.clear()
        try:
            with _losses():
                client.subscribe_topic(STEPS, lambda event: self._news.put(event[1]))
                self._send([k for k in range(len(self.tasks)) if self._is_left(k)])
                self._watch(look)
        except LostError:
            raise
        except BaseException:
            self._drop()
            raise

    def _is_left(self, k: int) -> bool:
        """Whether a task is to be sent; one that was done before is read here."""
        task = self.tasks[k]
        if k not in self.results and task.writes and task.done == task.steps:
            self._keep(k, task.call(*task.arguments, lambda _: None))
        return k not in self.results

    def _keep(self, k: int, result: Any) -> None:
        self.results[k] = result
        self._report(k, self.tasks[k].steps)

    def _send(self, numbers: Sequence[int]) -> None:
        """Have tasks done; the scheduler may have them of an earlier client.

        Published, they outlive this process.
        """
        if not numbers:
            return
        sent: dict[str, Any] = {}
        before = set(self._client.list_datasets())
        for k in numbers:
            specs = list(_specs(self.tasks[k].arguments))
            errand, like = _errand(self.tasks[k], specs), _likeness(specs)
            key = f"{KEYS}{_digest(errand, like)}-{self._tries[k]}"
            while key in sent:  # another task with the same arguments
                key += "+"
            self._numbers[key] = k
            given = {"client": dict(like), "errand": pickle.dumps(errand)}
            with warnings.catch_warnings():  # of large inputs: they travel once
                warnings.simplefilter("ignore")
                sent[key] = self._client.submit(eval, PERFORM, given, key=key)
            self._futures[key] = sent[key]
        self._inherited |= before & sent.keys()
        self._client.publish_dataset(override=True, **sent)
        for future in sent.values():
            future.add_done_callback(self._news.put)

    def _watch(self, look: Callable[[], None]) -> None:
        looked = 0.0
        while self._futures:
            if time.monotonic() - looked > LOOK_EVERY:
                looked = time.monotonic()
                look()
            ended = self._hear()
            if ended:
                self._take(ended)
            elif self._client.status != "running":
                raise LostError
        look()

    def _hear(self) -> list[Any]:
        """Pass on the steps that were told meanwhile; tasks that ended."""
        ended: list[Any] = []
        with contextlib.suppress(queue.Empty):
            while len(ended) < AT_ONCE:
                news = self._news.get(timeout=0 if ended else 0.5)
                if not isinstance(news, list | tuple):
                    ended.append(news)
                elif news[0] in self._futures:
                    self._report(self._numbers[news[0]], news[1])
        return ended

    def _take(self, ended: Sequence[Any]) -> None:
        """Write what tasks made, or do what they want before they can be done."""
        again = []
        well = [future for future in ended if future.status != "error"]
        for future in ended:
            if future.status == "error":
                self._raise(future)
                again.append(self._numbers[future.key])
        for future, found in zip(well, self._client.gather(well), strict=True):
            k = self._numbers[future.key]
            if isinstance(found, Wanted):
                self._supply(found)
                again.append(k)
            else:
                self._write(k, found)
        for future in ended:
            del self._futures[future.key]
            future.release()  # at once: the worker waits for it
        self._client.unpublish_dataset([future.key for future in ended])
        for k in again:
            self._tries[k] += 1
        if again:
            self._send(again)

    def _raise(self, future: Any) -> None:
        """Raise what a task raised, unless it is to be tried again.

        An error of an earlier client's time may have been mended.
        """
        error = future.exception()
        old = future.key in self._inherited
        if not (old or isinstance(error, DroppedError)):
            raise _plain(error, self.tasks[self._numbers[future.key]]) from error

    def _write(self, k: int, found: Outcome) -> None:
        task = self.tasks[k]
        if task.writes is not None:
            write_files(task.writes, found.files)
        for warned in found.warned:
            pass_on_warning(warned)
        self._keep(k, found.result)

    def _supply(self, wanted: Wanted) -> None:
        """Send files to a worker that has them not; it may have gone meanwhile."""
        for part in wanted.data:
            for begin, piece, sha256 in pieces_of(part):
                answers = self._client.run(
                    receive,
                    part,
                    begin,
                    piece,
                    sha256,
                    self._client.id,
                    workers=[wanted.worker],
                    on_error="return",
                )
                answer = answers.get(wanted.worker)
                if isinstance(answer, HewError | OSError):
                    raise answer
                if answer is not True:
                    break

    def _drop(self) -> None:
        """Let the cluster forget what is left, as far as it can be told."""
        with contextlib.suppress(Exception):
            self._client.unpublish_dataset(list(self._futures))
            self._client.cancel(list(self._futures.values()))


def _likeness(specs: Sequence[Spec]) -> Mapping[str, str]:
    return likeness(
        torch=any(s.device != "numpy" or s.problem.is_module for s in specs)
    )


def _errand(task: Task, specs: Sequence[Spec]) -> Errand:
    return Errand(
        task.call,
        task.arguments,
        task.writes,
        {} if task.writes is None else files_of(task.writes),
        parts_of_data(specs),
        installed_code(specs),
    )


def _specs(arguments: Sequence[Any]) -> Iterator[Spec]:
    for value in arguments:
        if isinstance(value, Spec):
            yield value
        elif isinstance(value, tuple):
            yield from _specs(value)


def _digest(errand: Errand, like: Mapping[str, str]) -> str:
    """A name for all that a task's outcome depends on.

    Records show all their fields in `repr`; a pickle of equal records may differ.
    """
    call = f"{errand.call.__module__}.{errand.call.__qualname__}"
    files = {name: hashlib.sha256(b).hexdigest() for name, b in errand.files.items()}
    travels = repr((errand.data, errand.modules))
    given = [dict(like), call, repr(errand.arguments), files, travels]
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """Errors of Dask that mean: what the scheduler knew is gone."""
    closed = dask("distributed.comm").CommClosedError
    try:
        yield
    except (closed, CancelledError, AsyncCancelledError, TimeoutError) as error:
        raise LostError from error


def _plain(error: BaseException, task: Task) -> BaseException:
    """What a task raised, or a sentence for what Dask says."""
    if isinstance(error, dask().KilledWorker):
        told = f"{task.stage}, {task.name}: every worker that began it died"
        return HewError(f"{told}; look at their logs: too little memory, as a rule")
    if isinstance(error, ImportError) and (error.name or "").startswith("hewfl"):
        told = f"a worker has no {error.name}; install the same hewfl on every worker"
        return HewError(told)
    return error


# ------------------ Tasks on a Dask cluster: sent out, watched, sent again where

# Every task has a key made of all that it depends on, and is published on the scheduler
# until its files are written here. So a client that is killed and started again finds
# its tasks where they are, done or under way. A task whose worker dies is given to
# another one by Dask; when the scheduler itself is lost, what was not written is sent
# again. Results that were written are never asked for again.


@contextlib.contextmanager
def cluster_at(address: str) -> Iterator["Cluster"]:
    """A cluster that does tasks, by the address of its scheduler.

    Raises:
        InvalidInputError: no such address.
        MissingExtraError: Dask Distributed is not installed.
        HewError: nobody answers there.
    """
    cluster = Cluster(check_address(address))
    try:
        yield cluster
    finally:
        cluster.close()


@final
class Cluster:
    """Workers of a Dask cluster, as a crew."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = connect(address)
        self._most = 0

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `times.json` says of it."""
        return {"cluster": {"workers": self._most}}

    def close(self) -> None:
        """End the connection."""
        close(self.client)

    def execute(self, tasks: Sequence[Task], report: Report, note: Note) -> list[Any]:
        """Do all tasks; results in their order.

        Raises:
            HewError: a worker is not like this process, a task ended several workers,
                or the scheduler is gone for long.
            Exception: the first that a task raises; tasks not begun are dropped.
        """
        stage = Stage(tasks, report)
        while True:
            try:
                stage.serve(self.client, lambda: note(self._words(stage)))
            except LostError:
                note("scheduler lost, waiting for it")
                self.close()
                self.client = reconnect(self.address)
            else:
                return [stage.results[k] for k in range(len(tasks))]

    def _words(self, stage: Stage) -> str:
        """How far a stage is, and who is at work."""
        threads = self.client.nthreads()
        for worker, count in threads.items():
            if count > 1:
                _warn_of_threads(worker, count)
        self._most = max(self._most, len(threads))
        workers = "1 worker" if len(threads) == 1 else f"{len(threads)} workers"
        return f"{len(stage.results)}/{len(stage.tasks)} tasks, {workers}"


@cache
def _warn_of_threads(worker: str, count: int) -> None:
    told = f"worker {worker} has {count} threads, and hewfl uses one of a process"
    better = f"start it with --nworkers {count} --nthreads 1"
    warnings.warn(f"{told}; {better}", stacklevel=3)
