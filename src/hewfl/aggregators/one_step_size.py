"""What methods share whose clients step alike: by one step size, or on equal ground."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hewfl.core.algorithm import Demands, FirstGradients
from hewfl.core.array_types import Float64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, Positive, Validated


@dataclass(frozen=True, slots=True)
class OneStepSize(Validated):
    """Hyper-parameters of one step size η = s/L for all clients.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0.
    """

    smoothness: Positive
    step_scale: Positive

    def step_sizes(self, cohort: Cohort) -> Float64[Array, " s"]:
        """η = s/L, for each client."""
        return np.full(len(cohort.clients), self.step_scale / self.smoothness)


@dataclass(frozen=True, slots=True)
class PlainBranches(OneStepSize):
    """Methods whose clients do plain SGD: no correction, no proximal term."""

    demands: ClassVar[Demands] = Demands()

    def plan(self, cohort: Cohort, state: Any) -> LocalPlan:
        """One step size for all: η = s/L."""
        return LocalPlan(self.step_sizes(cohort))


@dataclass(frozen=True, slots=True)
class Memoryless(PlainBranches):
    """Methods of plain SGD that remember nothing from round to round."""

    def init(self, n: int, d: int, gradients: FirstGradients) -> None:
        """There is no state."""


@dataclass(frozen=True, slots=True)
class EqualGroundBranches(Validated):
    """Methods whose clients all cover the ground ϑ/L, by steps of η_i = ϑ/(L H_i).

    Attributes:
        smoothness: L > 0.
        amplitude: ϑ > 0.
    """

    smoothness: Positive
    amplitude: Positive

    demands: ClassVar[Demands] = Demands()

    def plan(self, cohort: Cohort, state: Any) -> LocalPlan:
        """Equal ground for all: η_i H_i = ϑ/L."""
        return LocalPlan(self.amplitude / (self.smoothness * cohort.horizons))
