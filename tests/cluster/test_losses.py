"""What a cluster may lose, and what it costs: processes killed with kill -9.

Each task leaves a mark when it begins. Results must be whole, and no more tasks may
have begun twice than processes were at work when something was killed.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hewfl.errors import HewError
from hewfl.experiments.dask_executor import Cluster, cluster_at
from tests.cluster.processes import PATIENCE, Processes, processes, until
from tests.cluster.tasks import begun, marked_tasks

pytestmark = pytest.mark.cluster
COUNT = 8
SQUARES = [k**2 for k in range(COUNT)]


@pytest.fixture
def own(tmp_path: Path) -> Any:
    with processes(tmp_path / "own") as found:
        found.place.mkdir()
        found.scheduler()
        found.worker("a")
        found.worker("b")
        until(found.file.exists)
        yield found


def while_it_runs(
    cluster: Cluster, marks: Path, done: int, strike: Callable[[], None]
) -> tuple[list[Any], list[str]]:
    """Results of tasks, something being done when some of them have begun."""
    told: list[str] = []
    results: list[Any] = []
    tasks = marked_tasks(COUNT, marks, 0.3)
    thread = threading.Thread(
        target=lambda: results.extend(
            cluster.execute(tasks, lambda *_: None, told.append)
        )
    )
    thread.start()
    until(lambda: len(list(marks.iterdir())) >= done)
    strike()
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()
    return results, told


def test_workers_die_and_join_and_the_scheduler_is_restarted(
    own: Processes, tmp_path: Path
) -> None:
    def change_workers() -> None:
        own.kill("a")
        own.worker("late")

    def restart() -> None:
        own.kill("scheduler")
        own.scheduler()
        for name in ("again", "once more"):  # Dask's workers end with their scheduler
            own.worker(name)

    with cluster_at(own.address) as cluster:
        cluster.client.wait_for_workers(2)
        found, told = while_it_runs(cluster, tmp_path / "m", 4, change_workers)
        assert found == SQUARES
        assert sum(begun(tmp_path / "m")) <= COUNT + 1
        assert told[-1].startswith(f"{COUNT}/{COUNT} tasks, ")

        cluster.client.wait_for_workers(2)
        found, told = while_it_runs(cluster, tmp_path / "n", 5, restart)
        assert found == SQUARES
        assert sum(begun(tmp_path / "n")) <= COUNT + 2  # one for each worker
        assert "scheduler lost, waiting for it" in told

        (tmp_path / "other" / "hewfl").mkdir(parents=True)
        (tmp_path / "other" / "hewfl" / "__init__.py").touch()
        own.worker("other", PYTHONPATH=str(tmp_path / "other"))
        for name in ("again", "once more"):
            own.kill(name)
        tasks = marked_tasks(1, tmp_path / "o", 0.1)
        with pytest.raises(HewError, match=r"a worker has no hewfl\.experiments; inst"):
            cluster.execute(tasks, lambda *_: None, lambda _: None)


def test_a_killed_client_finds_its_tasks_again(
    fleet: Processes, cluster: Cluster, tmp_path: Path
) -> None:
    """They go on without it, so that nothing at all is begun twice."""
    marks = tmp_path / "marks"
    call = ["tests.cluster.client", fleet.address, str(marks), str(COUNT), "0.3"]
    fleet.run("client", sys.executable, "-m", *call)
    until(lambda: marks.exists() and len(list(marks.iterdir())) >= 3)
    fleet.kill("client")
    tasks = marked_tasks(COUNT, marks, 0.3)
    assert cluster.execute(tasks, lambda *_: None, lambda _: None) == SQUARES
    assert begun(marks) == [1] * COUNT
    left = cluster.client.list_datasets()
    assert len(left) <= 1  # one that was written, and not yet unpublished
