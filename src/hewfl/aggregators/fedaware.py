"""FedAWARE: the shortest combination of the clients' remembered updates."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.one_step_size import PlainBranches
from hewfl.core.algorithm import FirstGradients
from hewfl.core.array_types import Bool, Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Mask, Positive, Share
from hewfl.displacements.post_local import post_local_weights


@final
@dataclass(frozen=True, slots=True)
class FedAWAREState:
    """What the server remembers of each client.

    Attributes:
        memory: m_i, moving average of displacements; zero before the first.
        seen: clients that have taken part.
    """

    memory: Float64[Array, "n d"]
    seen: Bool[Mask, " n"]


@final
@dataclass(frozen=True, slots=True)
class FedAWARE(PlainBranches):
    """A step along the direction of maximal gradient diversity [Zeng2023].

        m_i ← (1 − α) m_i + α Δ_i                                          i ∈ S
        λ = argmin over the simplex of ‖Σ_i λ_i m_i‖²
        x⁺ = x + η_g Σ_i λ_i m_i

    λ ranges over all clients met so far, present or not, so the step is no combination
    of the round's displacements: it is given as such, and `weights` holds λ_i of the
    active clients. The paper solves for λ by Frank-Wolfe; here it is exact.

    The authors' code puts m_i/‖m_i‖ for m_i in the last two lines, which makes η_g a
    length: `unit=True`. Otherwise clients with few local steps are short, and so heavy.

    Our choice: m_i is Δ_i when client i comes first. The authors' code starts at zero
    and averages by data size until all have been met; its first m_i is α Δ_i, the same
    direction, and later ones count the first update less, by the factor α.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        alpha: 0 < α ≤ 1, the share of the new update; at 1 there is no averaging. 0.5
            in the authors' scripts.
        server_step: η_g > 0; 1 in the authors' scripts.
        unit: whether memories are normalised.
    """

    alpha: Share = 0.5
    server_step: Positive = 1.0
    unit: bool = False

    name: ClassVar[str] = "FedAWARE"

    def init(self, n: int, d: int, gradients: FirstGradients) -> FedAWAREState:
        """Nothing seen yet."""
        return FedAWAREState(np.zeros((n, d)), np.zeros(n, dtype=np.bool_))

    def decide(
        self, round_: Round, state: FedAWAREState
    ) -> tuple[Decision, FedAWAREState]:
        """The least-norm point of the memory, scaled."""
        S, alpha = round_.cohort.clients, self.alpha
        share = np.where(state.seen[S], alpha, 1.0)[:, None]
        m, seen = state.memory.copy(), state.seen.copy()
        m[S] = (1 - share) * m[S] + share * round_.displacements.matrix()
        seen[S] = True

        memory = round_.displacements.from_matrix(m)
        if self.unit:  # a zero row stays
            lengths = np.sqrt(np.diagonal(memory.gram()))[:, None]
            memory = memory.from_matrix(m / np.where(lengths > 0, lengths, 1.0))
        solution = post_local_weights(memory, None, 1.0, active=seen)
        step = self.server_step * memory.combine(solution.weights)
        weights, gap = solution.weights[S], float(solution.gap)
        return Decision(weights, solution.status, gap, step), FedAWAREState(m, seen)
