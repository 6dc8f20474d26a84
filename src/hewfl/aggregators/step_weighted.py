"""Weights by the number of local steps."""

from dataclasses import dataclass
from typing import ClassVar, final

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.algorithm import Demands, Traffic
from hewfl.core.round import Decision, Round


@final
@dataclass(frozen=True, slots=True)
class StepWeighted(Memoryless):
    """Endpoints weighted by the work behind them.

        x⁺ = x + Σ_i (H_i/H) Δ_i,     H = Σ_{j∈S} H_j

    What NVFLARE does by default (`weigh_by_local_iter`) and, with tokens for steps,
    what Decoupled DiLoCo does on unequal replicas. The displacement has grown with H_i
    already, so busy clients count about quadratically: the bias that FedNova was made
    to remove.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
    """

    name: ClassVar[str] = "Step-weighted"
    demands: ClassVar[Demands] = Demands(Traffic(up_scalars=1))  # H_i

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = H_i/H."""
        H = round_.cohort.horizons
        return Decision(H / H.sum(), "weights by local steps"), state
