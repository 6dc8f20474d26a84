"""One scheduler with two workers for all tests of this folder that break nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hewfl.experiments.dask_executor import Cluster, cluster_at
from tests.cluster.processes import Processes, processes, until


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with processes(tmp_path_factory.mktemp("fleet")) as started:
        started.scheduler()
        started.worker("a")
        started.worker("b")
        until(started.file.exists)
        yield started


@pytest.fixture
def cluster(fleet: Processes) -> Iterator[Cluster]:
    with cluster_at(f"file:{fleet.file}") as cluster:
        cluster.client.wait_for_workers(2)
        yield cluster


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the client alone: workers find nothing of it on the disk."""
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
