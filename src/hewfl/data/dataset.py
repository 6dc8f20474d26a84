"""The record of a data set, and checks that every reader uses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hewfl.core.array_types import Int64, Num
from hewfl.core.validation import Ints
from hewfl.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.integer[Any] | np.floating[Any]]
else:  # shape checks at run time need the class
    Numbers = np.ndarray

Samples = tuple[Num[Numbers, "_ p"], Int64[Ints, " _"]]
"""Features and labels; parts of one data set share p, not their number of rows."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A classification data set as published, neither scaled nor split by us.

    Arrays may be memory-mapped and must not be written to.

    Attributes:
        name: of the data set or of its file.
        features: one row per sample, in the published type.
        labels: whole numbers from 0.
        test: features and labels of the published test part, if there is one.
        classes: names of the labels, in order.
        source: folder or file of the data.
        clients: client of each row, whole numbers from 0, through both parts; None if
            the source has no clients.
        client_names: names of these numbers, in order.
        shape: of one image, channels first; empty if samples are no images. Rows of
            features are flat in either case.
    """

    name: str
    features: Num[Numbers, "m p"]
    labels: Int64[Ints, " m"]
    test: Samples | None
    classes: tuple[str, ...]
    source: str
    clients: Int64[Ints, " all"] | None = None
    client_names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Rows of all parts together."""
        return len(self.labels) + (0 if self.test is None else len(self.test[1]))


CHANNELS = (1, 3, 4)
"""Numbers of channels of an image."""


def flat_images(features: Any) -> tuple[Any, tuple[int, ...]]:
    """Images as flat rows, and the shape of one with its channels first.

    A table is unchanged, with an empty shape. Arrays (m, height, width) get one
    channel; the last of four axes holds the channels if it has 1, 3 or 4 of them and
    the second has not.
    """
    if features.ndim < 3:
        return features, ()
    if features.ndim == 3:
        features = features[:, None]
    first, last = features.shape[1], features.shape[-1]
    if features.ndim == 4 and last in CHANNELS and first not in CHANNELS:
        features = np.moveaxis(features, 3, 1)
    shape = tuple(int(size) for size in features.shape[1:])
    return np.ascontiguousarray(features).reshape(len(features), -1), shape


def checked_features(where: str, features: Any, labels: Any) -> Num[Numbers, "m p"]:
    """Features as a finite table, one label per row; booleans become bytes."""
    if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "biuf":
        got = f"shape {features.shape}, dtype {features.dtype}"
        raise DataError(f"{where}: features must be a table of numbers; got {got}")
    if labels.shape != features.shape[:1]:
        got = f"shape {labels.shape} for {len(features)} rows"
        raise DataError(f"{where}: labels must be one per row; got {got}")
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        row, column = (int(k) for k in np.argwhere(~np.isfinite(features))[0])
        got = f"{features[row, column]} in row {row}, column {column} (from 0)"
        raise DataError(f"{where}: features must be finite; got {got}")
    wanted = np.uint8 if features.dtype.kind == "b" else features.dtype
    return np.asarray(features, wanted)


def row_place(row: int) -> str:
    """The name of a row in errors, for sources without lines."""
    return f"row {row} (from 0)"


def coded_labels(
    where: str,
    parts: Sequence[Any],
    place: Callable[[int], str] = row_place,
    what: str = "labels",
) -> tuple[list[Int64[Ints, " _"]], tuple[str, ...]]:
    """Labels of any kind as whole numbers from 0, and their names.

    Numbers are ordered as numbers, texts as texts. Parts share one coding.

    Args:
        where: name of the source.
        parts: labels of each part.
        place: name of a row, counted through the parts, in errors.
        what: "labels" or "clients", for errors.
    """
    values = np.concatenate([np.asarray(part) for part in parts])
    kind = values.dtype.kind
    if kind == "f":
        wrong = ~np.isfinite(values) | (values != np.floor(values))
    elif kind == "U":
        wrong = values == ""
    else:
        wrong = np.full(len(values), kind not in "biu")
    if wrong.any():
        row = int(np.argmax(wrong))
        got = f"{values[row : row + 1].tolist()[0]!r} in {place(row)}"
        raise DataError(f"{where}: {what} must be whole numbers or texts; got {got}")
    known, codes = np.unique(
        values.astype(np.int64) if kind == "f" else values, return_inverse=True
    )
    if len(known) < 2:
        kinds = "of at least two classes" if what == "labels" else "at least two"
        raise DataError(f"{where}: {what} must be {kinds}; got only {known[0]}")
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    coded = np.split(codes.astype(np.int64), cuts)
    return coded, tuple(str(name) for name in known.tolist())
