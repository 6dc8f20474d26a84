"""Scalar flows: how far a gap falls in a given time under v̇ = −φ(v).

A generator φ is convex with φ(0) = 0 and φ > 0 beyond (ass:generator). From it follow

    R_a(s)   the flow: v(a) for v(0) = s
    χ(s)     the time coordinate: χ(R_a(s)) = χ(s) + a
    L_a(m)   the slope modulus: the largest slope of R_a beyond m

Three generators have closed forms; `ConvexGenerator` integrates any other. Everything
broadcasts, and products such as κas are formed without overflow (erratum E-32).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.core.checks import Array, ArrayLike, Mask, as_float64, invalid
from hewfl.theory.statement import Hypothesis, at_most, below

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_PANEL_TOLERANCE = 1e-13
"""Accepted difference of one panel from its halves; the halves are far closer."""
_SHORTEST = 2.0**-40
"""Panels are not halved below this: what is left of a kink is under rounding."""
_MOST_PANELS = 20_000
"""A smooth φ takes tens, a kink a hundred; more means noise well above rounding."""
_BIG = 1000
"""Binary exponent beyond which 1 + x is x, and x itself may overflow."""


@runtime_checkable
class Generator(Protocol):
    """A convex φ and its flow (ass:generator, eq:scalar_ode)."""

    noiseless: ClassVar[str]
    noisy: ClassVar[str]

    @property
    def origin_slope(self) -> Float64[Array, "..."]:
        """φ'(0+), in the shape of the generator's parameters."""

    def value(self, state: ArrayLike) -> Float64[Array, "..."]:
        """φ(s)."""

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) for a, s ≥ 0 (prop:flow)."""

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """log(s/R_a(s)), its limit at s = 0: digits that s − R_a(s) would lose."""

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """Log of the slope modulus L_a(m)."""

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = ∫ dξ/φ(ξ) from s to s_ref, both positive (def:chi)."""


def slope_modulus(
    generator: Generator, time: ArrayLike, floor: ArrayLike
) -> Float64[Array, "..."]:
    """Largest slope of the flow beyond m (def:slope_modulus, lem:L).

        L_a(m) = φ(R_a(m))/φ(m),  m > 0;     L_a(0) = exp(−a φ'(0+))

    It lies in [0, 1] because dR_a/ds = exp(−∫φ') and φ' ≥ 0; that R_a(s) ≤ s, as the
    paper argues, would not be enough (erratum E-24).
    """
    return np.asarray(np.exp(generator.log_slope(time, floor)))


def relative_decrease(
    generator: Generator, time: ArrayLike, state: ArrayLike
) -> Float64[Array, "..."]:
    """1 − R_a(s)/s without cancellation (erratum E-32); its limit at s = 0."""
    return np.asarray(-np.expm1(-generator.log_shrink(time, state)))


def generator_hypotheses(
    generator: Generator, grid: ArrayLike
) -> tuple[Hypothesis, ...]:
    """What of ass:generator shows on a grid: φ(0) = 0, φ > 0, chords that steepen.

    Smoothness between the points cannot be seen and is not claimed.

    Args:
        generator: φ; each of its configurations is judged on its own.
        grid: increasing positive points.
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
class QuadraticGenerator:
    """φ(s) = κs²: R_a(s) = s/(1 + κas), the kernel T of the convex rates.

    Attributes:
        coefficient: κ > 0.
    """

    coefficient: ArrayLike

    noiseless: ClassVar[str] = "cor:quadratic"
    noisy: ClassVar[str] = "cor:quadratic_noisy"

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(
            self, "coefficient", positives("coefficient", self.coefficient)
        )

    @property
    def origin_slope(self) -> Float64[Array, "..."]:
        """φ'(0+) = 0."""
        return np.zeros_like(np.asarray(self.coefficient))

    def value(self, state: ArrayLike) -> Float64[Array, "..."]:
        """κs²."""
        s = nonnegatives("state", state)
        return _unscaled(*_product(self.coefficient, s, s))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = s/(1 + κas)  (eq:quadratic_R)."""
        a, s = _time_and_state(time, state)
        mantissa, exponent = _product(self.coefficient, a, s)
        x = _unscaled(mantissa, np.minimum(exponent, _BIG))
        share, power = _product(s)
        safe = np.where(mantissa > 0, mantissa, 1.0)
        beyond = _unscaled(share / safe, power - exponent)
        return np.where(exponent > _BIG, beyond, s / (1 + x))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """log(1 + κas)."""
        return _log1p_scaled(*_product(self.coefficient, *_time_and_state(time, state)))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = 1/(1 + κam)²  (eq:quadratic_lambda)."""
        return np.asarray(-2 * self.log_shrink(time, floor))

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = (1/s − 1/s_ref)/κ."""
        s, top = positives("state", state), positives("reference", reference)
        above, below_ = _product(top - s), _product(self.coefficient, s, top)
        return _unscaled(above[0] / below_[0], above[1] - below_[1])


@final
@dataclass(frozen=True, slots=True, eq=False)
class PowerGenerator:
    """φ(s) = κs^{1+p}: R_a(s) = s(1 + κpa s^p)^{−1/p}.

    Attributes:
        coefficient: κ > 0.
        power: p > 0.
    """

    coefficient: ArrayLike
    power: ArrayLike

    noiseless: ClassVar[str] = "cor:power"
    noisy: ClassVar[str] = "cor:power_noisy"

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("coefficient", "power"):
            object.__setattr__(self, name, positives(name, getattr(self, name)))

    @property
    def origin_slope(self) -> Float64[Array, "..."]:
        """φ'(0+) = 0."""
        return np.zeros(np.broadcast_shapes(self._kappa.shape, self._p.shape))

    def value(self, state: ArrayLike) -> Float64[Array, "..."]:
        """κs^{1+p}."""
        s = nonnegatives("state", state)
        return _unscaled(*_product(self._kappa, s, power_of=(s, self._p)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = (s^{−p} + κpa)^{−1/p}  (eq:power_R).

        Taken from s where x = κpa s^p is small, from (κpa)^{−1/p} where it is large.
        """
        a, s = _time_and_state(time, state)
        p = self._p
        mantissa, exponent = _product(self._kappa, p, a, power_of=(s, p))
        near = s * np.exp(-_log1p_scaled(mantissa, exponent) / p)
        large = (exponent > 0) & (mantissa > 0)
        limit, shift = _product(self._kappa, p, np.where(a > 0, a, 1.0))
        inverse = _unscaled(1 / np.where(large, mantissa, 1.0), -exponent)
        with np.errstate(over="ignore"):  # of entries that `where` leaves out
            far = np.exp2(-(np.log2(limit) + shift) / p)
            far = far * np.exp(-np.log1p(np.where(large, inverse, 0.0)) / p)
        return np.where(large, far, near)

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """log(1 + κpa s^p)/p."""
        a, s = _time_and_state(time, state)
        x = _product(self._kappa, self._p, a, power_of=(s, self._p))
        return np.asarray(_log1p_scaled(*x) / self._p)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = (1 + κpa m^p)^{−1−1/p}  (eq:power_lambda)."""
        return np.asarray(-(1 + self._p) * self.log_shrink(time, floor))

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = (s^{−p} − s_ref^{−p})/(κp), from the larger of the two powers."""
        s, top = positives("state", state), positives("reference", reference)
        p = self._p
        part = -np.expm1(-p * _log_ratio(s, top))
        above = _product(part, power_of=(np.minimum(s, top), -p))
        below_ = _product(self._kappa, p)
        size = _unscaled(above[0] / below_[0], above[1] - below_[1])
        return np.asarray(np.sign(top - s) * size)

    @property
    def _kappa(self) -> Float64[Array, "..."]:
        return np.asarray(self.coefficient)

    @property
    def _p(self) -> Float64[Array, "..."]:
        return np.asarray(self.power)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExponentialGenerator:
    """φ(s) = ρs: R_a(s) = e^{−ρa} s, the kernel of the PL rates.

    Attributes:
        rate: ρ > 0.
    """

    rate: ArrayLike

    noiseless: ClassVar[str] = "cor:exp"
    noisy: ClassVar[str] = "cor:exp_noisy"

    def __post_init__(self) -> None:
        """Check the range."""
        object.__setattr__(self, "rate", positives("rate", self.rate))

    @property
    def origin_slope(self) -> Float64[Array, "..."]:
        """φ'(0+) = ρ."""
        return np.asarray(self.rate)

    def value(self, state: ArrayLike) -> Float64[Array, "..."]:
        """ρs."""
        return _unscaled(*_product(self.rate, nonnegatives("state", state)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = e^{−ρa} s  (eq:exp_R)."""
        a, s = _time_and_state(time, state)
        half = np.exp(-_unscaled(*_product(self.rate, a)) / 2)
        return np.asarray(s * half * half)  # e^{−ρa} may underflow where R does not

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """ρa, whatever s."""
        a, s = _time_and_state(time, state)
        return np.asarray(_unscaled(*_product(self.rate, a)) + 0 * s)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = e^{−ρa}, whatever m  (eq:exp_lambda)."""
        return np.asarray(-self.log_shrink(time, floor))

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = log(s_ref/s)/ρ."""
        s, top = positives("state", state), positives("reference", reference)
        ratio = _log_ratio(s, top)
        return np.asarray(np.sign(top - s) * ratio / self.origin_slope)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ConvexGenerator:
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
    derivative_at_zero: ArrayLike

    noiseless: ClassVar[str] = "thm:noiseless"
    noisy: ClassVar[str] = "thm:noisy"

    def __post_init__(self) -> None:
        """Check the range."""
        slope = nonnegatives("derivative_at_zero", self.derivative_at_zero)
        object.__setattr__(self, "derivative_at_zero", slope)

    @property
    def origin_slope(self) -> Float64[Array, "..."]:
        """φ'(0+), as given."""
        return np.asarray(self.derivative_at_zero)

    def value(self, state: ArrayLike) -> Float64[Array, "..."]:
        """φ(s)."""
        return np.asarray(self.phi(nonnegatives("state", state)), dtype=np.float64)

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = s e^{−Y}."""
        s = nonnegatives("state", state)
        return np.asarray(s * np.exp(-self.log_shrink(time, s)))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """Y = log(s/R_a(s)); its limit aφ'(0+) at s = 0."""
        a, s = _time_and_state(time, state)
        limit = a * self.origin_slope
        a, s, limit = np.broadcast_arrays(a, s, limit)
        resting = s == 0
        depth, _ = self._march(np.where(resting, 1.0, s), np.where(resting, 0.0, a))
        return np.where(resting, limit, depth.reshape(s.shape))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = φ(R_a(m))/φ(m); e^{−aφ'(0+)} at m = 0."""
        m = nonnegatives("floor", floor)
        shrink = self.log_shrink(time, m)
        whole = np.where(m > 0, m, 1.0)
        ratio = np.log(self.value(whole * np.exp(-shrink)) / self.value(whole))
        return np.where(m > 0, ratio, -shrink)

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s), by the same panels."""
        s, top = positives("state", state), positives("reference", reference)
        s, top, _ = np.broadcast_arrays(s, top, self.origin_slope)
        high = np.asarray(np.maximum(s, top))
        _, integral = self._march(high, None, _log_ratio(s, top))
        return np.asarray(np.sign(top - s) * integral.reshape(s.shape))

    def _march(
        self,
        start: Float64[Array, "*c"],
        time: Float64[Array, "*c"] | None,
        depth: Float64[Array, "*c"] | None = None,
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
                return self._land(start, (y, total, h), a, crossed), total
            last = h >= end - y
            h = np.where(last, end - y, h)
            whole = self._panel(start, y, h)
            halves = self._panel(start, y, h / 2) + self._panel(start, y + h / 2, h / 2)
            with np.errstate(invalid="ignore"):
                even = np.abs(whole - halves) <= _PANEL_TOLERANCE * (total + halves)
            short = h < _SHORTEST
            self._require_finite(start * np.exp(-y), ~done & short, halves)
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

    def _land(
        self,
        start: Float64[Array, "*c"],
        panel: tuple[Float64[Array, "*c"], ...],
        time: Float64[Array, "*c"],
        crossed: Bool[Mask, "*c"],
    ) -> Float64[Array, "*c"]:
        """Newton in the last panel, from its far end: the integral is convex in Y."""
        y, total, h = panel
        wanted = np.where(crossed, time - total, 0.0)
        h = np.where(crossed, h, 0.0)
        for _ in range(100):
            excess = np.where(crossed, self._panel(start, y, h) - wanted, 0.0)
            xi = start * np.exp(-(y + h))
            following = np.maximum(h - excess * np.asarray(self.phi(xi)) / xi, 0.0)
            moved = np.abs(following - h) > np.finfo(np.float64).eps * (y + h)
            h = following
            if not moved.any():
                break
        return np.asarray(y + h)

    def _panel(
        self,
        start: Float64[Array, "*c"],
        y: Float64[Array, "*c"],
        h: Float64[Array, "*c"],
    ) -> Float64[Array, "*c"]:
        """∫ ξ/φ(ξ) over [y, y + h]; not finite where φ leaves the range of floats."""
        column = (-1,) + (1,) * start.ndim
        nodes = ((_NODES + 1) / 2).reshape(column)
        with np.errstate(all="ignore"):  # the caller looks at the result
            xi = start * np.exp(-(y + h * nodes))
            phi = np.asarray(self.phi(xi), dtype=np.float64)
            ratio = np.where(phi >= np.finfo(np.float64).tiny, xi / phi, np.inf)
            return np.asarray((ratio * _WEIGHTS.reshape(column)).sum(axis=0) * h / 2)

    @staticmethod
    def _require_finite(
        state: Float64[Array, "*c"],
        stuck: Bool[Mask, "*c"],
        integral: Float64[Array, "*c"],
    ) -> None:
        bad = stuck & ~(np.isfinite(integral) & (integral > 0))
        if bad.any():
            rule = "positive and finite between R_a(s) and s"
            raise invalid("phi", rule, f"neither near {state[bad].flat[0]:.3g}")


def positives(name: str, value: ArrayLike) -> Float64[Array, "..."]:
    """A float64 array of positive finite numbers."""
    array = as_float64(name, value)
    if not (array > 0).all():
        raise invalid(name, "positive", array[~(array > 0)].flat[0])
    return array


def nonnegatives(name: str, value: ArrayLike) -> Float64[Array, "..."]:
    """A float64 array of nonnegative finite numbers."""
    array = as_float64(name, value)
    if not (array >= 0).all():
        raise invalid(name, "nonnegative", array[~(array >= 0)].flat[0])
    return array


def _time_and_state(
    time: ArrayLike, state: ArrayLike
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    return nonnegatives("time", time), nonnegatives("state", state)


def _product(
    *factors: ArrayLike,
    power_of: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """Mantissa and binary exponent of a product, times s^p where (s, p) is given."""
    mantissa, exponent = np.ones(()), np.zeros(())
    for factor in factors:
        part, shift = np.frexp(np.asarray(factor))
        mantissa, exponent = mantissa * part, exponent + shift
    if power_of is not None:
        s, p = (np.asarray(x) for x in power_of)
        with np.errstate(over="ignore"):  # clipped next: far beyond any exponent
            log = p * np.log2(np.where(s > 0, s, 1.0))
        log = np.clip(log, -1e15, 1e15)
        whole = np.floor(log)
        mantissa = mantissa * np.where(s > 0, np.exp2(log - whole), 0.0)
        exponent = exponent + whole
    mantissa, shift = np.frexp(mantissa)
    return np.asarray(mantissa), np.where(mantissa == 0, 0.0, exponent + shift)


def _unscaled(mantissa: ArrayLike, exponent: ArrayLike) -> Float64[Array, "..."]:
    """The number itself: infinite or zero where it is out of range."""
    shift = np.clip(exponent, -4000, 4000).astype(np.int64)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(mantissa, shift))


def _log1p_scaled(
    mantissa: Float64[Array, "..."], exponent: Float64[Array, "..."]
) -> Float64[Array, "..."]:
    """log(1 + x)."""
    x = _unscaled(mantissa, np.minimum(exponent, _BIG))
    safe = np.where(mantissa > 0, mantissa, 1.0)
    beyond = np.log(safe) + exponent * np.log(2.0)
    return np.where(exponent > _BIG, beyond, np.log1p(x))


def _log_ratio(
    one: Float64[Array, "..."], other: Float64[Array, "..."]
) -> Float64[Array, "..."]:
    """|log(one/other)| of positive numbers, whatever their exponents."""
    high, low = np.maximum(one, other), np.minimum(one, other)
    close = high / 2 < low
    near = np.log1p((high - low) / np.where(close, low, high))
    (top, up), (bottom, down) = _product(high), _product(low)
    far = np.log(top / bottom) + (up - down) * np.log(2.0)
    return np.where(close, near, far)
