"""Algorithm 3: homogeneous post-local HEW-Local SGD."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float, Float64

from hewfl.aggregate.pieces import Pieces
from hewfl.aggregate.post_local import OwnSum, post_local_weights
from hewfl.core.checks import Array, invalid, positive
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
    traffic: ClassVar[Traffic] = Traffic(common_scalars=1)  # ϑ
    needs_losses: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check ranges."""
        check_post_local(self.smoothness, self.amplitude, self.curvature_ratio)

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> None:
        """There is no state."""

    def plan(self, roster: Roster, state: None) -> LocalPlan:  # noqa: ARG002 - none
        """Equal ground for all: η_i H_i = ϑ/L."""
        eta = self.amplitude / (self.smoothness * roster.horizons)  # Alg. 3, l. 2
        return LocalPlan(eta)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Exact weights against the mean of the normalised local displacements."""
        return self.weigh(round_, state), state

    def weigh(
        self,
        round_: Round | PiecewiseRound,
        state: None,  # noqa: ARG002 - none
    ) -> Decision:
        """The same from displacements wherever they lie."""
        reference = mean_gradient(round_)  # Alg. 3, l. 9
        if self.null_endpoint:
            reference = OwnSum(np.append(reference.weights, 0.0))
        curvature = self.curvature_ratio * self.smoothness
        endpoints = with_null(round_.displacements, null=self.null_endpoint)
        solution = post_local_weights(endpoints, reference, curvature)  # Alg. 3, l. 10
        weights = solution.weights[: len(round_.roster.clients)]
        gap, value = float(solution.gap), float(solution.value)
        return Decision(weights, solution.status, gap, value=value)

    def follow(
        self, round_: Round | PiecewiseRound, state: None, *, owned: bool
    ) -> None:
        """There is no state."""


def mean_gradient(round_: Round | PiecewiseRound) -> OwnSum:
    """ḡ = −(1/S) Σ Δ_i/(η_i H_i), the reference of Algorithm 3, by its weights."""
    ground = round_.plan.step_sizes * round_.roster.horizons
    return OwnSum(-1 / (len(ground) * ground))


def check_post_local(smoothness: float, amplitude: float, ratio: float) -> None:
    """The rules both post-local controllers share."""
    positive("smoothness", smoothness)
    positive("amplitude", amplitude)
    if not positive("curvature_ratio", ratio) > 1:
        raise invalid("curvature_ratio", "above 1 (Λ > L)", ratio)


def with_null(
    displacements: Float[Array, "s d"] | Pieces, *, null: bool
) -> Float[Array, "m d"] | Pieces:
    """The endpoints to choose from, with standing still among them if asked for."""
    if not null:
        return displacements
    if isinstance(displacements, Pieces):
        return displacements.with_null()
    return np.vstack([displacements, np.zeros_like(displacements[:1])])
