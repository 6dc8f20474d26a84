"""Independent pieces of work on several processes, with progress from each."""

import multiprocessing
import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from hewfl.core.validation import invalid

_warned: dict[Any, int] = {}
"""Warnings of workers that were shown; kept by `warnings`."""
Report = Callable[[int, int], None]
"""Told of progress, in the main process: which piece, how many of its steps are done.
"""
Note = Callable[[str], None]
"""Told what else there is to say of a stage: who works at it."""
Warned = tuple[str, type[Warning], str, int]
"""A warning of another process: text, category, file, line."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to one in every worker: processes share the cores, and bits do not depend on
how many cores there are."""
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""Linux: arrays up to 32 MiB are made in memory that a worker keeps. By default it goes
back to the system with each array, and comes again page by page, cleared."""


@final
@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work.

    Attributes:
        stage: what it is part of, for progress bars.
        name: what it is itself.
        steps: how many it has.
        call: a function of a module, called as call(*arguments, on_step).
        arguments: values that can be sent to another process.
        done: steps that were done before, by a run that was stopped.
        cost: of a step, against steps of other tasks of the stage.
        shares: what it has in common with others that had better follow each other.
        writes: the one of its arguments that is a file or folder it writes, if any.
    """

    stage: str
    name: str
    steps: int
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: int = 0
    cost: int = 1
    shares: str = ""
    writes: Path | None = None


@runtime_checkable
class Crew(Protocol):
    """Who does tasks: processes of this machine, or a cluster."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `times.json` says of it."""
        ...

    def execute(self, tasks: Sequence[Task], report: Report, note: Note) -> list[Any]:
        """Do all tasks; results in their order; raise what the first failed raised.

        Args:
            tasks: what to do.
            report: told of progress.
            note: told who is at work, in words.
        """
        ...


@final
class Processes:
    """Processes of this machine, started when first needed and kept between stages.

    As a context it ends them. Each has a queue of its own, so that it can be given
    tasks on the samples that it has prepared.

    Args:
        jobs: how many; 0 does everything in this one.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 0:
            raise invalid("jobs", "at least 0", jobs)
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        self._news: Any = self._context.Queue() if jobs else None
        self._pools: list[ProcessPoolExecutor] = []
        self._shares: list[str] = []
        self._past = 0

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `times.json` says of it."""
        return {"jobs": self._jobs}

    def __enter__(self) -> "Processes":
        """Nothing is started yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes, and show the warnings that came last."""
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._pools:
            self._pass_on(lambda *_: None, set())

    def execute(
        self,
        tasks: Sequence[Task],
        report: Report,
        note: Note,  # noqa: ARG002 - nobody comes or goes
    ) -> list[Any]:
        """Do all tasks; results in their order.

        Args:
            tasks: what to do.
            report: told of progress.
            note: not used.

        Raises:
            Exception: the first that a task raises; tasks not begun are dropped.
        """
        if self._jobs == 0:
            return [
                task.call(*task.arguments, lambda done, k=k: report(k, done))
                for k, task in enumerate(tasks)
            ]
        for _ in range(len(self._pools), min(self._jobs, len(tasks))):
            given = (1, self._context, _begin, (self._news,))
            self._pools.append(ProcessPoolExecutor(*given))
            self._shares.append("")
        try:
            found = self._watch(tasks, report)
        except BaseException:
            self._stop()
            raise
        self._past += len(tasks)
        return found

    def _watch(self, tasks: Sequence[Task], report: Report) -> list[Any]:
        """Hand tasks out and pass progress on until all is done.

        A result may overtake the news of its last steps: it counts as news of them all,
        and what comes behind it is dropped.
        """
        left, results = list(range(len(tasks))), dict[int, Any]()
        running: dict[Future[Any], tuple[int, int]] = {}
        while left or running:
            busy = {worker for worker, _ in running.values()}
            for worker in range(len(self._pools)):
                if left and worker not in busy:
                    k = self._next(worker, left, tasks)
                    left.remove(k)
                    running[self._begin(worker, k, tasks[k])] = (worker, k)
            done, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
            self._pass_on(report, set(results))
            for future in done:
                _, k = running.pop(future)
                results[k] = future.result()
                report(k, tasks[k].steps)
        return [results[k] for k in range(len(tasks))]

    def _next(self, worker: int, left: Sequence[int], tasks: Sequence[Task]) -> int:
        """The task for a worker: on samples that it has, else that no other has."""
        others = {s for w, s in enumerate(self._shares) if w != worker}
        own = [k for k in left if tasks[k].shares == self._shares[worker]]
        new = [k for k in left if tasks[k].shares not in others]
        return (own or new or left)[0]

    def _begin(self, worker: int, k: int, task: Task) -> Future[Any]:
        self._shares[worker] = task.shares
        with _settings(), _deaf_to_ctrl_c():
            return self._pools[worker].submit(_work, self._past + k, task)

    def _pass_on(self, report: Report, over: Container[int]) -> None:
        """Report steps of tasks that are not over, and pass warnings on."""
        while True:
            try:
                number, told = self._news.get_nowait()
            except queue.Empty:
                return
            if number is None:
                pass_on_warning(told)
            elif number >= self._past and number - self._past not in over:
                report(number - self._past, told)

    def _stop(self) -> None:
        """End the workers now: what they did is kept by checkpoints.

        Python 3.14 has `terminate_workers` for this; before, only the private list.
        """
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.terminate()


def execute(tasks: Sequence[Task], *, jobs: int, report: Report) -> list[Any]:
    """Do all tasks by processes that end with them; results in their order.

    Args:
        tasks: what to do.
        jobs: processes; 0 does everything in this one.
        report: told of progress.

    Raises:
        Exception: the first that a task raises; tasks not begun are dropped.
    """
    with Processes(jobs) as crew:
        return crew.execute(tasks, report, lambda _: None)


def pass_on_warning(told: Warned) -> None:
    """Give a warning of another process as if it were our own, once."""
    text, category, file, line = told
    warnings.warn_explicit(text, category, file, line, registry=_warned)


@contextmanager
def _settings() -> Iterator[None]:
    """Workers started inside take one thread for linear algebra and keep memory."""
    given = dict.fromkeys(THREADS, "1") | MEMORY
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Workers started inside never hear Ctrl-C, not even while they import.

    This process hears one that comes meanwhile when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ------------------ in the worker

_news: Any = None


def _begin(news: Any) -> None:
    global _news  # noqa: PLW0603 - set once, when the process starts
    _news = news
    warnings.showwarning = _warn
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,  # noqa: ARG001 - as Python calls it
    line: str | None = None,  # noqa: ARG001 - as Python calls it
) -> None:
    """Leave it to the main process to show a warning."""
    _news.put((None, (str(message), category, filename, lineno)))


def _end_with_parent() -> None:
    """Go when the main process goes, however it went.

    A worker left behind would write to a run that somebody else resumes.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are started by a process"
    wait_for([parent.sentinel])
    os._exit(1)


def _work(k: int, task: Task) -> Any:
    return task.call(*task.arguments, lambda done: _news.put((k, done)))
