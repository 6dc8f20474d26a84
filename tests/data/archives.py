"""Small archives of the formats in which CIFAR, EMNIST and FEMNIST are published."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.data.mirror import idx

from hewfl.data.catalogue import CATALOGUE, DataFile, DatasetInfo

Bytes = NDArray[np.uint8]


def tar(files: dict[str, bytes], mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]  # a mode
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def cifar(name: str, train: int = 100, test: int = 20) -> tuple[bytes, Bytes, Bytes]:
    """An archive, and the images and classes of both parts in its order."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (train + test, 3072), dtype=np.uint8)
    classes = len(CATALOGUE[name].classes)
    labels = (np.arange(train + test) % classes).astype(np.uint8)
    if name == "cifar10":
        rows = np.column_stack([labels, images])
        cuts = np.array_split(rows[:train], 5)
        files = {f"data_batch_{k + 1}.bin": part for k, part in enumerate(cuts)}
        files["test_batch.bin"], folder = rows[train:], "cifar-10-batches-bin"
    else:
        rows = np.column_stack([labels // 5, labels, images])
        files = {"train.bin": rows[:train], "test.bin": rows[train:]}
        folder = "cifar-100-binary"
    content = {f"{folder}/{k}": part.tobytes() for k, part in files.items()}
    content[f"{folder}/readme.html"] = b"<html>"
    return tar(content, "w:gz"), images, labels


def emnist(split: str, count: int = 60) -> tuple[bytes, Bytes, Bytes]:
    """An archive with one split, its images upright, and its classes from 0."""
    rng = np.random.default_rng(6)
    images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    first = 1 if split == "letters" else 0
    labels = (np.arange(count) % 26).astype(np.uint8)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for part, rows in (("train", slice(40)), ("test", slice(40, None))):
            stem = f"gzip/emnist-{split}-{part}"
            sideways = np.ascontiguousarray(images[rows].swapaxes(1, 2))
            archive.writestr(f"{stem}-images-idx3-ubyte.gz", idx(sideways))
            archive.writestr(f"{stem}-labels-idx1-ubyte.gz", idx(labels[rows] + first))
    return stream.getvalue(), images, labels


def femnist(folder: Path) -> bytes:
    """Three writers, of whom one has no test samples, with grey values k / 255."""
    import h5py  # noqa: PLC0415 - an extra

    rng = np.random.default_rng(7)
    files = {}
    for part, counts in (("train", (4, 3, 2)), ("test", (2, 0, 1))):
        path = folder / f"fed_emnist_{part}.h5"
        with h5py.File(path, "w") as file:
            for writer, count in enumerate(counts):
                if count:
                    group = file.create_group(f"examples/f000{writer}_1")
                    grey = rng.integers(0, 256, (count, 28, 28)) / 255
                    group["pixels"] = grey.astype(np.float32)
                    group["label"] = np.arange(count, dtype=np.int32) + 10 * writer
        files[path.name] = path.read_bytes()
    return tar(files, "w:bz2")


def entry(name: str, content: bytes, *mirrors: str) -> DatasetInfo:
    """The entry of the catalogue with the checksum of another archive."""
    info = CATALOGUE[name]
    path, digest = info.files[0].path, hashlib.sha256(content).hexdigest()
    urls = tuple(f"{mirror}/{path}" for mirror in mirrors)
    file = DataFile(path, len(content), (digest,), urls=urls)
    return replace(info, files=(file,))
