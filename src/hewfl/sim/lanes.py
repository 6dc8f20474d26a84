"""What stays the same in all rounds of a comparison, and what observers are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64

from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import Array
from hewfl.core.round import Decision, Round
from hewfl.problems.arrays import two_means
from hewfl.problems.problem import Problem
from hewfl.server.federation import Federation
from hewfl.server.state import Lane
from hewfl.server.worlds import Roles


@final
@dataclass(frozen=True, slots=True)
class Step:
    """What an observer is shown: one lane's round and what came of it.

    Attributes:
        round_number: rounds done before this one.
        lane: index.
        algorithm: of the lane.
        state: the algorithm's state before the round.
        round: all the rule saw.
        decision: what it decided.
        move: the step really taken, outer optimiser included.
        problem: what is optimised.
    """

    round_number: int
    lane: int
    algorithm: Algorithm[Any]
    state: Any
    round: Round
    decision: Decision
    move: Float64[Array, " d"]
    problem: Problem


Observer = Callable[[Step], Mapping[str, float]]


@final
@dataclass(frozen=True)
class Setting:
    """What stays the same in all rounds of a run."""

    problem: Problem
    federation: Federation
    lanes: Sequence[Lane]
    seed: int
    dtype: np.dtype[Any]

    @cached_property
    def roles(self) -> Roles:
        """The clients as they truly are; no rule is shown this."""
        batches = self.federation.batches(self.problem.n)
        return self.federation.world.roles(self.seed, batches)

    def objectives(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes 2"]:
        """Both means of the losses of those clients that the run is judged by."""
        problem, members = self.problem, self.roles.measured
        if len(members) == problem.n:
            return problem.objectives(anchors)
        losses = problem.client_losses(anchors)[:, members]
        return two_means(losses, problem.data_sizes[members])

    @cached_property
    def best(self) -> float:
        """F*, solved for once and only if someone asks."""
        return self.problem.optimum().objective
