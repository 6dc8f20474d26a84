"""Local SGD with equal weights."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.algorithm import Demands
from hewfl.core.checks import Array, positive
from hewfl.core.round import Decision, LocalPlan, Roster, Round


@final
@dataclass(frozen=True, slots=True)
class UniformLocalSGD:
    """Local SGD, every endpoint with the same weight [Gorbunov2021].

        x⁺ = x + (1/S) Σ_i Δ_i

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L, so that a client
            with more steps moves further.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    smoothness: float
    step_scale: float

    name: ClassVar[str] = "Uniform-LocalSGD"
    demands: ClassVar[Demands] = Demands()

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        positive("smoothness", self.smoothness)
        positive("step_scale", self.step_scale)

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> None:
        """There is no state."""

    def plan(self, roster: Roster, state: None) -> LocalPlan:  # noqa: ARG002 - none
        """One step size for all: η = s/L."""
        eta = self.step_scale / self.smoothness
        return LocalPlan(np.full(len(roster.clients), eta))

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = 1/S."""
        S = len(round_.roster.clients)
        return Decision(np.full(S, 1 / S), "equal weights"), state
