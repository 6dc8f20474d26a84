"""What the optimised surrogate system is worth against fixed controls (th:sur-cvx).

Fixed weights w and amplitudes θ turn the certificate into a recursion,

    u⁺ ≤ u − a u² + β u + γ χ + δ,     χ⁺ = A + B u + C χ,

which the optimised system cannot exceed. With χ below its cap χ̄ it is scalar, and u
tends to the m with a m² = β m + γ χ̄ + δ.
"""

from dataclasses import replace

import numpy as np

from hewfl.core.checks import Array, ArrayLike, nonnegatives
from hewfl.core.shapes import broadcasting
from hewfl.theory.comparators import ComparatorCoefficients
from hewfl.theory.recursion import (
    State,
    Trajectory,
    coupled_rate,
    played,
    upper_state,
)
from hewfl.theory.statement import Rate


@broadcasting
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

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        u, chi = state
        with np.errstate(over="ignore"):  # χ may grow without limit
            after = u + (beta * u - a * u * u) + gamma * chi + delta + eps
        return np.asarray(np.minimum(k.cap, after)), k.tracking.after(u, chi)

    _, _, begins = upper_state(start, k.cap)
    return played(step, start, rounds, (*k.hypotheses, begins))


@broadcasting
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
    k, eps = coefficients, solver_gap
    rate = coupled_rate(k, k.descent, start, rounds, solver_gap=eps, printed=printed)
    return replace(rate, label="th:sur-cvx")
