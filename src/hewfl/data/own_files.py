"""Files of users, by suffix: CSV, NPZ, Parquet.

Every reader returns a training part, perhaps a test part, the names of the classes and,
if asked for, whose each row is; whatever is wrong with a file is said in one
`DataError` that names it.
"""

import importlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.cache import Parsed
from hewfl.data.csv_files import is_number, read_csv, text_columns
from hewfl.data.dataset import checked_features, coded_labels, row_place
from hewfl.errors import DataError, MissingExtraError

VERSION = 2
"""Raised when a reader's output changes, so that older caches are not read."""

SUFFIXES = (".csv", ".csv.gz", ".npz", ".parquet")


def read_own_file(
    path: Path, label: str | None = None, client: str | None = None
) -> Parsed:
    """Training part, test part if there is one, and class names of a user's file.

    Args:
        path: ending in one of `SUFFIXES`.
        label: name of the column that holds the labels; the last one by default. NPZ
            files have no columns: their arrays are X, y and perhaps X_test, y_test.
        client: name of the column that says whose a row is, None for none; of an NPZ
            file "clients", its array with one entry per row, those of X_test last.

    Raises:
        DataError: the file is absent, damaged, or breaks a rule.
        MissingExtraError: Parquet, and pyarrow is not installed.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".npz":
        if label is not None:
            raise DataError(f"{path}: labels of an NPZ file are its array y, no column")
        if client not in (None, "clients"):
            text = f"clients of an NPZ file are its array clients; got {client!r}"
            raise DataError(f"{path}: {text}")
        return _read_npz(path, client)
    if path.suffix == ".parquet":
        return _read_parquet(path, label, client)
    return _labelled(path, *read_csv(path, label, client))


def _labelled(
    path: Path,
    features: Any,
    labels: Any,
    clients: Any,
    place: Callable[[int], str] = row_place,
) -> Parsed:
    """One part with its labels and clients coded as whole numbers from 0."""
    features = checked_features(str(path), features, labels)
    (codes,), classes = coded_labels(str(path), [_numbers(labels)], place)
    return Parsed((features, codes), None, classes, *_coded_clients(path, clients))


def _coded_clients(path: Path, clients: Any) -> tuple[Any, tuple[str, ...]]:
    """Whose each row is, as whole numbers from 0, and what they stand for."""
    if clients is None:
        return None, ()
    (codes,), names = coded_labels(str(path), [_numbers(clients)], what="clients")
    return codes, names


def _numbers(values: Any) -> Any:
    """Texts as numbers if all are: "2" comes before "10" then."""
    if values.dtype.kind == "U" and all(is_number(text) for text in np.unique(values)):
        return values.astype(np.float64)
    return values


def _read_npz(path: Path, client: str | None) -> Parsed:
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
    rows = len(arrays["y"]) + (len(arrays["y_test"]) if tests else 0)
    clients = None if client is None else arrays.get("clients", np.zeros(0))
    if clients is not None and clients.shape != (rows,):
        found = f"shape {clients.shape} for {rows} rows"
        raise DataError(f"{path}: the array clients must be one per row; got {found}")
    whose = _coded_clients(path, clients)
    if not tests:
        (codes,), classes = coded_labels(str(path), [arrays["y"]])
        return Parsed((train, codes), None, classes, *whose)
    test = checked_features(f"{path} (test)", arrays["X_test"], arrays["y_test"])
    if test.shape[1] != train.shape[1]:
        found = f"{test.shape[1]} and {train.shape[1]}"
        raise DataError(f"{path}: X_test must be as wide as X; got {found}")
    parts, classes = coded_labels(str(path), [arrays["y"], arrays["y_test"]])
    return Parsed((train, parts[0]), (test, parts[1]), classes, *whose)


def _read_parquet(path: Path, label: str | None, client: str | None) -> Parsed:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        text = "Parquet files need pyarrow: install hewfl's extra data"
        raise MissingExtraError(text) from error
    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path} must be a Parquet file; got {error}") from error
    names = list(table.column_names)
    if len(names) < 2:
        raise DataError(f"{path}: must have two or more columns; got {len(names)}")
    texts = text_columns(path, names, label, client, len(names))
    columns = [_arrow_column(path, name, table[name]) for name in names]
    for k, values in enumerate(columns):
        if k not in texts and values.dtype.kind not in "biuf":
            found = f"{table[names[k]].type} in column {names[k]!r}"
            raise DataError(f"{path}: features must be numbers; got {found}")
    kept = [columns[k] for k in texts]
    labels, *whose = (v.astype(np.str_) if v.dtype.kind == "O" else v for v in kept)
    features = [values for k, values in enumerate(columns) if k not in texts]
    clients = whose[0] if whose else None
    return _labelled(path, np.column_stack(features), labels, clients)


def _arrow_column(path: Path, name: str, column: Any) -> Any:
    if column.null_count:
        found = f"{column.null_count} in {name}"
        raise DataError(f"{path}: no entry may be missing; got {found}")
    return column.to_numpy()
