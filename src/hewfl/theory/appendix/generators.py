"""Scalar flows: how far a gap falls in a given time under v̇ = −φ(v).

A generator φ is convex with φ(0) = 0 and φ > 0 beyond (ass:generator). It determines

    R_a(s)   the flow: v(a) for v(0) = s, a ≥ 0
    χ(s)     the time coordinate: χ(R_a(s)) = χ(s) + a (prop:chi)
    L_a(m)   the slope modulus: the largest slope of R_a beyond m

φ = κs², κs^{1+p} and ρs have closed forms; `ConvexGenerator` integrates any other.
Everything broadcasts. Products such as κpas^p may leave the range of floats where R_a
does not, so they are held as logarithms (E-32).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Converted,
    Nonnegatives,
    Positives,
    Reals,
    as_float64,
    broadcast,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.theory.statement import Hypothesis, at_most, below


@runtime_checkable
class Generator(Protocol):
    """A convex φ and its flow (ass:generator, eq:scalar_ode).

    Examples:
        >>> from hewfl.theory.appendix import QuadraticGenerator
        >>> isinstance(QuadraticGenerator(1.0), Generator)
        True
    """

    noiseless: ClassVar[str]
    noisy: ClassVar[str]

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+), in the shape of the generator's parameters."""

    def value(self, state: ArrayLike) -> Reals:
        """φ(s) for s ≥ 0."""

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) for a, s ≥ 0 (prop:flow)."""

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """log(s/R_a(s)) ≥ 0, its limit at s = 0: digits that s − R_a(s) would lose."""

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """Log of the slope modulus L_a(m) ≤ 1."""

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = ∫ dξ/φ(ξ) from s to s_ref, both positive (def:chi).

        It is negative beyond the reference.
        """


@broadcasting
def slope_modulus(generator: Generator, time: ArrayLike, floor: ArrayLike) -> Reals:
    """Largest slope of the flow beyond m (def:slope_modulus, lem:L).

        L_a(m) = φ(R_a(m))/φ(m),  m > 0;     L_a(0) = exp(−a φ'(0+))

    It lies in [0, 1] because dR_a/ds = exp(−∫φ') and φ' ≥ 0; that R_a(s) ≤ s, as the
    paper argues, would not be enough (erratum E-24).
    """
    m = nonnegatives("floor", floor)
    return np.asarray(np.exp(generator.log_slope(time, m)))


@broadcasting
def relative_decrease(generator: Generator, time: ArrayLike, state: ArrayLike) -> Reals:
    """1 − R_a(s)/s without cancellation (erratum E-32); its limit at s = 0."""
    return np.asarray(-np.expm1(-generator.log_shrink(time, state)))


@broadcasting
def generator_hypotheses(
    generator: Generator, grid: ArrayLike
) -> tuple[Hypothesis, ...]:
    """What of ass:generator shows on a grid: φ(0) = 0, φ > 0, chords that steepen.

    Smoothness between the points cannot be seen and is not claimed. The grid has
    increasing positive points; every configuration of φ has its own answer.
    """
    points = as_float64("grid", grid)
    rising = np.diff(points, prepend=0.0) if points.ndim == 1 else np.zeros(1)
    if points.size < 2 or not (rising > 0).all():
        raise invalid("grid", "two or more increasing positive numbers", grid)
    column = (-1,) + (1,) * generator.origin_slope.ndim
    s = np.concatenate([[0.0], points]).reshape(column)
    phi = np.asarray(generator.value(s))
    chords = np.diff(phi, axis=0) / np.diff(s, axis=0)
    rounding = 8 * np.finfo(np.float64).eps * (phi[1:-1] + phi[2:])
    drop = chords[:-1] - chords[1:] - rounding / np.diff(s, axis=0)[1:]
    return (
        at_most("|φ(0)| ≤ 0", np.abs(phi[0]), 0.0),
        below("0 < φ(s)", 0.0, phi[1:].min(axis=0)),
        at_most("fall of chord slopes ≤ 0", drop.max(axis=0), 0.0),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class QuadraticGenerator(Converted):
    """φ(s) = κs²: R_a(s) = s/(1 + κas), the kernel T of the convex rates.

    Attributes:
        coefficient: κ > 0.
    """

    coefficient: Positives

    noiseless: ClassVar[str] = "cor:quadratic"
    noisy: ClassVar[str] = "cor:quadratic_noisy"

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+) = 0."""
        return np.zeros_like(np.asarray(self.coefficient))

    def value(self, state: ArrayLike) -> Reals:
        """κs²."""
        s = nonnegatives("state", state)
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(self.coefficient) * s * s)

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = s/(1 + κas)  (eq:quadratic_R)."""
        a, s = _time_and_state(time, state)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            rate = np.asarray(self.coefficient) * a
            x = np.where(s > 0, rate * s, 0.0)
            return np.where(x > 1, 1 / rate / (1 + 1 / x), s / (1 + x))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """log(1 + κas)."""
        a, s = _time_and_state(time, state)
        return np.asarray(np.logaddexp(0, _log(self.coefficient) + _log(a) + _log(s)))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = 1/(1 + κam)²  (eq:quadratic_lambda)."""
        return np.asarray(-2 * self.log_shrink(time, floor))

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = (1/s − 1/s_ref)/κ."""
        s, top = positives("state", state), positives("reference", reference)
        share = (top - s) / np.maximum(s, top)
        with np.errstate(over="ignore"):
            return np.asarray(share / np.minimum(s, top) / np.asarray(self.coefficient))


@final
@dataclass(frozen=True, slots=True, eq=False)
class PowerGenerator(Converted):
    """φ(s) = κs^{1+p}: R_a(s) = s(1 + κpa s^p)^{−1/p}.

    Attributes:
        coefficient: κ > 0.
        power: p > 0.
    """

    coefficient: Positives
    power: Positives

    noiseless: ClassVar[str] = "cor:power"
    noisy: ClassVar[str] = "cor:power_noisy"

    def __post_init__(self) -> None:
        """Refuse κ ≤ 0, p ≤ 0 and shapes that do not fit."""
        Converted.__post_init__(self)
        fields = {"coefficient": self.coefficient, "power": self.power}
        broadcast({name: np.asarray(value) for name, value in fields.items()})

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+) = 0."""
        return np.zeros(
            np.broadcast_shapes(np.shape(self.coefficient), np.shape(self.power))
        )

    def value(self, state: ArrayLike) -> Reals:
        """κs^{1+p}."""
        s, p = nonnegatives("state", state), np.asarray(self.power)
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(_log(self.coefficient) + (1 + p) * _log(s)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = (s^{−p} + κpa)^{−1/p}  (eq:power_R).

        Taken from s where x = κpa s^p is small, from (κpa)^{−1/p} where it is large.
        """
        a, s = _time_and_state(time, state)
        p, log_x = np.asarray(self.power), self._log_x(a, s)
        with np.errstate(over="ignore", invalid="ignore"):
            near = s * np.exp(-np.logaddexp(0, log_x) / p)
            limit = _log(self.coefficient) + _log(p) + _log(a)
            far = np.exp(-(limit + np.logaddexp(0, -log_x)) / p)
        return np.asarray(np.where(log_x > 0, far, near))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """log(1 + κpa s^p)/p."""
        a, s = _time_and_state(time, state)
        return np.asarray(np.logaddexp(0, self._log_x(a, s)) / np.asarray(self.power))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = (1 + κpa m^p)^{−1−1/p}  (eq:power_lambda)."""
        return np.asarray(-(1 + np.asarray(self.power)) * self.log_shrink(time, floor))

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = (s^{−p} − s_ref^{−p})/(κp), from the larger of the two powers."""
        s, top = positives("state", state), positives("reference", reference)
        p = np.asarray(self.power)
        part = -np.expm1(-p * _log_ratio(s, top))
        size = -p * np.log(np.minimum(s, top)) - _log(self.coefficient) - _log(p)
        with np.errstate(over="ignore"):
            return np.asarray(np.sign(top - s) * part * np.exp(size))

    def _log_x(self, a: Array, s: Array) -> Array:
        p = np.asarray(self.power)
        return np.asarray(_log(self.coefficient) + _log(p) + _log(a) + p * _log(s))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExponentialGenerator(Converted):
    """φ(s) = ρs: R_a(s) = e^{−ρa} s, the kernel of the PL rates.

    Attributes:
        rate: ρ > 0.
    """

    rate: Positives

    noiseless: ClassVar[str] = "cor:exp"
    noisy: ClassVar[str] = "cor:exp_noisy"

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+) = ρ."""
        return np.asarray(self.rate)

    def value(self, state: ArrayLike) -> Reals:
        """ρs."""
        with np.errstate(over="ignore"):
            return np.asarray(self.origin_slope * nonnegatives("state", state))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = e^{−ρa} s  (eq:exp_R)."""
        half = np.exp(-self.log_shrink(time, state) / 2)
        return np.asarray(
            np.asarray(state) * half * half
        )  # e^{−ρa} may underflow, R does not

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """ρa, whatever s."""
        a, s = _time_and_state(time, state)
        with np.errstate(over="ignore"):
            return np.asarray(self.origin_slope * a + 0 * s)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = e^{−ρa}, whatever m  (eq:exp_lambda)."""
        return np.asarray(-self.log_shrink(time, floor))

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = log(s_ref/s)/ρ."""
        s, top = positives("state", state), positives("reference", reference)
        with np.errstate(over="ignore"):
            return np.asarray(np.sign(top - s) * _log_ratio(s, top) / self.origin_slope)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_PANEL_TOLERANCE = 1e-13
"""Accepted difference of one panel from its halves; the halves are far closer."""
_SHORTEST = 2.0**-40
"""Panels are not halved below this: what is left of a kink is under rounding."""
_MOST_PANELS = 20_000
"""A smooth φ takes tens, a kink a hundred; more means noise well above rounding."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ConvexGenerator(Converted):
    """Any φ that meets ass:generator, given as a function.

    With ξ = s e^{−y} the flow is R_a(s) = s e^{−Y}, where

        ∫ ξ/φ(ξ) dy over [0, Y] = a.

    The integrand never falls, so an error δ of the integral moves R by at most δY,
    relatively. Gauss panels halve until they agree with their halves; the last one is
    solved by Newton. Relative error at most 1e-12 where φ is accurate to rounding and
    neither overflows nor underflows between R_a(s) and s.

    Attributes:
        phi: φ, elementwise on arrays of any shape (parameters of its own must
            broadcast against the trailing axes).
        derivative_at_zero: φ'(0+) ≥ 0.
    """

    phi: Callable[..., Any]
    derivative_at_zero: Nonnegatives

    noiseless: ClassVar[str] = "thm:noiseless"
    noisy: ClassVar[str] = "thm:noisy"

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+), as given."""
        return np.asarray(self.derivative_at_zero)

    def value(self, state: ArrayLike) -> Reals:
        """φ(s)."""
        return np.asarray(self.phi(nonnegatives("state", state)), dtype=np.float64)

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = s e^{−Y}."""
        s = nonnegatives("state", state)
        return np.asarray(s * np.exp(-self.log_shrink(time, s)))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """Y = log(s/R_a(s)); its limit aφ'(0+) at s = 0."""
        a, s = _time_and_state(time, state)
        a, s, limit = np.broadcast_arrays(a, s, a * self.origin_slope)
        resting = s == 0
        depth, _ = self._integrate(np.where(resting, 1.0, s), np.where(resting, 0.0, a))
        return np.where(resting, limit, depth.reshape(s.shape))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = φ(R_a(m))/φ(m); e^{−aφ'(0+)} at m = 0."""
        m = nonnegatives("floor", floor)
        shrink = self.log_shrink(time, m)
        whole = np.where(m > 0, m, 1.0)
        ratio = np.log(self.value(whole * np.exp(-shrink)) / self.value(whole))
        return np.where(m > 0, ratio, -shrink)

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s), by the same panels."""
        s, top = positives("state", state), positives("reference", reference)
        s, top, _ = np.broadcast_arrays(s, top, self.origin_slope)
        high = np.asarray(np.maximum(s, top))
        _, integral = self._integrate(high, None, _log_ratio(s, top))
        return np.asarray(np.sign(top - s) * integral.reshape(s.shape))

    def _integrate(
        self, start: Array, time: Array | None, depth: Array | None = None
    ) -> tuple[Float64[Array, "*e"], Float64[Array, "*e"]]:
        """(Y, integral over [0, Y]) where the integral reaches a, or Y the depth.

        Scalars come back as vectors of one.
        """
        start = np.atleast_1d(start)
        a = np.full(start.shape, np.inf) if time is None else np.atleast_1d(time)
        end = np.full(start.shape, np.inf) if depth is None else np.atleast_1d(depth)
        y, total, h = np.zeros_like(start), np.zeros_like(start), np.ones_like(start)
        done = (a == 0) | (end == 0)
        crossed = np.zeros_like(done)
        for _ in range(_MOST_PANELS):
            if done.all():
                wanted = np.where(crossed, a - total, 0.0)
                h = self._solve_last_panel(start, y, np.where(crossed, h, 0.0), wanted)
                return np.asarray(y + h), total
            last = h >= end - y
            h = np.where(last, end - y, h)
            whole = self._panel(start, y, h)
            halves = self._panel(start, y, h / 2) + self._panel(start, y + h / 2, h / 2)
            with np.errstate(invalid="ignore"):
                even = np.abs(whole - halves) <= _PANEL_TOLERANCE * (total + halves)
            short = h < _SHORTEST
            stuck = ~done & short & ~(np.isfinite(halves) & (halves > 0))
            if stuck.any():
                at = (start * np.exp(-y))[stuck].flat[0]
                rule = "positive and finite between R_a(s) and s"
                raise invalid("phi", rule, f"neither near {at:.3g}")
            step = ~done & (even | short)
            crossing = step & (total + halves >= a)
            crossed, done = crossed | crossing, done | crossing
            step = step & ~crossing
            y = np.where(step, np.where(last, end, y + h), y)
            total = np.where(step, total + halves, total)
            h = np.where(done, h, np.where(step, 2 * h, h / 2))
            done = done | (step & last)
        at = (start * np.exp(-y))[~done].flat[0]
        raise invalid("phi", "smooth up to rounding", f"noise near {at:.3g}")

    def _solve_last_panel(
        self, start: Array, y: Array, h: Array, wanted: Array
    ) -> Array:
        """Newton in the last panel, from its far end: the integral is convex in Y."""
        for _ in range(100):
            excess = np.where(h > 0, self._panel(start, y, h) - wanted, 0.0)
            xi = start * np.exp(-(y + h))
            following = np.maximum(h - excess * np.asarray(self.phi(xi)) / xi, 0.0)
            moved = np.abs(following - h) > np.finfo(np.float64).eps * (y + h)
            h = following
            if not moved.any():
                break
        return np.asarray(h)

    def _panel(self, start: Array, y: Array, h: Array) -> Array:
        """∫ ξ/φ(ξ) over [y, y + h]; not finite where φ leaves the range of floats."""
        column = (-1,) + (1,) * start.ndim
        nodes = ((_NODES + 1) / 2).reshape(column)
        with np.errstate(all="ignore"):  # the caller looks at the result
            xi = start * np.exp(-(y + h * nodes))
            phi = np.asarray(self.phi(xi), dtype=np.float64)
            ratio = np.where(phi >= np.finfo(np.float64).tiny, xi / phi, np.inf)
            return np.asarray((ratio * _WEIGHTS.reshape(column)).sum(axis=0) * h / 2)


def _time_and_state(time: ArrayLike, state: ArrayLike) -> tuple[Reals, Reals]:
    """Validated a and s."""
    return nonnegatives("time", time), nonnegatives("state", state)


def _log(x: ArrayLike) -> Array:
    """The logarithm, −∞ at zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(x))


def _log_ratio(one: Reals, other: Reals) -> Reals:
    """|log(one/other)| of positive numbers, with its digits for near ones."""
    high, low = np.maximum(one, other), np.minimum(one, other)
    close = high / 2 < low
    near = np.log1p((high - low) / np.where(close, low, high))
    return np.where(close, near, np.log(high) - np.log(low))
