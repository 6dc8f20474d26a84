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

from hewfl.control.tracking import Tracking, tracking_cap
from hewfl.core.array_types import Bool, Float64
from hewfl.core.validation import Array, ArrayLike, Mask, Reals, invalid, positives
from hewfl.theory.scalar import flow, printed_scalar_rate, scalar_rate
from hewfl.theory.statement import Hypothesis, Rate, below
from hewfl.theory.systems import System
from hewfl.theory.trajectories import (
    State,
    Trajectory,
    Whole,
    by_round,
    checked_state,
    solver_gaps,
    stacked,
    upper_state,
)

_OF_THE_FLOOR = ("2am ≤ 1 + β", "a ≤ 1")
"""Hypotheses that compare numbers of the floor, which exist only where it does."""
NO_TRACKING = Tracking(np.zeros(()), np.zeros(()), np.zeros(()))
"""A = B = C = 0, for rules that use no control variates."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Recursion:
    """Coefficients of g⁺ = min{f̄, D(g) + β g + γ q + δ} and q⁺ = A + B g + C q.

    All have shape (*c), or (rounds, *c) for a schedule.

    Examples:
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
    descent: Reals
    capped_descent: Reals
    growth: Reals
    staleness: Reals
    noise: Reals
    tracking: Tracking
    hypotheses: tuple[Hypothesis, ...]
    flows: bool = False
    slope: Reals | None = None
    comparator: Float64[Array, "... n"] | None = None

    @property
    def cap(self) -> Reals:
        """f̄ = LR²/2."""
        return self.system.cap

    def after(self, state: State, solver_gap: ArrayLike = 0.0) -> tuple[Array, Array]:
        """Bounds on gap and tracking error after a round.

        g is kept at f̄ or below, which lem:gap allows; there D(g) grows with g, so that
        bounds may be put for g and q.

        Args:
            state: (g, q) before it.
            solver_gap: ε, how far the weights may be from the best ones.

        Returns:
            (g⁺, q⁺).

        Raises:
            InvalidInputError: a negative number.
        """
        known, eps = checked_state("state", state), solver_gaps(solver_gap)
        return self._after(self.numbers, known, eps)

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
        for numbers in zip(*by_round(rounds, *self.numbers), strict=True):
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
            (a, β, d) with d = γ q̄ + δ + ε. Where γ = 0 the tracking error costs
            nothing and needs no cap. Among several configurations, d is NaN where
            C ≥ 1.

        Raises:
            InvalidInputError: C ≥ 1 in the only configuration, so that q has no cap
                (erratum E-04).
        """
        stale = capped_cost(self.staleness, self.tracking, tracking, self.cap)
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
            The rate, under the label of lem:scalar. Among several configurations it is
            NaN where it is undefined, and the hypothesis that fails says why.

        Raises:
            InvalidInputError: the only configuration has C ≥ 1 and γ > 0, so that q
                has no cap (erratum E-04), or a ≤ 0.
        """
        u, q, begins = upper_state(start, self.cap)
        law = self.at_cap(q, solver_gap)
        rate = convex_rate(law, self.cap, u, rounds, printed=printed)
        hypotheses = (*self.hypotheses, begins, self.contracts, *rate.hypotheses)
        return replace(rate, hypotheses=hypotheses)

    @property
    def contracts(self) -> Hypothesis:
        """The hypothesis C < 1, which is asked only where γ > 0."""
        C = np.where(self.staleness > 0, self.tracking.tracking, 0.0)
        return below("C < 1", C, 1.0)

    @property
    def floor(self) -> Reals:
        """The level that trajectories come down to; infinite where there is none.

        q follows g, so at rest q = (A + B g)/(1 − C): the floor is the g with

            g = D(g) + b g + d,     b = β + γB/(1 − C),     d = δ + γA/(1 − C),

        lower than that of the closed rate, which leaves q at the cap it has for f̄.
        """
        track, gamma = self.tracking, self.staleness
        C = np.where(gamma > 0, track.tracking, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            held = np.where(gamma > 0, gamma / (1 - np.minimum(C, 1)), 0.0)
            b = self.growth + held * np.where(gamma > 0, track.gap, 0.0)
            d = self.noise + held * np.where(gamma > 0, track.noise, 0.0)
            a, b, d = np.broadcast_arrays(self.descent, b, d)
            # T_a(g) + b g + d = g multiplied by 1 + a g is quadratic again
            bent, straight = (a * (1 - b), b + a * d) if self.flows else (a, b)
            fine = (bent > 0) & np.isfinite(straight) & np.isfinite(d)
            half = np.where(fine, straight, 0.0) / 2
            root = np.hypot(half, np.sqrt(np.where(fine, bent * d, 0.0)))
            # for b < 0 (a contraction) the sum cancels, d/(root − b/2) does not
            up = (half + root) / np.where(fine, bent, 1.0)
            down = np.where(d > 0, d / (root - half), 0.0)
            curved = np.where(half > 0, up, down)
            linear = np.where(b < 0, d / -b, np.inf)
        level = np.where(fine, curved, np.where(a == 0, linear, np.inf))
        return np.where((C < 1) & ~np.isnan(level), level, np.inf)

    def decrease(self, gap: Array, tracking: Array) -> Reals:
        """What a round takes off the gap: g − (D(g) + β g + γ q + δ).

        Args:
            gap: before the round.
            tracking: before the round.

        Returns:
            How much the bound falls; negative where it rises.
        """
        a, u = self.descent, gap
        fall = a * u * u / (1 + a * u) if self.flows else a * u * u
        stale = np.where(self.staleness > 0, self.staleness * tracking, 0.0)
        return np.asarray(fall - self.growth * u - stale - self.noise)

    def contraction(self, pl_constant: ArrayLike) -> Reals:
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

    @property
    def numbers(self) -> tuple[Array, ...]:
        """(a, β, γ, δ, f̄, A, B, C)."""
        k, chi = self, self.tracking
        law = (k.descent, k.growth, k.staleness, k.noise, k.cap)
        return (*law, chi.noise, chi.gap, chi.tracking)

    def _after(
        self, numbers: tuple[Any, ...], state: tuple[Array, Array], eps: Array
    ) -> tuple[Array, Array]:
        a, beta, gamma, delta, cap, A, B, C = numbers
        u, q = np.minimum(state[0], cap), state[1]
        with np.errstate(over="ignore", invalid="ignore"):  # of q, which has no cap
            if not self.flows:
                # β u and a u² are small beside u: their difference is taken first, or
                # its last digits would be lost in two roundings to the size of u
                moved = u + (beta * u - a * u * u)
            else:
                moved = flow(a, u) + beta * u
            # where γ = 0 an infinite q must not make 0 × ∞
            stale = np.where(gamma > 0, gamma * q, 0.0)
            after = moved + stale + delta + eps
            following = A + B * u + C * q
        return np.asarray(np.minimum(cap, after)), np.asarray(following)


def convex_rate(
    law: tuple[Array, Array, Array],
    cap: Reals,
    start: Reals,
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
        The rate; among several configurations NaN where d is, or where a ≤ 0.

    Raises:
        InvalidInputError: a ≤ 0 in the only configuration, or a negative number.
    """
    a, beta, d = np.broadcast_arrays(*law)
    falls = below("0 < a", 0.0, a)
    met = np.asarray(falls.holds & ~np.isnan(d))
    if a.ndim:  # stand-ins where nothing is defined; `only_where` takes them out again
        a, d = np.where(falls.holds, a, 1.0), np.where(met, d, 0.0)
    rate = scalar_rate(start, a, beta, d, rounds)
    if printed:
        # am² ≥ βm + d is met with equality at the root: not left to rounding
        as_printed = printed_scalar_rate(start, a, beta, d, rounds, rate.floor)
        rate = replace(as_printed, hypotheses=rate.hypotheses)
    rate = replace(rate, vacuous=np.asarray(rate.floor >= cap))
    if met.all():
        return rate
    extra = () if falls.holds.all() else (falls,)
    return only_where(met, replace(rate, hypotheses=(*extra, *rate.hypotheses)))


def capped_cost(
    staleness: Reals, tracking: Tracking, start: ArrayLike, cap: Reals
) -> Reals:
    """The cost γ q̄ of a tracking error at its cap: 0 where γ = 0, NaN where C ≥ 1.

    Raises:
        InvalidInputError: C ≥ 1 < ∞ and γ > 0 in the only configuration (E-04).
    """
    C, costs = tracking.tracking, staleness > 0
    unbounded = np.asarray(costs & (C >= 1))
    if not unbounded.ndim and costs:
        return np.asarray(staleness * tracking_cap(tracking, start, cap))
    steady = replace(tracking, tracking=np.where(costs & (C < 1), C, 0.0))
    cost = np.where(costs, staleness * tracking_cap(steady, start, cap), 0.0)
    return np.where(unbounded, np.nan, cost)


def only_where(met: Bool[Mask, "..."], rate: Rate, value: float = np.nan) -> Rate:
    """The rate where it is defined, and a value that says it is not elsewhere.

    Hypotheses about the floor compare numbers that exist only where it does: they fail
    elsewhere, with NaN on both sides.

    Args:
        met: where the rate is defined.
        rate: with stand-ins elsewhere.
        value: NaN, or infinity where a search is to pass through.
    """
    if met.all():
        return rate
    return replace(
        rate,
        value=np.where(met, rate.value, value),
        floor=np.where(met, rate.floor, value),
        vacuous=np.asarray(rate.vacuous | ~met),
        hypotheses=tuple(_told(h, met) for h in rate.hypotheses),
    )


def _told(h: Hypothesis, met: Bool[Mask, "..."]) -> Hypothesis:
    if h.name not in _OF_THE_FLOOR:
        return h
    left, right = (np.where(met, side, np.nan) for side in (h.left, h.right))
    return Hypothesis(h.name, left, right, np.asarray(h.holds & met))
