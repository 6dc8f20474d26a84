import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.mirror import Mirror, serve, small_images, small_mnist

from hewfl.data import download
from hewfl.data.download import fetch
from hewfl.data.paths import DatasetInfo
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


def part_with(target: Path, content: bytes) -> Path:
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    return part


def leftovers(target: Path) -> list[str]:
    return sorted(p.name for p in target.parent.iterdir() if p.suffix == ".part")


def test_a_file_arrives_whole_and_is_reported(mirror: Mirror, target: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    places = fetch(entry(mirror.url), lambda *told: seen.append(told))
    assert places == (target,)
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (PATH, len(CONTENT), len(CONTENT))
    assert leftovers(target) == []
    fetch(entry(mirror.url))
    assert mirror.asked == [None]  # nothing to do the second time


def test_a_cut_connection_is_taken_up_where_it_broke(
    mirror: Mirror, target: Path
) -> None:
    mirror.cuts = [1000, 0, 70000]
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.asked == [None, "bytes=1000-", "bytes=1000-", "bytes=71000-"]


def test_the_part_of_a_killed_process_is_used(mirror: Mirror, target: Path) -> None:
    part_with(target, CONTENT[:5000])
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.asked == ["bytes=5000-"]


def test_a_finished_part_needs_no_request(mirror: Mirror, target: Path) -> None:
    part_with(target, CONTENT)
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.asked == []


@pytest.mark.parametrize("size", [5000, len(CONTENT), len(CONTENT) + 9])
def test_a_part_of_wrong_bytes_is_started_again(
    mirror: Mirror, target: Path, size: int
) -> None:
    part_with(target, b"x" * size)
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.asked[-1] is None


def test_a_server_that_cannot_resume_sends_all_again(
    mirror: Mirror, target: Path
) -> None:
    mirror.ranges = False
    mirror.cuts = [1000]
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert mirror.asked == [None, "bytes=1000-"]


def test_a_server_that_always_breaks_off_is_given_up(
    mirror: Mirror, target: Path
) -> None:
    mirror.ranges = False
    mirror.cuts = [1000] * 50
    with pytest.raises(DataError, match="connection lost after 1000 of 256000 bytes"):
        fetch(entry(mirror.url))
    assert not target.exists()
    assert leftovers(target) == ["one.gz.part"]  # kept for the next try
    assert len(mirror.asked) < 10


def test_wrong_bytes_are_refused_and_removed(mirror: Mirror, target: Path) -> None:
    mirror.files[PATH] = b"y" + CONTENT[1:]
    with pytest.raises(DataError, match=r"must have sha256 \w{64}; got \w{64}"):
        fetch(entry(mirror.url))
    assert not target.exists()
    assert leftovers(target) == []
    assert mirror.asked == [None]


def test_absence_moves_on_to_the_next_mirror(mirror: Mirror, target: Path) -> None:
    with serve(Mirror({})) as empty:
        fetch(entry(empty.url, mirror.url))
        assert empty.asked == [None]
    assert target.read_bytes() == CONTENT


def test_an_overloaded_mirror_is_asked_again(mirror: Mirror, target: Path) -> None:
    mirror.codes = [503, 429]
    fetch(entry(mirror.url))
    assert target.read_bytes() == CONTENT
    assert len(mirror.asked) == 3


def test_absent_everywhere_says_why_and_what_to_do() -> None:
    with serve(Mirror({})) as empty, pytest.raises(DataError) as caught:
        fetch(entry(empty.url))
    told = str(caught.value)
    assert "HTTP 404" in told
    assert "hewfl data get mnist" in told
    assert f"put {PATH} into a folder and set HEWFL_DATA" in told


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
    assert mirror.asked == []
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
    assert len(mirror.asked) == len(wanted.files)


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
