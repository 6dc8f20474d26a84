"""FedMGDA+: a common descent direction of normalised updates."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Nonnegative, Positive
from hewfl.displacements.post_local import post_local_weights
from hewfl.solver.box_simplex import solve_box_simplex


@final
@dataclass(frozen=True, slots=True)
class FedMGDAPlus(Memoryless):
    """The shortest combination of unit updates, weights near given ones [Hu2022].

        u_i = Δ_i/‖Δ_i‖
        λ = argmin ‖Σ_i λ_i u_i‖²  over the simplex with ‖λ − λ⁰‖_∞ ≤ ε
        x⁺ = x + η Σ_i λ_i u_i

    At ε = 0 this is a fixed average of directions, at ε ≥ 1 the whole simplex is open
    and the step raises no client's loss to first order. Solved exactly; `gap` is
    certified, in units of ½‖Σλu‖² ≤ ½. A client that did not move has u_i = 0: it
    stands at its own optimum, and where ε permits the model stays.

    The paper leaves η and λ⁰ to be chosen; η must vanish over the rounds, and decays
    geometrically in its experiments. Here η is `server_step` times the mean of ‖Δ_j‖,
    so that it has no units and shrinks with the updates; `relative=False` makes it a
    length, as the paper's η is, constant over the rounds.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        epsilon: ε ≥ 0; 1 is FedLab's form of the method, 0.1 FLGo's.
        server_step: > 0, the global step size; 1 as in FLGo.
        relative: whether `server_step` is in units of the mean displacement.
        by_size: λ⁰_i = m_i/Σ_{j∈S} m_j; otherwise 1/S.
    """

    epsilon: Nonnegative = 1.0
    server_step: Positive = 1.0
    relative: bool = True
    by_size: bool = True

    name: ClassVar[str] = "FedMGDA+"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = η λ_i/‖Δ_i‖."""
        m, D = round_.cohort.data_sizes, round_.displacements
        lengths = np.sqrt(np.diagonal(D.gram()))
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        u = D.from_matrix(D.matrix() * inverse[:, None])

        lambda_0 = m / m.sum() if self.by_size else np.full(len(m), 1 / len(m))
        lam, gap = self._nearest(u, lambda_0)

        eta = self.server_step * (lengths.mean() if self.relative else 1.0)
        status = f"unit updates, weights within {self.epsilon:g} of the given"
        return Decision(eta * lam * inverse, status, gap), state

    def _nearest(
        self, u: Displacements, lambda_0: Float64[Array, " s"]
    ) -> tuple[Float64[Array, " s"], float]:
        """Find argmin ‖Σλu‖² over the simplex with |λ − λ⁰| ≤ ε, and its gap."""
        if self.epsilon >= 1:
            solution = post_local_weights(u, None, 1.0)
            return solution.weights, float(solution.gap)
        lower = np.maximum(lambda_0 - self.epsilon, 0.0)
        upper = np.minimum(lambda_0 + self.epsilon, 1.0)
        return solve_box_simplex(u.products(), lower, upper, lambda_0)
