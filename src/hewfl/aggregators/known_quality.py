"""The yardstick that knows who is bad."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import EqualGroundBranches
from hewfl.core.algorithm import FirstGradients
from hewfl.core.round import Decision, Round
from hewfl.core.validation import PerClient


@final
@dataclass(frozen=True, slots=True)
class KnownQuality(EqualGroundBranches):
    """Weights by true quality, which no server knows: a yardstick for other rules.

        w_i = q_iH_i / Σ_j q_jH_j,     q_i the true batch size, 0 of a bad client

    The branches are of equal ground, η_i = ϑ/(L H_i), so Δ_i is the mean of H_i batches
    times the same factor, and these weights are inverse to its noise. A simulation
    tells q before the first round (`hewfl.core.algorithm.Acquainted`); elsewhere q is 1
    for all and the weights are those of the horizons. They are equal where nobody who
    took part is any good.

    Attributes:
        smoothness: L > 0.
        amplitude: ϑ > 0; client i steps by η_i = ϑ/(L H_i).
    """

    name: ClassVar[str] = "Knows who is bad"

    def init(self, n: int, d: int, gradients: FirstGradients) -> PerClient:
        """Everybody equally good."""
        return np.ones(n)

    def acquainted(self, state: PerClient, quality: PerClient) -> PerClient:
        """The truth in place of the guess."""
        return quality

    def decide(self, round_: Round, state: PerClient) -> tuple[Decision, PerClient]:
        """w_i ∝ q_iH_i over those who took part."""
        cohort = round_.cohort
        worth = state[cohort.clients] * cohort.horizons
        if not worth.any():
            equal = np.full(len(worth), 1 / len(worth))
            return Decision(equal, "equal weights: nobody is any good"), state
        return Decision(worth / worth.sum(), "weights by true quality"), state
