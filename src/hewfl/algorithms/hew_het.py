"""Algorithm 2: heterogeneous post-local HEW-Local SGD."""

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
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Positive, Schedule, check_fields
from hewfl.displacements.control_variates import (
    ControlVariates,
    Start,
    Variates,
    correction,
    start_variates,
)


@final
@dataclass(frozen=True, slots=True)
class HewHet:
    """Corrected local branches, exact weights against the server control variate.

    Where no L is known, `Method(LocalSGD(total=…, variates="gradient"),
    ExactWeights("variate", kappa=…))` is the same rule with a Λ that has no units.

    Attributes:
        smoothness: L > 0.
        amplitude: ϑ_t, common to all clients of a round, a number or a function of t;
            η_i = ϑ_t/(L H_i).
        curvature_ratio: Λ_t/L > 1, a number or a function of t.
        start: control variates start at zero or at a minibatch gradient; with zero the
            first round picks the shortest endpoint (erratum E-29).
        null_endpoint: add Δ_0 = 0 to the choice, so that Ψ ≤ 0 always (erratum E-30).

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    smoothness: Positive
    amplitude: Schedule
    curvature_ratio: Schedule = RATIO
    start: Start = "gradient"
    null_endpoint: bool = False

    name: ClassVar[str] = "HEW (corrected)"

    def __post_init__(self) -> None:
        """Check ranges, and the start's name."""
        check_fields(self)
        check_ratio(self.curvature_ratio)

    @property
    def demands(self) -> Demands:
        """Two vectors down; gradients where the control variates start at them."""
        traffic = Traffic(down=2, paper_up=2, common_scalars=1)  # Alg. 2, l. 1, 10
        return Demands(
            traffic, STEP_NEEDS, gradients=self.start == "gradient", variates=True
        )

    def init(self, n: int, d: int, gradients: FirstGradients) -> ControlVariates:
        """c_i,0 and their mean c_0."""
        return start_variates(n, d, self.start, gradients)

    def variates(self, state: Variates) -> Variates:
        """The state itself."""
        return state

    def plan(self, cohort: Cohort, state: Variates) -> LocalPlan:
        """Corrected branches with an equal total step."""
        eta = step_sizes(self.smoothness, self.amplitude, cohort)  # Alg. 2, l. 3
        return LocalPlan(eta, correction(state, cohort))  # Alg. 2, l. 6

    def model(self, round_: Round, state: Variates) -> RoundModel:
        """The quadratic about c_t."""
        ratio = ratio_at(self.curvature_ratio, round_.cohort.round)
        return RoundModel(state.server, ratio * self.smoothness, self.smoothness)

    def decide(self, round_: Round, state: Variates) -> tuple[Decision, Variates]:
        """Exact weights against c_t, then the control variates of the next round."""
        model = self.model(round_, state)
        decision = minimise_model(  # Alg. 2, l. 15-16
            round_, model, null=self.null_endpoint
        )
        return decision, state.after(round_)  # Alg. 2, l. 9, 12-14, 18
