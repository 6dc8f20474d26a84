"""Algorithm 2: heterogeneous post-local HEW-Local SGD."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float64

from hewfl.aggregate.variates import (
    ControlVariates,
    Start,
    Variates,
    check_start,
    correction,
    start_variates,
)
from hewfl.controllers.hom import check_post_local, least_model, ratio_at
from hewfl.core.algorithm import Demands, RoundModel, Traffic
from hewfl.core.checks import Array
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.core.schedule import Schedule, at_round


@final
@dataclass(frozen=True, slots=True)
class HewHet:
    """Corrected local branches, exact weights against the server control variate.

    Attributes:
        smoothness: L.
        amplitude: ϑ_t, common to all clients of a round, a number or a function of t;
            η_i = ϑ_t/(L H_i).
        curvature_ratio: Λ_t/L > 1, a number or a function of t.
        start: control variates start at zero or at a minibatch gradient; with zero the
            first round picks the shortest endpoint (erratum E-29).
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30).
    """

    smoothness: float
    amplitude: Schedule
    curvature_ratio: Schedule = 1.25
    start: Start = "gradient"
    null_endpoint: bool = False

    name: ClassVar[str] = "HEW (corrected)"

    def __post_init__(self) -> None:
        """Check that L, ϑ and Λ/L are in range, and the name of the start."""
        check_post_local(self.smoothness, self.amplitude, self.curvature_ratio)
        check_start(self.start)

    @property
    def demands(self) -> Demands:
        """Two vectors down; gradients where the control variates start at them."""
        traffic = Traffic(down=2, paper_up=2, common_scalars=1)  # Alg. 2, l. 1, 10
        return Demands(traffic, gradients=self.start == "gradient", variates=True)

    def init(
        self, n: int, d: int, gradients: Float64[Array, "n d"] | None
    ) -> ControlVariates:
        """c_i,0 and their mean c_0."""
        return start_variates(n, d, self.start, gradients)

    def variates(self, state: Variates) -> Variates:
        """The state itself."""
        return state

    def plan(self, roster: Roster, state: Variates) -> LocalPlan:
        """Corrected branches of equal ground."""
        theta = at_round("amplitude", self.amplitude, roster.round)
        eta = theta / (self.smoothness * roster.horizons)  # Alg. 2, l. 3
        return LocalPlan(eta, correction(state, roster))  # Alg. 2, l. 6

    def model(self, round_: Round, state: Variates) -> RoundModel:
        """The quadratic about c_t."""
        ratio = ratio_at(self.curvature_ratio, round_.roster.round)
        return RoundModel(state.server, ratio * self.smoothness, self.smoothness)

    def decide(self, round_: Round, state: Variates) -> tuple[Decision, Variates]:
        """Exact weights against c_t, then the control variates of the next round."""
        model = self.model(round_, state)
        decision = least_model(  # Alg. 2, l. 15-16
            round_, model, null=self.null_endpoint
        )
        return decision, state.after(round_)  # Alg. 2, l. 9, 12-14, 18
