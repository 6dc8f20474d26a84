"""Federated averaging."""

from dataclasses import dataclass
from typing import ClassVar, final

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round


@final
@dataclass(frozen=True, slots=True)
class FedAvg(Memoryless):
    """Federated averaging: endpoints weighted by data size [McMahan2017].

        x⁺ = x + Σ_i (m_i/m) Δ_i,     m = Σ_{j∈S} m_j

    The paper's pseudo-code once wrote n_k/n with n over all clients, which shrinks the
    step under partial participation; a later version divides by the sum over S, as
    here, so that weights sum to one. Momentum (FedAvgM) is the engine's outer
    optimiser.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
    """

    name: ClassVar[str] = "FedAvg"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = m_i/m."""
        m = round_.cohort.data_sizes
        return Decision(m / m.sum(), "weights by data size"), state
