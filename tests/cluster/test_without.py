"""What needs no cluster: addresses, versions, and nothing imported without one."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hewfl.cli.app import app
from hewfl.errors import DataError, HewError, InvalidInputError, MissingExtraError
from hewfl.experiments import dask_tasks as travelling
from hewfl.experiments.dask_executor import _plain, cluster_at
from hewfl.experiments.dask_tasks import (
    DataPart,
    files_of,
    likeness,
    pieces_of,
    place_of,
    receive,
    require_like,
    write_files,
)
from hewfl.experiments.executor import THREADS, Task
from tests.experiments.runs import TEXT


@pytest.mark.parametrize(
    "address", ["", "host:8786", "http://host:1", "tcp://host", "file:", "tcp://h:x"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with (
        pytest.raises(
            InvalidInputError, match=r"`--cluster` must be an address such as"
        ),
        cluster_at(address),
    ):
        pass


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")  # brings its settings
    with (
        import_module("dask.config").set(
            {"distributed.comm.timeouts.connect": "200ms"}
        ),
        pytest.raises(
            HewError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9 "
        ),
        cluster_at("tcp://127.0.0.1:9"),
    ):
        pass
    missing = tmp_path / "scheduler.json"
    with (
        pytest.raises(DataError, match="does not exist"),
        cluster_at(f"file:{missing}"),
    ):
        pass
    missing.write_text("[]")
    with (
        pytest.raises(DataError, match="no scheduler file"),
        cluster_at(f"file:{missing}"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "dask.config", None)
    with (
        pytest.raises(MissingExtraError, match="extra cluster"),
        cluster_at("tcp://127.0.0.1:9"),
    ):
        pass


def test_the_command_says_it_in_one_line_and_leaves_no_folder(tmp_path: Path) -> None:
    file, root = tmp_path / "spec.toml", tmp_path / "runs"
    file.write_text(TEXT)
    call = ["run", str(file), "--runs-dir", str(root), "--cluster", "here"]
    found = CliRunner().invoke(app, call)
    assert found.exit_code == 2
    assert found.output.startswith("error: `--cluster` must be an address such as")
    assert not root.exists()


def test_a_run_without_a_cluster_imports_nothing_of_dask(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(TEXT)
    call = """
import sys
from hewfl.cli.app import app
try:
    app(["run", "spec.toml", "--jobs", "0", "--set", "rounds=1", "--set", "seeds=[0]"])
finally:
    assert not {"dask", "distributed"} & {name.split(".")[0] for name in sys.modules}
"""
    subprocess.run([sys.executable, "-c", call], cwd=tmp_path, check=True, timeout=100)


def test_a_worker_needs_one_thread_for_its_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in THREADS:
        monkeypatch.setenv(name, "1")
    require_like(likeness(), "w")
    with pytest.raises(HewError, match=r"w is not like .*: torch .* there, 0\.1 here"):
        require_like({**likeness(torch=True), "torch": "0.1"}, "w")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with pytest.raises(HewError, match="w must be started with OMP_NUM_THREADS=1"):
        require_like(likeness(), "w")


def test_a_task_that_ends_its_workers_is_told_in_words() -> None:
    killed = pytest.importorskip("distributed").KilledWorker("key", "worker", 3)
    told = _plain(killed, Task("rounds", "mine, seed 3", 1, print, ()))
    assert str(told).startswith("rounds, mine, seed 3: every worker that began it died")


def test_files_travel_as_they_are(tmp_path: Path) -> None:
    seed = tmp_path / "a" / "seed-0"
    write_files(seed, {"seed-0/manifest.json": b"{}", "seed-0/trace.jsonl": b"1\n"})
    (seed / ".state.partial").write_bytes(b"half")
    assert files_of(seed) == {
        "seed-0/manifest.json": b"{}",
        "seed-0/trace.jsonl": b"1\n",
    }
    write_files(seed, {"seed-0/trace.jsonl": b"2\n"})
    assert [file.name for file in seed.iterdir()] == ["trace.jsonl"]
    trial = tmp_path / "a" / "last-0.json"
    write_files(trial, {"last-0/state": b"s"})
    assert files_of(trial) == {"last-0/state": b"s"}
    write_files(trial, {"last-0.json": b"[]"})
    assert files_of(trial) == {"last-0.json": b"[]"}
    assert not trial.with_suffix("").exists()


def test_a_file_arrives_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEWFL_DATA", raising=False)
    monkeypatch.setattr(travelling, "PIECE", 4)
    source = tmp_path / "mine.csv"
    source.write_bytes(b"0123456789")
    sha256 = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
    sent = list(pieces_of(DataPart("own/x/mine.csv", str(source), sha256)))
    assert [(begin, piece) for begin, piece, _ in sent] == [
        (0, b"0123"),
        (4, b"4567"),
        (8, b"89"),
    ]
    away = DataPart("own/x/mine.csv", str(tmp_path / "elsewhere.csv"), sha256)
    wanted = [receive(away, *piece, "client") for piece in sent]
    assert wanted == [True, True, False]
    found = place_of(away)
    assert found is not None
    assert found.read_bytes() == source.read_bytes()
    assert not receive(away, *sent[0], "client")  # no need
    other = DataPart("own/y/mine.csv", str(tmp_path / "elsewhere.csv"), sha256)
    with pytest.raises(DataError, match="did not arrive whole"):
        receive(other, 0, b"01", sha256, "client")
    assert place_of(other) is None
