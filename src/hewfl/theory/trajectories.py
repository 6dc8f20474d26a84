"""Bounds on gap and tracking error round by round: states, starts, iteration."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Reals,
    invalid,
    nonnegatives,
    shown,
    wholes,
)
from hewfl.theory.statement import Hypothesis, at_most

if TYPE_CHECKING:
    Whole = int
else:  # run-time type checks let other values through to `one_whole` and its text
    Whole = Any
State = tuple[ArrayLike, ArrayLike]
"""Bounds on gap and tracking error: (u, χ), (U, Q) or (g, q)."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """Bounds round by round; the first axis is the round, from 0 to T.

    Attributes:
        gap: u_t, on the expected gap.
        tracking: χ_t, on every expected squared tracking error.
        hypotheses: what must hold for them to be bounds.
    """

    gap: Float64[Array, "rounds ..."]
    tracking: Float64[Array, "rounds ..."]
    hypotheses: tuple[Hypothesis, ...]


def stacked(
    states: list[tuple[Array, Array]], hypotheses: tuple[Hypothesis, ...]
) -> Trajectory:
    """The states (u_t, χ_t) of all rounds as one record."""
    gap, tracking = (
        np.stack(np.broadcast_arrays(*column)) for column in zip(*states, strict=True)
    )
    return Trajectory(gap, tracking, hypotheses)


def one_whole(name: str, value: ArrayLike, *, least: int = 0) -> int:
    """A single whole number, as an int; a list of them is refused by name."""
    number = wholes(name, value, least=least)
    if number.size != 1:
        raise invalid(name, "one whole number", shown(value))
    return int(number.item())


def checked_state(name: str, state: State) -> tuple[Reals, Reals]:
    """Validated (u, χ) ≥ 0."""
    return nonnegatives(name, state[0]), nonnegatives(name, state[1])


def upper_state(start: State, cap: Reals) -> tuple[Reals, Reals, Hypothesis]:
    """Validated (u₀, χ₀) and the hypothesis u₀ ≤ f̄ (eq:sur-init-main)."""
    u, chi = checked_state("start", start)
    return u, chi, at_most("u₀ ≤ f̄", u, cap)


def solver_gaps(value: ArrayLike) -> Reals:
    """Validated ε ≥ 0, how far a value may be from its minimum (E-18, E-31)."""
    return nonnegatives("solver_gap", value)


def by_round(
    rounds: Whole | None, *coefficients: Reals
) -> tuple[Float64[Array, "rounds ..."], ...]:
    """Coefficients with the round as first axis, all of one shape.

    Args:
        rounds: T to hold them constant, None where their first axis is the round.
        coefficients: the arrays.

    Raises:
        InvalidInputError: `rounds` is None and no coefficient has an axis.
    """
    shape = np.broadcast_shapes(*(value.shape for value in coefficients))
    if rounds is None and not shape:
        raise invalid("rounds", "given where nothing changes over rounds", None)
    if rounds is not None:
        shape = (one_whole("rounds", rounds), *shape)
    return tuple(np.broadcast_to(value, shape) for value in coefficients)
