"""A problem with faults: rows whose gradient is not finite, losses below zero."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hewfl.problems import Optimum, Quadratic

Array = NDArray[np.floating]
Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Faulty:
    """A quadratic problem that a client cannot always answer.

    Attributes:
        inner: the problem without faults.
        bad_rows: samples whose gradient is NaN: a branch that draws one is lost.
        lowered: taken off every loss.
    """

    inner: Quadratic
    bad_rows: tuple[int, ...] = ()
    lowered: float = 0.0

    @property
    def n(self) -> int:
        return self.inner.n

    @property
    def d(self) -> int:
        return self.inner.d

    @property
    def data_sizes(self) -> Ints:
        return self.inner.data_sizes

    @property
    def offsets(self) -> Ints:
        return self.inner.offsets

    @property
    def smoothness(self) -> float:
        return self.inner.smoothness

    def minibatch_gradients(self, models: Array, samples: Ints, counts: Ints) -> Array:
        found = np.array(self.inner.minibatch_gradients(models, samples, counts))
        counted = np.arange(samples.shape[1]) < counts[:, None]
        lost = (np.isin(samples, self.bad_rows) & counted).any(axis=1)
        found[:, lost] = np.nan
        return found

    def full_gradients(self, anchors: Array) -> Array:
        return np.asarray(self.inner.full_gradients(anchors))

    def client_losses(self, anchors: Array) -> Array:
        return np.asarray(self.inner.client_losses(anchors)) - self.lowered

    def objectives(self, anchors: Array) -> Array:
        return np.asarray(self.inner.objectives(anchors)) - self.lowered

    def evaluate(self, anchors: Array) -> dict[str, Array]:
        return self.inner.evaluate(anchors)

    def optimum(self) -> Optimum:
        return self.inner.optimum()

    def pooled_optimum(self) -> Optimum:
        return self.inner.pooled_optimum()
