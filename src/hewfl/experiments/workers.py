"""Independent pieces of work on several processes, with progress from each."""

import multiprocessing
import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from hewfl.core.checks import invalid

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
@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of this machine.

    Attributes:
        jobs: how many; 0 does everything in this one.
    """

    jobs: int

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `times.json` says of it."""
        return {"jobs": self.jobs}

    def execute(
        self,
        tasks: Sequence[Task],
        report: Report,
        note: Note,  # noqa: ARG002 - nobody comes or goes
    ) -> list[Any]:
        """Do all tasks; results in their order; errors of `execute`."""
        return execute(tasks, jobs=self.jobs, report=report)


def execute(tasks: Sequence[Task], *, jobs: int, report: Report) -> list[Any]:
    """Do all tasks; results in their order.

    Args:
        tasks: what to do.
        jobs: processes; 0 does everything in this one.
        report: told of progress.

    Raises:
        Exception: the first that a task raises; tasks not begun are dropped.
    """
    if jobs < 0:
        raise invalid("jobs", "at least 0", jobs)
    if jobs == 0:
        return [
            task.call(*task.arguments, lambda done, k=k: report(k, done))
            for k, task in enumerate(tasks)
        ]
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    with _one_thread_each():
        pool = ProcessPoolExecutor(
            min(jobs, max(1, len(tasks))), context, _begin, (news,)
        )
        try:
            with _deaf_to_ctrl_c():
                futures = [pool.submit(_work, k, task) for k, task in enumerate(tasks)]
            _watch(tasks, futures, news, report)
        except BaseException:
            _stop(pool)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    _pass_on(news, report, set(range(len(tasks))))  # warnings that come last
    return [future.result() for future in futures]


def _watch(
    tasks: Sequence[Task], futures: Sequence[Future[Any]], news: Any, report: Report
) -> None:
    """Pass progress on until all is done; raise what the first failed task raised.

    A result may overtake the news of its last steps: it counts as news of them all,
    and what comes behind it is dropped.
    """
    number = {future: k for k, future in enumerate(futures)}
    waiting, over = set(futures), set[int]()
    while waiting:
        done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
        _pass_on(news, report, over)
        for future in done:
            future.result()
            over.add(number[future])
            report(number[future], tasks[number[future]].steps)


def _pass_on(news: Any, report: Report, over: set[int]) -> None:
    """Report steps of tasks that are not over, and pass warnings on."""
    while True:
        try:
            task, told = news.get_nowait()
        except queue.Empty:
            return
        if task is None:
            pass_on_warning(told)
        elif task not in over:
            report(task, told)


def pass_on_warning(told: Warned) -> None:
    """Give a warning of another process as if it were our own, once."""
    text, category, file, line = told
    warnings.warn_explicit(text, category, file, line, registry=_warned)


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the workers now: what they did is kept by checkpoints.

    Python 3.14 has `terminate_workers` for this; before, only the private list.
    """
    for process in list((pool._processes or {}).values()):
        process.terminate()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Workers started inside take one thread for linear algebra."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
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


# ------------------------------------------------------------------ in the worker

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
