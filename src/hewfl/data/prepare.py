"""From a data set to training and test arrays (the paper's section Experiments).

All rows are shuffled and split 80/20, features are standardised, and a bias feature is
appended. Mean and deviation come from the training part alone, so the test part stays
unseen; the paper does not say which it uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np

from hewfl.core.array_types import Float, Float64, Int64, Num
from hewfl.core.validation import Array, Ints, invalid
from hewfl.data.dataset import Dataset, Numbers, Samples
from hewfl.data.partitions import stream

Split = Literal["shuffled", "published"]
Precision = Literal["float32", "float64"]
Moments = tuple[Float64[Array, " p"], Float64[Array, " p"]]

_ROWS = 4096
"""Rows converted at a time: float64 copies of whole data sets need not fit. Sums are
rounded once for so many rows: another number is another mean, in its last digits."""
_FEW = 512
"""Rows scaled at a time: they stay in the processor's cache."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Training and test part, ready for `softmax_from_arrays`.

    Attributes:
        features: X of the training part, with the bias as last column if asked for.
        labels: y of the training part.
        test_features: X of the test part, scaled by the training part's numbers.
        test_labels: y of the test part.
        classes: names of the labels.
        clients: client of each row of the training part; None if the data have none.
        test_clients: client of each row of the test part, likewise.
    """

    features: Float[Array, "m p"]
    labels: Int64[Ints, " m"]
    test_features: Float[Array, "k p"]
    test_labels: Int64[Ints, " k"]
    classes: tuple[str, ...]
    clients: Int64[Ints, " m"] | None = None
    test_clients: Int64[Ints, " k"] | None = None

    @property
    def test(self) -> Samples:
        """The test part as `softmax_from_arrays` takes it."""
        return self.test_features, self.test_labels


def prepare(  # noqa: PLR0913 - the public door: all but two are optional
    dataset: Dataset,
    seed: int,
    *,
    test_fraction: float = 0.2,
    split: Split = "shuffled",
    subsample: int | None = None,
    standardise: bool = True,
    bias: bool = True,
    dtype: Precision = "float32",
) -> Prepared:
    """Training and test part of a data set: split, standardised, with a bias feature.

    Args:
        dataset: from `load`.
        seed: of the split; 0, 1, ...
        test_fraction: share of rows held out by the shuffled split; in (0, 1).
        split: `shuffled` pools all published parts and splits them anew, as the paper
            does; `published` keeps the publisher's test part.
        subsample: rows kept, drawn at random before the split; of the training part
            if the split is the published one.
        standardise: to mean 0 and deviation 1 on the training part; a feature that is
            constant there becomes 0 in both parts.
        bias: append a column of ones.
        dtype: of the features.

    Returns:
        Both parts, scaled, with names of the classes.

    Raises:
        InvalidInputError: a number is out of range, the data set has no published test
            part, or a feature does not fit `dtype`.

    Examples:
        >>> from hewfl.data.load import load
        >>> prepared = prepare(load("digits"), seed=0)
        >>> prepared.features.shape, prepared.test_features.shape
        ((1438, 65), (359, 65))
    """
    if dtype not in get_args(Precision):
        raise invalid("dtype", '"float32" or "float64"', repr(dtype))
    rows, test_rows = split_rows(
        dataset, seed, test_fraction=test_fraction, split=split, subsample=subsample
    )
    width = dataset.features.shape[1]
    plain: Moments = (np.zeros(width), np.ones(width))
    mean, deviation = _moments(dataset, rows) if standardise else plain
    kind = np.dtype(dtype)
    return Prepared(
        features=_scaled_features(dataset, rows, mean, deviation, kind, bias=bias),
        labels=row_labels(dataset, rows),
        test_features=_scaled_features(
            dataset, test_rows, mean, deviation, kind, bias=bias
        ),
        test_labels=row_labels(dataset, test_rows),
        classes=dataset.classes,
        clients=row_clients(dataset, rows),
        test_clients=row_clients(dataset, test_rows),
    )


def split_rows(
    dataset: Dataset,
    seed: int,
    *,
    test_fraction: float = 0.2,
    split: Split = "shuffled",
    subsample: int | None = None,
) -> tuple[Int64[Ints, " m"], Int64[Ints, " k"]]:
    """Rows of the training and of the test part.

    Rows count through the published training part first, then its test part.

    Args:
        dataset: from `load`.
        seed: of the shuffle.
        test_fraction: as for `prepare`, and so are the next two.
        split: how test rows are chosen.
        subsample: rows kept.

    Returns:
        Rows of the training part and of the test part.

    Raises:
        InvalidInputError: an argument breaks its rule.
    """
    rng = stream(seed, "split")
    if split not in get_args(Split):
        raise invalid("split", '"shuffled" or "published"', repr(split))
    published = len(dataset.labels)
    pool = dataset.size if split == "shuffled" else published
    if subsample is not None and not 2 <= subsample <= pool:
        raise invalid("subsample", f"from 2 to {pool} rows", subsample)
    kept = rng.permutation(pool)[:subsample]
    if split == "published":
        if dataset.test is None:
            rule = f'"shuffled", as {dataset.name} has no published test part'
            raise invalid("split", rule, f'"{split}"')
        return kept, np.arange(published, dataset.size)
    if not 0 < test_fraction < 1:
        raise invalid("test_fraction", "between 0 and 1", test_fraction)
    held_out = min(max(1, round(test_fraction * len(kept))), len(kept) - 1)
    return _keep_every_client(dataset, kept[held_out:], kept[:held_out])


def _keep_every_client(
    dataset: Dataset, rows: Int64[Ints, " m"], test_rows: Int64[Ints, " k"]
) -> tuple[Int64[Ints, " m2"], Int64[Ints, " k2"]]:
    """The two parts, with a training row for every client that has rows at all.

    A client whose rows were all held out gets the first of them back.
    """
    if dataset.clients is None:
        return rows, test_rows
    clients, first = np.unique(dataset.clients[test_rows], return_index=True)
    short = ~np.isin(clients, dataset.clients[rows])
    back = np.sort(first[short])[: len(test_rows) - 1]
    return np.append(rows, test_rows[back]), np.delete(test_rows, back)


def feature_rows(dataset: Dataset, rows: Int64[Ints, " m"]) -> Num[Numbers, "m p"]:
    """Features of rows that count as in `split_rows`: bytes as bytes, else float32."""
    parts = [dataset.features, *([] if dataset.test is None else [dataset.test[0]])]
    is_bytes = np.result_type(*parts) == np.uint8
    kind = np.dtype(np.uint8 if is_bytes else np.float32)
    return np.asarray(_features(dataset, rows, kind))


def _features(dataset: Dataset, rows: Int64[Ints, " m"], dtype: np.dtype[Any]) -> Any:
    """Features of rows of both parts in one type."""
    first = len(dataset.labels)
    features = np.empty((len(rows), dataset.features.shape[1]), dtype)
    features[rows < first] = dataset.features[rows[rows < first]]
    if dataset.test is not None:
        features[rows >= first] = dataset.test[0][rows[rows >= first] - first]
    return features


def row_clients(dataset: Dataset, rows: Int64[Ints, " m"]) -> Int64[Ints, " m"] | None:
    """Clients of the given rows, counted as in `split_rows`; None if there are none.

    Args:
        dataset: from `load`.
        rows: through both parts, the training part first.

    Returns:
        One client for each row, or None.
    """
    return None if dataset.clients is None else dataset.clients[rows]


def row_labels(dataset: Dataset, rows: Int64[Ints, " m"]) -> Int64[Ints, " m"]:
    """Labels of the given rows, counted as in `split_rows`.

    Args:
        dataset: from `load`.
        rows: through both parts, the training part first.

    Returns:
        One label for each row.
    """
    if dataset.test is None:
        return dataset.labels[rows]
    return np.concatenate([dataset.labels, dataset.test[1]])[rows]


def _blocks(
    dataset: Dataset, rows: Int64[Ints, " m"], size: int = _ROWS
) -> Iterator[tuple[slice, Float64[Array, "b p"]]]:
    """Rows in float64, some at a time, in memory that the caller may write to."""
    for start in range(0, len(rows), size):
        where = slice(start, min(start + size, len(rows)))
        block: Array = _features(dataset, rows[where], np.dtype(np.float64))
        yield where, block


def _moments(dataset: Dataset, rows: Int64[Ints, " m"]) -> Moments:
    """Mean and deviation of each feature; infinite deviation where it is constant.

    Constant is decided by least and largest value: the deviation of equal numbers
    need not round to 0.
    """
    m, width = len(rows), dataset.features.shape[1]
    mean = np.zeros(width)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for _, block in _blocks(dataset, rows):
        low = np.minimum(low, block.min(axis=0))
        high = np.maximum(high, block.max(axis=0))
        mean += np.divide(block, m, out=block).sum(axis=0)
    varies = low < high
    # In units of half the range, squares neither overflow nor vanish.
    unit = np.where(varies, high / 2 - low / 2, np.inf)
    squares = np.zeros(width)
    for _, block in _blocks(dataset, rows):
        relative = _standardise(block, mean, unit)
        squares += np.square(relative, out=relative).sum(axis=0)
    return mean, unit * np.where(varies, np.sqrt(squares / m), 1.0)


def _standardise(
    block: Float64[Array, "b p"], mean: Float64[Array, " p"], unit: Float64[Array, " p"]
) -> Float64[Array, "b p"]:
    """(x − mean) / unit for each row x, in the memory of the rows."""
    block -= mean
    block /= unit
    return block


def _scaled_features(
    dataset: Dataset,
    rows: Int64[Ints, " m"],
    mean: Float64[Array, " p"],
    deviation: Float64[Array, " p"],
    dtype: np.dtype[Any],
    *,
    bias: bool,
) -> Float[Array, "m q"]:
    width = len(mean)
    scaled = np.empty((len(rows), width + bias), dtype=dtype)
    scaled[:, width:] = 1
    with np.errstate(over="ignore"):  # checked below
        for where, block in _blocks(dataset, rows, _FEW):
            scaled[where, :width] = _standardise(block, mean, deviation)
    if not np.isfinite(scaled).all():
        column = int(np.argwhere(~np.isfinite(scaled))[0][1])
        got = f"a number beyond it in column {column}"
        raise invalid("features", f"within the range of {dtype}", got)
    return scaled
