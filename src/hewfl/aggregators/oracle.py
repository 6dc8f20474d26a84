"""A bound for other rules: weights by the true quality of the clients."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.core.algorithm import Need, Truth
from hewfl.core.round import Decision, Round
from hewfl.core.validation import PerClient


@final
@dataclass(frozen=True, slots=True)
class Oracle(Aggregator):
    """Weights by true quality, which no server knows: a bound for other rules.

        w_i = q_iH_i / Σ_j q_jH_j,     q_i the true batch size, 0 of a faulty client

    With one total step for all, η_i = s/H_i, Δ_i is the mean of H_i batches
    times the same factor, and these weights are inverse to its noise. A simulation
    gives q before the first round (`hewfl.core.algorithm.Truth`); elsewhere q is 1
    for all and the weights are those of the horizons. They are equal where every
    client of the round is faulty.
    """

    name: ClassVar[str] = "Oracle"
    needs: ClassVar[frozenset[Need]] = frozenset({"steps", "clients", "truth"})

    def init(self, n: int, d: int) -> PerClient:
        """All clients equally good."""
        return np.ones(n)

    def with_truth(self, state: PerClient, truth: Truth) -> PerClient:
        """The true quality in place of the guess."""
        return state if truth.quality is None else truth.quality

    def decide(self, round_: Round, state: PerClient) -> tuple[Decision, PerClient]:
        """w_i ∝ q_iH_i over those who took part."""
        cohort = round_.cohort
        worth = state[cohort.clients] * cohort.horizons
        if not worth.any():
            equal = np.full(len(worth), 1 / len(worth))
            return Decision(
                equal, "equal weights: every client of the round is faulty"
            ), state
        return Decision(worth / worth.sum(), "weights by true quality"), state
