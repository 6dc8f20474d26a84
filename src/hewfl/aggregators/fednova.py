"""FedNova: normalised averaging."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.algorithm import Demands, Traffic
from hewfl.core.round import Decision, Round


@final
@dataclass(frozen=True, slots=True)
class FedNova(Memoryless):
    """Every client counts by its mean step, not by how many it took [Wang2020].

        d_i = −Δ_i/(η H_i)                   mean local gradient
        τ_eff = Σ_i p_i H_i                  effective number of steps
        x⁺ = x − τ_eff Σ_i p_i η d_i  =  x + Σ_i (τ_eff p_i/H_i) Δ_i

    This is the paper's default with plain SGD on the clients, ‖a_i‖₁ = H_i. Under
    partial participation p_i and τ_eff are over the active clients alone, with no
    factor n/S: ten of a hundred identical clients move the model by their common
    displacement. Weights sum to τ_eff Σ p_i/H_i ≥ 1, and to one when horizons are
    equal.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        by_size: p_i = m_i/Σ_{j∈S} m_j as in the paper; otherwise p_i = 1/S.
    """

    by_size: bool = True

    name: ClassVar[str] = "FedNova"
    demands: ClassVar[Demands] = Demands(Traffic(up_scalars=1))  # H_i

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = τ_eff p_i/H_i."""
        H, m = round_.cohort.horizons, round_.cohort.data_sizes
        p = m / m.sum() if self.by_size else np.full(len(m), 1 / len(m))
        tau_eff = p @ H
        return Decision(tau_eff * p / H, "weights by normalised steps"), state
