"""Minibatch SGD: all gradients of a round at the anchor."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Cohort, Decision, LocalPlan, Round


@final
@dataclass(frozen=True, slots=True)
class MinibatchSGD(Memoryless):
    """The round's gradients, all taken at the anchor, in one step [Woodworth2020].

        Δ_i = −η Σ_{ℓ<H_i} g_i(x; ξ_i^ℓ),     x⁺ = x + (1/S) Σ_i Δ_i

    Same samples, same communication as local SGD. The paper writes one step with the
    mean of the gradients; here the step size of one gradient is tuned, so that with
    equal horizons its step is H η, and with unequal ones clients weigh in by their
    gradients.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every gradient counts with η = s/L.
    """

    name: ClassVar[str] = "Minibatch SGD"

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:
        """One step size for all, η = s/L, and branches that stay at the anchor."""
        return LocalPlan(self.step_sizes(cohort), hold=True)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = 1/S."""
        S = len(round_.cohort.clients)
        return Decision(np.full(S, 1 / S), "equal weights"), state
