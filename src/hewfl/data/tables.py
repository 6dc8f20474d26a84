"""The user's own files: CSV, NPZ, Parquet.

Every reader returns a training part, perhaps a test part, and the names of the classes;
whatever is wrong with a file is said in one `DataError` that names it.
"""

import csv
import gzip
import importlib
import io
import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.dataset import Samples, checked_features, coded_labels
from hewfl.errors import DataError, MissingExtraError

Labelled = tuple[Samples, Samples | None, tuple[str, ...]]

VERSION = 1
"""Raised when a reader's output changes, so that older caches are not read."""

SUFFIXES = (".csv", ".csv.gz", ".npz", ".parquet")


def read_table(path: Path, label: str | None = None) -> Labelled:
    """Read a file by its suffix.

    Args:
        path: ending in one of `SUFFIXES`.
        label: name of the column that holds the labels; the last one by default. NPZ
            files have no columns: their arrays are X, y and perhaps X_test, y_test.

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
    return _read_csv(path, label)


def _read_csv(path: Path, label: str | None) -> Labelled:
    try:
        text = _content(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} must be UTF-8 text; got {error}") from error
    first = next(csv.reader(io.StringIO(text, newline="")), [])
    if len(first) < 2:
        found = f"{len(first)} in the first"
        if len(first) == 1 and any(mark in first[0] for mark in ";\t|"):
            found += f", {first[0][:40]!r}; separate fields by commas"
        raise DataError(f"{path}: rows must have at least two columns; got {found}")
    # Labels may be texts, features not: a row without any number is a header.
    numbers = any(_is_number(field) for field in first)
    names = None if numbers and label not in first else first
    column = _label_column(path, names, label, len(first))
    if names is not None and not text.partition("\n")[2].strip():
        raise DataError(f"{path}: must have rows below its header; got none")
    labels: list[str] = []

    def keep(field: str) -> float:
        labels.append(field.strip())
        return 0.0

    try:
        table = np.loadtxt(
            io.StringIO(text, newline=""),
            delimiter=",",
            quotechar='"',
            comments=None,
            converters={column: keep},
            skiprows=0 if names is None else 1,
            ndmin=2,
        )
    except ValueError as error:
        found = _first_mistake(text, names, len(first), column) or str(error)
        raise DataError(f"{path}: {found}") from error
    if not np.isfinite(table).all():
        wrong = _first_mistake(text, names, len(first), column, finite=True)
        raise DataError(f"{path}: {wrong}")
    if names is None and not _is_number(labels[0]) and all(map(_is_number, labels[1:])):
        text = f"first row must be data or names; got label {labels[0]!r} above numbers"
        raise DataError(f"{path}: {text}; pass label={labels[0]!r} if they are names")

    def place(row: int) -> str:
        return f"{_line(text, row, names)}, column {_name(names, column)}"

    features = np.delete(table, column, axis=1)
    return _labelled(path, features, np.array(labels), place)


def _line(text: str, row: int, names: list[str] | None) -> str:
    """Where the file has a row of data; empty lines and the header do not count."""
    reader = csv.reader(io.StringIO(text, newline=""))
    lines = [reader.line_num for fields in reader if fields]
    return f"line {lines[row if names is None else row + 1]}"


def _name(names: list[str] | None, column: int) -> int | str:
    """What errors call a column: its name, or its number from 1."""
    return column + 1 if names is None else repr(names[column].strip())


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        text = f"{path} must be a gzip file, as its name says; got {error}"
        raise DataError(text) from error


def _first_mistake(
    text: str,
    names: list[str] | None,
    width: int,
    column: int,
    *,
    finite: bool = False,
) -> str | None:
    """What is wrong with the first row that is not like the others.

    Args:
        text: of the file.
        names: its header, if it has one.
        width: fields of a row.
        column: of the labels.
        finite: whether all fields are numbers, and one that is not finite is wanted.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    for k, row in enumerate(reader):
        line = f"line {reader.line_num}"
        if len(row) not in (0, width):  # empty lines are passed over
            rule = f"rows must have {width} fields, as the first has"
            return f"{rule}; got {len(row)} in {line}"
        for j, field in enumerate(row):
            if j == column or (k == 0 and names is not None):
                continue
            if _is_number(field) and (not finite or math.isfinite(float(field))):
                continue
            name = _name(names, j)
            found = f"got {field!r} in {line}, column {name}"
            if finite:
                return f"features must be finite; {found}"
            hint = f" (if that is the label: label={name})" if names else ""
            return f"features must be numbers; {found}{hint if field.strip() else ''}"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _label_column(
    path: Path, names: list[str] | None, label: str | None, width: int
) -> int:
    if label is None:
        return width - 1
    if names is None:
        raise DataError(f"{path}: must have a header to find column {label!r} by name")
    stripped = [name.strip() for name in names]
    if stripped.count(label) != 1:
        found = f"{stripped.count(label)} among {', '.join(stripped)}"[:200]
        raise DataError(f"{path}: must have one column {label!r}; got {found}")
    return stripped.index(label)


def _labelled(
    path: Path, features: Any, labels: Any, *place: Callable[[int], str]
) -> Labelled:
    """One part, with the labels coded: as numbers if every one of them is one."""
    features = checked_features(str(path), features, labels)
    if labels.dtype.kind == "U" and all(_is_number(text) for text in np.unique(labels)):
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
    column = _label_column(path, names, label, len(names))
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
