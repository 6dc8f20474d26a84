"""SCAFFOLD: stochastic controlled averaging."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import OneStepSize
from hewfl.core.algorithm import Demands, FirstGradients, Traffic
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Positive
from hewfl.displacements.control_variates import (
    ControlVariates,
    Start,
    Variates,
    correction,
    start_variates,
)


@final
@dataclass(frozen=True, slots=True)
class Scaffold(OneStepSize):
    """Local steps corrected by control variates, option II [Karimireddy2020].

        y ← y − η (g − c_i + c)                                H_i times, from y = x
        c_i⁺ = c_i − c + (x − y)/(η H_i) = c_i − c − Δ_i/(η H_i)
        x⁺ = x + (η_g/S) Σ_{i∈S} Δ_i
        c⁺ = c + (1/n) Σ_{i∈S} (c_i⁺ − c_i)

    Clients that do not take part keep their c_i. The paper has one K for all; with
    unequal horizons each client divides by its own. It sends Δ_i and c_i⁺ − c_i up; the
    second is a function of the first, so here only Δ_i travels (erratum E-17).

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        server_step: η_g > 0; 1 in the paper's experiments.
        start: c_i = 0, or one minibatch gradient of each client at x_0 (erratum E-29).
    """

    server_step: Positive = 1.0
    start: Start = "zero"

    name: ClassVar[str] = "SCAFFOLD"

    @property
    def demands(self) -> Demands:
        """Two vectors down; gradients where the control variates start at them."""
        traffic = Traffic(down=2, up=1, paper_up=2)
        return Demands(traffic, gradients=self.start == "gradient", variates=True)

    def init(self, n: int, d: int, gradients: FirstGradients) -> ControlVariates:
        """c_i as `start` says, c their mean.

        Raises:
            InvalidInputError: gradients are asked for and not given.
        """
        return start_variates(n, d, self.start, gradients)

    def variates(self, state: Variates) -> Variates:
        """The state itself."""
        return state

    def plan(self, cohort: Cohort, state: Variates) -> LocalPlan:
        """One step size for all, η = s/L, and the correction c_i − c."""
        return LocalPlan(self.step_sizes(cohort), correction(state, cohort))

    def decide(self, round_: Round, state: Variates) -> tuple[Decision, Variates]:
        """w_i = η_g/S; then c_i⁺ and c⁺."""
        S = len(round_.cohort.clients)
        weights = np.full(S, self.server_step / S)
        return Decision(weights, "equal weights"), state.after(round_)
