"""Published formats, bytes to arrays: idx, CIFAR, Covertype, AG News, digits."""

import csv
import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Int64, UInt8
from hewfl.core.validation import Ints
from hewfl.data.catalogue import DIGITS_SHA256
from hewfl.data.dataset import Numbers, Samples
from hewfl.errors import DataError

Parts = tuple[Samples, Samples | None]

VERSION = 1
"""Raised when the output of a parser changes, so that older caches are not read."""


def read_idx(path: Path) -> UInt8[Numbers, "..."]:
    """An array of bytes in the idx format of MNIST.

    Two zero bytes, type 8, the number of axes, each axis as a big-endian 32-bit
    number, then the entries.
    """
    return _from_idx(path, path.read_bytes())


def _from_idx(path: Path, compressed: bytes) -> UInt8[Numbers, "..."]:
    content = gzip.decompress(compressed)
    axes = content[3] if content[:3] == b"\x00\x00\x08" and content[3:] else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[k : k + 4]) for k in range(4, start, 4)]
    if axes == 0 or len(content) != start + prod(shape):
        rule = "an idx file of bytes, as long as its header says"
        got = f"{len(content)} bytes beginning {content[:4].hex()}"
        raise DataError(f"{path} must be {rule}; got {got}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_images(paths: Sequence[Path]) -> Parts:
    """MNIST and Fashion-MNIST: images as rows of bytes."""
    images, labels, test_images, test_labels = (read_idx(path) for path in paths)
    return (
        (images.reshape(len(images), -1), labels.astype(np.int64)),
        (test_images.reshape(len(test_images), -1), test_labels.astype(np.int64)),
    )


def read_emnist(paths: Sequence[Path], split: str) -> Parts:
    """A split of EMNIST: four idx files in the archive, images as rows of bytes.

    The images are published with rows and columns exchanged, and letters count from 1.
    """
    (path,) = paths
    arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            for part in ("train", "test"):
                for kind in ("images-idx3", "labels-idx1"):
                    name = f"gzip/emnist-{split}-{part}-{kind}-ubyte.gz"
                    arrays.append(_from_idx(path, archive.read(name)))
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        text = f"an archive of idx files of the split {split}"
        raise DataError(f"{path} must be {text}; got {error}") from error
    images, labels, test_images, test_labels = arrays
    least = 1 if split == "letters" else 0
    upright = [part.swapaxes(1, 2) for part in (images, test_images)]
    rows = [part.reshape(len(part), -1) for part in upright]
    codes = [part.astype(np.int64) - least for part in (labels, test_labels)]
    return (rows[0], codes[0]), (rows[1], codes[1])


CIFAR_PIXELS = 3 * 32 * 32
"""Bytes of an image: red, then green, then blue, each row by row."""


def read_cifar(paths: Sequence[Path], label_bytes: int) -> Parts:
    """CIFAR-10 and CIFAR-100 in their binary version: a tar archive of records.

    A record is `label_bytes` labels, the class last, and the pixels. CIFAR-100 has the
    coarse class before the fine one, which is taken.
    """
    (path,) = paths
    parts: dict[bool, list[Any]] = {False: [], True: []}
    try:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                stream = archive.extractfile(member)
                if stream is None or not member.name.endswith(".bin"):
                    continue
                is_test = member.name.rpartition("/")[2].startswith("test")
                parts[is_test].append(np.frombuffer(stream.read(), np.uint8))
        tables = [
            np.concatenate(parts[is_test]).reshape(-1, label_bytes + CIFAR_PIXELS)
            for is_test in (False, True)
        ]
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        rule = f"an archive of records of {label_bytes} + {CIFAR_PIXELS} bytes"
        raise DataError(f"{path} must be {rule}; got {error}") from error
    train, test = (
        (table[:, label_bytes:], table[:, label_bytes - 1].astype(np.int64))
        for table in tables
    )
    return train, test


def read_covertype(paths: Sequence[Path]) -> Parts:
    """Covertype: 54 whole numbers of 16 bits and the type, from 1, in each line."""
    (path,) = paths
    content = io.BytesIO(gzip.decompress(path.read_bytes()))
    rule = "lines of 55 numbers of 16 bits"
    try:
        table = np.loadtxt(content, np.int16, delimiter=",", comments=None, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path} must be {rule}; got {error}") from error
    if table.shape[1] != 55:
        raise DataError(f"{path} must be {rule}; got {table.shape[1]} in each")
    return (table[:, :-1], table[:, -1].astype(np.int64) - 1), None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts with labels from 0.

    Attributes:
        texts: the documents.
        labels: their classes.

    Examples:
        >>> import numpy as np
        >>> len(Texts(("one", "two"), np.array([0, 1])).texts)
        2
    """

    texts: tuple[str, ...]
    labels: Int64[Ints, " m"]


def read_news(path: Path) -> Texts:
    """AG News: class from 1, title and description in each quoted row.

    The text is title, blank, description.
    """
    content = gzip.decompress(path.read_bytes()).decode("utf-8")
    rows = list(csv.reader(io.StringIO(content, newline="")))
    if not all(len(row) == 3 and row[0].isdecimal() for row in rows):
        bad = next(r for r in rows if len(r) != 3 or not r[0].isdecimal())
        rule = "rows of a class number, a title and a description"
        raise DataError(f"{path} must have {rule}; got {bad}")
    labels = np.array([int(row[0]) for row in rows], dtype=np.int64) - 1
    return Texts(tuple(f"{row[1]} {row[2]}" for row in rows), labels)


def read_news_features(paths: Sequence[Path]) -> Parts:
    """AG News as encoder features; row i belongs to row i of the texts."""
    train, test, train_features, test_features = paths
    return (
        (np.load(train_features, allow_pickle=False), read_news(train).labels),
        (np.load(test_features, allow_pickle=False), read_news(test).labels),
    )


def read_digits() -> Parts:
    """The digits in the package, as scikit-learn distributes them."""
    content = (resources.files("hewfl.data") / "digits.csv.gz").read_bytes()
    if hashlib.sha256(content).hexdigest() != DIGITS_SHA256:
        raise DataError("digits.csv.gz is damaged; install hewfl again")
    rows = gzip.decompress(content).decode("ascii").splitlines()
    table = np.loadtxt(rows, np.float32, delimiter=",")
    return (table[:, :-1], table[:, -1].astype(np.int64)), None
