"""HEW-Fixed: HEW's branches with weights fixed by horizon, batch and noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from hewfl.core.algorithm import Demands, FirstGradients, Traffic
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Nonnegative, Positive, Validated, invalid, positives
from hewfl.displacements.control_variates import (
    ControlVariates,
    Start,
    Variates,
    correction,
    start_variates,
)


@final
@dataclass(frozen=True, slots=True)
class HewFixed(Validated):
    """Branches of equal ground, weights a_i ∝ (H_i b_i / v_i²)^λ.

    The paper names the method without defining it (erratum E-28): λ = 1 is its
    noise-optimal comparator a*, λ = 0 uniform weights.

    Attributes:
        smoothness: L.
        amplitude: ϑ; η_i = ϑ/(L H_i).
        power: λ ≥ 0.
        variance: v_i², one number or one per client; equal by default.
        corrected: use control variates, as Algorithm 2 does.
        start: where they start.
    """

    smoothness: Positive
    amplitude: Positive
    power: Nonnegative = 1.0
    variance: Annotated[float | Sequence[float], positives] = 1.0
    corrected: bool = False
    start: Start = "gradient"

    @property
    def name(self) -> str:
        """How tables call it."""
        rule = "uniform" if self.power == 0 else "horizon"
        return f"HEW-Fixed ({rule}{', corrected' if self.corrected else ''})"

    @property
    def demands(self) -> Demands:
        """Those of Algorithm 2 or 3, whichever branches are used."""
        if not self.corrected:
            return Demands(Traffic(common_scalars=1))
        traffic = Traffic(down=2, paper_up=2, common_scalars=1)
        return Demands(traffic, gradients=self.start == "gradient", variates=True)

    def init(self, n: int, d: int, gradients: FirstGradients) -> ControlVariates | None:
        """Control variates, if any.

        Raises:
            InvalidInputError: `variance` is neither one number nor one per client.
        """
        check_per_client("variance", self.variance, n)
        return start_variates(n, d, self.start, gradients) if self.corrected else None

    def variates(self, state: Variates | None) -> Variates | None:
        """The state itself."""
        return state

    def plan(self, cohort: Cohort, state: Variates | None) -> LocalPlan:
        """Branches of equal ground."""
        eta = self.amplitude / (self.smoothness * cohort.horizons)
        if state is None:
            return LocalPlan(eta)
        return LocalPlan(eta, correction(state, cohort))

    def decide(
        self, round_: Round, state: Variates | None
    ) -> tuple[Decision, Variates | None]:
        """The fixed law, normalised over those who took part."""
        cohort = round_.cohort
        variance = np.broadcast_to(np.asarray(self.variance), cohort.population)
        worth = cohort.horizons * cohort.batch_sizes / variance[cohort.clients]
        law = (worth / worth.max()) ** self.power
        following = None if state is None else state.after(round_)
        return Decision(law / law.sum(), "fixed weights"), following


def check_per_client(name: str, value: float | Sequence[float], n: int) -> None:
    """Require one number for all clients, or one for each of n."""
    if np.size(value) not in (1, n):
        raise invalid(name, f"one number or {n} of them", f"{np.size(value)} numbers")
