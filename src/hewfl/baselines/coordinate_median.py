"""The median of every coordinate."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64

from hewfl.baselines.coordinates import middle_means
from hewfl.core.algorithm import Demands
from hewfl.core.checks import Array, positive
from hewfl.core.round import Decision, LocalPlan, Roster, Round


@final
@dataclass(frozen=True, slots=True)
class CoordinateMedian:
    """Every coordinate of the step is the median of the clients' [Yin2018].

        step_k = median over i of Δ_ik

    With an even number of clients it is the mean of the two middle values. The step is
    no combination of displacements, so it is given as such; `weights` says in which
    share of the coordinates a client was the median (two middle clients share, and so
    do ties), over the coordinates in which clients differ.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    smoothness: float
    step_scale: float

    name: ClassVar[str] = "Coordinate median"
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
        """The median as a step, and who was it how often."""
        D = round_.displacements
        step, weights = middle_means(D, (D.n - 1) // 2)
        return Decision(weights, "median of every coordinate", step=step), state
