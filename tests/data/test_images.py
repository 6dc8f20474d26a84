"""Images: published archives, arrays of any shape, folders, Hugging Face."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.archives import cifar, emnist, entry, femnist
from tests.data.mirror import Mirror, serve

from hewfl.data import CATALOGUE, check, load
from hewfl.data.catalogue import DatasetInfo
from hewfl.errors import DataError, InvalidInputError, MissingExtraError

RNG = np.random.default_rng(0)


def put(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, content: bytes
) -> None:
    """An archive in HEWFL_DATA, known to the catalogue."""
    info = entry(name, content)
    file = folder / "data" / info.files[0].path
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    monkeypatch.setenv("HEWFL_DATA", str(folder / "data"))
    monkeypatch.setitem(CATALOGUE, name, info)


# ------------------------------------------------------------------ published ones


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, images, labels = cifar(name)
    put(monkeypatch, tmp_path, name, content)
    for dataset in (load(name), load(name), check(name)):  # parsed, then from the cache
        assert dataset.shape == (3, 32, 32)
        assert dataset.features.dtype == np.uint8
        assert dataset.test is not None
        parts = np.concatenate([dataset.features, dataset.test[0]])
        np.testing.assert_array_equal(parts, images)
        both = np.concatenate([dataset.labels, dataset.test[1]])
        np.testing.assert_array_equal(both, labels)


def test_cifar_is_fetched_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    content, images, _ = cifar("cifar10")
    path = CATALOGUE["cifar10"].files[0].path
    with serve(Mirror({path: content})) as mirror:
        monkeypatch.setitem(CATALOGUE, "cifar10", entry("cifar10", content, mirror.url))
        assert (load("cifar10").features == images[:100]).all()
        wrong = entry("cifar10", content + b"?", mirror.url)
        monkeypatch.setitem(CATALOGUE, "cifar10", wrong)
        with pytest.raises(DataError, match="must have sha256"):
            load("cifar10")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "emnist", "femnist"])
def test_another_archive_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, tmp_path, name, b"no archive")
    with pytest.raises(DataError, match="must be an archive of"):
        load(name)


def test_half_a_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, tmp_path, "cifar10", cifar("cifar100")[0])
    with pytest.raises(DataError, match="must be an archive of records of 1 "):
        load("cifar10")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("emnist", "balanced"),
        ("emnist_letters", "letters"),
        ("emnist_byclass", "byclass"),
    ],
)
def test_emnist_is_upright_and_counts_from_zero(
    name: str, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, images, labels = emnist(split)
    put(monkeypatch, tmp_path, name, content)
    dataset = load(name)
    assert dataset.shape == (1, 28, 28)
    assert dataset.test is not None
    np.testing.assert_array_equal(dataset.features.reshape(40, 28, 28), images[:40])
    np.testing.assert_array_equal(dataset.test[1], labels[40:])
    assert dataset.labels.min() == 0


def test_femnist_has_a_client_for_each_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("h5py")
    put(monkeypatch, tmp_path, "femnist", femnist(tmp_path))
    dataset = load("femnist")
    assert dataset.client_names == ("f0000_1", "f0001_1", "f0002_1")
    assert dataset.clients is not None
    assert dataset.clients.tolist() == [0] * 4 + [1] * 3 + [2] * 2 + [0] * 2 + [2]
    assert dataset.labels.tolist() == [0, 1, 2, 3, 10, 11, 12, 20, 21]
    assert dataset.features.dtype == np.uint8
    first = np.random.default_rng(7).integers(0, 256, (4, 28, 28))
    np.testing.assert_array_equal(dataset.features[:4].reshape(first.shape), first)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("femnist", "h5py", "femnist"),
        ("photos", "PIL.Image", "images"),
        ("hf:somebody/something", "datasets", "huggingface"),
    ],
)
def test_an_absent_library_is_named_with_its_extra(
    name: str,
    module: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "femnist":
        put(monkeypatch, tmp_path, name, b"")
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=f"install hewfl's extra {extra}"):
        load(name)


@pytest.mark.parametrize("info", CATALOGUE.values(), ids=str)
def test_the_catalogue_is_consistent(info: DatasetInfo) -> None:
    assert not info.shape or np.prod(info.shape) == info.features
    assert len(set(info.classes)) == len(info.classes)
    for file in info.files:
        assert all(len(digest) == 64 for digest in file.sha256)


# ------------------------------------------------------------------ arrays


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((6, 5, 4), (1, 5, 4)),
        ((6, 5, 4, 3), (3, 5, 4)),  # channels last
        ((6, 3, 5, 4), (3, 5, 4)),  # channels first
        ((6, 3, 5, 3), (3, 5, 3)),  # both may be: taken as it is
        ((6, 2, 3, 4, 5), (2, 3, 4, 5)),
        ((6, 7), ()),
    ],
)
def test_arrays_of_any_shape(
    given: tuple[int, ...], shape: tuple[int, ...], tmp_path: Path
) -> None:
    X = RNG.integers(0, 256, given, dtype=np.uint8)
    np.savez(tmp_path / "own.npz", X=X, y=np.arange(6) % 2, X_test=X[:2], y_test=[0, 1])
    for _ in range(2):  # parsed, then from the cache
        dataset = load(tmp_path / "own.npz")
        assert dataset.shape == shape
        want = np.moveaxis(X, 3, 1) if shape == (3, 5, 4) and given[3] == 3 else X
        np.testing.assert_array_equal(dataset.features, want.reshape(6, -1))
        assert dataset.test is not None
        np.testing.assert_array_equal(dataset.test[0], want[:2].reshape(2, -1))


def test_images_of_another_size_in_the_test_part(tmp_path: Path) -> None:
    X, y = np.zeros((4, 5, 4)), np.arange(4) % 2
    np.savez(tmp_path / "own.npz", X=X, y=y, X_test=X.swapaxes(1, 2), y_test=y)
    with pytest.raises(DataError, match=r"as wide as X; got \(1, 4, 5\) and \(1, 5, 4"):
        load(tmp_path / "own.npz")


# ------------------------------------------------------------------ folders


def photos(folder: Path, size: tuple[int, ...] = (5, 4, 3)) -> Any:
    """Two classes of two images each; the pixels by the class and the number."""
    image: Any = importlib.import_module("PIL.Image")
    pixels = RNG.integers(0, 256, (2, 2, *size), dtype=np.uint8)
    for name, images in zip(("cat", "dog"), pixels, strict=True):
        (folder / name).mkdir(parents=True)
        for k, array in enumerate(images):
            image.fromarray(array).save(folder / name / f"{k}.png")
        (folder / name / "notes.txt").write_text("left out")
    return pixels


@pytest.mark.parametrize("size", [(5, 4, 3), (6, 7)])
def test_a_folder_of_images(size: tuple[int, ...], tmp_path: Path) -> None:
    pixels = photos(tmp_path / "photos", size)
    for _ in range(2):
        dataset = load(tmp_path / "photos")
        assert dataset.classes == ("cat", "dog")
        assert dataset.labels.tolist() == [0, 0, 1, 1]
        assert dataset.shape == ((3, 5, 4) if len(size) == 3 else (1, 6, 7))
        rows = dataset.features.reshape(4, *dataset.shape)
        want = pixels.reshape(4, *size)
        want = np.moveaxis(want, 3, 1) if len(size) == 3 else want[:, None]
        np.testing.assert_array_equal(rows, want)


def test_grey_images_of_16_bits_keep_their_range(tmp_path: Path) -> None:
    """As bytes all values above 255 became 255."""
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        array = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
        image.fromarray(array).save(tmp_path / name / "1.png")
    data = load(str(tmp_path))
    assert data.shape == (1, 4, 5)
    assert sorted(set(data.features.ravel().tolist())) == list(range(0, 60000, 3000))


def test_folders_of_a_training_and_a_test_part(tmp_path: Path) -> None:
    photos(tmp_path / "photos" / "train")
    test = photos(tmp_path / "photos" / "test")
    dataset = load(tmp_path / "photos")
    assert dataset.test is not None
    assert dataset.test[0].shape == (4, 60)
    np.testing.assert_array_equal(dataset.test[0][0][:20], test[0, 0, :, :, 0].ravel())


def test_a_changed_image_is_seen(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    before = load(tmp_path / "photos").features.copy()
    (tmp_path / "photos" / "cat" / "0.png").unlink()
    assert len(load(tmp_path / "photos").features) == len(before) - 1


def test_bad_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must hold folders of classes with images"):
        load(tmp_path / "empty")
    photos(tmp_path / "photos")
    photos(tmp_path / "photos" / "more", (4, 4, 3))
    with pytest.raises(DataError, match=r"one size; got \(4, 4, 3\) in more.cat.0.png"):
        load(tmp_path / "photos")
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1.png must be an image"):
        load(tmp_path / "photos")
    with pytest.raises(DataError, match="a folder has no columns; got 'kind'"):
        load(tmp_path / "photos", label_column="kind")
    with pytest.raises(InvalidInputError, match="a folder or hf:NAME"):
        load("photo")


# ------------------------------------------------------------------ Hugging Face


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets")


def test_images_of_hugging_face(library: Any, tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    kinds = library.Features(
        image=library.Image(),
        label=library.ClassLabel(names=["cat", "dog"]),
        writer=library.Value("string"),
    )
    columns = {
        "image": list(pixels),
        "label": [0, 1, 0, 1, 0, 1],
        "writer": ["b", "a", "b", "c", "c", "a"],
    }
    rows = library.Dataset.from_dict(columns, kinds)
    both = {"train": rows.select(range(4)), "test": rows.select([4, 5])}
    library.DatasetDict(both).save_to_disk(tmp_path / "saved")
    for _ in range(2):
        dataset = load(f"hf:{tmp_path / 'saved'}", client_column="writer")
        assert dataset.classes == ("cat", "dog")
        assert dataset.shape == (3, 5, 4)
        assert dataset.client_names == ("a", "b", "c")
        assert dataset.clients is not None
        assert dataset.clients.tolist() == [1, 0, 1, 2, 2, 0]
        want = np.moveaxis(pixels, 3, 1).reshape(6, -1)
        np.testing.assert_array_equal(dataset.features, want[:4])
        assert dataset.test is not None
        np.testing.assert_array_equal(dataset.test[0], want[4:])


def test_tables_of_hugging_face(library: Any, tmp_path: Path) -> None:
    columns = {"a": [1.0, 2.0, 3.0], "kind": ["x", "y", "x"], "b": [[1, 2]] * 3}
    library.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    name = f"hf:{tmp_path / 'saved'}"
    dataset = load(name, label_column="kind")
    np.testing.assert_array_equal(dataset.features, [[1, 1, 2], [2, 1, 2], [3, 1, 2]])
    assert dataset.classes == ("x", "y")
    for label, text in (
        (None, "one column of classes, or `label`"),
        ("c", "must have the columns asked for; got 'c' among a, kind, b"),
        ("a", "features must be numbers, or images of one size; got column 'kind'"),
    ):
        with pytest.raises(DataError, match=text):
            load(name, label_column=label)


def test_what_the_library_cannot_load(library: Any, tmp_path: Path) -> None:
    assert library
    with pytest.raises(DataError, match="hf:nobody/nothing: cannot be loaded: "):
        load("hf:nobody/nothing")
    rows = library.Dataset.from_dict({"a": [1.0], "label": [0]})
    library.DatasetDict({"validation": rows}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="must have a part train; got validation"):
        load(f"hf:{tmp_path / 'saved'}")
