"""Softmax regressions from arrays: rows of clients, libraries, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.problems.softmax.samples import ROUNDING, data, split
from tests.simulation.unchecked import unchecked

from hewfl import InvalidInputError
from hewfl.problems import softmax_common_pool, softmax_from_arrays

X, Y = data(6)
SHARDS = [[0, 1, 2], [3, 4, 5]]


def test_rows_lie_client_by_client() -> None:
    X, y = data()
    shards = split(40, 3)
    problem = softmax_from_arrays(X, y, shards, l2=0.1)
    for lo, m, rows in zip(problem.offsets, problem.data_sizes, shards, strict=True):
        assert (problem.features[lo : lo + m] == X[rows]).all()
        assert (problem.labels[lo : lo + m] == y[rows]).all()


def test_common_pool_is_stored_once_and_homogeneous(rng: np.random.Generator) -> None:
    X, y = data()
    problem = softmax_common_pool(X, y, 5, l2=0.1)
    copies = softmax_from_arrays(X, y, [np.arange(40)] * 5, l2=0.1)
    assert problem.features.shape == (40, 4)
    x = rng.standard_normal((2, 12))
    assert (np.ptp(problem.full_gradients(x), axis=1) == 0).all()
    assert np.abs(problem.objectives(x) - copies.objectives(x)).max() <= ROUNDING
    assert np.abs(problem.optimum().x - copies.optimum().x).max() <= ROUNDING


@pytest.mark.torch
def test_from_tensors() -> None:
    X, y = data()
    shards = split(40, 3)
    tensors = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    problem = softmax_from_arrays(*tensors, shards, l2=0.1, test=(X, y))
    expected = softmax_from_arrays(X, y, shards, l2=0.1, dtype="float32")
    assert isinstance(problem.features, torch.Tensor)
    assert problem.features.dtype == torch.float32
    assert (problem.features.numpy() == expected.features).all()
    assert problem.test is not None
    assert isinstance(problem.test[0], torch.Tensor)
    wide = softmax_from_arrays(*tensors, shards, l2=0.1, dtype=torch.float64)
    assert wide.features.dtype == torch.float64


BAD: list[tuple[dict[str, Any], str]] = [
    ({"X": X[0]}, r"`features` must be of shape \(m, p\)"),
    ({"X": X * 1j}, "`features` must be an array of real numbers; got dtype complex"),
    ({"X": [[1.0], [1.0, 2.0]]}, "`features` must be an array"),
    ({"X": X * np.nan}, "`features` must be finite; got NaN"),
    ({"y": Y[:5]}, r"`labels` must be of shape \(6,\), one per sample; got \(5,\)"),
    ({"y": []}, "`labels` must be a nonempty vector"),
    ({"y": Y + 0.5}, "`labels` must be whole numbers; got dtype float64"),
    ({"y": Y - 5}, "`labels` must be from 0 to 1; got -5"),
    ({"partition": []}, "`partition` must be one list of rows per client"),
    ({"partition": [[0], []]}, r"`partition\[1\]` must be a nonempty vector of rows"),
    ({"partition": [[0.5]]}, r"`partition\[0\]` must be a nonempty vector of rows"),
    ({"partition": [[0, 6]]}, r"`partition\[0\]` must be rows from 0 to 5; got 6"),
    ({"l2": -1.0}, "`l2` must be a nonnegative finite number; got -1.0"),
    ({"dtype": "float16"}, '`dtype` must be "float32" or "float64"; got \'float16\''),
    ({"test": (X[:, :2], Y)}, "`test features` must be of 4 columns like `features`"),
    ({"test": (X, Y - 9)}, "`test labels` must be from 0"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_arrays_are_refused(changes: dict[str, Any], text: str) -> None:
    arguments = {"X": X, "y": Y, "partition": SHARDS, "l2": 0.1, **changes}
    with pytest.raises(InvalidInputError, match=text):
        softmax_from_arrays(**arguments)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n": 0}, "`n` must be at least 1; got 0"),
        ({"n": "2"}, "`n` must be a whole number; got '2'"),
        ({"test": X}, "`test` must be a pair of features and labels; got ndarray"),
    ],
)
def test_a_bad_pool_of_clients_is_refused(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"X": X, "y": Y, "n": 2, "l2": 0.1}
    with unchecked(), pytest.raises(InvalidInputError, match=text):
        softmax_common_pool(**given | changes)
