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


@final
@dataclass(frozen=True, slots=True)
class HewHom:
    """Plain local branches, exact weights against the mean local gradient.

    Attributes:
        smoothness: L.
        amplitude: ϑ; client i steps by η_i = ϑ/(L H_i), so all cover the same ground.
        curvature_ratio: Λ/L > 1.
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30);
            weights then may sum to less than one.
    """

    smoothness: float
    amplitude: float
    curvature_ratio: float = 1.25
    null_endpoint: bool = False

    name: ClassVar[str] = "HEW (plain)"
    demands: ClassVar[Demands] = Demands(Traffic(common_scalars=1))  # ϑ

    def __post_init__(self) -> None:
        """Check that L, ϑ and Λ/L are in range."""
        check_post_local(self.smoothness, self.amplitude, self.curvature_ratio)

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> None:
        """There is no state."""

    def plan(self, roster: Roster, state: None) -> LocalPlan:  # noqa: ARG002 - none
        """Equal ground for all: η_i H_i = ϑ/L."""
        eta = self.amplitude / (self.smoothness * roster.horizons)  # Alg. 3, l. 2
        return LocalPlan(eta)

    def model(self, round_: Round, state: None) -> RoundModel:  # noqa: ARG002 - none
        """The quadratic about ḡ = −(1/S) Σ Δ_i/(η_i H_i)."""
        ground = round_.ground
        mean_gradient = OwnSum(-1 / (len(ground) * ground))  # Alg. 3, l. 9
        curvature = self.curvature_ratio * self.smoothness
        return RoundModel(mean_gradient, curvature, self.smoothness)

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


def check_post_local(smoothness: float, amplitude: float, ratio: float) -> None:
    """Require what both post-local controllers rest on.

    Raises:
        InvalidInputError: L or ϑ is not positive, or Λ/L is not above 1.
    """
    positive("smoothness", smoothness)
    positive("amplitude", amplitude)
    if not positive("curvature_ratio", ratio) > 1:
        raise invalid("curvature_ratio", "above 1 (Λ > L)", ratio)
