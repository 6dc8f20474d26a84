"""A rule of your own: weights of the clients' updates."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hewfl import Aggregator, Decision, Round


@dataclass(frozen=True)
class NearTheMedian(Aggregator):
    """Weights fall with the squared distance from the update in the middle.

    Attributes:
        sharpness: how fast they fall.
    """

    sharpness: float = 1.0
    name: ClassVar[str] = "NearTheMedian"

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The weights, and the state of the next round."""
        G = round_.displacements.gram()  # inner products of all pairs of updates
        squares = np.diagonal(G)[:, None] + np.diagonal(G) - 2 * G
        middle = squares.sum(axis=1).argmin()
        scale = np.median(squares[middle]) + 1e-300
        score = np.exp(-self.sharpness * squares[middle] / scale)
        return Decision(score / score.sum(), "near the median"), state
