import threading
from pathlib import Path

import numpy as np
import pytest

from hewfl.data.cache import Parsed, load_or_parse, verify_cached
from hewfl.errors import DataError

KEY = ["parser 1", "abc"]
X = np.arange(12, dtype=np.int16).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


def parsed() -> Parsed:
    return Parsed((X, Y), (X[:2], Y[:2]), ("a", "b"))


def never() -> Parsed:
    raise AssertionError("parsed although cached")


def only_folder(cache: Path) -> Path:
    (folder,) = (cache / "parsed").iterdir()
    return folder


def test_the_second_time_is_mapped_not_parsed() -> None:
    load_or_parse("set", KEY, parsed)
    again = load_or_parse("set", KEY, never)
    assert isinstance(again.train[0], np.memmap)
    assert not again.train[0].flags.writeable
    assert again.test is not None
    for mine, theirs in zip(
        (*again.train, *again.test), (X, Y, X[:2], Y[:2]), strict=True
    ):
        assert mine.dtype == theirs.dtype
        assert (mine == theirs).all()
    assert again.classes == ("a", "b")


def test_another_key_is_another_entry() -> None:
    load_or_parse("set", KEY, parsed)
    with pytest.raises(AssertionError, match="parsed although"):
        load_or_parse("set", ["parser 2", "abc"], never)


@pytest.mark.parametrize("name", ["features.npy", "test_labels.npy", "manifest.json"])
@pytest.mark.parametrize("keep", [0, 40])
def test_a_damaged_entry_is_written_anew(cache: Path, name: str, keep: int) -> None:
    load_or_parse("set", KEY, parsed)
    victim = only_folder(cache) / name
    victim.write_bytes(victim.read_bytes()[:keep])
    assert (load_or_parse("set", KEY, parsed).train[0] == X).all()
    assert (load_or_parse("set", KEY, never).train[0] == X).all()
    only_folder(cache)  # the broken one is gone


def test_a_missing_array_is_written_anew(cache: Path) -> None:
    load_or_parse("set", KEY, parsed)
    (only_folder(cache) / "labels.npy").unlink()
    load_or_parse("set", KEY, parsed)
    load_or_parse("set", KEY, never)


def test_changed_numbers_are_found_by_verification(cache: Path) -> None:
    load_or_parse("set", KEY, parsed)
    verify_cached("set", KEY)
    victim = only_folder(cache) / "labels.npy"
    victim.write_bytes(victim.read_bytes()[:-8] + b"\x07" * 8)
    with pytest.raises(DataError, match=r"labels\.npy has changed.*delete"):
        verify_cached("set", KEY)


def test_writers_at_once_agree_and_leave_nothing_behind(cache: Path) -> None:
    barrier, results = threading.Barrier(8), []

    def parse() -> Parsed:
        barrier.wait(timeout=300)  # all have found nothing before any has written
        return parsed()

    threads = [
        threading.Thread(
            target=lambda: results.append(load_or_parse("set", KEY, parse))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all((r.train[0] == X).all() for r in results)
    only_folder(cache)


def test_without_a_writable_cache_arrays_come_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=r"cannot write to the cache .*set HEWFL_CACHE"
    ):
        assert load_or_parse("set", KEY, parsed).train[0] is X
