"""A rule under step sizes that are not its own: one for all, or by work done."""

from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from hewfl.core.algorithm import Algorithm, Corrected, Demands, FirstGradients
from hewfl.core.array_types import Float64
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Array, Positive, check_fields, invalid

Pace = Literal["plain", "equal"]
Unit = Literal["steps", "epochs"]


@final
@dataclass(frozen=True, slots=True)
class Paced:
    """A rule whose clients step by another law than the rule's own.

        plain    η_i = η            one learning rate for all
        equal    η_i = η h/W_i      equal ground, W_i = H_i or, in epochs, H_i b_i/m_i

    Algorithms 2 and 3 let all clients cover the same ground, η_iH_i. The paper's deep
    lines tune one learning rate for all, and count H in epochs where clients do epochs:
    H_i b_i/m_i is how often client i saw its data. Then η_iW_i is the ground that the
    rule sees, too: Algorithm 3 takes −Δ_i/(η_iW_i) for the mean gradient of client i.
    Rules with control variates see steps as they are: theirs are means over steps.

    `MinibatchSGD` at equal ground with h = 1 takes one step of length η a round, along
    the mean of all gradients.

    Attributes:
        rule: any algorithm; its own step sizes are not used.
        step_size: η > 0.
        pace: the law.
        unit: what local work is counted in.
        reference: h > 0, the work at which a step of equal ground is η.
    """

    rule: Algorithm[Any]
    step_size: Positive
    pace: Pace = "plain"
    unit: Unit = "steps"
    reference: Positive = 1.0

    def __post_init__(self) -> None:
        """Check the names and that numbers are in range."""
        check_fields(self)
        if self.pace == "plain" and self.reference != 1:
            raise invalid("reference", "left out at pace plain", self.reference)

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.rule.name}, {self.pace} steps"

    @property
    def demands(self) -> Demands:
        """The rule's."""
        return self.rule.demands

    def init(self, n: int, d: int, gradients: FirstGradients) -> Any:
        """The rule's own state."""
        return self.rule.init(n, d, gradients)

    def variates(self, state: Any) -> Any:
        """The control variates of the rule, None where it has none."""
        return self.rule.variates(state) if isinstance(self.rule, Corrected) else None

    def plan(self, cohort: Cohort, state: Any) -> LocalPlan:
        """The rule's plan with these step sizes."""
        eta = np.full(len(cohort.clients), self.step_size)
        if self.pace == "equal":
            eta = eta * self.reference / (cohort.horizons * self._steps(cohort))
        return replace(self.rule.plan(cohort, state), step_sizes=eta)

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The rule's decision, with ground in the unit of the work."""
        if self.unit == "steps" or self.demands.variates:
            return self.rule.decide(round_, state)
        eta = round_.plan.step_sizes * self._steps(round_.cohort)  # η_iW_i = eta_i H_i
        seen = replace(round_, plan=replace(round_.plan, step_sizes=eta))
        return self.rule.decide(seen, state)

    def _steps(self, cohort: Cohort) -> Float64[Array, " s"]:
        """W_i/H_i: what one step is in the unit."""
        if self.unit == "steps":
            return np.ones(len(cohort.clients))
        return np.asarray(cohort.batch_sizes / cohort.data_sizes)
