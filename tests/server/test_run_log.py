"""A run on disk: trace and checkpoint that fit each other."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from hewfl.errors import DataError
from hewfl.server.checkpoint import Checkpoint
from hewfl.server.run_log import RunLog, describe
from hewfl.server.trace import RoundRecord, from_lines, to_line


def records(*rounds: int) -> list[RoundRecord]:
    return [RoundRecord(round=t, entry=0, objective=1 / (t + 1)) for t in rounds]


def test_a_trace_is_cut_back_to_its_checkpoint(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run")
    assert log.size == 0
    assert log.load({"seed": 1}) is None
    log.append(records(0, 1))
    log.save(Checkpoint(1, {"seed": 1, "steps": (1, 2)}, {"x": np.ones(3)}, log.size))
    log.append(records(2))
    again = RunLog(tmp_path / "run")
    saved = again.load({"seed": 1, "steps": (1, 2)})
    assert saved is not None
    assert saved.round == 1
    assert again.records() == records(0, 1)


def test_another_run_is_refused(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.restart(records(0))
    log.save(Checkpoint(0, {"seed": 1, "wait": 5}, {}, log.size))
    with pytest.raises(DataError, match="another run: its seed is 1, asked for is 2"):
        log.load({"seed": 2})
    assert log.load({"seed": 1, "wait": 5}) is not None


def test_a_trace_without_a_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.append(records(0, 1, 2))
    assert log.load({}) is None
    assert log.size == 0


def test_a_job_is_described_as_reports_read_it(tmp_path: Path) -> None:
    method = {"method": "Mine", "label": "control \x01 character", "strength": None}
    describe(tmp_path, "job", method, seed=3, rounds=0, clients={"n": 4})
    table = tomllib.loads((tmp_path / "spec.toml").read_text())
    assert table["seeds"] == [3]
    assert table["rounds"] == 1
    assert table["methods"] == [{"method": "Mine", "label": "control \x01 character"}]
    assert table["clients"] == {"partition": "nodes", "n": 4}


def test_records_keep_every_bit() -> None:
    record = RoundRecord(
        3, 1, 0.1 + 0.2, None, {"accuracy": 1 / 3}, 5, 6, (0, 4), (2, 8), (0.1, 0.9)
    )
    assert from_lines([to_line(record)]) == [record]
