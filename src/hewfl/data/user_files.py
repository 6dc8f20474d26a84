"""Files of users: CSV, NPZ, Parquet, and folders of images.

Every reader returns a training part, a test part if there is one, the names of the
classes and, if asked for, the client of each row. An invalid file raises one
`DataError` that names the file and, for CSV, the line and the column.
"""

import codecs
import csv
import gzip
import importlib
import io
import itertools
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.cache import Parsed
from hewfl.data.dataset import (
    checked_features,
    coded_labels,
    flat_images,
    row_place,
)
from hewfl.data.image_folders import read_folder
from hewfl.errors import DataError, MissingExtraError

VERSION = 4
"""Raised when the output of a reader changes, so that older caches are not read."""

SUFFIXES = (".csv", ".csv.gz", ".npz", ".parquet")


def read_user_file(
    path: Path, label_column: str | None = None, client_column: str | None = None
) -> Parsed:
    """Training part, test part if there is one, and class names of a user's file.

    Args:
        path: ends in one of `SUFFIXES`, or a folder.
        label_column: column of the labels; the last one by default. An NPZ file has no
            columns: its arrays are X, y and perhaps X_test, y_test.
        client_column: column of the clients, None for none; "clients" for the array of
            an NPZ file, with one entry per row, those of X_test last.

    Raises:
        DataError: the file is absent, damaged, or breaks a rule.
        MissingExtraError: the file is Parquet, and pyarrow is not installed.
    """
    if path.is_dir():
        for column in (label_column, client_column):
            if column is not None:
                raise DataError(f"{path}: a folder has no columns; got {column!r}")
        return read_folder(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".npz":
        if label_column is not None:
            raise DataError(f"{path}: labels of an NPZ file are its array y, no column")
        if client_column not in (None, "clients"):
            rule = "clients of an NPZ file are its array clients"
            raise DataError(f"{path}: {rule}; got {client_column!r}")
        return _read_npz(path, client_column)
    if path.suffix == ".parquet":
        return _read_parquet(path, label_column, client_column)
    return _read_csv(path, label_column, client_column)


def _read_csv(
    path: Path, label_column: str | None, client_column: str | None
) -> Parsed:
    """A table of numbers with a column of labels and perhaps one of clients.

    The first row is a header if it has no number, or if it names one of the columns.
    """
    rows = _csv_rows(path)
    first = next(rows, (1, []))
    width = len(first[1])
    if width < 2:
        got = f"{width} in the first: {first[1]}; separate fields by commas"
        raise DataError(f"{path}: rows must have at least two columns; got {got}")
    asked = {label_column, client_column}
    has_header = not any(map(_is_number, first[1])) or not asked.isdisjoint(first[1])
    names = first[1] if has_header else None
    _check_different(path, names or ())
    texts = _text_columns(path, names, label_column, client_column, width)
    numbers = [column for column in range(width) if column not in texts]
    table, lines = array("d"), array("q")
    kept: list[list[str]] = [[] for _ in texts]

    def place(row: int, column: int) -> str:
        name = column + 1 if names is None else repr(names[column])
        return f"line {lines[row]}, column {name}"

    for line, fields in rows if has_header else itertools.chain([first], rows):
        lines.append(line)
        if len(fields) != width:
            rule = f"rows must have {width} fields, as the first has"
            raise DataError(f"{path}: {rule}; got {len(fields)} in line {line}")
        try:
            table.extend([float(fields[column]) for column in numbers])
        except ValueError as error:
            column = next(j for j in numbers if not _is_number(fields[j]))
            got = f"{fields[column]!r} in {place(-1, column)}"
            if names is not None and fields[column]:
                got += f" (if that is the label: label_column={names[column]!r})"
            raise DataError(f"{path}: features must be numbers; got {got}") from error
        for values, column in zip(kept, texts, strict=True):
            values.append(fields[column])
    if not lines:
        raise DataError(f"{path}: must have rows below its header; got none")
    if names is None:
        _check_first_row(path, kept[0])
    features = np.frombuffer(table).reshape(len(lines), len(numbers))
    if not np.isfinite(features).all():
        row, j = (int(k) for k in np.argwhere(~np.isfinite(features))[0])
        got = f"{features[row, j]} in {place(row, numbers[j])}"
        raise DataError(f"{path}: features must be finite; got {got}")
    clients = np.array(kept[1]) if len(kept) > 1 else None
    return _encode_part(
        path, features, np.array(kept[0]), clients, lambda row: place(row, texts[0])
    )


def _check_different(path: Path, names: Sequence[str]) -> None:
    """Require names of columns that differ, but for those that are empty."""
    for name in names:
        if name and names.count(name) > 1:
            got = f"{name!r} {names.count(name)} times"
            raise DataError(f"{path}: names of columns must differ; got {got}")


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with its line number."""
    reader = csv.reader(io.StringIO(_text(path), newline=""))
    for row in reader:
        if row:
            yield reader.line_num, [field.strip() for field in row]


def _text(path: Path) -> str:
    """The text of a file: UTF-8, or UTF-16 where its first bytes say so."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            text = f"{path} must be a gzip file, as its name says; got {error}"
            raise DataError(text) from error
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be UTF-8 text; got {error}") from error


def _check_first_row(path: Path, labels: Sequence[str]) -> None:
    """Reject a first row that is probably a header with numbers as column names.

    Its label is a text that no other row has, above numbers or above repeated labels.
    """
    first, others = labels[0], labels[1:]
    if _is_number(first) or first in others or not others:
        return
    if all(map(_is_number, others)) or len(set(others)) < len(others):
        got = f"label {first!r}, which no other row has"
        advice = f"pass label_column={first!r} if the row holds names"
        raise DataError(f"{path}: first row must be data or names; got {got}; {advice}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text_columns(
    path: Path,
    names: Sequence[str] | None,
    label_column: str | None,
    client_column: str | None,
    width: int,
) -> list[int]:
    """Positions of the labels and, if there are any, of the clients.

    By default, labels are in the last column that does not hold clients.
    """
    clients = [] if client_column is None else [_position(path, names, client_column)]
    if label_column is not None:
        labels = _position(path, names, label_column)
    else:
        labels = max(k for k in range(width) if k not in clients)
    if labels in clients:
        rule = "labels and clients must be two columns"
        raise DataError(f"{path}: {rule}; got {label_column!r}")
    if width == 1 + len(clients):
        raise DataError(f"{path}: must have a column of features; got none")
    return [labels, *clients]


def _position(path: Path, names: Sequence[str] | None, wanted: str) -> int:
    if names is None:
        raise DataError(f"{path}: must have a header to find column {wanted!r} by name")
    if names.count(wanted) != 1:
        got = f"{names.count(wanted)} among {', '.join(names)}"[:200]
        raise DataError(f"{path}: must have one column {wanted!r}; got {got}")
    return names.index(wanted)


def _encode_part(
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
    """The client of each row as a whole number from 0, and the names of the clients."""
    if clients is None:
        return None, ()
    (codes,), names = coded_labels(str(path), [_numbers(clients)], what="clients")
    return codes, names


def _numbers(values: Any) -> Any:
    """Texts as numbers if all are: "2" comes before "10" then."""
    if values.dtype.kind == "U" and all(_is_number(text) for text in np.unique(values)):
        return values.astype(np.float64)
    return values


def _read_npz(path: Path, client_column: str | None) -> Parsed:
    rule = "an NPZ file of numbers"
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} must be {rule}; got no zip archive, or half of one")
    try:
        # `np.load` does not close a path that it cannot read
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy advises to allow pickles, which is unsafe for data of unknown origin
        got = "objects" if "allow_pickle" in str(error) else str(error)
        raise DataError(f"{path} must be {rule}; got {got}") from error
    tests = {"X_test", "y_test"} & set(arrays)
    if not {"X", "y"} <= set(arrays) or len(tests) == 1:
        rule, got = "X, y and, if any, X_test, y_test", ", ".join(arrays) or "none"
        raise DataError(f"{path}: arrays must be {rule}; got {got}")
    X, shape = flat_images(arrays["X"])
    train = checked_features(str(path), X, arrays["y"])
    rows = len(arrays["y"]) + (len(arrays["y_test"]) if tests else 0)
    clients = None if client_column is None else arrays.get("clients", np.zeros(0))
    if clients is not None and clients.shape != (rows,):
        got = f"shape {clients.shape} for {rows} rows"
        raise DataError(f"{path}: the array clients must be one per row; got {got}")
    coded = _coded_clients(path, clients)
    if not tests:
        (codes,), classes = coded_labels(str(path), [arrays["y"]])
        return Parsed((train, codes), None, classes, *coded, shape)
    X_test, test_shape = flat_images(arrays["X_test"])
    test = checked_features(f"{path} (test)", X_test, arrays["y_test"])
    if (test.shape[1], test_shape) != (train.shape[1], shape):
        got = f"{test_shape or test.shape[1]} and {shape or train.shape[1]}"
        raise DataError(f"{path}: X_test must be as wide as X; got {got}")
    parts, classes = coded_labels(str(path), [arrays["y"], arrays["y_test"]])
    return Parsed((train, parts[0]), (test, parts[1]), classes, *coded, shape)


def _read_parquet(
    path: Path, label_column: str | None, client_column: str | None
) -> Parsed:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        text = "Parquet files need pyarrow: install hewfl's extra data"
        raise MissingExtraError(text) from error
    try:
        _check_different(path, parquet.read_schema(path).names)
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path} must be a Parquet file; got {error}") from error
    names = list(table.column_names)
    if len(names) < 2:
        raise DataError(f"{path}: must have two or more columns; got {len(names)}")
    texts = _text_columns(path, names, label_column, client_column, len(names))
    columns = [_arrow_column(path, name, table[name]) for name in names]
    for k, values in enumerate(columns):
        if k not in texts and values.dtype.kind not in "biuf":
            got = f"{table[names[k]].type} in column {names[k]!r}"
            raise DataError(f"{path}: features must be numbers; got {got}")
    kept = [columns[k] for k in texts]
    labels, *clients = (v.astype(np.str_) if v.dtype.kind == "O" else v for v in kept)
    features = [values for k, values in enumerate(columns) if k not in texts]
    table = np.column_stack(features)
    return _encode_part(path, table, labels, clients[0] if clients else None)


def _arrow_column(path: Path, name: str, column: Any) -> Any:
    if column.null_count:
        got = f"{column.null_count} in {name}"
        raise DataError(f"{path}: no entry may be missing; got {got}")
    return column.to_numpy()
