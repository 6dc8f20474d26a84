"""Data sets of Hugging Face, read by their own library `datasets`.

hf:owner/name             of the hub; hf:owner/name#config for one of several
hf:path/to/folder         as `save_to_disk` wrote it
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.cache import Parsed
from hewfl.data.dataset import checked_features, coded_labels, flat_images
from hewfl.errors import DataError, MissingExtraError

PREFIX = "hf:"


def is_hugging_face(name: str) -> bool:
    """Whether the name of a data set is one of Hugging Face."""
    return name.startswith(PREFIX)


def fingerprint(name: str) -> str:
    """What the library says identifies the rows of a data set.

    Raises:
        DataError: the library cannot load it.
        MissingExtraError: the library is not installed.
    """
    parts = _parts(name)
    return "-".join(f"{part}:{rows._fingerprint}" for part, rows in parts.items())


def read_hugging_face(
    name: str, label_column: str | None = None, client_column: str | None = None
) -> Parsed:
    """The part `train` as rows of features, and the part `test` if there is one.

    The features are the column of images if there is one, else all columns of numbers.

    Args:
        name: with its prefix.
        label_column: by default the only column of classes, or `label`.
        client_column: of the clients, None for none.

    Raises:
        DataError: the library cannot load it, or a column is not as it must be.
        MissingExtraError: the library is not installed.
    """
    parts = _parts(name)
    kinds = parts["train"].features
    label = label_column or _label_column(name, kinds)
    for column in (label, client_column):
        if column is not None and column not in kinds:
            got = f"{column!r} among {', '.join(kinds)}"
            raise DataError(f"{name}: must have the columns asked for; got {got}")
    tables = [rows.with_format("numpy")[:] for rows in parts.values()]
    used = _feature_columns(kinds, {label, client_column})
    arrays = [_features(name, table, used) for table in tables]
    labels, classes = coded_labels(name, [table[label] for table in tables])
    named = getattr(kinds[label], "names", None)
    if named:
        classes = tuple(named[int(code)] for code in classes)
    checked = [
        (checked_features(name, X, y), y)
        for (X, _), y in zip(arrays, labels, strict=True)
    ]
    if len({(X.shape[1], shape) for (X, shape) in arrays}) > 1:
        raise DataError(f"{name}: samples of train and test must have one shape")
    clients: Any = None
    client_names: tuple[str, ...] = ()
    if client_column is not None:
        whose = np.concatenate([np.asarray(t[client_column]) for t in tables])
        (clients,), client_names = coded_labels(name, [whose], what="clients")
    test = checked[1] if len(checked) > 1 else None
    return Parsed(checked[0], test, classes, clients, client_names, arrays[0][1])


def _parts(name: str) -> Mapping[str, Any]:
    """The parts train and test of a data set, loaded by the library."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        text = f"{name} needs the library datasets: install hewfl's extra huggingface"
        raise MissingExtraError(text) from error
    place, _, config = name.removeprefix(PREFIX).partition("#")
    try:
        if Path(place).is_dir():
            loaded: Any = library.load_from_disk(place)
        else:
            loaded = library.load_dataset(place, config or None)
    except Exception as error:  # of the library, of its parsers, of the network
        text = " ".join(str(error).split())
        raise DataError(f"{name}: cannot be loaded: {text}") from error
    if not isinstance(loaded, Mapping):
        return {"train": loaded}
    if "train" not in loaded:
        raise DataError(f"{name}: must have a part train; got {', '.join(loaded)}")
    return {part: loaded[part] for part in ("train", "test") if part in loaded}


def _label_column(name: str, kinds: Mapping[str, Any]) -> str:
    classes = [k for k, kind in kinds.items() if type(kind).__name__ == "ClassLabel"]
    if len(classes) == 1:
        return classes[0]
    if "label" in kinds:
        return "label"
    rule = "one column of classes, or `label`; name it by label_column"
    raise DataError(f"{name}: must have {rule}; got {', '.join(kinds)}")


def _feature_columns(kinds: Mapping[str, Any], others: set[str | None]) -> list[str]:
    images = [k for k, kind in kinds.items() if type(kind).__name__ == "Image"]
    return images[:1] or [column for column in kinds if column not in others]


def _features(
    name: str, table: Mapping[str, Any], columns: list[str]
) -> tuple[Any, tuple[int, ...]]:
    """The columns side by side, or the images of the only one, as flat rows."""
    arrays = [np.asarray(table[column]) for column in columns]
    for column, array in zip(columns, arrays, strict=True):
        if array.dtype.kind not in "biuf":
            rule = "numbers, or images of one size"
            raise DataError(f"{name}: features must be {rule}; got column {column!r}")
    if len(arrays) == 1:
        return flat_images(arrays[0] if arrays[0].ndim > 1 else arrays[0][:, None])
    return np.column_stack([array.reshape(len(array), -1) for array in arrays]), ()
