"""What stays the same in all rounds of a comparison, and what observers are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import Array
from hewfl.core.round import Decision, Round
from hewfl.problems.problem import Problem
from hewfl.server.federation import Federation
from hewfl.server.state import Lane


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
    def best(self) -> float:
        """F*, solved for once and only if someone asks."""
        return self.problem.optimum().objective
