"""A rule of one's own: the median of every coordinate, a step that no weights make."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from hewfl import Cohort, Decision, Demands, LocalPlan, Round


@final
@dataclass(frozen=True)
class Median:
    """x⁺ = x + median of Δ_i, entry by entry."""

    step_size: float = 0.1

    name: ClassVar[str] = "median"
    demands: ClassVar[Demands] = Demands()

    def init(self, n: int, d: int, gradients: Any) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:  # noqa: ARG002 - none
        return LocalPlan(np.full(len(cohort.clients), self.step_size))

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        blocks = round_.displacements.blocks()
        step = np.concatenate([np.median(block, axis=0) for block in blocks])
        s = len(round_.cohort.clients)
        return Decision(np.full(s, 1 / s), "coordinate-wise", step=step), state
