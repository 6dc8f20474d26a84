"""A federated least-squares problem of a few lines, to try the engine on."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from hewfl.problems.problem import Optimum

Array = NDArray[np.floating]


@final
@dataclass(frozen=True)
class LeastSquares:
    """F_i(x) = mean over the client's samples of ½(⟨a, x⟩ − b)²."""

    A: Array
    b: Array
    data_sizes: NDArray[np.int64]

    @property
    def n(self) -> int:
        return len(self.data_sizes)

    @property
    def d(self) -> int:
        return int(self.A.shape[1])

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        return np.cumsum(self.data_sizes) - self.data_sizes

    @cached_property
    def smoothness(self) -> float:
        return float((self.A**2).sum(axis=1).max())

    def minibatch_gradients(
        self, models: Array, samples: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> Array:
        kind = models.dtype
        A, b = self.A[samples].astype(kind), self.b[samples].astype(kind)
        mask = np.arange(samples.shape[1]) < counts[:, None]
        residual = (np.einsum("abd,kad->kab", A, models) - b) * mask
        gradients = np.einsum("kab,abd->kad", residual, A) / counts[:, None]
        return np.asarray(gradients, dtype=kind)

    def _client(self, i: int) -> tuple[Array, Array]:
        at = slice(self.offsets[i], self.offsets[i] + self.data_sizes[i])
        return self.A[at], self.b[at]

    def full_gradients(self, anchors: Array) -> Array:
        parts = []
        for i in range(self.n):
            A, b = self._client(i)
            parts.append((anchors @ A.T - b) @ A / len(b))
        return np.stack(parts, axis=1)

    def client_losses(self, anchors: Array) -> Array:
        parts = []
        for i in range(self.n):
            A, b = self._client(i)
            parts.append(0.5 * ((anchors @ A.T - b) ** 2).mean(axis=1))
        return np.stack(parts, axis=1)

    def objectives(self, anchors: Array) -> Array:
        pooled = 0.5 * ((anchors @ self.A.T - self.b) ** 2).mean(axis=1)
        return np.stack([self.client_losses(anchors).mean(axis=1), pooled], axis=1)

    def evaluate(self, anchors: Array) -> dict[str, Array]:
        return {"length": np.linalg.norm(anchors, axis=1)}

    def optimum(self) -> Optimum:
        weights = np.repeat(1 / (self.n * self.data_sizes), self.data_sizes)
        H = (self.A * weights[:, None]).T @ self.A
        x = np.linalg.solve(H, (self.A * weights[:, None]).T @ self.b)
        value = float(self.objectives(x[None])[0, 0])
        gradient = self.full_gradients(x[None])[0].mean(axis=0)
        return Optimum(x, value, float(np.linalg.norm(gradient)), 0.0)

    def pooled_optimum(self) -> Optimum:
        raise NotImplementedError  # the engine never asks for it


def least_squares(
    seed: int = 0,
    n: int = 6,
    d: int = 5,
    *,
    skew: float = 1.0,
) -> LeastSquares:
    """Unequal clients whose targets differ by `skew`."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 20, n)
    A = rng.standard_normal((int(sizes.sum()), d))
    targets = np.repeat(rng.standard_normal((n, d)) * skew, sizes, axis=0)
    b = (A * (1.0 + targets)).sum(axis=1) + 0.3 * rng.standard_normal(len(A))
    return LeastSquares(A, b, sizes)
