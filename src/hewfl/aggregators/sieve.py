"""FedAvg among clients that do not point against the others, lengths clipped."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.agreement import mean_cosines
from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Nonnegative, Positive

LEAST = 0.4
"""τ for many clients: the choice is told in docs/flower.md."""


@final
@dataclass(frozen=True, slots=True)
class Sieve(Memoryless):
    """FedAvg, with less weight for clients that turn back and for long steps.

        a_i = (1/(n − 1)) Σ_{j≠i} ⟨Δ_i, Δ_j⟩/(‖Δ_i‖‖Δ_j‖)
        k_i = min(1, max(0, 1 + a_i/τ))
        w_i = m_i k_i / Σ_j m_j k_j · min(1, c · median_j ‖Δ_j‖/‖Δ_i‖)

    A rule of this library. A client whose direction agrees with the others at all has
    FedAvg's weight. From a mean cosine of zero down to −τ the weight falls in a
    straight line to nothing. It must not fall at once: where data differ, cosines of
    good clients are around zero, and a rule that drops all below zero trains on some of
    the clients only (on one stock app of docs/flower.md it lost 0.1 of accuracy). And
    near the end of a training the steps cancel, Σ m_iΔ_i ≈ 0: then the mean cosine of n
    steps of one length is −1/(n − 1) for everybody. So τ is twice that for few clients,

        τ = max(0.4, 2/(n − 1)).

    The step of a client longer than c times the median counts as one of that length,
    and weights then sum to less than one. τ = 0 drops everybody with a_i ≤ 0; a large τ
    only clips. Where nobody moved, or all turn back, the weights are those of FedAvg,
    clipped.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        tolerance: τ ≥ 0; as above if it is not given.
        clip: c > 0, longest step that counts in full, over the median.
    """

    tolerance: Nonnegative | None = None
    clip: Positive = 2.0

    name: ClassVar[str] = "Sieve"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ m_i k_i, then clipped; FedAvg's own where every k_i is zero."""
        m = round_.cohort.data_sizes
        if len(m) == 1:
            return Decision(np.ones(1), "one client"), state
        a, lengths = mean_cosines(round_.displacements)
        tau = max(LEAST, 2 / (len(a) - 1)) if self.tolerance is None else self.tolerance
        k = np.clip(1 + a / tau, 0.0, 1.0) if tau > 0 else (a > 0) * 1.0
        status = f"{int((k > 0).sum())} of {len(k)} clients go along with the others"
        if not k.any():
            k, status = np.ones(len(k)), "no client goes along with the others"
        weights = m * k / (m * k).sum()
        moved = lengths[lengths > 0]
        if len(moved) > 0:
            most = self.clip * float(np.median(moved))
            weights = weights * (most / np.maximum(lengths, most))
        return Decision(weights, status), state
