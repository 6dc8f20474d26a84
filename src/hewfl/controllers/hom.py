"""Algorithm 3: homogeneous post-local HEW-Local SGD."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64

from hewfl.aggregate.post_local import post_local_weights
from hewfl.core.algorithm import Demands, RoundModel, Traffic
from hewfl.core.checks import Array, invalid, positive
from hewfl.core.displacements import OwnSum
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.core.schedule import Schedule, at_round


@final
@dataclass(frozen=True, slots=True)
class HewHom:
    """Plain local branches, exact weights against the mean local gradient.

    Attributes:
        smoothness: L.
        amplitude: ϑ_t, a number or a function of t; client i steps by
            η_i = ϑ_t/(L H_i), so all cover the same ground.
        curvature_ratio: Λ_t/L > 1, a number or a function of t.
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30);
            weights then may sum to less than one.
    """

    smoothness: float
    amplitude: Schedule
    curvature_ratio: Schedule = 1.25
    null_endpoint: bool = False

    name: ClassVar[str] = "HEW (plain)"
    demands: ClassVar[Demands] = Demands(Traffic(common_scalars=1))  # ϑ

    def __post_init__(self) -> None:
        """Check that L, ϑ and Λ/L are in range."""
        check_post_local(self.smoothness, self.amplitude, self.curvature_ratio)

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> None:
        """There is no state."""

    def plan(self, roster: Roster, state: None) -> LocalPlan:  # noqa: ARG002 - none
        """Equal ground for all: η_i H_i = ϑ_t/L."""
        theta = at_round("amplitude", self.amplitude, roster.round)
        eta = theta / (self.smoothness * roster.horizons)  # Alg. 3, l. 2
        return LocalPlan(eta)

    def model(self, round_: Round, state: None) -> RoundModel:  # noqa: ARG002 - none
        """The quadratic about ḡ = −(1/S) Σ Δ_i/(η_i H_i)."""
        ground = round_.ground
        mean_gradient = OwnSum(-1 / (len(ground) * ground))  # Alg. 3, l. 9
        ratio = ratio_at(self.curvature_ratio, round_.roster.round)
        return RoundModel(mean_gradient, ratio * self.smoothness, self.smoothness)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Exact weights against the mean of the normalised local displacements."""
        model = self.model(round_, state)  # Alg. 3, l. 9-10
        return least_model(round_, model, null=self.null_endpoint), state


def least_model(round_: Round, model: RoundModel, *, null: bool) -> Decision:
    """Weights that minimise a round's quadratic model over the simplex.

    Args:
        round_: with the endpoints to choose from.
        model: what is minimised.
        null: whether standing still is one more endpoint.
    """
    endpoints, reference = round_.displacements, model.reference
    if null:
        endpoints = endpoints.with_null()
        if isinstance(reference, OwnSum):
            reference = OwnSum(np.append(reference.weights, 0.0))
    solution = post_local_weights(endpoints, reference, model.curvature)
    weights = solution.weights[: len(round_.roster.clients)]
    gap, value = float(solution.gap), float(solution.value)
    return Decision(weights, solution.status, gap, value=value)


def check_post_local(smoothness: float, amplitude: Schedule, ratio: Schedule) -> None:
    """Require what both post-local controllers rest on; schedules when they are asked.

    Raises:
        InvalidInputError: L or ϑ is not positive, or Λ/L is not above 1.
    """
    positive("smoothness", smoothness)
    if not callable(amplitude):
        positive("amplitude", amplitude)
    if not callable(ratio):
        positive("curvature_ratio", ratio)
        ratio_at(ratio, 0)


def ratio_at(ratio: Schedule, t: int) -> float:
    """Λ_t/L in round t.

    Raises:
        InvalidInputError: it is not above 1.
    """
    value = at_round("curvature_ratio", ratio, t)
    if not value > 1:
        raise invalid("curvature_ratio", "above 1 (Λ > L)", value)
    return value
