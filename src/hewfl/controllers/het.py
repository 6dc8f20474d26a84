"""Algorithm 2: heterogeneous post-local HEW-Local SGD."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float64

from hewfl.aggregate.post_local import post_local_weights
from hewfl.aggregate.variates import (
    ControlVariates,
    Start,
    correction,
    start_variates,
    updated,
)
from hewfl.controllers.hom import check_post_local, with_null
from hewfl.core.checks import Array, invalid
from hewfl.core.round import (
    Decision,
    LocalPlan,
    PiecewiseRound,
    Roster,
    Round,
    Traffic,
)


@final
@dataclass(frozen=True, slots=True)
class HewHet:
    """Corrected local branches, exact weights against the server control variate.

    Attributes:
        smoothness: L.
        amplitude: ϑ, common to all clients of a round; η_i = ϑ/(L H_i).
        curvature_ratio: Λ/L > 1.
        start: control variates start at zero or at a minibatch gradient; with zero the
            first round picks the shortest endpoint (erratum E-29).
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30).
    """

    smoothness: float
    amplitude: float
    curvature_ratio: float = 1.25
    start: Start = "gradient"
    null_endpoint: bool = False

    name: ClassVar[str] = "HEW (corrected)"
    traffic: ClassVar[Traffic] = Traffic(  # Alg. 2, l. 1, 10
        down=2, paper_up=2, common_scalars=1
    )
    needs_losses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check ranges."""
        check_post_local(self.smoothness, self.amplitude, self.curvature_ratio)
        if self.start not in ("zero", "gradient"):
            raise invalid("start", "one of zero, gradient", repr(self.start))

    @property
    def needs_gradients(self) -> bool:
        """Where the control variates start at gradients."""
        return self.start == "gradient"

    def init(
        self, n: int, d: int, gradients: Float64[Array, "n d"] | None
    ) -> ControlVariates:
        """c_i,0 and their mean c_0."""
        return start_variates(n, d, self.start, gradients)

    def plan(self, roster: Roster, state: ControlVariates) -> LocalPlan:
        """Corrected branches of equal ground."""
        eta = self.amplitude / (self.smoothness * roster.horizons)  # Alg. 2, l. 3
        return LocalPlan(eta, correction(state, roster))  # Alg. 2, l. 6

    def decide(
        self, round_: Round, state: ControlVariates
    ) -> tuple[Decision, ControlVariates]:
        """Exact weights against c_t, then the control variates of the next round."""
        return self.weigh(round_, state), self.follow(round_, state, owned=False)

    def weigh(self, round_: Round | PiecewiseRound, state: ControlVariates) -> Decision:
        """Exact weights against c_t, from displacements wherever they lie."""
        curvature = self.curvature_ratio * self.smoothness
        endpoints = with_null(round_.displacements, null=self.null_endpoint)
        solution = post_local_weights(  # Alg. 2, l. 15-16
            endpoints, state.server, curvature
        )
        weights = solution.weights[: len(round_.roster.clients)]
        gap, value = float(solution.gap), float(solution.value)
        return Decision(weights, solution.status, gap, value=value)

    def follow(
        self,
        round_: Round | PiecewiseRound,
        state: ControlVariates,
        *,
        owned: bool,
    ) -> ControlVariates:
        """The control variates of the next round."""
        return updated(state, round_, owned=owned)  # Alg. 2, l. 9, 12-14, 18
