"""What a rule may look at in a round of ranks, and what came of it."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int64

from hewfl.core.checks import Ints, invalid
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.server.measure import Measured
from hewfl.torch.faults import RankError
from hewfl.torch.probing import measured_step
from hewfl.torch.replica import Replica
from hewfl.torch.work import Arrivals


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round.

    Attributes:
        roster: ranks heard, and their work.
        decision: the rule's.
        state: of the rule after it.
        measured: along the step, where losses are.
    """

    roster: Roster
    decision: Decision
    state: Any
    measured: Measured | None = None

    @property
    def heard(self) -> Int64[Ints, " s"]:
        """Ranks that count."""
        return self.roster.clients


def round_of(
    replica: Replica,
    anchor: Any,
    data: Any,
    heard: Int64[Ints, " s"],
    arrivals: Arrivals,
) -> Round:
    """All that the rule may look at.

    Raises:
        InvalidInputError: tokens are asked for and were not counted.
    """
    H, tokens = arrivals.steps[heard], arrivals.tokens[heard]
    if replica.rule.choice == "tokens" and tokens.min() < 1:
        raise invalid("tokens", "counted on every rank", tokens.tolist())
    counts = tokens.min() > 0 and replica.rule.choice != "sieve"  # equal by that name
    sizes = np.where(counts, tokens, 1)
    n, t = replica.wire.ranks, replica.rounds
    roster = Roster(heard, H, np.ones_like(H), sizes, n, t)
    return Round(anchor, data, roster, LocalPlan(arrivals.travelled[heard] / H))


def measured_of(
    replica: Replica,
    steps: list[torch.Tensor],
    decision: Decision,
    heard: Int64[Ints, " s"],
) -> Measured | None:
    """How far the ranks' losses say to go, and the steps made so long.

    Raises:
        RankError: the model would leave its range there.
    """
    if replica.probe is None or replica.options.outer.measure is None:
        return None
    voters = heard, decision.weights
    found = measured_step(replica.model, replica.wire, replica.probe, steps, voters)
    for step in steps:
        step.mul_(found.length)
    if not replica.model.fits(steps):
        raise beyond(replica, decision)
    return found


def beyond(replica: Replica, decision: Decision) -> RankError:
    """That the model would leave its range."""
    text = (
        f"the model after round {replica.rounds + 1}, or a control variate, would not "
        f"be finite, though displacements are (outer step size "
        f"{replica.options.outer.step:g}, weights {decision.weights.tolist()}): all "
        "is left as it was"
    )
    return RankError(text)
