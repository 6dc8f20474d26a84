"""A rule under step sizes that are not its own: one for all, or by work done."""

from dataclasses import dataclass, replace
from typing import Any, Literal, final, get_args

import numpy as np
from jaxtyping import Float64

from hewfl.core.algorithm import Algorithm, Corrected, Demands
from hewfl.core.checks import Array, invalid, positive
from hewfl.core.round import Decision, LocalPlan, Roster, Round

Pace = Literal["plain", "steps", "epochs"]


@final
@dataclass(frozen=True, slots=True)
class Paced:
    """A rule whose clients step by another law than the rule's own.

        plain     η_i = η                        one learning rate for all
        steps     η_i = η h/H_i                  equal ground, H counted in steps
        epochs    η_i = η h m_i/(H_i b_i)        equal ground, H counted in epochs

    Algorithms 2 and 3 let all clients cover the same ground, η_iH_i. The paper's deep
    lines tune one learning rate for all (`plain`), and count H in epochs where clients
    do epochs: then H_i b_i/m_i is how often client i saw its data. All else, weights
    and control variates, is the rule's: it sees the step sizes in the plan of the
    round. `MinibatchSGD` at pace `steps` with h = 1 takes one step of length η a round,
    along the mean of all gradients.

    Attributes:
        rule: any algorithm; its own step sizes are not used.
        step_size: η > 0.
        pace: the law.
        reference: h > 0, the steps or epochs at which a client's step is η.
    """

    rule: Algorithm[Any]
    step_size: float
    pace: Pace = "plain"
    reference: float = 1.0

    def __post_init__(self) -> None:
        """Check the name of the law and that numbers are in range."""
        positive("step_size", self.step_size)
        positive("reference", self.reference)
        if self.pace not in get_args(Pace):
            raise invalid(
                "pace", f"one of {', '.join(get_args(Pace))}", repr(self.pace)
            )
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

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> Any:
        """The rule's own state."""
        return self.rule.init(n, d, gradients)

    def variates(self, state: Any) -> Any:
        """The control variates of the rule, None where it has none."""
        return self.rule.variates(state) if isinstance(self.rule, Corrected) else None

    def plan(self, roster: Roster, state: Any) -> LocalPlan:
        """The rule's plan with these step sizes."""
        work = np.ones(len(roster.clients))
        if self.pace != "plain":
            work = roster.horizons / self.reference
        if self.pace == "epochs":
            work = work * roster.batch_sizes / roster.data_sizes
        return replace(self.rule.plan(roster, state), step_sizes=self.step_size / work)

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The rule's decision."""
        return self.rule.decide(round_, state)
