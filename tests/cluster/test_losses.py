"""Losses of a cluster: workers and the scheduler killed with kill -9.

Each task leaves a mark when it begins. Results must be complete, and only tasks of
killed workers may begin twice.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hewfl.errors import HewError
from hewfl.experiments.dask_executor import Cluster, cluster_at
from hewfl.experiments.executor import Progress
from hewfl.experiments.run import run_all
from tests.cluster.processes import PATIENCE, Processes, processes, until
from tests.cluster.tasks import begun, marked_tasks
from tests.cluster.test_runs import begun_folder, files_below, own_data

pytestmark = pytest.mark.cluster
COUNT = 8
SQUARES = [k**2 for k in range(COUNT)]


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "fragile").mkdir()
    with processes(tmp_path / "fragile") as started:
        started.scheduler()
        started.worker("a")
        started.worker("b")
        until(started.file.exists)
        yield started


def execute_during(
    cluster: Cluster, marks: Path, done: int, strike: Callable[[], None]
) -> tuple[list[Any], list[str], list[BaseException]]:
    """Results, notes and errors of tasks; `strike` is called when some have begun."""
    notes: list[str] = []
    results: list[Any] = []
    errors: list[BaseException] = []
    tasks = marked_tasks(COUNT, marks, 0.3)

    def execute() -> None:
        try:
            results.extend(cluster.execute(tasks, lambda *_: None, notes.append))
        except HewError as error:
            errors.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    until(lambda: len(list(marks.iterdir())) >= done)
    strike()
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()
    return results, notes, errors


def test_workers_die_and_join_and_the_scheduler_is_lost(
    fragile: Processes, tmp_path: Path
) -> None:
    def change_workers() -> None:
        fragile.kill("a")
        fragile.worker("late")

    with cluster_at(fragile.address) as cluster:
        cluster.client.wait_for_workers(2)
        results, notes, errors = execute_during(
            cluster, tmp_path / "m", 4, change_workers
        )
        assert not errors
        assert results == SQUARES
        assert sum(begun(tmp_path / "m")) <= COUNT + 2
        assert notes[-1].startswith(f"{COUNT}/{COUNT} tasks, ")

        cluster.client.wait_for_workers(2)
        results, _, errors = execute_during(
            cluster, tmp_path / "n", 5, lambda: fragile.kill("scheduler")
        )
        assert "is lost; restart it" in str(errors[0])

    fragile.file.unlink()
    fragile.scheduler()  # Dask's workers end with their scheduler
    fragile.worker("again")
    until(fragile.file.exists)
    with cluster_at(fragile.address) as cluster:
        tasks = marked_tasks(COUNT, tmp_path / "n", 0.3)
        assert sum(task.done for task in tasks) >= 2  # written before the loss
        assert cluster.execute(tasks, lambda *_: None, lambda _: None) == SQUARES
        assert sum(begun(tmp_path / "n")) <= COUNT + 4

        (tmp_path / "other" / "hewfl").mkdir(parents=True)
        (tmp_path / "other" / "hewfl" / "__init__.py").touch()
        fragile.worker("other", PYTHONPATH=str(tmp_path / "other"))
        fragile.kill("again")
        tasks = marked_tasks(1, tmp_path / "o", 0.1)
        with pytest.raises(HewError, match=r"a worker has no hewfl\.experiments"):
            cluster.execute(tasks, lambda *_: None, lambda _: None)


def test_a_run_survives_the_loss_of_a_worker_that_holds_its_data(
    fragile: Processes, tmp_path: Path
) -> None:
    class Killing(Progress):
        """Kills a worker when the first task has ended."""

        def step(self, task: int, done: int) -> None:  # noqa: ARG002 - any task
            if done == 3 and "a" in fragile.alive:
                fragile.kill("a")

    data = own_data(tmp_path)
    seeds = {"seeds": [0, 1, 2, 3], "rounds": 3}
    here, there = (
        begun_folder(data, tmp_path / root, **seeds) for root in ("here", "there")
    )
    run_all([here], jobs=0, progress=Progress())
    with cluster_at(fragile.address) as cluster:
        cluster.client.wait_for_workers(2)
        run_all([there], jobs=0, progress=Killing(), cluster=cluster)
    assert "a" not in fragile.alive
    assert files_below(there.path) == files_below(here.path)
