"""Independent pieces of work on several processes, with progress from each."""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from typing import Any, Protocol, final, runtime_checkable

from hewfl.core.checks import invalid

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to one in every worker: processes share the cores, and bits do not depend on
how many cores there are."""


@runtime_checkable
class Report(Protocol):
    """Told of progress: which piece, how many of its steps are done."""

    def __call__(self, task: int, done: int) -> None:
        """Called from the main process only."""


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
    """

    stage: str
    name: str
    steps: int
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: int = 0
    cost: int = 1


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
            futures = [pool.submit(_work, k, task) for k, task in enumerate(tasks)]
            _watch(futures, news, report)
            return [future.result() for future in futures]
        except BaseException:
            _stop(pool)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _watch(futures: Sequence[Future[Any]], news: Any, report: Report) -> None:
    """Pass progress on until all is done; raise what the first failed task raised."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
        _pass_on(news, report)
        for future in done:
            future.result()
    _pass_on(news, report)


def _pass_on(news: Any, report: Report) -> None:
    while True:
        try:
            report(*news.get_nowait())
        except queue.Empty:
            return


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


# ------------------------------------------------------------------ in the worker

_news: Any = None


def _begin(news: Any) -> None:
    global _news  # noqa: PLW0603 - set once, when the process starts
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


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
