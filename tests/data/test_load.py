import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.mirror import Mirror, serve, small_images, small_mnist

from hewfl.data import formats
from hewfl.data.catalogue import (
    CATALOGUE,
    DatasetInfo,
    dataset_info,
    dataset_status,
)
from hewfl.data.load import ag_news_texts, check, load
from hewfl.data.paths import cache_root
from hewfl.errors import DataError, InvalidInputError

REAL = os.environ.get("HEWFL_DATA", "")
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
COVERTYPE = [211840, 283301, 35754, 2747, 9493, 17367, 20510]


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEWFL_DATA", REAL)


def placed(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetInfo:
    """A small MNIST in HEWFL_DATA."""
    files = small_images()
    monkeypatch.setenv("HEWFL_DATA", str(placed(tmp_path / "data", files)))
    monkeypatch.setitem(CATALOGUE, "mnist", small_mnist(files))
    return CATALOGUE["mnist"]


@pytest.mark.usefixtures("small")
def test_hewfl_data_is_read_and_its_arrays_are_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = load("mnist")
    monkeypatch.setattr(formats, "read_idx", None)  # never called again
    dataset = load("mnist")
    assert isinstance(dataset.features, np.memmap)
    assert (dataset.features == first.features).all()
    assert dataset.features.shape == (30, 784)
    assert dataset.labels.tolist() == [i % 10 for i in range(30)]
    assert dataset.test is not None
    assert dataset.test[0].shape == (10, 784)
    assert dataset.size == 40
    assert check("mnist").name == "mnist"


def test_a_read_only_folder_is_enough(small: DatasetInfo, tmp_path: Path) -> None:
    before = sorted((tmp_path / "data").rglob("*"))
    for path in (tmp_path / "data").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    load(small.name)
    assert sorted((tmp_path / "data").rglob("*")) == before


def test_damaged_files_are_told_not_replaced(
    small: DatasetInfo, tmp_path: Path
) -> None:
    load("mnist")  # a cache of the sound file must not hide the damage
    victim = tmp_path / "data" / small.files[2].path
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged: it must have sha256") as caught:
        load("mnist")
    assert str(victim) in str(caught.value)
    assert "HEWFL_DATA" in str(caught.value)


def test_order_of_search(
    small: DatasetInfo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = small_images()
    labels = small.files[1].path
    placed(cache / "files", {labels: b"never looked at"})
    assert dataset_status(small).place == "HEWFL_DATA"
    assert load("mnist").size == 40
    monkeypatch.delenv("HEWFL_DATA")
    assert dataset_status(small).state == "partly here"
    with pytest.raises(DataError, match="not found"):
        load("mnist", download=False)
    placed(cache / "files", files)
    assert dataset_status(small).place == "cache"
    assert load("mnist", download=False).source == str(cache / "files" / "mnist")


def test_what_is_nowhere_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    files = small_images()
    with serve(Mirror(files)) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small_mnist(files, mirror.url))
        assert dataset_status(CATALOGUE["mnist"]).state == "absent"
        assert load("mnist").size == 40
    assert load("mnist").size == 40  # the mirror is gone


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "covertype", "ag_news"])
def test_absence_is_told_with_the_remedy(name: str) -> None:
    with pytest.raises(DataError, match="set HEWFL_DATA") as caught:
        load(name, download=False)
    for file in dataset_info(name).files:
        assert file.path in str(caught.value)
    assert ("hewfl data get" in str(caught.value)) == (name != "ag_news")


def test_a_wrong_hewfl_data_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEWFL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="HEWFL_DATA must be a folder; got"):
        load("mnist")


def test_unknown_names_are_told() -> None:
    with pytest.raises(InvalidInputError, match=r"`name` must be one of digits, .*'x'"):
        load("x")
    with pytest.raises(InvalidInputError, match="`name` must be one of digits"):
        dataset_info("x")
    with pytest.raises(DataError, match=r"x\.csv: no such file"):
        load("x.csv")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("1,0\n2,1\n")
    assert load(path).features.tolist() == [[1], [2]]
    path.write_text("1,0\n3,1\n")
    assert load(path).features.tolist() == [[1], [3]]
    assert check(path).features.tolist() == [[1], [3]]


def test_changed_cached_numbers_are_found(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("1,0\n2,1\n")
    load(path)
    (victim,) = (cache / "parsed").glob("*/features.npy")
    victim.write_bytes(victim.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="delete"):
        check(path)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEWFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "hewfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_root() == tmp_path / ".cache" / "hewfl"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_root() == tmp_path / "Library" / "Caches" / "hewfl"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_root() == tmp_path / "local" / "hewfl" / "Cache"


def test_digits_need_neither_cache_nor_heavy_imports(cache: Path) -> None:
    code = (
        "import sys, hewfl.data as d; d.load(); "
        "sys.exit(bool({'sklearn', 'rich', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not cache.exists()


def test_the_catalogue_is_consistent() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert len(set(entry.classes)) == len(entry.classes)
        for file in entry.files:
            assert all(len(sha256) == 64 for sha256 in file.sha256)
    assert replace(dataset_info("digits"), files=()).size == 0


@pytest.mark.data
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("name", "train", "test", "first", "first_test"),
    [
        ("mnist", MNIST_TRAIN, MNIST_TEST, "5041921314", "7210414959"),
        ("fashion_mnist", [6000] * 10, [1000] * 10, "9003027255", "9211614657"),
    ],
)
def test_real_images(
    name: str, train: list[int], test: list[int], first: str, first_test: str
) -> None:
    dataset = check(name)
    assert dataset.test is not None
    assert dataset.features.shape == (60_000, 784)
    assert dataset.test[0].shape == (10_000, 784)
    assert np.bincount(dataset.labels).tolist() == train
    assert np.bincount(dataset.test[1]).tolist() == test
    assert "".join(map(str, dataset.labels[:10])) == first
    assert "".join(map(str, dataset.test[1][:10])) == first_test
    mean, deviation = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.286, 0.353)}[name]
    assert dataset.features.mean() / 255 == pytest.approx(mean, abs=5e-5)
    assert dataset.features.std() / 255 == pytest.approx(deviation, abs=5e-5)


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_real_covertype() -> None:
    dataset = check("covertype")
    assert dataset.features.shape == (581_012, 54)
    assert dataset.test is None
    assert np.bincount(dataset.labels).tolist() == COVERTYPE
    row = [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279, 1]
    assert dataset.features[0, :11].tolist() == row
    assert dataset.labels[0] == 4
    assert (dataset.features[:, 10:14].sum(axis=1) == 1).all()
    assert (dataset.features[:, 14:].sum(axis=1) == 1).all()
    elevation = dataset.features[:, 0]
    assert (elevation.min(), elevation.max()) == (1859, 3858)


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_real_news() -> None:
    dataset = check("ag_news")
    assert dataset.test is not None
    assert dataset.features.shape == (30_000, 768)
    assert dataset.features.dtype == np.float16
    assert dataset.test[0].shape == (7600, 768)
    assert np.bincount(dataset.labels).tolist() == [7500] * 4
    assert np.bincount(dataset.test[1]).tolist() == [1900] * 4
    train, test = ag_news_texts()
    assert (len(train.texts), len(test.texts)) == (30_000, 7600)
    assert (train.labels == dataset.labels).all()
    assert (test.labels == dataset.test[1]).all()
    assert test.texts[0].startswith("Fears for T N pension after talks Unions")
