"""CSV files of users: one table of numbers, one column of labels.

NumPy's reader is quick but says little about what is wrong. When it fails, the file is
walked again with the `csv` module to name the line and the column.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.errors import DataError


def read_csv(path: Path, label: str | None) -> tuple[Any, Any, Callable[[int], str]]:
    """Features, labels as texts, and the name of each row's label in the file.

    Args:
        path: a CSV file, perhaps compressed by gzip.
        label: name of the column that holds the labels; the last one by default.

    Raises:
        DataError: the file is damaged, or a field breaks a rule.
    """
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
    numbers = any(is_number(field) for field in first)
    names = None if numbers and label not in first else first
    column = label_column(path, names, label, len(first))
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
    if names is None and not is_number(labels[0]) and all(map(is_number, labels[1:])):
        text = f"first row must be data or names; got label {labels[0]!r} above numbers"
        raise DataError(f"{path}: {text}; pass label={labels[0]!r} if they are names")

    def place(row: int) -> str:
        return f"{_line(text, row, names)}, column {_name(names, column)}"

    features = np.delete(table, column, axis=1)
    return features, np.array(labels), place


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


def label_column(
    path: Path, names: list[str] | None, label: str | None, width: int
) -> int:
    """Position of the column of labels.

    Args:
        path: of the file, for errors.
        names: of its columns, if it has a header.
        label: the wanted one; None for the last.
        width: number of columns.

    Raises:
        DataError: there is no such column, or more than one.
    """
    if label is None:
        return width - 1
    if names is None:
        raise DataError(f"{path}: must have a header to find column {label!r} by name")
    stripped = [name.strip() for name in names]
    if stripped.count(label) != 1:
        found = f"{stripped.count(label)} among {', '.join(stripped)}"[:200]
        raise DataError(f"{path}: must have one column {label!r}; got {found}")
    return stripped.index(label)
