"""A small module over 40 samples of three clients, for tests."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hewfl.problems.module import TorchModule, Training, torch_from_arrays

Array = NDArray[Any]
nn = torch.nn


def mlp(*widths: int, dropout: float = 0.2) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        a, b, c = widths
        layers = nn.Linear(a, b), nn.Tanh(), nn.Dropout(dropout), nn.Linear(b, c)
        return nn.Sequential(*layers)


def data() -> tuple[Array, Array, list[Array]]:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 4)), rng.integers(0, 3, 40)
    return X, y, np.split(rng.permutation(40), [5, 20])


def small(**changes: Any) -> TorchModule:
    X, y, shards = data()
    given: dict[str, Any] = {"parts": {"test": (X, y)}}
    given["training"] = Training(weight_decay=0.1)
    module = changes.pop("module", mlp(4, 5, 3))
    return torch_from_arrays(module, X, y, shards, **given | changes)


def points(problem: TorchModule, *shape: int) -> Array:
    noise = np.random.default_rng(3).standard_normal((*shape, problem.d))
    return np.asarray(problem.start + 0.3 * noise)
