"""Any rule on branches of equal ground."""

from dataclasses import dataclass, replace
from typing import Any, final

from hewfl.core.algorithm import Algorithm, Demands, FirstGradients
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import invalid, shown


@final
@dataclass(frozen=True, slots=True)
class EqualGround:
    """A rule whose clients step by η/H_i in place of its own η: η_iH_i is one number.

    With one step size for all a client that does eight steps moves about eight times as
    far as one that does one. A rule that looks at distances takes that for quality. On
    equal ground, as in Algorithms 2 and 3, displacements differ by direction and noise
    alone. The rule's `step_scale` is then the amplitude ϑ of those algorithms.

    Attributes:
        rule: any method without control variates.

    Raises:
        InvalidInputError: a hyper-parameter is out of its range.
    """

    rule: Algorithm[Any]

    def __post_init__(self) -> None:
        """Check that there is a rule, and that it corrects no branches."""
        if isinstance(self.rule, type) or not isinstance(self.rule, Algorithm):
            raise invalid("rule", "an algorithm", shown(self.rule))
        if self.rule.demands.variates:
            # c_i is a gradient divided by the rule's own η_iH_i
            raise invalid("rule", "without control variates", self.rule.name)

    @property
    def name(self) -> str:
        """The rule's, and where it stands."""
        return f"{self.rule.name}, equal ground"

    @property
    def demands(self) -> Demands:
        """The rule's."""
        return self.rule.demands

    def init(self, n: int, d: int, gradients: FirstGradients) -> Any:
        """The rule's own state."""
        return self.rule.init(n, d, gradients)

    def plan(self, cohort: Cohort, state: Any) -> LocalPlan:
        """The rule's plan, every step size divided by H_i."""
        plan = self.rule.plan(cohort, state)
        return replace(plan, step_sizes=plan.step_sizes / cohort.horizons)

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The rule's own decision."""
        return self.rule.decide(round_, state)
