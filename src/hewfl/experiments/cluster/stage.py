"""One stage of a run on a cluster: its tasks, from their sending to their files."""

import contextlib
import hashlib
import json
import pickle
import queue
import time
import warnings
from asyncio import CancelledError as AsyncCancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, final

from hewfl.errors import HewError
from hewfl.experiments.cluster.code import installed_code
from hewfl.experiments.cluster.data import parts_of_data, pieces_of, receive
from hewfl.experiments.cluster.errand import (
    KEYS,
    PERFORM,
    STEPS,
    DroppedError,
    Errand,
    Outcome,
    Wanted,
)
from hewfl.experiments.cluster.files import files_of, write_files
from hewfl.experiments.cluster.likeness import likeness
from hewfl.experiments.cluster.scheduler import dask
from hewfl.experiments.spec import Spec
from hewfl.experiments.workers import Report, Task, pass_on_warning

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
