"""Tasks on several processes, with progress from each; stages of tasks."""

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
"""Warnings of workers that were shown; `warnings` fills it."""
Report = Callable[[int, int], None]
"""Called in the main process with a task's index and the number of its steps done."""
Note = Callable[[str], None]
"""Called with a sentence about the workers of a stage."""
Warned = tuple[str, type[Warning], str, int]
"""A warning of another process: text, category, file, line."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to one in every worker: processes share the cores, and bits do not depend on
how many cores there are."""
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""Linux: a worker keeps the memory of arrays up to 32 MiB. By default it goes back to
the system with each array, and is cleared page by page when it is needed again."""


@final
@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work.

    Attributes:
        stage: its stage, for progress bars.
        name: for progress bars.
        steps: their number.
        call: a function of a module, called as call(*arguments, on_step).
        arguments: values that can be sent to another process.
        done: steps that a stopped run did before.
        cost: of a step, relative to steps of other tasks of the stage.
        shares: key of the data it needs; tasks with the same key run after each other
            in one worker.
        writes: the argument that is a file or folder it writes, if any.
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
class Executor(Protocol):
    """What does tasks: processes of this machine, or a cluster."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Entries of `times.json`."""
        ...

    def execute(self, tasks: Sequence[Task], report: Report, note: Note) -> list[Any]:
        """Do all tasks; results in their order; raise the error of the first failed.

        Args:
            tasks: what to do.
            report: called with progress.
            note: called with a sentence about the workers.
        """
        ...


@final
class Processes:
    """Processes of this machine, started when first needed and kept between stages.

    A context manager that ends them. Each is a pool of one process: tasks on the same
    samples go to the process that has prepared them, which one common pool cannot do.

    Args:
        jobs: their number; 0 does everything in this process.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 0:
            raise invalid("jobs", "at least 0", jobs)
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        self._messages: Any = self._context.Queue() if jobs else None
        self._pools: list[ProcessPoolExecutor] = []
        self._shares: list[str] = []
        self._past = 0
        self._is_stopped = False

    @property
    def facts(self) -> Mapping[str, Any]:
        """Entries of `times.json`."""
        return {"jobs": self._jobs}

    def __enter__(self) -> "Processes":
        """Start nothing yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes, and show their last warnings.

        A worker that was terminated may have left half a message: none is read then.
        """
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._pools and not self._is_stopped:
            self._pass_on(lambda *_: None, set())

    def execute(
        self,
        tasks: Sequence[Task],
        report: Report,
        note: Note,  # noqa: ARG002 - the workers are always the same
    ) -> list[Any]:
        """Do all tasks; results in their order.

        Args:
            tasks: what to do.
            report: called with progress.
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
            given = (1, self._context, _begin, (self._messages,))
            self._pools.append(ProcessPoolExecutor(*given))
            self._shares.append("")
        try:
            results = self._watch(tasks, report)
        except BaseException:
            self._stop()
            raise
        self._past += len(tasks)
        return results

    def _watch(self, tasks: Sequence[Task], report: Report) -> list[Any]:
        """Submit tasks and report progress until all are done.

        A result may overtake the messages about its last steps. It counts as all of
        them, and later messages are dropped.
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
        """The task for a worker: on samples that it has, or that no other has."""
        others = {s for w, s in enumerate(self._shares) if w != worker}
        same = [k for k in left if tasks[k].shares == self._shares[worker]]
        new = [k for k in left if tasks[k].shares not in others]
        return (same or new or left)[0]

    def _begin(self, worker: int, k: int, task: Task) -> Future[Any]:
        self._shares[worker] = task.shares
        with _worker_environment(), _ctrl_c_blocked():
            return self._pools[worker].submit(_work, self._past + k, task)

    def _pass_on(self, report: Report, over: Container[int]) -> None:
        """Report steps of unfinished tasks, and show warnings of workers."""
        while True:
            try:
                number, message = self._messages.get_nowait()
            except queue.Empty:
                return
            if number is None:
                pass_on_warning(message)
            elif number >= self._past and number - self._past not in over:
                report(number - self._past, message)

    def _stop(self) -> None:
        """End the workers now: checkpoints keep their work.

        Python 3.14 has `terminate_workers` for this; earlier there is only the private
        list.
        """
        self._is_stopped = True
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.terminate()


class Progress:
    """Receives the tasks of each stage and their steps; this one shows nothing."""

    def begin(self, tasks: Sequence[Task]) -> None:
        """A stage with these tasks begins."""

    def step(self, task: int, done: int) -> None:
        """Steps of a task are done."""

    def note(self, text: str) -> None:
        """A sentence about the workers of the stage."""


def run_stage(
    tasks: Sequence[Task], executor: Executor, progress: Progress
) -> list[Any]:
    """Do the tasks of a stage; results in their order.

    Tasks on the same data follow each other seed by seed, as a worker keeps the samples
    that it prepared last. Data sets come in reverse order of their names: tasks on
    MNIST are the longest, and a long task at the end would leave other workers idle.
    """
    if not tasks:
        return []
    order = sorted(range(len(tasks)), key=lambda k: tasks[k].shares)
    order.sort(key=lambda k: tasks[k].shares.rpartition(" ")[0], reverse=True)
    ordered = [tasks[k] for k in order]
    progress.begin(ordered)
    results = executor.execute(ordered, progress.step, progress.note)
    by_index = dict(zip(order, results, strict=True))
    return [by_index[k] for k in range(len(tasks))]


def execute(tasks: Sequence[Task], *, jobs: int, report: Report) -> list[Any]:
    """Do all tasks by processes that end with them; results in their order.

    Args:
        tasks: what to do.
        jobs: processes; 0 does everything in this one.
        report: called with progress.

    Raises:
        Exception: the first that a task raises; tasks not begun are dropped.
    """
    with Processes(jobs) as executor:
        return executor.execute(tasks, report, lambda _: None)


def pass_on_warning(warning: Warned) -> None:
    """Show a warning of another process in this one, once."""
    text, category, file, line = warning
    warnings.warn_explicit(text, category, file, line, registry=_warned)


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Workers started inside use one thread for linear algebra and keep memory."""
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
def _ctrl_c_blocked() -> Iterator[None]:
    """Workers started inside ignore Ctrl-C, also while they import.

    This process receives a Ctrl-C of that time when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the worker

_messages: Any = None


def _begin(news: Any) -> None:
    global _messages  # noqa: PLW0603 - set once, when the process starts
    _messages = news
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
    """Send a warning to the main process, which shows it."""
    _messages.put((None, (str(message), category, filename, lineno)))


def _end_with_parent() -> None:
    """Exit when the main process ends, however it ends.

    A worker that survived it would write to a run that another process resumes.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    wait_for([parent.sentinel])
    os._exit(1)


def _work(k: int, task: Task) -> Any:
    return task.call(*task.arguments, lambda done: _messages.put((k, done)))
