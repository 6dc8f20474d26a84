"""FEMNIST as TensorFlow Federated distributes it: one HDF5 group for each writer."""

import importlib
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.cache import Parsed
from hewfl.errors import DataError, MissingExtraError

PARTS = ("fed_emnist_train.h5", "fed_emnist_test.h5")
SIDE = 28


def read_femnist(path: Path, classes: tuple[str, ...]) -> Parsed:
    """The images of all writers as rows of bytes; a writer is a client.

    The archive holds grey values in [0, 1], 1 for paper, as reals; bytes are 255 times
    these, rounded.

    Raises:
        DataError: the archive is damaged.
        MissingExtraError: h5py is not installed.
    """
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError as error:
        text = "FEMNIST needs h5py: install hewfl's extra femnist"
        raise MissingExtraError(text) from error
    parts = []
    try:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
            for name in PARTS:
                archive.extract(name, folder, filter="data")
                with h5py.File(Path(folder) / name, "r") as file:
                    parts.append(_writers(file["examples"]))
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        rule = f"an archive of {' and '.join(PARTS)}"
        raise DataError(f"{path} must be {rule}; got {error}") from error
    names = sorted(set().union(*(whose for _, _, whose in parts)))
    number = {name: k for k, name in enumerate(names)}
    clients = np.array([number[w] for _, _, whose in parts for w in whose])
    train, test = ((images, labels) for images, labels, _ in parts)
    return Parsed(train, test, classes, clients, tuple(names), (1, SIDE, SIDE))


def _writers(examples: Any) -> tuple[Any, Any, list[str]]:
    """Images, labels and the writer of each, in the order of the writers' names."""
    images, labels, whose = [], [], []
    for name in sorted(examples):
        pixels = np.asarray(examples[name]["pixels"]).reshape(-1, SIDE * SIDE)
        images.append(np.rint(255 * pixels).astype(np.uint8))
        labels.append(np.asarray(examples[name]["label"], dtype=np.int64))
        whose += [name] * len(pixels)
    return np.concatenate(images), np.concatenate(labels), whose
