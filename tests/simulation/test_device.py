"""The engine with the samples as torch tensors: on the host, and on a GPU if there."""

from typing import Any

import numpy as np
import pytest
import torch

from hewfl import (
    Federation,
    FedProx,
    FixedSteps,
    HewHet,
    HewHom,
    MinibatchSGD,
    Scaffold,
    simulate,
)
from hewfl.problems import Softmax

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    ],
)


def softmax(dtype: str) -> Softmax:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((120, 9)).astype(dtype), rng.integers(0, 4, 120)
    held_out = X[:30] + 1, y[:30]
    return Softmax(X, y, np.arange(6) * 20, np.full(6, 20), 4, 0.01, held_out)


def moved(problem: Softmax, device: str) -> Softmax:
    def there(values: Any) -> Any:
        return torch.from_numpy(values).to(device)

    assert problem.test is not None
    test = there(problem.test[0]), there(problem.test[1])
    X, y = there(problem.features), there(problem.labels)
    return Softmax(X, y, problem.offsets, problem.data_sizes, 4, 0.01, test)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("dtype", "rounding"), [("float64", 1e-12), ("float32", 1e-4)])
def test_tensors_give_the_same_run(device: str, dtype: str, rounding: float) -> None:
    problem = softmax(dtype)
    L = problem.smoothness
    entries: list[Any] = [HewHom(L, 0.5), HewHet(L, 0.5), Scaffold(0.3 / L)]
    entries += [FedProx(0.3 / L, prox=0.5), MinibatchSGD(0.3 / L)]
    federation = Federation(FixedSteps([1, 2, 4, 8, 2, 1]), 5)
    there = moved(problem, device)
    given: dict[str, Any] = {"rounds": 6, "seed": 4, "dtype": np.dtype(dtype)}
    host = simulate(problem, federation, entries, **given)
    away = simulate(there, federation, entries, **given)
    for a, b in zip(host.anchors, away.anchors, strict=True):
        assert np.abs(a - b).max() <= rounding * np.abs(a).max()
        assert np.abs(a).max() > 1e-3
    for mine, theirs in zip(host.records, away.records, strict=True):
        assert mine.objective == pytest.approx(theirs.objective, rel=rounding)
        assert (
            mine.metrics.keys()
            == theirs.metrics.keys()
            == {"test_accuracy", "test_loss"}
        )
