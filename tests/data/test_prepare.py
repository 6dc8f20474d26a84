from typing import Any

import numpy as np
import pytest

from hewfl.data.dataset import Dataset
from hewfl.data.load import load
from hewfl.data.partitions import dirichlet_partition
from hewfl.data.prepare import prepare, row_labels, split_rows
from hewfl.errors import InvalidInputError
from hewfl.problems import softmax_from_arrays


def dataset(
    dtype: Any = np.float64, *, test: bool = True, scale: float = 1.0
) -> Dataset:
    """10,000 rows; the first column is constant."""
    rng = np.random.default_rng(4)
    X = (rng.normal(3, 2, (10_000, 5)) * scale).astype(dtype)
    X[:, 0] = 0.1 * scale
    y = rng.integers(0, 3, 10_000)
    cut = 9_000 if test else 10_000
    held_out = (X[cut:], y[cut:]) if test else None
    return Dataset("toy", X[:cut], y[:cut], held_out, ("a", "b", "c"), "here")


def all_rows(d: Dataset) -> Any:
    return d.features if d.test is None else np.concatenate([d.features, d.test[0]])


def test_the_split_is_of_all_rows_80_to_20() -> None:
    train, test = split_rows(dataset(), 0)
    assert (len(train), len(test)) == (8000, 2000)
    assert (np.sort(np.concatenate([train, test])) == np.arange(10_000)).all()
    assert (train >= 9000).any()  # published parts are pooled


def test_seeds_decide_the_split() -> None:
    d = dataset()
    assert (split_rows(d, 3)[0] == split_rows(d, 3)[0]).all()
    assert (split_rows(d, 3)[0] != split_rows(d, 4)[0]).any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8])
@pytest.mark.parametrize("test", [True, False])
def test_features_are_standardised_by_the_training_part(
    dtype: type, test: bool
) -> None:
    d = dataset(dtype, test=test)
    X = all_rows(d).astype(np.float64)
    rows, test_rows = split_rows(d, 1)
    mean, deviation = X[rows].mean(axis=0), X[rows].std(axis=0)
    deviation[0] = np.inf
    prepared = prepare(d, 1, dtype="float64")
    for features, where in (
        (prepared.features, rows),
        (prepared.test_features, test_rows),
    ):
        expected = (X[where] - mean) / deviation
        assert np.abs(features[:, :-1] - expected).max() < 1e-12
        assert (features[:, -1] == 1).all()
        assert (features[:, 0] == 0).all()
    assert (prepared.labels == row_labels(d, rows)).all()
    assert (prepared.test_labels == row_labels(d, test_rows)).all()
    single = prepare(d, 1)
    assert single.features.dtype == np.float32
    assert np.abs(single.features - prepared.features).max() < 1e-6


def test_a_feature_constant_in_training_only_is_zero_in_both_parts() -> None:
    d = dataset()
    _, test_rows = split_rows(d, 0)
    first = test_rows[test_rows < 9000][0]
    d.features[first, 0] = 5.0
    prepared = prepare(d, 0)
    assert (prepared.features[:, 0] == 0).all()
    assert (prepared.test_features[:, 0] == 0).all()


def test_labels_follow_their_rows() -> None:
    d = dataset()
    d.features[:, 1] = d.labels
    assert d.test is not None
    d.test[0][:, 1] = d.test[1]
    prepared = prepare(d, 2, standardise=False, bias=False)
    assert prepared.features.shape[1] == 5
    assert (prepared.features[:, 1] == prepared.labels).all()
    assert (prepared.test_features[:, 1] == prepared.test_labels).all()


def test_the_published_split_is_kept_on_request() -> None:
    d = dataset()
    rows, test_rows = split_rows(d, 0, split="published")
    assert (np.sort(rows) == np.arange(9000)).all()
    assert (test_rows == np.arange(9000, 10_000)).all()
    few, same = split_rows(d, 0, split="published", subsample=100)
    assert len(few) == 100
    assert few.max() < 9000
    assert (same == test_rows).all()


def test_a_subsample_is_split_the_same_way() -> None:
    rows, test_rows = split_rows(dataset(), 0, subsample=1000)
    assert (len(rows), len(test_rows)) == (800, 200)
    assert len(np.unique(np.concatenate([rows, test_rows]))) == 1000


def test_a_tenth_of_thirty_is_three() -> None:
    rows = split_rows(dataset(), 0, test_fraction=0.1, subsample=30)
    assert [len(part) for part in rows] == [27, 3]
    rows = split_rows(dataset(), 0, test_fraction=0.999, subsample=2)
    assert [len(part) for part in rows] == [1, 1]


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_extreme_scales_are_no_matter(scale: float) -> None:
    prepared = prepare(dataset(scale=scale), 0)
    usual = prepare(dataset(), 0)
    assert np.abs(prepared.features - usual.features).max() < 1e-6


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="within the range of float32; got"):
        prepare(dataset(scale=1e300), 0, standardise=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"test_fraction": 0.0}, "`test_fraction` must be between 0 and 1; got 0.0"),
        ({"test_fraction": 1.0}, "`test_fraction` must be between 0 and 1; got 1.0"),
        ({"subsample": 1}, "`subsample` must be from 2 to 10000 rows; got 1"),
        ({"subsample": 10_001}, "`subsample` must be from 2 to 10000 rows"),
        ({"split": "published"}, '`split` must be "shuffled", as toy has no published'),
        ({"seed": -1}, "`seed` must be a whole number from 0; got -1"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], text: str) -> None:
    given: dict[str, object] = {"seed": 0}
    with pytest.raises(InvalidInputError, match=text):
        prepare(dataset(test=False), **(given | change))  # type: ignore[arg-type]  # on purpose


def test_digits_become_a_problem() -> None:
    prepared = prepare(load("digits"), 0)
    partition = dirichlet_partition(prepared.labels, 20, 0.2, 0, min_samples=10)
    problem = softmax_from_arrays(
        prepared.features, prepared.labels, partition, l2=1e-3, test=prepared.test
    )
    assert (problem.n, problem.d) == (20, 650)
