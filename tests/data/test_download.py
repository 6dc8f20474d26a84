import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.mirror import Mirror, serve, small_images, small_mnist

from hewfl.data import download
from hewfl.data.catalogue import DatasetInfo
from hewfl.data.download import fetch
from hewfl.errors import DataError

CONTENT = bytes(range(256)) * 1000
PATH = "mnist/one.gz"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE", 0.0)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve(Mirror({PATH: CONTENT})) as running:
        yield running


@pytest.fixture
def target(cache: Path) -> Path:
    return cache / "files" / PATH


def entry(*mirrors: str) -> DatasetInfo:
    return small_mnist({PATH: CONTENT}, *mirrors)


def leftovers(target: Path) -> list[str]:
    return sorted(p.name for p in target.parent.iterdir() if p.suffix == ".part")


def test_a_file_arrives_whole_and_is_reported(mirror: Mirror, target: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    places = fetch(entry(mirror.url), lambda *report: reports.append(report))
    assert places == (target,)
    assert target.read_bytes() == CONTENT
    assert reports[-1] == (PATH, len(CONTENT), len(CONTENT))
    assert leftovers(target) == []
    fetch(entry(mirror.url))
    assert mirror.requests == 1  # nothing to do the second time


def test_a_cut_connection_is_tried_again(mirror: Mirror, target: Path) -> None:
    mirror.cuts = [1000, 0, 70000]
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.requests == 4
    assert leftovers(target) == []


def test_the_part_of_a_killed_process_is_replaced(mirror: Mirror, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{target.name}.part").write_bytes(b"x" * (len(CONTENT) + 9))
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT


def test_a_server_that_always_breaks_off_is_given_up(
    mirror: Mirror, target: Path
) -> None:
    mirror.cuts = [1000] * 50
    with pytest.raises(DataError, match="connection lost after 1000 of 256000 bytes"):
        fetch(entry(mirror.url))
    assert not target.exists()
    assert leftovers(target) == []
    assert mirror.requests < 10


def test_wrong_bytes_are_refused_and_removed(mirror: Mirror, target: Path) -> None:
    mirror.files[PATH] = b"y" + CONTENT[1:]
    with pytest.raises(DataError, match=r"must have sha256 \w{64}; got \w{64}"):
        fetch(entry(mirror.url))
    assert not target.exists()
    assert leftovers(target) == []
    assert mirror.requests == 1


def test_absence_moves_on_to_the_next_mirror(mirror: Mirror, target: Path) -> None:
    with serve(Mirror({})) as empty:
        fetch(entry(empty.url, mirror.url))
        assert empty.requests == 1
    assert target.read_bytes() == CONTENT


def test_an_overloaded_mirror_is_asked_again(mirror: Mirror, target: Path) -> None:
    mirror.codes = [503, 429]
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.requests == 3


def test_absent_everywhere_says_why_and_what_to_do() -> None:
    with serve(Mirror({})) as empty, pytest.raises(DataError) as caught:
        fetch(entry(empty.url))
    message = str(caught.value)
    assert "HTTP 404" in message
    assert "hewfl data get mnist" in message
    assert f"put {PATH} into a folder and set HEWFL_DATA" in message


def test_no_network_says_what_to_do() -> None:
    with serve(Mirror({})) as closed:
        pass
    with pytest.raises(DataError, match=r"refused.*set HEWFL_DATA") as caught:
        fetch(entry(closed.url))
    assert "\n" not in str(caught.value)


def test_a_file_without_mirror_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"not all of them can be downloaded"):
        fetch(entry())


def test_a_damaged_download_is_replaced(mirror: Mirror, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT


def test_what_the_user_has_is_not_downloaded(
    mirror: Mirror, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / PATH
    own.parent.mkdir(parents=True)
    own.write_bytes(b"whatever it is")
    monkeypatch.setenv("HEWFL_DATA", str(tmp_path / "own"))
    assert fetch(entry(mirror.url)) == (own,)
    assert mirror.requests == 0
    assert not target.exists()


def test_two_at_once_download_once(mirror: Mirror) -> None:
    mirror.files = small_images()
    wanted = small_mnist(mirror.files, mirror.url)
    places: list[tuple[Path, ...]] = []
    threads = [
        threading.Thread(target=lambda: places.append(fetch(wanted))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 4
    assert mirror.requests == len(wanted.files)


def test_a_cache_that_cannot_be_written_is_named(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write .*set HEWFL_CACHE"):
        fetch(entry(mirror.url))


def test_another_container_of_the_same_content_passes(target: Path) -> None:

    stamped = gzip.compress(CONTENT, mtime=12345)
    with serve(Mirror({PATH: stamped})) as mirror:
        file = replace(
            entry(mirror.url).files[0],
            size=len(stamped),
            content_sha256=hashlib.sha256(CONTENT).hexdigest(),
        )
        fetch(replace(entry(mirror.url), files=(file,)))
        assert target.read_bytes() == stamped
        mirror.files[PATH] = stamped[:-9]
        target.unlink()
        with pytest.raises(DataError, match="must be a sound gzip file"):
            fetch(replace(entry(mirror.url), files=(replace(file, size=9),)))
