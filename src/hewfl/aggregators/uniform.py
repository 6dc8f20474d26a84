"""Local SGD with equal weights."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round


@final
@dataclass(frozen=True, slots=True)
class UniformLocalSGD(Memoryless):
    """Local SGD, every endpoint with the same weight [Gorbunov2021].

        x⁺ = x + (1/S) Σ_i Δ_i

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L, so that a client
            with more steps moves further.
    """

    name: ClassVar[str] = "Uniform-LocalSGD"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = 1/S."""
        S = len(round_.cohort.clients)
        return Decision(np.full(S, 1 / S), "equal weights"), state
