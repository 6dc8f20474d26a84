"""Tasks on a Dask cluster: sent out, watched, sent again where something was lost.

Every task has a key made of all that it depends on, and is published on the scheduler
until its files are written here. So a client that is killed and started again finds
its tasks where they are, done or under way. A task whose worker dies is given to
another one by Dask; when the scheduler itself is lost, what was not written is sent
again. Results that were written are never asked for again.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, final

from hewfl.experiments.cluster import scheduler
from hewfl.experiments.cluster.stage import LostError, Stage
from hewfl.experiments.workers import Note, Report, Task


@contextlib.contextmanager
def cluster_at(address: str) -> Iterator["Cluster"]:
    """A cluster that does tasks, by the address of its scheduler.

    Raises:
        InvalidInputError: no such address.
        MissingExtraError: Dask Distributed is not installed.
        HewError: nobody answers there.
    """
    cluster = Cluster(scheduler.check_address(address))
    try:
        yield cluster
    finally:
        cluster.close()


@final
class Cluster:
    """Workers of a Dask cluster, as a crew."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = scheduler.connect(address)
        self._most = 0

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `times.json` says of it."""
        return {"cluster": {"workers": self._most}}

    def close(self) -> None:
        """End the connection."""
        scheduler.close(self.client)

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
                self.client = scheduler.reconnect(self.address)
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
