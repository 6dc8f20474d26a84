"""The recursion behind every rate over many rounds, and its bounds.

    g⁺ = min{f̄, D(g) + β g + γ q + δ + ε},     q⁺ = A + B g + C q

bounds the expected gap g and the expected squared tracking error q after a round by
those before it. D(g) is g − a g² or T_a(g) = g/(1 + a g). The families of the paper
differ in their coefficients alone: each builds a `Recursion`. `Recursion.trajectory`
iterates it. `Recursion.rate` is the closed bound of its scalar form
u⁺ ≤ u − a u² + β u + d.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hewfl.control.tracking import Tracking, tracking_cap
from hewfl.core.array_types import Bool, Float64
from hewfl.core.rounding import format_lower, format_upper
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Mask,
    Reals,
    format_value,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.theory.scalar import flow, printed_scalar_rate, scalar_rate
from hewfl.theory.statement import Hypothesis, Rate, at_most, below
from hewfl.theory.systems import System

if TYPE_CHECKING:
    Whole = int
else:  # run-time type checks pass other values on to `one_whole` and its error
    Whole = Any
_ABOUT_FLOOR = ("2am ≤ 1 + β", "a ≤ 1")
"""Hypotheses that compare numbers of the floor, which exist only where it does."""
_LETTERS = ("a", r"\beta", r"\gamma", r"\delta", r"\bar f", "A", "B", "C")
_LATEX = {"≤": r"\le ", "θ": r"\theta ", "ϑ": r"\vartheta ", "Λ": r"\Lambda ",
          "β": r"\beta ", "γ": r"\gamma ", "μ": r"\mu ", "ρ": r"\rho ", "²": "^2",
          "₀": "_0"}  # fmt: skip
NO_TRACKING = Tracking(np.zeros(()), np.zeros(()), np.zeros(()))
"""A = B = C = 0, for rules that use no control variates."""
State = tuple[ArrayLike, ArrayLike]
"""Bounds on gap and tracking error: (u, χ), (U, Q) or (g, q)."""
Closed = Callable[[State, ArrayLike, ArrayLike], Rate]
"""A closed rate as a function of (start, T, ε)."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """Bounds round by round; the first axis is the round, from 0 to T.

    Attributes:
        gap: u_t, on the expected gap.
        tracking: χ_t, on every expected squared tracking error.
        hypotheses: the conditions under which they are bounds.
    """

    gap: Float64[Array, "rounds ..."]
    tracking: Float64[Array, "rounds ..."]
    hypotheses: tuple[Hypothesis, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Recursion:
    """Coefficients of g⁺ = min{f̄, D(g) + β g + γ q + δ} and q⁺ = A + B g + C q.

    All have shape (*c), or (rounds, *c) for a schedule. They are attributes by the
    letters of the paper too: `a`, `beta`, `gamma`, `delta`, `cap`, `A`, `B`, `C`.

    Examples:
        >>> from hewfl.theory import System, theorem
        >>> system = System(1.0, 1.0, [1] * 10, 1, 0.0)
        >>> k = theorem("hew-hom", system, amplitude=0.25, variant="sharp")
        >>> k.trajectory((0.5, 0.0), 2).gap.round(4)
        array([0.5   , 0.4848, 0.4706])

    Attributes:
        label: LaTeX label of the statement that `rate` evaluates.
        system: the constants; f̄ is its cap.
        descent: a.
        growth: β; under the PL condition −a of the contraction.
        staleness: γ, the cost of a unit of tracking error.
        noise: δ.
        tracking: A, B and C.
        hypotheses: the conditions under which both inequalities are true.
        flows: whether D is T_a.
        slope: σ, the decrease of the gap per unit of ‖∇F‖²; None where the statement
            has none.
        comparator: the fixed weights the round is compared with, clients last; None
            where they are uniform.
        closed: the closed rate from (start, T, ε), where it is not that of lem:scalar.
    """

    label: str
    system: System
    descent: Reals
    growth: Reals
    staleness: Reals
    noise: Reals
    tracking: Tracking
    hypotheses: tuple[Hypothesis, ...]
    flows: bool = False
    slope: Reals | None = None
    comparator: Float64[Array, "... n"] | None = None
    closed: Closed | None = field(default=None, repr=False)

    @property
    def a(self) -> Reals:
        """The descent a."""
        return self.descent

    @property
    def beta(self) -> Reals:
        """The growth β."""
        return self.growth

    @property
    def gamma(self) -> Reals:
        """The cost γ of a unit of tracking error."""
        return self.staleness

    @property
    def delta(self) -> Reals:
        """The noise δ."""
        return self.noise

    @property
    def cap(self) -> Reals:
        """The cap f̄ = LR²/2."""
        return self.system.cap

    @property
    def A(self) -> Reals:  # noqa: N802 - the paper's letter
        """A of q⁺ = A + B g + C q."""
        return self.tracking.noise

    @property
    def B(self) -> Reals:  # noqa: N802 - the paper's letter
        """B of q⁺ = A + B g + C q."""
        return self.tracking.gap

    @property
    def C(self) -> Reals:  # noqa: N802 - the paper's letter
        """C of q⁺ = A + B g + C q."""
        return self.tracking.tracking

    @property
    def capped_descent(self) -> Reals:
        """The descent of the scalar form: a/(1 + a f̄) where D is T_a, else a.

        T_a(g) is at most g − a g²/(1 + a f̄) on [0, f̄].
        """
        a = self.descent
        return np.asarray(a / (1 + a * self.cap) if self.flows else a)

    @property
    def coefficients(self) -> tuple[Array, ...]:
        """(a, β, γ, δ, f̄, A, B, C)."""
        chi = self.tracking
        gap = (self.descent, self.growth, self.staleness, self.noise, self.cap)
        return (*gap, chi.noise, chi.gap, chi.tracking)

    def step(self, state: State, solver_gap: ArrayLike = 0.0) -> tuple[Array, Array]:
        """The bounds (g⁺, q⁺) after one round from (g, q).

        g is clipped at f̄, which lem:gap allows; below f̄, D(g) grows with g, so bounds
        may stand for g and q.
        """
        eps = validate_solver_gap(solver_gap)
        return self._step(self.coefficients, validate_state("state", state), eps)

    def trajectory(
        self, start: State, rounds: Whole | None, *, solver_gap: ArrayLike = 0.0
    ) -> Trajectory:
        """Bounds of rounds 0 to T from (g₀, q₀).

        Args:
            start: (g₀, q₀).
            rounds: T for constant coefficients, None for a schedule.
            solver_gap: ε.

        Returns:
            The bounds of all rounds.
        """
        eps = validate_solver_gap(solver_gap)
        u, q, start_met = validate_start(start, self.cap)
        states = [(u, q)]
        for coefficients in zip(*by_round(rounds, *self.coefficients), strict=True):
            states.append(self._step(coefficients, states[-1], eps))
        return as_trajectory(states, (*self.hypotheses, start_met))

    def scalar_form(
        self, tracking: ArrayLike, solver_gap: ArrayLike = 0.0
    ) -> tuple[Array, Array, Array]:
        """(a, β, d) of the scalar form u⁺ ≤ u − a u² + β u + d, q at its cap q̄ from q₀.

        d = γ q̄ + δ + ε. Where γ = 0 the tracking error costs nothing and needs no cap;
        d is NaN where q has none, C ≥ 1 (E-04).
        """
        C, costs = self.C, self.staleness > 0
        steady = replace(self.tracking, tracking=np.where(costs & (C < 1), C, 0.0))
        q_bar = tracking_cap(steady, tracking, self.cap)
        stale = np.where(costs, self.staleness * q_bar, 0.0)
        stale = np.where(costs & (C >= 1), np.nan, stale)
        d = np.asarray(stale + self.noise + validate_solver_gap(solver_gap))
        return self.capped_descent, self.growth, d

    def rate(
        self,
        start: State,
        rounds: ArrayLike,
        *,
        solver_gap: ArrayLike = 0.0,
        printed: bool = False,
    ) -> Rate:
        """The closed rate of the scalar form (lem:scalar).

            m = (β + √(β² + 4ad))/(2a),     d = γ q̄ + δ + ε
            g_T ≤ m + 1/(1/(g₀ − m)₊ + aT)                            printed

        The default is `scalar_rate`, which also counts that the decay to m is
        geometric. Both use the positive root m: without noise the paper also admits
        m = 0, which is no floor (erratum E-07).

        Args:
            start: (g₀, q₀).
            rounds: T.
            solver_gap: ε.
            printed: the paper's closed form.

        Returns:
            The rate, under `label`; vacuous where its floor is at f̄ or above. It is NaN
            where it is undefined, a ≤ 0, or C ≥ 1 and γ > 0, and the hypothesis that
            fails says so.
        """
        if self.closed is not None:
            return self.closed(start, rounds, solver_gap)
        u, q, start_met = validate_start(start, self.cap)
        scalar = self.scalar_form(q, solver_gap)
        rate = convex_rate(scalar, self.cap, u, rounds, printed=printed)
        conditions = (*self.hypotheses, start_met)
        if self.tracking is not NO_TRACKING:
            conditions = (*conditions, self.tracking_contracts)
        hypotheses = (*conditions, *rate.hypotheses)
        return replace(rate, label=self.label, hypotheses=hypotheses)

    @property
    def tracking_contracts(self) -> Hypothesis:
        """The hypothesis C < 1, which matters only where γ > 0."""
        return below("C < 1", np.where(self.staleness > 0, self.C, 0.0), 1.0)

    @property
    def floor(self) -> Reals:
        """The limit of long trajectories; infinite where there is none.

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
        """The fall g − (D(g) + β g + γ q + δ) of the bound in a round from (g, q)."""
        a, u = self.descent, gap
        fall = a * u * u / (1 + a * u) if self.flows else a * u * u
        stale = np.where(self.staleness > 0, self.staleness * tracking, 0.0)
        return np.asarray(fall - self.growth * u - stale - self.noise)

    def contraction(self, pl_constant: ArrayLike | None = None) -> Reals:
        """The factor a = 2μσ − β of g⁺ ≤ (1 − a) g + γ q + δ under the PL condition.

        For Algorithm 3 it is ρ of eq:realized-hom-PL-rec.

        Args:
            pl_constant: μ > 0; left out for a statement about PL, which has it.

        Returns:
            a, not positive where nothing contracts.
        """
        if pl_constant is None:
            if (self.descent != 0).any():
                raise invalid("pl_constant", f"given for {self.label}", None)
            return np.asarray(-self.growth)
        mu = positives("pl_constant", pl_constant)
        if self.slope is None:
            raise invalid("recursion", "one that states σ", "none")
        return np.asarray(2 * mu * self.slope - self.growth)

    def latex(self) -> str:
        """The recursion in LaTeX: symbols, numbers, and hypotheses with both sides.

        All numbers are rounded outward: a and the right sides of hypotheses that hold
        down, all others up.

        Returns:
            An `align*` environment for amsmath.
        """
        sides = [x for h in self.hypotheses for x in (h.left, h.right)]
        if any(np.size(x) != 1 for x in (*self.coefficients, *sides)):
            raise invalid("recursion", "of one configuration", "several")
        fall = r"\frac{g}{1 + a g}" if self.flows else "g - a g^2"
        lines = [
            rf"g_{{t+1}} &\le \min\{{\bar f,\ {fall} + \beta g + \gamma q + \delta\}},",
            r"q_{t+1} &\le A + B g + C q,",
        ]
        named = list(
            zip(_LETTERS, map(np.ndarray.item, self.coefficients), strict=True)
        )
        if self.tracking is NO_TRACKING:
            lines = [lines[0].replace(r" + \gamma q", "")]
            named = [(x, y) for x, y in named if x not in (r"\gamma", "A", "B", "C")]
        for letter, number in named:
            text = format_lower(number) if letter == "a" else format_upper(number)
            lines.append(f"{letter} &= {_latex_number(text)},")
        for h in self.hypotheses:
            lines.append(rf"{_latex_name(h.name)} &\colon\quad {_latex_sides(h)},")
        body = " \\\\\n".join(lines).removesuffix(",") + "."
        return f"\\begin{{align*}}\n{body}\n\\end{{align*}}"

    def _step(
        self, coefficients: tuple[Any, ...], state: tuple[Array, Array], eps: Array
    ) -> tuple[Array, Array]:
        a, beta, gamma, delta, cap, A, B, C = coefficients
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


def _latex_sides(h: Hypothesis) -> str:
    """Both sides, rounded towards each other as far as the relation stays visible."""
    left, right = h.left.item(), h.right.item()
    sign, holds = "<" if "<" in h.name else r"\le", bool(h.holds.all())
    low, high = (right, left) if holds else (left, right)
    down, up = repr(low), repr(high)
    for digits in range(3, 18):
        if float(format_upper(high, digits)) < float(format_lower(low, digits)):
            down, up = format_lower(low, digits), format_upper(high, digits)
            break
    shown = (up, sign, down) if holds else (down, rf"\not{sign}", up)
    return f"{_latex_number(shown[0])} {shown[1]} {_latex_number(shown[2])}"


def _latex_number(text: str) -> str:
    """A printed number in LaTeX."""
    if "inf" in text:
        return text.replace("inf", r"\infty")
    mantissa, _, exponent = text.partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def _latex_name(name: str) -> str:
    """The name of a hypothesis in LaTeX: symbols as such, words as text."""
    if re.search("[a-z]{3}", name):
        return rf"\text{{{name}}}"
    name = name.replace("θ̄", r"\bar\theta ").replace("f̄", r"\bar f ")
    return re.sub("√([0-9])", r"\\sqrt{\1}", "".join(_LATEX.get(c, c) for c in name))


def convex_rate(
    scalar: tuple[Array, Array, Array],
    cap: Reals,
    start: Reals,
    rounds: ArrayLike,
    *,
    printed: bool,
) -> Rate:
    """The rate of u⁺ ≤ u − a u² + β u + d for (a, β, d), beside the cap f̄ (lem:scalar).

    Always to the positive root m: smaller solutions of the paper's conditions are no
    floors (erratum E-07). Vacuous where m ≥ f̄ (E-09). NaN where d is, or a ≤ 0.
    """
    a, beta, d = np.broadcast_arrays(*scalar)
    falls = below("0 < a", 0.0, a)
    met = np.asarray(falls.holds & ~np.isnan(d))
    # stand-ins where nothing is defined; `mask_undefined` removes them
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
    return mask_undefined(met, replace(rate, hypotheses=(*extra, *rate.hypotheses)))


def mask_undefined(met: Bool[Mask, "..."], rate: Rate, value: float = np.nan) -> Rate:
    """The rate where it is defined; elsewhere NaN, or infinity for a search.

    Hypotheses about the floor compare numbers that exist only where it does: they fail
    elsewhere, with NaN on both sides.
    """
    if met.all():
        return rate
    return replace(
        rate,
        value=np.where(met, rate.value, value),
        floor=np.where(met, rate.floor, value),
        vacuous=np.asarray(rate.vacuous | ~met),
        hypotheses=tuple(_mask_hypothesis(h, met) for h in rate.hypotheses),
    )


def _mask_hypothesis(h: Hypothesis, met: Bool[Mask, "..."]) -> Hypothesis:
    if h.name not in _ABOUT_FLOOR:
        return h
    left, right = (np.where(met, side, np.nan) for side in (h.left, h.right))
    return Hypothesis(h.name, left, right, np.asarray(h.holds & met))


def as_trajectory(
    states: list[tuple[Array, Array]], hypotheses: tuple[Hypothesis, ...]
) -> Trajectory:
    """The states (u_t, χ_t) of all rounds as one record."""
    gap, tracking = (
        np.stack(np.broadcast_arrays(*column)) for column in zip(*states, strict=True)
    )
    return Trajectory(gap, tracking, hypotheses)


def one_whole(name: str, value: ArrayLike, *, least: int = 0) -> int:
    """A single whole number as an int; a list of them raises an error."""
    number = wholes(name, value, least=least)
    if number.size != 1:
        raise invalid(name, "one whole number", format_value(value))
    return int(number.item())


def validate_state(name: str, state: State) -> tuple[Reals, Reals]:
    """Validated (u, χ) ≥ 0."""
    return nonnegatives(name, state[0]), nonnegatives(name, state[1])


def validate_start(start: State, cap: Reals) -> tuple[Reals, Reals, Hypothesis]:
    """Validated (u₀, χ₀) and the hypothesis u₀ ≤ f̄ (eq:sur-init-main)."""
    u, chi = validate_state("start", start)
    return u, chi, at_most("u₀ ≤ f̄", u, cap)


def validate_solver_gap(value: ArrayLike) -> Reals:
    """Validated ε ≥ 0 (E-18, E-31)."""
    return nonnegatives("solver_gap", value)


def by_round(
    rounds: Whole | None, *coefficients: Reals
) -> tuple[Float64[Array, "rounds ..."], ...]:
    """Coefficients of one shape with the round as first axis.

    `rounds` is T to hold them constant, None where their first axis is the round.
    """
    shape = np.broadcast_shapes(*(value.shape for value in coefficients))
    if rounds is None and not shape:
        raise invalid("rounds", "given where nothing changes over rounds", None)
    if rounds is not None:
        shape = (one_whole("rounds", rounds), *shape)
    return tuple(np.broadcast_to(value, shape) for value in coefficients)
