"""Files that are there whole or not at all."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hewfl.core.atomic import atomic_write, read_json, write_bytes, write_json
from hewfl.errors import DataError


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("sole_writer", [False, True])
def test_a_write_that_fails_changes_nothing(tmp_path: Path, sole_writer: bool) -> None:
    file = tmp_path / "new" / "a"
    write_bytes(file, b"first", sole_writer=sole_writer)
    with (
        pytest.raises(ZeroDivisionError),
        atomic_write(file, sole_writer=sole_writer) as stream,
    ):
        stream.write(b"half" * (1 // 0))
    assert (file.read_bytes(), names(file.parent)) == (b"first", ["a"])


def test_a_sole_writer_clears_what_a_killed_process_left(tmp_path: Path) -> None:
    file = tmp_path / "a"
    (tmp_path / ".a.partial").write_bytes(b"half of an earlier write")
    write_bytes(file, b"whole", sole_writer=True)
    assert (file.read_bytes(), names(tmp_path)) == (b"whole", ["a"])


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    contents = [bytes([k]) * 100_000 for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_bytes(file, content), contents))
    assert file.read_bytes() in contents
    assert names(tmp_path) == ["a"]


def test_json_is_read_back_or_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert read_json(file, missing=True) is None
    with pytest.raises(DataError, match=r"a.json is missing"):
        read_json(file)
    write_json(file, {"b": 1, "a": [None, "é"]})
    assert read_json(file) == {"b": 1, "a": [None, "é"]}
    assert list(json.loads(file.read_text())) == ["b", "a"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, float("nan"))
    file.write_text("{")
    with pytest.raises(DataError, match=r"a.json is damaged: .*; delete it"):
        read_json(file)
