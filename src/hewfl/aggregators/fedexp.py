"""FedExP: federated averaging with extrapolation."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Positive


@final
@dataclass(frozen=True, slots=True)
class FedExP(Memoryless):
    """The mean displacement, scale_decision as far as clients disagree [Jhunjhunwala2023].

        Δ̄ = (1/S) Σ_i Δ_i
        η_g = max{1, Σ_i ‖Δ_i‖² / (2S (‖Δ̄‖² + ε))}
        x⁺ = x + η_g Δ̄

    The paper weighs clients equally, and so do we (the authors' code weighs them by
    data size); it also reports the mean of the last two iterates, which is a matter of
    evaluation and not done here.

    ε has the units of a squared displacement and is tuned in the paper: at half the
    mean of ‖Δ_i‖² and above there is no extrapolation at all. The authors' code adds
    S ε in place of ε, with ε = 1e-3 for CIFAR and CINIC and 0.1 for EMNIST, and shrinks
    it with η² from round to round; to have theirs, give S times their value.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        epsilon: ε > 0, keeps η_g down when the mean vanishes.
    """

    epsilon: Positive = 1e-3

    name: ClassVar[str] = "FedExP"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = η_g/S."""
        S, G = len(round_.cohort.clients), round_.displacements.gram()
        mean = max(G.sum(), 0.0) / S**2  # ‖Δ̄‖²
        ratio = np.trace(G) / (2 * S * (mean + self.epsilon))
        eta_g = max(1.0, float(ratio))
        status = f"equal weights, server step {eta_g:.3g}"
        return Decision(np.full(S, eta_g / S), status), state
