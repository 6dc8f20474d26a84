"""Runs on a cluster: the same bytes as on one machine; data and code travel."""

import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl.core.atomic import read_json
from hewfl.errors import DataError, HewError
from hewfl.experiments import dask_executor
from hewfl.experiments.dask_executor import Cluster, cluster_at, input_files
from hewfl.experiments.executor import Progress, Task
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for, lock_runs
from hewfl.experiments.spec import spec_from_table
from tests.cluster.processes import Processes, processes, until
from tests.cluster.tasks import dies, marked_tasks
from tests.experiments.runs import TEXT

pytestmark = pytest.mark.cluster


def own_data(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    X = rng.standard_normal((90, 4)) + y[:, None]
    rows = [[*(f"{v:.6f}" for v in x), str(k)] for x, k in zip(X, y, strict=True)]
    file = folder / "mine.csv"
    file.write_text("\n".join(",".join(row) for row in [list("abcde"), *rows]) + "\n")
    return file


def begun_folder(data: Path, root: Path, **changes: Any) -> Folder:
    """A run that has begun: its data file is not looked at again by the client."""
    table = tomllib.loads(TEXT) | {"data": {"name": str(data)}} | changes
    folder = folder_for(spec_from_table(table), root)
    with lock_runs([folder]):
        pass
    return folder


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != "times.json"
    }


class Notes(Progress):
    """Collects the notes."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def note(self, words: str) -> None:
        self.words.append(words)


def test_a_run_leaves_the_same_bytes_and_its_data_travel(
    fleet: Processes, cluster: Cluster, own_cache: Path, tmp_path: Path
) -> None:
    data = own_data(tmp_path)
    here, there = (begun_folder(data, tmp_path / root) for root in ("here", "there"))
    run_all([here], jobs=0, progress=Progress())
    progress = Notes()
    run_all([there], jobs=0, progress=progress, cluster=cluster)
    assert files_below(there.path) == files_below(here.path)
    assert "2/2 tasks, 2 workers" in progress.words
    assert read_json(there.path / "times.json")["cluster"] == {"workers": 2}
    (file,) = input_files([here.spec])
    assert not (own_cache / "files" / file.path).exists()
    paths = [fleet.cache(name) / "files" / file.path for name in ("a", "b")]
    copies = [path.read_bytes() for path in paths if path.exists()]
    assert copies
    assert set(copies) == {data.read_bytes()}


@pytest.mark.data
@pytest.mark.usefixtures("own_cache")
def test_a_data_set_of_the_catalogue_travels(tmp_path: Path) -> None:
    table = tomllib.loads(TEXT) | {"data": {"name": "fashion_mnist", "subsample": 200}}
    table |= {"rounds": 1, "seeds": [0], "audit_every": 0}
    spec = spec_from_table(table)
    here, there = (folder_for(spec, tmp_path / root) for root in ("here", "there"))
    run_all([here], jobs=0, progress=Progress())
    with processes(tmp_path / "apart") as started:
        started.place.mkdir()
        started.scheduler()
        started.worker("a", HEWFL_DATA="")
        with cluster_at(started.address) as cluster:
            run_all([there], jobs=0, progress=Progress(), cluster=cluster)
        files = input_files([spec])
        assert all((started.cache("a") / "files" / f.path).is_file() for f in files)
    assert files_below(there.path) == files_below(here.path)


def test_a_half_done_run_of_one_machine_goes_on_elsewhere_and_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Checkpoints travel with their task, in both directions."""
    table = tomllib.loads(TEXT) | {"rounds": 12, "audit_every": 0}
    spec = spec_from_table(table | {"methods": table["methods"][1:]})
    whole, half = (folder_for(spec, tmp_path / root) for root in ("whole", "half"))
    run_all([whole], jobs=0, progress=Progress())

    class Stopping(Progress):
        def step(self, task: int, done: int) -> None:
            if done == 11 and task == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([half], jobs=0, progress=Stopping())
    assert read_json(half.of_seed(1) / "manifest.json")["round"] == 10
    run_all([half], jobs=0, progress=Progress(), cluster=cluster)
    assert files_below(half.path) == files_below(whole.path)


def fails(number: int, on_step: Any) -> None:
    on_step(0)
    raise DataError(f"number {number} is bad")


def test_an_error_of_a_task_is_raised_here_and_the_rest_is_dropped(
    cluster: Cluster, tmp_path: Path
) -> None:
    tasks = marked_tasks(2, tmp_path / "marks", 30.0)
    bad = Task("bad", "bad", 1, fails, (7,))
    with pytest.raises(DataError, match="number 7 is bad"):
        cluster.execute([bad, *tasks], lambda *_: None, lambda _: None)
    until(lambda: not any(cluster.client.processing().values()))


def warns(on_step: Any) -> None:
    on_step(0)
    warnings.warn("this is odd there", stacklevel=1)


def test_warnings_of_workers_are_given_here(cluster: Cluster) -> None:
    tasks = [Task("s", "t", 1, warns, ())]
    with pytest.warns(UserWarning, match="this is odd there"):
        cluster.execute(tasks, lambda *_: None, lambda _: None)


def test_a_worker_with_other_versions_is_one_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"hewfl": "0.0.1 (code abc)", "numpy": "1.0"}
    monkeypatch.setattr(dask_executor, "installed_versions", lambda *_: versions)
    tasks = [Task("s", "t", 1, warns, ())]
    rule = r"differs .*hewfl .* there, 0\.0\.1 .*; numpy .* there, 1\.0 here; install"
    with pytest.raises(HewError, match=rule):
        cluster.execute(tasks, lambda *_: None, lambda _: None)


def test_a_task_that_ends_its_workers_is_one_error(tmp_path: Path) -> None:
    with processes(tmp_path) as started:
        started.scheduler()
        for name in "abcd":
            started.worker(name)
        with cluster_at(started.address) as cluster:
            cluster.client.wait_for_workers(4)
            tasks = [Task("rounds", "mine, seed 3", 1, dies, ())]
            with pytest.raises(HewError, match=r"mine, seed 3: every worker .* died"):
                cluster.execute(tasks, lambda *_: None, lambda _: None)
