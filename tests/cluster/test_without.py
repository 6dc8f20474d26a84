"""Tests without a cluster: addresses, versions, files, and no import of Dask."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hewfl.cli.app import app
from hewfl.errors import DataError, HewError, InvalidInputError, MissingExtraError
from hewfl.experiments.dask_executor import cluster_at
from hewfl.experiments.dask_tasks import (
    InputFile,
    check_worker,
    installed_versions,
    read_files,
    relocate,
    store_input,
    write_files,
)
from hewfl.experiments.executor import THREADS
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
            HewError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9;"
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
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingExtraError, match="extra cluster"),
        cluster_at("tcp://127.0.0.1:9"),
    ):
        pass


def test_the_command_says_it_in_one_line_and_leaves_no_folder(tmp_path: Path) -> None:
    file, root = tmp_path / "spec.toml", tmp_path / "runs"
    file.write_text(TEXT)
    call = ["run", str(file), "--runs-dir", str(root), "--cluster", "here"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 2
    assert result.output.startswith("error: `--cluster` must be an address such as")
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
    versions = installed_versions(["numpy", "torch"])
    check_worker(versions, "w")
    with pytest.raises(HewError, match=r"w differs .*: torch .* there, 0\.1 here"):
        check_worker({**versions, "torch": "0.1"}, "w")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with pytest.raises(HewError, match="w must be started with OMP_NUM_THREADS=1"):
        check_worker(versions, "w")


def test_files_travel_as_they_are(tmp_path: Path) -> None:
    seed = tmp_path / "a" / "seed-0"
    write_files(seed, {"seed-0/manifest.json": b"{}", "seed-0/trace.jsonl": b"1\n"})
    (seed / ".state.partial").write_bytes(b"half")
    assert read_files(seed) == {
        "seed-0/manifest.json": b"{}",
        "seed-0/trace.jsonl": b"1\n",
    }
    write_files(seed, {"seed-0/trace.jsonl": b"2\n"})
    assert [file.name for file in seed.iterdir()] == ["trace.jsonl"]
    trial = tmp_path / "a" / "last-0.json"
    write_files(trial, {"last-0/state": b"s"})
    assert read_files(trial) == {"last-0/state": b"s"}
    write_files(trial, {"last-0.json": b"[]"})
    assert read_files(trial) == {"last-0.json": b"[]"}
    assert not trial.with_suffix("").exists()


def test_inputs_are_stored_once_and_arguments_relocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEWFL_DATA", raising=False)
    file = InputFile("own/abc/mine.csv", "/there/mine.csv")
    path = store_input(file, b"1,2")
    assert path == tmp_path / "cache" / "files" / file.path
    assert store_input(file, b"not written").read_bytes() == b"1,2"
    values = ("/there/mine.csv", "/there/mine.csv:Rule", ["other"], 3)
    moved = relocate(values, {file.source: path})
    assert moved == (str(path), f"{path}:Rule", ["other"], 3)
