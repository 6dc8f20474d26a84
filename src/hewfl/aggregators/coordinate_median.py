"""The median of every coordinate."""

from dataclasses import dataclass
from typing import ClassVar, final

from hewfl.aggregators.coordinates import middle_means
from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round


@final
@dataclass(frozen=True, slots=True)
class CoordinateMedian(Memoryless):
    """Every coordinate of the step is the median of the clients' [Yin2018].

        step_k = median over i of Δ_ik

    With an even number of clients it is the mean of the two middle values. The step is
    no combination of displacements, so it is given as such; `weights` says in which
    share of the coordinates a client was the median (two middle clients share, and so
    do ties), over the coordinates in which clients differ.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
    """

    name: ClassVar[str] = "Coordinate median"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The median as a step, and who was it how often."""
        D = round_.displacements
        step, weights = middle_means(D, (D.n - 1) // 2)
        return Decision(weights, "median of every coordinate", step=step), state
