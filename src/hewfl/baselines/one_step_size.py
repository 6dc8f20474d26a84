"""What methods share whose clients all take every step with one step size."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, positive
from hewfl.core.round import LocalPlan, Roster


@dataclass(frozen=True, slots=True)
class OneStepSize:
    """Hyper-parameters of one step size η = s/L for all clients.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0.

    Raises:
        InvalidInputError: a number is not positive and finite.
    """

    smoothness: float
    step_scale: float

    def __post_init__(self) -> None:
        """Check that both numbers are in range."""
        positive("smoothness", self.smoothness)
        positive("step_scale", self.step_scale)

    def step_sizes(self, roster: Roster) -> Float64[Array, " s"]:
        """η = s/L, for each client."""
        return np.full(len(roster.clients), self.step_scale / self.smoothness)


@dataclass(frozen=True, slots=True)
class PlainBranches(OneStepSize):
    """Methods whose clients do plain SGD: no correction, no proximal term."""

    def plan(self, roster: Roster, state: Any) -> LocalPlan:  # noqa: ARG002 - the same in every state
        """One step size for all: η = s/L."""
        return LocalPlan(self.step_sizes(roster))


@dataclass(frozen=True, slots=True)
class Memoryless(PlainBranches):
    """Methods of plain SGD that remember nothing from round to round."""

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> None:
        """There is no state."""
