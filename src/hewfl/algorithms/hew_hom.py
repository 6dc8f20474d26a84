"""Algorithm 3: homogeneous post-local HEW-Local SGD."""

from dataclasses import dataclass
from typing import ClassVar, final

from hewfl.aggregators.quadratic_model import (
    RATIO,
    STEP_NEEDS,
    check_ratio,
    minimise_model,
    ratio_at,
    step_sizes,
)
from hewfl.core.algorithm import Demands, FirstGradients, RoundModel, Traffic
from hewfl.core.displacements import LinearCombination
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Positive, Schedule, check_fields


@final
@dataclass(frozen=True, slots=True)
class HewHom:
    """Plain local branches, exact weights against the mean local gradient.

    Where no L is known, `Method(LocalSGD(total=…), ExactWeights(kappa=…,
    normalize="total_step"))` is the same rule with a Λ that has no units.

    Attributes:
        smoothness: L > 0.
        amplitude: ϑ_t, a number or a function of t; client i steps by
            η_i = ϑ_t/(L H_i), so that the total step η_iH_i is the same for all.
        curvature_ratio: Λ_t/L > 1, a number or a function of t.
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30);
            weights then may sum to less than one.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    smoothness: Positive
    amplitude: Schedule
    curvature_ratio: Schedule = RATIO
    null_endpoint: bool = False

    name: ClassVar[str] = "HEW (plain)"
    demands: ClassVar[Demands] = Demands(Traffic(common_scalars=1), STEP_NEEDS)

    def __post_init__(self) -> None:
        """Check that numbers are in range."""
        check_fields(self)
        check_ratio(self.curvature_ratio)

    def init(self, n: int, d: int, gradients: FirstGradients) -> None:
        """There is no state."""

    def plan(self, cohort: Cohort, state: None) -> LocalPlan:
        """One total step for all: η_i H_i = ϑ_t/L."""
        eta = step_sizes(self.smoothness, self.amplitude, cohort)  # Alg. 3, l. 2
        return LocalPlan(eta)

    def model(self, round_: Round, state: None) -> RoundModel:
        """The quadratic about ḡ = −(1/S) Σ Δ_i/(η_i H_i)."""
        total = round_.total_step
        mean_gradient = LinearCombination(-1 / (len(total) * total))  # Alg. 3, l. 9
        ratio = ratio_at(self.curvature_ratio, round_.cohort.round)
        return RoundModel(mean_gradient, ratio * self.smoothness, self.smoothness)

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """Exact weights against the mean of the normalised local displacements."""
        model = self.model(round_, state)
        decision = minimise_model(  # Alg. 3, l. 10
            round_, model, null=self.null_endpoint
        )
        return decision, state
