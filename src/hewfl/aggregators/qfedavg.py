"""q-FedAvg: clients with a high loss count more."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.algorithm import Demands, Traffic
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Nonnegative, invalid


@final
@dataclass(frozen=True, slots=True)
class QFedAvg(Memoryless):
    """Steps on the fair objective Σ_i F_i^{q+1}/(q + 1) [Li2020b].

        Δw_i = −Δ_i/η
        D_i = F_i^q Δw_i
        h_i = q F_i^{q−1} ‖Δw_i‖² + F_i^q/η
        x⁺ = x − Σ_i D_i / Σ_i h_i

    F_i = F_i(x) ≥ 0. The paper has its Lipschitz estimate L for 1/η, the inverse of the
    step size that was best at q = 0; the authors' code has 1/η itself. So Δw_i is the
    gradient after one local step; more of them do not change the factor. The paper
    draws clients by data size, which puts the sizes into the objective; here all active
    clients enter alike, so that q = 0 is `UniformLocalSGD`.

    Where F_i = 0 and q > 0 the limit is taken: ‖∇F_i‖² ≤ 2L F_i, so D_i and h_i vanish.
    (The authors' code adds 1e-10 to every loss instead.) A negative F_i has no power q:
    the rule refuses the round, and a run stops this entry alone.

    Attributes:
        smoothness: L > 0, of the clients' losses.
        step_scale: s > 0; every client takes every step with η = s/L.
        q: fairness, q ≥ 0.
    """

    q: Nonnegative

    name: ClassVar[str] = "q-FedAvg"
    demands: ClassVar[Demands] = Demands(Traffic(up_scalars=1), losses=True)  # F_i(x)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = (F_i^q/η) / Σ_j h_j.

        Raises:
            InvalidInputError: losses are absent, or one is negative and q > 0.
        """
        losses = round_.losses
        if losses is None:
            raise invalid("losses", "given", losses)
        if self.q > 0 and not (losses >= 0).all():
            rule = "nonnegative (F_i to the power q is weighed)"
            raise invalid("losses", rule, losses[~(losses >= 0)][0])
        q, inverse = self.q, self.smoothness / self.step_scale  # 1/η
        sq_norms = inverse**2 * np.diagonal(round_.displacements.gram())

        top = float(losses.max()) or 1.0  # D and h share top^q, which might overflow
        F_q = (losses / top) ** q
        F_q1 = np.divide(F_q, losses, out=np.zeros_like(losses), where=losses > 0)
        h = q * F_q1 * sq_norms + inverse * F_q
        weights = inverse * F_q / (h.sum() or 1.0)
        return Decision(weights, f"weights by loss to the power {q:g}"), state
