"""The lanes of a comparison, and what stays the same in all its rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, invalid, shown
from hewfl.core.round import Algorithm, Decision, Round
from hewfl.problems.problem import Problem
from hewfl.server.federation import Federation
from hewfl.server.outer import Outer


@final
@dataclass(frozen=True, slots=True)
class Lane:
    """One method of a comparison: an algorithm under an outer optimiser."""

    algorithm: Algorithm[Any]
    outer: Outer = field(default_factory=Outer)
    label: str | None = None

    def __post_init__(self) -> None:
        """Check kinds."""
        if not is_algorithm(self.algorithm):
            rule = "an algorithm, such as FedAvg(L, 0.1)"
            raise invalid("algorithm", rule, shown(self.algorithm))
        if not isinstance(self.outer, Outer):
            raise invalid("outer", "an Outer", shown(self.outer))

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.label is not None:
            return self.label
        momentum = self.outer.momentum
        return self.algorithm.name + (f", momentum {momentum:g}" if momentum else "")


def is_algorithm(value: object) -> bool:
    """Whether it is an algorithm; the class of one is none."""
    return isinstance(value, Algorithm) and not isinstance(value, type)


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
@dataclass(frozen=True, slots=True)
class LaneState:
    """All that a lane carries from round to round.

    Attributes:
        anchor: x_t.
        memory: momentum of the outer optimiser.
        algorithm: the algorithm's own state.
        scalars: numbers sent since the start.
        paper_scalars: the same in the paper's count.
        diverged: stopped, because a step or the objective left all bounds.
        refused: stopped, because its rule could not decide a round.
    """

    anchor: Float64[Array, " d"]
    memory: Float64[Array, " d"]
    algorithm: Any
    scalars: int
    paper_scalars: int
    diverged: bool
    refused: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it takes part in no more rounds."""
        return self.diverged or self.refused


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
