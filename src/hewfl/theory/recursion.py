"""What the recursions of gap and tracking error share: states, rounds, closed rates.

A controller bounds (gap, tracking) after a round by a function of the same two before
it. `played` iterates that function, `convex_rate` reads a closed bound off its scalar
form u⁺ ≤ u − a u² + β u + d.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, invalid, nonnegatives, wholes
from hewfl.predictive.tracking import Tracking, tracking_cap
from hewfl.theory.scalar import printed_scalar_rate, scalar_rate
from hewfl.theory.statement import Hypothesis, Rate, at_most, below

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


def played(
    step: Callable[[tuple[Array, Array]], tuple[Array, Array]],
    start: State,
    rounds: int,
    hypotheses: tuple[Hypothesis, ...],
) -> Trajectory:
    """The states of T rounds, for a step that is the same every round."""
    states = [(nonnegatives("start", start[0]), nonnegatives("start", start[1]))]
    for _ in range(int(wholes("rounds", rounds))):
        states.append(step(states[-1]))
    return trajectory(states, hypotheses)


def convex_rate(
    law: tuple[Array, Array, Array],
    cap: Float64[Array, "..."],
    start: Float64[Array, "..."],
    rounds: ArrayLike,
    *,
    printed: bool,
) -> Rate:
    """The rate of u⁺ ≤ u − a u² + β u + d for law = (a, β, d), beside the cap f̄.

    Always to the positive root m: smaller solutions of the paper's conditions are no
    floors (erratum E-07). Vacuous where m ≥ f̄ (E-09).
    """
    rate = scalar_rate(start, *law, rounds)
    if printed:
        # am² ≥ βm + d is met with equality at the root: not left to rounding
        as_printed = printed_scalar_rate(start, *law, rounds, rate.floor)
        rate = replace(as_printed, hypotheses=rate.hypotheses)
    return replace(rate, vacuous=np.asarray(rate.floor >= cap))


@runtime_checkable
class Coupled(Protocol):
    """What u⁺ ≤ u − a u² + β u + γ χ + δ, χ⁺ = A + B u + C χ are made of, a aside."""

    @property
    def growth(self) -> Float64[Array, "..."]:
        """β."""

    @property
    def staleness(self) -> Float64[Array, "..."]:
        """γ."""

    @property
    def noise(self) -> Float64[Array, "..."]:
        """δ."""

    @property
    def cap(self) -> Float64[Array, "..."]:
        """f̄."""

    @property
    def tracking(self) -> Tracking:
        """A, B and C."""

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """When both recursions are theorems."""


def coupled_rate(
    law: Coupled,
    descent: Float64[Array, "..."],
    start: State,
    rounds: ArrayLike,
    *,
    solver_gap: ArrayLike,
    printed: bool,
) -> Rate:
    """The rate of u with χ at its cap χ̄: `convex_rate` at d = γ χ̄ + δ + ε.

    Raises:
        InvalidInputError: C ≥ 1, so that χ has no cap (erratum E-04), or a = 0.
    """
    k = law
    u, chi, begins = upper_state(start, k.cap)
    stale = k.staleness * tracking_cap(k.tracking, chi, k.cap)
    d = np.asarray(stale + k.noise + nonnegatives("solver_gap", solver_gap))
    rate = convex_rate((descent, k.growth, d), k.cap, u, rounds, printed=printed)
    contracts = below("C < 1", k.tracking.tracking, 1)
    hypotheses = (*k.hypotheses, begins, contracts, *rate.hypotheses)
    return replace(rate, hypotheses=hypotheses)


def trajectory(
    states: list[tuple[Array, Array]], hypotheses: tuple[Hypothesis, ...]
) -> Trajectory:
    """The states (u_t, χ_t) of all rounds as one record."""
    gap, tracking = (
        np.stack(np.broadcast_arrays(*column)) for column in zip(*states, strict=True)
    )
    return Trajectory(gap, tracking, hypotheses)


def upper_state(
    start: State, cap: Float64[Array, "..."]
) -> tuple[Float64[Array, "..."], Float64[Array, "..."], Hypothesis]:
    """Checked (u₀, χ₀) and the hypothesis u₀ ≤ f̄ (eq:sur-init-main)."""
    u, chi = nonnegatives("start", start[0]), nonnegatives("start", start[1])
    return u, chi, at_most("u₀ ≤ f̄", u, cap)


def unrolled(
    rounds: int | None, *coefficients: Float64[Array, "..."]
) -> tuple[Float64[Array, "rounds ..."], ...]:
    """Coefficients with the round as first axis, all of one shape.

    Where `rounds` is given they are held constant; where it is None their first axis
    already is the round.
    """
    shape = np.broadcast_shapes(*(value.shape for value in coefficients))
    if rounds is None and not shape:
        raise invalid("rounds", "given where nothing changes over rounds", None)
    if rounds is not None:
        shape = (int(wholes("rounds", rounds)), *shape)
    return tuple(np.broadcast_to(value, shape) for value in coefficients)
