"""Shortest combinations of updates."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.aggregators.averaging import client_shares, weighting_needs
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Bool, Float64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Mask, Nonnegative, Positive, Share
from hewfl.displacements.post_local import post_local_weights
from hewfl.solver.box_simplex import solve_box_simplex


@final
@dataclass(frozen=True, slots=True)
class FedMGDAPlus(Aggregator):
    """The shortest combination of unit updates, weights near given ones [Hu2022].

        u_i = Δ_i/‖Δ_i‖
        λ = argmin ‖Σ_i λ_i u_i‖²  over the simplex with ‖λ − λ⁰‖_∞ ≤ ε
        x⁺ = x + η Σ_i λ_i u_i

    At ε = 0 this is a fixed average of directions, at ε ≥ 1 the whole simplex is open
    and the step raises no client's loss to first order. Solved exactly; `gap` is
    certified, in units of ½‖Σλu‖² ≤ ½. A client that did not move has u_i = 0: it
    is at its own optimum, and where ε permits it the step is zero.

    The paper leaves η and λ⁰ to be chosen; η must vanish over the rounds, and decays
    geometrically in its experiments. Here η is `step_size` times the mean of ‖Δ_j‖,
    so that it has no units and shrinks with the updates; `relative=False` makes it a
    length, as the paper's η is, constant over the rounds.

    Attributes:
        epsilon: ε ≥ 0; 1 is FedLab's form of the method, 0.1 FLGo's.
        step_size: > 0, the global step size; 1 as in FLGo.
        relative: whether `step_size` is in units of the mean displacement.
        by: what λ⁰_i is proportional to.
    """

    epsilon: Nonnegative = 1.0
    step_size: Positive = 1.0
    relative: bool = True
    by: Literal["equal", "size"] = "size"

    name: ClassVar[str] = "FedMGDA+"

    @property
    def needs(self) -> frozenset[Need]:
        """Every entry, and what λ⁰ is made of."""
        return weighting_needs(self.by) | {"entries"}

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i = η λ_i/‖Δ_i‖."""
        D = round_.displacements
        lengths = np.sqrt(np.diagonal(D.gram()))
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        u = D.from_matrix(D.matrix() * inverse[:, None])

        lambda_0 = client_shares(self.by, round_.cohort)
        lam, gap = self._nearest(u, lambda_0)

        eta = self.step_size * (lengths.mean() if self.relative else 1.0)
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
class FedAWARE(Aggregator):
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
        alpha: 0 < α ≤ 1, the share of the new update; at 1 there is no averaging. 0.5
            in the authors' scripts.
        step_size: η_g > 0; 1 in the authors' scripts.
        unit: whether memories are normalised.
    """

    alpha: Share = 0.5
    step_size: Positive = 1.0
    unit: bool = False

    name: ClassVar[str] = "FedAWARE"
    needs: ClassVar[frozenset[Need]] = frozenset({"entries", "clients"})

    def init(self, n: int, d: int) -> FedAWAREState:
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
        step = self.step_size * memory.combine(solution.weights)
        weights, gap = solution.weights[S], float(solution.gap)
        return Decision(weights, solution.status, gap, step), FedAWAREState(m, seen)
