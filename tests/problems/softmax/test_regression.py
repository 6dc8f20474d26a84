"""Softmax regression: construction, losses, gradients and constants."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.problems.softmax.samples import ROUNDING, Array, data, split
from tests.simulation.unchecked import unchecked

from hewfl import InvalidInputError
from hewfl.problems import Softmax, softmax_common_pool, softmax_from_arrays

X, Y = data(6)


def plain_loss(W: Array, a: Array, label: int, l2: float) -> float:
    """φ_j(W), as the formula reads."""
    s = W @ a
    return float(np.log(np.exp(s).sum()) - s[label] + 0.5 * l2 * (W**2).sum())


def plain_gradient(W: Array, a: Array, label: int, l2: float) -> Array:
    """∇φ_j(W), as the formula reads."""
    p = np.exp(W @ a)
    p /= p.sum()
    p[label] -= 1
    return np.asarray(np.outer(p, a) + l2 * W)


def test_against_a_loop_over_samples(rng: np.random.Generator) -> None:
    X, y = data()
    shards, l2 = split(40, 3), 0.1
    problem = softmax_from_arrays(X, y, shards, l2=l2)
    assert (problem.n, problem.d) == (3, 12)
    x = rng.standard_normal((2, 12))
    losses, gradients = problem.client_losses(x), problem.full_gradients(x)
    for k, W in enumerate(x.reshape(2, 3, 4)):
        for i, rows in enumerate(shards):
            loss = np.mean([plain_loss(W, X[j], y[j], l2) for j in rows])
            each = np.stack([plain_gradient(W, X[j], y[j], l2).ravel() for j in rows])
            assert losses[k, i] == pytest.approx(loss, rel=ROUNDING)
            assert np.abs(gradients[k, i] - each.mean(axis=0)).max() <= ROUNDING


def test_blocks_make_no_difference(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data()
    problem = softmax_from_arrays(X, y, split(40, 3), l2=0.1, test=(X, y))
    x = rng.standard_normal((2, 12))
    asked = problem.full_gradients, problem.client_losses
    whole = [ask(x) for ask in asked] + list(problem.evaluate(x).values())
    monkeypatch.setattr("hewfl.problems.softmax.passes.PASS_BLOCK", 70)
    pieces = [ask(x) for ask in asked] + list(problem.evaluate(x).values())
    for one, other in zip(whole, pieces, strict=True):
        assert np.abs(one - other).max() <= ROUNDING


def test_huge_scores_do_not_overflow() -> None:
    problem = softmax_from_arrays([[1e3], [-1e3]], [0, 1], [[0, 1]], l2=0.0)
    x = np.array([[1e3, -1e3], [-1e3, 1e3]])
    assert problem.client_losses(x).ravel().tolist() == [0.0, 2e6]
    assert np.isfinite(problem.full_gradients(x)).all()


def test_smoothness_is_nearly_attained() -> None:
    """Two classes at even odds: the curvature along a(e_1 − e_2) is ½‖a‖² + λ."""
    X, y = data(c=2)
    problem = softmax_from_arrays(X, y, [np.arange(40)], l2=0.1)
    j = int((X**2).sum(axis=1).argmax())
    v = 1e-5 * np.concatenate([X[j], -X[j]]) / np.linalg.norm(X[j])
    models = np.stack([v, -v])[:, None, :]
    at = np.array([[j]]), np.array([1])
    change = np.diff(problem.minibatch_gradients(models, *at)[:, 0], axis=0)
    rate = np.linalg.norm(change) / np.linalg.norm(2 * v)
    assert rate == pytest.approx(problem.smoothness, rel=1e-8)


def test_smoothness_estimate_is_half_the_top_eigenvalue(
    rng: np.random.Generator,
) -> None:
    X, y = data(200, 6)
    problem = softmax_from_arrays(X, y, split(200, 4), l2=0.1)
    top = np.linalg.eigvalsh(X.T @ X / 200)[-1]
    assert problem.smoothness_estimate() == pytest.approx(0.5 * top + 0.1, rel=1e-9)
    weights = problem.data_sizes / 200
    for _ in range(20):
        x = rng.standard_normal((2, problem.d))
        change = np.diff(weights @ problem.full_gradients(x), axis=0)
        rate = np.linalg.norm(change) / np.linalg.norm(x[0] - x[1])
        assert rate <= problem.smoothness_estimate()
    assert problem.smoothness_estimate() < problem.smoothness


def test_evaluate_counts_and_averages() -> None:
    X, y = np.eye(3), np.array([0, 1, 2])
    problem = softmax_from_arrays(X, y, [[0, 1, 2]], l2=9.0, test=(X, [0, 1, 1]))
    measures = problem.evaluate(np.stack([np.eye(3).ravel(), np.zeros(9)]))
    assert measures["test_accuracy"] == pytest.approx([2 / 3, 1 / 3])
    assert measures["test_loss"][1] == pytest.approx(np.log(3))
    assert softmax_from_arrays(X, y, [[0, 1, 2]], l2=9.0).evaluate(np.eye(9)) == {}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"classes": 1}, "`classes` must be at least 2; got 1"),
        ({"features": X.astype(np.float16)}, "`features` must be float32 or float64"),
        ({"labels": torch.tensor(Y)}, "`labels` must be of the array library of"),
        ({"labels": Y + 9}, "`labels` must be from 0 to 2; got"),
        (
            {"offsets": np.array([0])},
            "must be vectors of one length n ≥ 1; got lengths",
        ),
        (
            {"offsets": np.array([0.0, 3.0])},
            "must be whole numbers; got dtypes float64",
        ),
        ({"offsets": np.array([-1, 3])}, "must be rows from 0 to 6; got rows from -1"),
        ({"data_sizes": np.array([3, 4])}, "must be rows from 0 to 6; got rows from 0"),
        ({"data_sizes": np.array([3, 0])}, "`data_sizes` must be at least 1; got 0"),
    ],
)
def test_bad_fields_are_refused(changes: dict[str, Any], text: str) -> None:
    good = {
        "features": X,
        "labels": Y,
        "offsets": np.array([0, 3]),
        "data_sizes": np.array([3, 3]),
        "classes": 3,
        "l2": 0.1,
    }
    with pytest.raises(InvalidInputError, match=text):
        Softmax(**{**good, **changes})


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
    expected = softmax_from_arrays(X.astype(np.float32), y, shards, l2=0.1)
    assert isinstance(problem.features, torch.Tensor)
    assert problem.features.dtype == torch.float32
    assert (problem.features.numpy() == expected.features).all()
    assert problem.test is not None
    assert isinstance(problem.test[0], torch.Tensor)


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
