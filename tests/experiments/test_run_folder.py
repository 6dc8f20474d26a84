"""Folders of runs: held by one process, never half-written, taken up again."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hewfl.errors import DataError, InvalidInputError
from hewfl.experiments import tune
from hewfl.experiments.executor import Progress
from hewfl.experiments.overrides import with_overrides
from hewfl.experiments.run import run_all, tune_all
from hewfl.experiments.run_folder import (
    HOLDER,
    LOCK,
    Folder,
    folder_for,
    holder_of,
    lock,
    open_folder,
)
from hewfl.experiments.spec import spec_from_table
from tests.experiments.runs import TEXT, small, table

HOLD = """
import sys, time
from pathlib import Path
from hewfl.experiments.run_folder import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))


def holder(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ended(process: subprocess.Popen[str], how: int) -> None:
    process.send_signal(how)
    process.wait(timeout=300)
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_belongs_to_one_process_at_a_time(
    tmp_path: Path, how: int, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_for(small(), tmp_path)
    process = holder(folder.path)
    assert f"process {process.pid} on " in (holder_of(folder.path) or "")
    for act in (run_all, tune_all):
        with pytest.raises(DataError) as error:
            act([folder], jobs=0, progress=Progress())
        text = str(error.value)
        assert str(folder.path) in text
        assert f"is in use by process {process.pid} on " in text
    ended(process, how)
    capfd.readouterr()  # the traceback of Ctrl-C in the other process
    assert holder_of(folder.path) is None
    tune_all([folder], jobs=0, progress=Progress())
    assert folder.tuned is not None
    assert not (folder.path / LOCK).exists()


@pytest.mark.parametrize("is_left", [True, False])
def test_a_look_at_a_folder_leaves_no_lock(
    tmp_path: Path, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a killed process; or of one that ends between two lines of `holder_of`."""
    for name in (LOCK, HOLDER) if is_left else ():
        (tmp_path / name).write_text("")
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert holder_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_tuning_that_is_done_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    folder = folder_for(small(), tmp_path)
    tune_all([folder], jobs=0, progress=Progress())
    before = contents(folder)
    for name in (LOCK, HOLDER, ".tuned.toml-1-0abc.partial"):
        (folder.path / name).write_text("left", encoding="utf-8")
    tune_all([folder], jobs=0, progress=Progress())
    assert contents(folder) == before


KILLED = """
import os, sys
from pathlib import Path
from hewfl.experiments.executor import Progress
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import open_folder
count, left = 0, int(sys.argv[2])
def hook(event, args):
    global count
    if event in ("os.remove", "os.rename", "os.rmdir"):
        count += 1
        if count > left:
            os._exit(9)
sys.addaudithook(hook)
run_all([open_folder(Path(sys.argv[1]))], jobs=0, progress=Progress())
print(count)
"""
"""A run that ends, as if killed, before the change of a file with that number."""


def test_a_run_killed_at_its_last_instants_leaves_nothing(tmp_path: Path) -> None:
    spec = replace(small(), seeds=(0,), rounds=2)
    spec = replace(spec, tune=replace(spec.tune, rounds=1, seeds=(0,)))
    folder = folder_for(spec, tmp_path)
    run_all([folder], jobs=0, progress=Progress())
    before = contents(folder)
    codes = []
    for left in range(12):
        for name in ("summary.json", "checksums.json", "times.json"):
            (folder.path / name).unlink(missing_ok=True)
        command = [sys.executable, "-c", KILLED, str(folder.path), str(left)]
        ended = subprocess.run(command, check=False, capture_output=True, timeout=300)
        codes.append(ended.returncode)
        run_all([open_folder(folder.path)], jobs=0, progress=Progress())
        assert contents(folder) == before, left
        if ended.returncode == 0:
            break
    assert codes == [9] * (len(codes) - 1) + [0], codes
    assert len(codes) > 4


def test_a_lock_goes_with_its_folder_if_nothing_was_put_there(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    with lock(place), pytest.raises(DataError, match=r"b is in use by process"):
        lock(place).__enter__()
    assert not place.exists()
    with lock(place):
        (place / "kept").write_text("")
    assert [file.name for file in place.iterdir()] == ["kept"]


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="no locks in"), lock(tmp_path / "x"):
        assert holder_of(tmp_path / "x") is None


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("clients.n=500", "`clients.n` must be at most the 240 samples divided by"),
        (
            "clients.min_samples=100",
            "`clients.n` must be at most the 240 samples divided by",
        ),
    ],
)
def test_a_run_that_fails_at_the_start_leaves_nothing(
    tmp_path: Path, change: str, text: str, jobs: int
) -> None:
    bad = spec_from_table(with_overrides(table(), [change]))
    with pytest.raises(InvalidInputError) as error:
        run_all([folder_for(bad, tmp_path / "runs")], jobs=jobs, progress=Progress())
    assert text in str(error.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_names_of_data_are_checked_before_anything(tmp_path: Path) -> None:
    spec = small()
    typo = replace(spec, data=replace(spec.data, name="digit"))
    with pytest.raises(InvalidInputError, match=r"`data.name` .*did you mean `digits`"):
        folder_for(typo, tmp_path / "runs")
    gone = replace(spec, data=replace(spec.data, name=str(tmp_path / "gone.csv")))
    with pytest.raises(DataError, match=r"gone.csv: no such file"):
        folder_for(gone, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


class Stop(Exception):  # noqa: N818 - an interruption, not an error
    """Somebody ends the run."""


class StopsAt(Progress):
    """Ends the run when so many trials or seeds were begun."""

    def __init__(self, stage: str, task: int) -> None:
        self.stage, self.task, self.now = stage, task, ""
        self.known: dict[str, list[int]] = {}

    def begin(self, tasks: Any) -> None:
        self.now = tasks[0].stage
        self.known[self.now] = [task.done for task in tasks]

    def step(self, task: int, done: int) -> None:  # noqa: ARG002 - any step
        if (self.now, task) == (self.stage, self.task):
            raise Stop


def test_what_was_begun_is_kept_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_for(small(), tmp_path)
    with pytest.raises(Stop):
        run_all([folder], jobs=0, progress=StopsAt("tuning", 1))
    assert (folder.path / "spec.toml").exists()
    (kept,) = folder.trials.iterdir()
    assert kept.name == "last-0.json"
    tried: list[int] = []
    original = tune.score_candidates

    def counted(spec: Any, candidates: Any, rounds: int, seed: int, *rest: Any) -> Any:
        tried.append(seed)
        return original(spec, candidates, rounds, seed, *rest)

    monkeypatch.setattr(tune, "score_candidates", counted)
    second = StopsAt("rounds", 1)
    with pytest.raises(Stop):
        run_all([folder], jobs=0, progress=second)
    assert tried == [1]
    assert second.known["tuning"] == [3, 0]
    assert not folder.trials.exists()
    third = StopsAt("", 0)
    run_all([folder], jobs=0, progress=third)
    assert third.known["rounds"][0] == 6
    times = json.loads((folder.path / "times.json").read_text())
    assert times["resumed"]
    assert set(times["stages"]) == {"tuning", "rounds"}
    whole = folder_for(small(), tmp_path / "other")
    run_all([whole], jobs=0, progress=Progress())
    assert contents(whole) == contents(folder)


def contents(folder: Folder) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder.path)): file.read_bytes()
        for file in folder.path.rglob("*")
        if file.is_file() and file.name != "times.json"
    }


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(TEXT)
    command = [sys.executable, "-m", "hewfl.cli", "run", str(spec), "--jobs", "1"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--set", "rounds=100000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: list(tmp_path.glob("runs/*/seed-*/manifest.json")), 600)
        assert members(process.pid) > 1
        process.kill()  # alone: its workers are not told
        process.wait()
        wait_until(lambda: members(process.pid) == 0, 300)
    finally:
        with_group = members(process.pid)
        if with_group:
            os.killpg(process.pid, signal.SIGKILL)
    assert with_group == 0


def wait_until(holds: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def members(group: int) -> int:
    """Processes of a session that are alive."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = place.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        found += session == str(group) and state != "Z"
    return found
