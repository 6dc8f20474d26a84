"""The recursion behind every rate over many rounds, and what it gives.

    g⁺ = min{f̄, D(g) + β g + γ q + δ + ε},     q⁺ = A + B g + C q

bounds the expected gap g and the expected squared tracking error q after a round by
those before it. D(g) is g − a g² or T_a(g) = g/(1 + a g). The families of the paper
differ in their coefficients alone: each builds a `Recursion`, which iterates itself and
reads closed rates off its scalar form u⁺ ≤ u − a u² + β u + d.
"""

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, invalid, positives
from hewfl.predictive.tracking import Tracking, tracking_cap
from hewfl.theory.scalar import flow, printed_scalar_rate, scalar_rate
from hewfl.theory.statement import Hypothesis, Rate, below
from hewfl.theory.systems import System
from hewfl.theory.trajectories import (
    State,
    Trajectory,
    Whole,
    by_round,
    solver_gaps,
    stacked,
    upper_state,
)

NO_TRACKING = Tracking(np.zeros(()), np.zeros(()), np.zeros(()))
"""A = B = C = 0, for rules that use no control variates."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Recursion:
    """Coefficients of g⁺ = min{f̄, D(g) + β g + γ q + δ} and q⁺ = A + B g + C q.

    All have shape (*c), or (rounds, *c) for a schedule.

    >>> from hewfl.theory import PostLocal, System, plain_coefficients
    >>> system = System(1.0, 1.0, [1] * 10, 1, 0.0)
    >>> k = plain_coefficients(system, PostLocal(0.25, 2.0), variant="sharp")
    >>> k.trajectory((0.5, 0.0), 2).gap.round(4)
    array([0.5   , 0.4848, 0.4706])

    Attributes:
        system: the constants; f̄ is its cap.
        descent: a.
        capped_descent: a/(1 + a f̄) where D is T_a, which is at most g − a g²/(1 + a f̄)
            on [0, f̄]; `descent` itself where D(g) = g − a g².
        growth: β.
        staleness: γ.
        noise: δ.
        tracking: A, B and C.
        hypotheses: what must hold for both inequalities to be true.
        flows: whether D is T_a.
        slope: σ, what a unit of ‖∇F‖² takes off the gap; None where it is not stated.
        comparator: the fixed weights the round is compared with, clients last; None
            where they are uniform.
    """

    system: System
    descent: Float64[Array, "..."]
    capped_descent: Float64[Array, "..."]
    growth: Float64[Array, "..."]
    staleness: Float64[Array, "..."]
    noise: Float64[Array, "..."]
    tracking: Tracking
    hypotheses: tuple[Hypothesis, ...]
    flows: bool = False
    slope: Float64[Array, "..."] | None = None
    comparator: Float64[Array, "... n"] | None = None

    @property
    def cap(self) -> Float64[Array, "..."]:
        """f̄ = LR²/2."""
        return self.system.cap

    def after(self, state: State, solver_gap: ArrayLike = 0.0) -> tuple[Array, Array]:
        """Bounds on gap and tracking error after a round.

        Args:
            state: (g, q) before it, checked already.
            solver_gap: ε, how far the weights may be from the best ones.

        Returns:
            (g⁺, q⁺).
        """
        u, q = np.asarray(state[0]), np.asarray(state[1])
        return self._after(self._numbers(), (u, q), np.asarray(solver_gap))

    def trajectory(
        self, start: State, rounds: Whole | None, *, solver_gap: ArrayLike = 0.0
    ) -> Trajectory:
        """Bounds on gap and tracking error of all rounds.

        Args:
            start: (g₀, q₀).
            rounds: T for constant coefficients, None for a schedule.
            solver_gap: ε, how far the weights may be from the best ones.

        Returns:
            The bounds of rounds 0 to T.

        Raises:
            InvalidInputError: a negative number, or `rounds` None without a schedule.
        """
        eps, (u, q, begins) = solver_gaps(solver_gap), upper_state(start, self.cap)
        states = [(u, q)]
        for numbers in zip(*by_round(rounds, *self._numbers()), strict=True):
            states.append(self._after(numbers, states[-1], eps))
        return stacked(states, (*self.hypotheses, begins))

    def at_cap(
        self, tracking: ArrayLike, solver_gap: ArrayLike = 0.0
    ) -> tuple[Array, Array, Array]:
        """The scalar form u⁺ ≤ u − a u² + β u + d with q at its cap q̄.

        Args:
            tracking: q₀.
            solver_gap: ε, how far the weights may be from the best ones.

        Returns:
            (a, β, d) with d = γ q̄ + δ + ε.

        Raises:
            InvalidInputError: C ≥ 1, so that q has no cap (erratum E-04).
        """
        stale = self.staleness * tracking_cap(self.tracking, tracking, self.cap)
        d = np.asarray(stale + self.noise + solver_gaps(solver_gap))
        return self.capped_descent, self.growth, d

    def rate(
        self,
        start: State,
        rounds: ArrayLike,
        *,
        solver_gap: ArrayLike = 0.0,
        printed: bool = False,
    ) -> Rate:
        """The closed rate: `convex_rate` of the scalar form.

        Args:
            start: (g₀, q₀).
            rounds: T.
            solver_gap: ε, how far the weights may be from the best ones.
            printed: the paper's closed form.

        Returns:
            The rate, under the label of lem:scalar.

        Raises:
            InvalidInputError: C ≥ 1, so that q has no cap (erratum E-04), or a = 0.
        """
        u, q, begins = upper_state(start, self.cap)
        law = self.at_cap(q, solver_gap)
        rate = convex_rate(law, self.cap, u, rounds, printed=printed)
        contracts = below("C < 1", self.tracking.tracking, 1)
        hypotheses = (*self.hypotheses, begins, contracts, *rate.hypotheses)
        return replace(rate, hypotheses=hypotheses)

    def contraction(self, pl_constant: ArrayLike) -> Float64[Array, "..."]:
        """The factor a = 2μσ − β of g⁺ ≤ (1 − a) g + γ q + δ under the PL condition.

        For plain branches it is ρ of eq:realized-hom-PL-rec.

        Args:
            pl_constant: μ > 0 with ‖∇F‖² ≥ 2μ(F − F*).

        Returns:
            a, not positive where nothing contracts.

        Raises:
            InvalidInputError: μ ≤ 0, or a recursion that states no σ.
        """
        mu = positives("pl_constant", pl_constant)
        if self.slope is None:
            raise invalid("recursion", "one that states σ", "none")
        return np.asarray(2 * mu * self.slope - self.growth)

    def _numbers(self) -> tuple[Array, ...]:
        k, chi = self, self.tracking
        law = (k.descent, k.growth, k.staleness, k.noise, k.cap)
        return (*law, chi.noise, chi.gap, chi.tracking)

    def _after(
        self, numbers: tuple[Any, ...], state: tuple[Array, Array], eps: Array
    ) -> tuple[Array, Array]:
        a, beta, gamma, delta, cap, A, B, C = numbers
        u, q = state
        with np.errstate(over="ignore"):  # q may grow without limit; u is capped
            if not self.flows:
                # β u and a u² are small beside u: their difference is taken first, or
                # its last digits would be lost in two roundings to the size of u
                moved = u + (beta * u - a * u * u)
            else:
                moved = flow(a, u) + beta * u
            after = moved + gamma * q + delta + eps
            following = A + B * u + C * q
        return np.asarray(np.minimum(cap, after)), np.asarray(following)


def convex_rate(
    law: tuple[Array, Array, Array],
    cap: Float64[Array, "..."],
    start: Float64[Array, "..."],
    rounds: ArrayLike,
    *,
    printed: bool,
) -> Rate:
    """The rate of u⁺ ≤ u − a u² + β u + d beside the cap f̄ (lem:scalar).

    Always to the positive root m: smaller solutions of the paper's conditions are no
    floors (erratum E-07). Vacuous where m ≥ f̄ (E-09).

    Args:
        law: (a, β, d).
        cap: f̄.
        start: u₀ ≥ 0.
        rounds: T.
        printed: the paper's closed form m + 1/(1/(u₀ − m)₊ + aT).

    Returns:
        The rate.

    Raises:
        InvalidInputError: a = 0, or a negative number.
    """
    rate = scalar_rate(start, *law, rounds)
    if printed:
        # am² ≥ βm + d is met with equality at the root: not left to rounding
        as_printed = printed_scalar_rate(start, *law, rounds, rate.floor)
        rate = replace(as_printed, hypotheses=rate.hypotheses)
    return replace(rate, vacuous=np.asarray(rate.floor >= cap))
