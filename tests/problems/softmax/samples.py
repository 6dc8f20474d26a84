"""Labelled samples and shards for tests of softmax regression."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROUNDING = 1e-12


def data(m: int = 40, p: int = 4, c: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((m, p))
    y = (X @ rng.standard_normal((p, c)) + rng.gumbel(size=(m, c))).argmax(axis=1)
    y[:c] = np.arange(c)
    return X, y


def split(m: int, n: int) -> list[Array]:
    cuts = np.sort(np.random.default_rng(2).choice(np.arange(1, m), n - 1, False))
    return np.split(np.random.default_rng(3).permutation(m), cuts)
