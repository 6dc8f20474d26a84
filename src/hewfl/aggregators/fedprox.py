"""FedProx: federated averaging with a pull towards the anchor."""

from dataclasses import dataclass
from typing import ClassVar, final

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Nonnegative


@final
@dataclass(frozen=True, slots=True)
class FedProx(Memoryless):
    """Clients work on F_i(y) + (μ/2)‖y − x‖², endpoints weigh by data size [Li2020].

        y ← y − η (g + μ (y − x)),     x⁺ = x + Σ_i (m_i/m) Δ_i,     m = Σ_{j∈S} m_j

    The paper draws clients with probability m_i/Σm and averages them equally; here the
    environment draws the clients, and the weights carry the same objective. Its
    γ-inexact local solution is H_i steps of SGD. μ = 0 is FedAvg.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        proximal: μ ≥ 0, absolute, in the units of L.
    """

    proximal: Nonnegative

    name: ClassVar[str] = "FedProx"

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:
        """One step size for all, η = s/L, and the proximal term."""
        return LocalPlan(self.step_sizes(cohort), proximal=self.proximal)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = m_i/m."""
        m = round_.cohort.data_sizes
        return Decision(m / m.sum(), "weights by data size"), state
