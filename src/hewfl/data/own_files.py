"""Files of users, by suffix: CSV, NPZ, Parquet.

Every reader returns a training part, perhaps a test part, and the names of the classes;
whatever is wrong with a file is said in one `DataError` that names it.
"""

import importlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.csv_files import is_number, label_column, read_csv
from hewfl.data.dataset import Samples, checked_features, coded_labels
from hewfl.errors import DataError, MissingExtraError

Labelled = tuple[Samples, Samples | None, tuple[str, ...]]

VERSION = 1
"""Raised when a reader's output changes, so that older caches are not read."""

SUFFIXES = (".csv", ".csv.gz", ".npz", ".parquet")


def read_own_file(path: Path, label: str | None = None) -> Labelled:
    """Training part, test part if there is one, and class names of a user's file.

    Args:
        path: ending in one of `SUFFIXES`.
        label: name of the column that holds the labels; the last one by default. NPZ
            files have no columns: their arrays are X, y and perhaps X_test, y_test.

    Returns:
        Features and labels, those of the test part or None, and class names.

    Raises:
        DataError: the file is absent, damaged, or breaks a rule.
        MissingExtraError: Parquet, and pyarrow is not installed.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".npz":
        if label is not None:
            raise DataError(f"{path}: labels of an NPZ file are its array y, no column")
        return _read_npz(path)
    if path.suffix == ".parquet":
        return _read_parquet(path, label)
    return _labelled(path, *read_csv(path, label))


def _labelled(
    path: Path, features: Any, labels: Any, *place: Callable[[int], str]
) -> Labelled:
    """One part with its labels coded as whole numbers from 0."""
    features = checked_features(str(path), features, labels)
    # Texts "2" and "10" are ordered as numbers if all are numbers, not as texts.
    if labels.dtype.kind == "U" and all(is_number(text) for text in np.unique(labels)):
        labels = labels.astype(np.float64)
    (codes,), classes = coded_labels(str(path), [labels], *place)
    return (features, codes), None, classes


def _read_npz(path: Path) -> Labelled:
    rule = "an NPZ file of numbers"
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} must be {rule}; got no zip archive, or half of one")
    try:
        # `np.load` leaves a path it cannot read open, so the file is ours
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy's advice, to allow pickles, is none for data of unknown origin
        found = "objects" if "allow_pickle" in str(error) else str(error)
        raise DataError(f"{path} must be {rule}; got {found}") from error
    tests = {"X_test", "y_test"} & set(arrays)
    if not {"X", "y"} <= set(arrays) or len(tests) == 1:
        rule, found = "X, y and, if any, X_test, y_test", ", ".join(arrays) or "none"
        raise DataError(f"{path}: arrays must be {rule}; got {found}")
    train = checked_features(str(path), arrays["X"], arrays["y"])
    if not tests:
        (codes,), classes = coded_labels(str(path), [arrays["y"]])
        return (train, codes), None, classes
    test = checked_features(f"{path} (test)", arrays["X_test"], arrays["y_test"])
    if test.shape[1] != train.shape[1]:
        found = f"{test.shape[1]} and {train.shape[1]}"
        raise DataError(f"{path}: X_test must be as wide as X; got {found}")
    parts, classes = coded_labels(str(path), [arrays["y"], arrays["y_test"]])
    return (train, parts[0]), (test, parts[1]), classes


def _read_parquet(path: Path, label: str | None) -> Labelled:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        text = "Parquet files need pyarrow: pip install 'hewfl[data]'"
        raise MissingExtraError(text) from error
    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path} must be a Parquet file; got {error}") from error
    names = list(table.column_names)
    if len(names) < 2:
        raise DataError(f"{path}: must have two or more columns; got {len(names)}")
    column = label_column(path, names, label, len(names))
    columns = [_arrow_column(path, name, table[name]) for name in names]
    labels = columns.pop(column)
    names.pop(column)
    for name, values in zip(names, columns, strict=True):
        if values.dtype.kind not in "biuf":
            found = f"{table[name].type} in column {name!r}"
            raise DataError(f"{path}: features must be numbers; got {found}")
    if labels.dtype.kind == "O":
        labels = labels.astype(np.str_)
    return _labelled(path, np.column_stack(columns), labels)


def _arrow_column(path: Path, name: str, column: Any) -> Any:
    if column.null_count:
        found = f"{column.null_count} in {name}"
        raise DataError(f"{path}: no entry may be missing; got {found}")
    return column.to_numpy()
