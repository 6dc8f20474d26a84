"""CSV files of users: numbers, one column of labels, perhaps one of clients.

NumPy's reader is quick but says little about what is wrong. When it fails, the file is
walked again with the `csv` module to name the line and the column.
"""

import codecs
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

from hewfl.data.cache import Parsed
from hewfl.data.dataset import checked_features, coded_labels, row_place
from hewfl.errors import DataError, MissingExtraError

Table = tuple[Any, Any, Any, Callable[[int], str]]
"""Features, labels as texts, clients as texts or None, and where a row's label is."""


def read_csv(path: Path, label: str | None, client: str | None = None) -> Table:
    """Features, labels and clients as texts, and the name of each row's label.

    Args:
        path: a CSV file, perhaps compressed by gzip.
        label: name of the column that holds the labels; the last one by default.
        client: name of the column that says whose row it is; None if there is none.
    """
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""))
    first = next(reader, [])
    if len(first) < 2:
        found = f"{len(first)} in the first"
        if len(first) == 1 and any(mark in first[0] for mark in ";\t|"):
            found += f", {first[0][:40]!r}; separate fields by commas"
        raise DataError(f"{path}: rows must have at least two columns; got {found}")
    # Labels may be texts, features not: a row without any number is a header.
    stripped = [field.strip() for field in first]
    is_header = not any(map(is_number, first)) or {label, client} & {*stripped}
    names = first if is_header else None
    texts = text_columns(path, names, label, client, len(first))
    if names is not None and next(reader, None) is None:
        raise DataError(f"{path}: must have rows below its header; got none")
    # A header in quotes may go over several lines.
    lines = _lines(text, 1) if names is not None else 0
    table, kept = _parsed(path, text, lines, (names, len(first), texts))
    column = texts[0]
    if names is None and _is_name(path, stripped, kept[column], column):
        names, table = first, table[1:]
        kept = {k: values[1:] for k, values in kept.items()}

    def place(row: int) -> str:
        return f"{_line(text, row, names)}, column {_name(names, column)}"

    features = np.delete(table, texts, axis=1)
    clients = np.array(kept[texts[1]]) if len(texts) > 1 else None
    return features, np.array(kept[column]), clients, place


Form = tuple[list[str] | None, int, list[int]]
"""Header, fields of a row, and the columns of texts."""


def _parsed(
    path: Path, text: str, lines: int, form: Form
) -> tuple[Any, dict[int, list[str]]]:
    """The table, zero where there are texts, and the texts of each such column."""
    kept: dict[int, list[str]] = {column: [] for column in form[2]}

    def keeper(column: int) -> Callable[[str], float]:
        def keep(field: str) -> float:
            kept[column].append(field.strip())
            return 0.0

        return keep

    try:
        table = np.loadtxt(
            io.StringIO(text, newline=""),
            delimiter=",",
            quotechar='"',
            comments=None,
            converters={column: keeper(column) for column in kept},
            skiprows=lines,
            ndmin=2,
        )
    except ValueError as error:
        found = _first_mistake(text, form) or str(error)
        raise DataError(f"{path}: {found}") from error
    if not np.isfinite(table).all():
        raise DataError(f"{path}: {_first_mistake(text, form, finite=True)}")
    return table, kept


def _is_name(path: Path, first: list[str], labels: list[str], column: int) -> bool:
    """Whether a first row with numbers is a header: its label is the column's name.

    It is where the label is a text above numbers, or a text that no other row has and
    the other fields count 0, 1, 2, ... as some programs name columns.
    """
    if is_number(labels[0]) or len(labels) < 2 or labels[0] in labels[1:]:
        return False
    if all(map(is_number, labels[1:])):
        return True
    others = [field for k, field in enumerate(first) if k != column]
    counts = [[str(k + start) for k in range(len(others))] for start in (0, 1)]
    if others in counts:
        return True
    if len(set(labels[1:])) == len(labels) - 1:  # every row has a label of its own
        return False
    text = f"first row must be data or names; got label {labels[0]!r}, which no other "
    text += f"row has; pass label={labels[0]!r} if they are names"
    raise DataError(f"{path}: {text}")


def _text(path: Path) -> str:
    """The text of a file: UTF-8, or UTF-16 where its first bytes say so."""
    try:
        content = _content(path)
        is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} must be UTF-8 text; got {error}") from error


def _lines(text: str, rows: int) -> int:
    """How many lines of the file the first rows take."""
    reader = csv.reader(io.StringIO(text, newline=""))
    for _ in range(rows):
        next(reader, None)
    return reader.line_num


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


def _first_mistake(text: str, form: Form, *, finite: bool = False) -> str | None:
    """What is wrong with the first row unlike the others, or with `finite` infinite."""
    names, width, texts = form
    reader = csv.reader(io.StringIO(text, newline=""))
    for k, row in enumerate(reader):
        line = f"line {reader.line_num}"
        if len(row) not in (0, width):  # empty lines are passed over
            rule = f"rows must have {width} fields, as the first has"
            return f"{rule}; got {len(row)} in {line}"
        for j, field in enumerate(row):
            if j in texts or (k == 0 and names is not None):
                continue
            if is_number(field) and (not finite or math.isfinite(float(field))):
                continue
            name = _name(names, j)
            found = f"got {field!r} in {line}, column {name}"
            if finite:
                return f"features must be finite; {found}"
            hint = f" (if that is the label: label={name})" if names else ""
            return f"features must be numbers; {found}{hint if field.strip() else ''}"
    return None


def is_number(text: str) -> bool:
    """Whether a field reads as a number, finite or not."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def text_columns(
    path: Path,
    names: list[str] | None,
    label: str | None,
    client: str | None,
    width: int,
) -> list[int]:
    """Positions of the column of labels and, where there is one, of the clients.

    Labels without a name are in the last column that is not the clients'.
    """
    clients = [] if client is None else [_named(path, names, client)]
    if label is not None:
        labels = _named(path, names, label)
    else:
        labels = max(k for k in range(width) if k not in clients)
    if labels in clients:
        raise DataError(
            f"{path}: labels and clients must be two columns; got {label!r}"
        )
    if width == 1 + len(clients):
        raise DataError(f"{path}: must have a column of features; got none")
    return [labels, *clients]


def _named(path: Path, names: list[str] | None, wanted: str) -> int:
    if names is None:
        raise DataError(f"{path}: must have a header to find column {wanted!r} by name")
    stripped = [name.strip() for name in names]
    if stripped.count(wanted) != 1:
        found = f"{stripped.count(wanted)} among {', '.join(stripped)}"[:200]
        raise DataError(f"{path}: must have one column {wanted!r}; got {found}")
    return stripped.index(wanted)


# ------------------ Files of users, by suffix: CSV, NPZ, Parquet

# Every reader returns a training part, perhaps a test part, the names of the classes and,
# if asked for, whose each row is; whatever is wrong with a file is said in one
# `DataError` that names it.

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
