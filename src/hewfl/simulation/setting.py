"""What stays the same in all rounds of a comparison, and what observers are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from hewfl.core.algorithm import Algorithm
from hewfl.core.array_types import Float, Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array
from hewfl.federation.federation import Federation
from hewfl.federation.scenario import FaultAssignment
from hewfl.problems.arrays import two_means
from hewfl.problems.problem import Problem
from hewfl.server.state import Entry


@final
@dataclass(frozen=True, slots=True)
class Step:
    """What an observer is shown: one entry's round and what came of it.

    Attributes:
        round_number: rounds done before this one.
        entry: index.
        algorithm: of the entry.
        state: the algorithm's state before the round.
        round: all the rule saw.
        decision: what it decided.
        move: the step really taken, server optimiser included.
        problem: what is optimised.
    """

    round_number: int
    entry: int
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
    entries: Sequence[Entry]
    seed: int
    dtype: np.dtype[Any]

    @cached_property
    def roles(self) -> FaultAssignment:
        """The clients as they truly are; no rule is shown this."""
        batches = self.federation.batches(self.problem.n)
        return self.federation.scenario.roles(self.seed, batches)

    def objectives(self, anchors: Float[Any, "entries d"]) -> Float64[Any, "entries 2"]:
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
