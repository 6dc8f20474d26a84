"""What the optimised surrogate system is worth against fixed controls (th:sur-cvx).

Fixed weights w and amplitudes θ turn the certificate into a recursion,

    u⁺ ≤ u − a u² + β u + γ χ + δ,     χ⁺ = A + B u + C χ,

which the optimised system cannot exceed. With χ below its cap χ̄ it is scalar, and u
tends to the m with a m² = β m + γ χ̄ + δ. The records and the last step are shared with
the post-local controllers, whose bounds (U_t, Q_t) have the same form.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, invalid
from hewfl.core.tracking import tracking_cap
from hewfl.theory.comparators import ComparatorCoefficients
from hewfl.theory.scalar import (
    nonnegatives,
    printed_scalar_rate,
    scalar_rate,
    whole_rounds,
)
from hewfl.theory.statement import Hypothesis, Rate, at_most, below

State = tuple[ArrayLike, ArrayLike]
"""Bounds to start from: (u₀, χ₀), or (U₀, Q₀)."""


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


def comparator_recursion(
    coefficients: ComparatorCoefficients,
    start: State,
    rounds: int,
    *,
    solver_gap: ArrayLike = 0.0,
) -> Trajectory:
    """The recursion that the optimised system does not exceed (eq:cvx-rec-main).

        u⁺ = min{f̄, u − a u² + β u + γ χ + δ + ε},     χ⁺ = A + B u + C χ

    On [0, f̄] the right side grows with u for amplitudes up to 4, so bounds may be put
    for u and χ.

    Args:
        coefficients: of the comparator.
        start: (u₀, χ₀).
        rounds: T.
        solver_gap: ε, how far the controls played may be from the least J (E-18).
    """
    k, eps = coefficients, nonnegatives("solver_gap", solver_gap)
    a, beta, gamma, delta = k.descent, k.growth, k.staleness, k.noise
    u, chi, begins = upper_state(start, k.cap)
    states = [(u, chi)]
    for _ in range(int(whole_rounds(rounds))):
        with np.errstate(over="ignore"):  # χ may grow without limit
            after = u + (beta * u - a * u * u) + gamma * chi + delta + eps
        u, chi = np.asarray(np.minimum(k.cap, after)), k.tracking.after(u, chi)
        states.append((u, chi))
    return trajectory(states, (*k.hypotheses, begins))


def comparator_rate(
    coefficients: ComparatorCoefficients,
    start: State,
    rounds: ArrayLike,
    *,
    solver_gap: ArrayLike = 0.0,
    printed: bool = False,
) -> Rate:
    """The closed rate (th:sur-cvx, eq:cvx-rec-closed-main).

        m = (β + √(β² + 4ad))/(2a),     d = γ χ̄ + δ + ε
        u_T ≤ m + 1/(1/(u₀ − m)₊ + aT)                        printed

    Ours is `scalar_rate`, which also counts that the decay to m is geometric.

    Args:
        coefficients: of the comparator.
        start: (u₀, χ₀).
        rounds: T.
        solver_gap: ε, how far the controls played may be from the least J (E-18).
        printed: the paper's closed form.

    Raises:
        InvalidInputError: C ≥ 1, so that χ has no cap, or a = 0.
    """
    k = coefficients
    u, chi, begins = upper_state(start, k.cap)
    stale = k.staleness * tracking_cap(k.tracking, chi, k.cap)
    d = stale + k.noise + nonnegatives("solver_gap", solver_gap)
    law = (k.descent, k.growth, np.asarray(d))
    rate = convex_rate(law, k.cap, u, rounds, printed=printed)
    contracts = below("C < 1", k.tracking.tracking, 1)
    hypotheses = (*k.hypotheses, begins, contracts, *rate.hypotheses)
    return replace(rate, label="th:sur-cvx", hypotheses=hypotheses)


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
        shape = (int(whole_rounds(rounds)), *shape)
    return tuple(np.broadcast_to(value, shape) for value in coefficients)
