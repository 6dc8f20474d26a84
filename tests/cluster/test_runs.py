"""Runs on a cluster: the same bytes as on one machine, and data that travels once."""

import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl.core.atomic import read_json
from hewfl.errors import DataError, HewError
from hewfl.experiments import dask_executor as stage
from hewfl.experiments import dask_tasks as travelling
from hewfl.experiments import user_code as own
from hewfl.experiments.dask_executor import Cluster
from hewfl.experiments.dask_tasks import DataPart, likeness, parts_of_data, pieces_of
from hewfl.experiments.executor import Progress, Task
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for, lock_runs
from hewfl.experiments.spec import spec_from_table
from tests.cluster.processes import Processes, until
from tests.cluster.tasks import marked_tasks
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
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def note(self, words: str) -> None:
        self.words.append(words)


def test_a_run_leaves_the_same_bytes_and_its_data_travels_once_to_each_worker(
    fleet: Processes,
    cluster: Cluster,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not own_cache.exists()
    data = own_data(tmp_path)
    here, there = (begun_folder(data, tmp_path / root) for root in ("here", "there"))
    more = begun_folder(data, tmp_path / "more", seeds=[2, 3, 4])
    run_all([here], jobs=0, progress=Progress())
    # The workers of this test see the client's disk; those of a fleet do not.
    (part,) = parts_of_data([here.spec])
    hidden = data.rename(tmp_path / "hidden.csv")
    sent: list[DataPart] = []

    def counted(part: DataPart) -> Iterator[Any]:
        sent.append(part)
        return pieces_of(part)

    monkeypatch.setattr(own, "data_digest", lambda _: part.sha256)
    monkeypatch.setattr(stage, "parts_of_data", lambda _: (part,))
    monkeypatch.setattr(stage, "pieces_of", counted)
    monkeypatch.setattr(travelling, "_at_client", lambda _: hidden)
    monkeypatch.setattr(travelling, "PIECE", 700)
    progress = Notes()
    run_all([there], jobs=0, progress=progress, cluster=cluster)
    assert files_below(there.path) == files_below(here.path)
    assert "2/2 tasks, 2 workers" in progress.words
    assert read_json(there.path / "times.json")["cluster"] == {"workers": 2}
    run_all([more], jobs=0, progress=progress, cluster=cluster)
    places = [fleet.cache(name) / "files" / part.path for name in ("a", "b")]
    received = [place.read_bytes() for place in places if place.exists()]
    assert received == [hidden.read_bytes()] * len(sent)


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
    known = cluster.client.list_datasets()  # a client that was killed may leave one
    tasks = marked_tasks(2, tmp_path / "marks", 30.0)
    bad = Task("bad", "bad", 1, fails, (7,))
    with pytest.raises(DataError, match="number 7 is bad"):
        cluster.execute([bad, *tasks], lambda *_: None, lambda _: None)
    until(lambda: not any(cluster.client.processing().values()))
    assert cluster.client.list_datasets() == known


def warns(on_step: Any) -> None:
    on_step(0)
    warnings.warn("this is odd there", stacklevel=1)


def test_warnings_of_workers_are_given_here(cluster: Cluster) -> None:
    tasks = [Task("s", "t", 1, warns, ())]
    with pytest.warns(UserWarning, match="this is odd there"):
        cluster.execute(tasks, lambda *_: None, lambda _: None)


def test_a_worker_with_other_code_is_one_clear_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**likeness(), "hewfl": "0.0.1 (code abc)", "numpy": "1.0"}
    monkeypatch.setattr(stage, "likeness", lambda **_: other)
    tasks = [Task("s", "t", 1, warns, ())]
    rule = r"worker tcp://\S+ is not like this client: hewfl .* there, 0.0.1 "
    with pytest.raises(HewError, match=rule + r".*; numpy .* there, 1.0 here; install"):
        cluster.execute(tasks, lambda *_: None, lambda _: None)
