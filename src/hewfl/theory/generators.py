"""Scalar flows: how far a gap falls in a given time under v̇ = −φ(v).

A generator φ is convex with φ(0) = 0 and φ > 0 beyond (ass:generator). From it follow

    R_a(s)   the flow: v(a) for v(0) = s
    χ(s)     the time coordinate: χ(R_a(s)) = χ(s) + a (prop:chi)
    L_a(m)   the slope modulus: the largest slope of R_a beyond m

Three generators have closed forms; `convex_flow` integrates any other. Everything
broadcasts, and products such as κas are formed without overflow (erratum E-32).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import (
    Array,
    ArrayLike,
    as_float64,
    broadcast,
    invalid,
    nonnegatives,
    positives,
)
from hewfl.core.shapes import broadcasting
from hewfl.theory.scaled import BIG, log1p_scaled, log_ratio, product, unscaled
from hewfl.theory.statement import Hypothesis, at_most, below


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


@broadcasting
def slope_modulus(
    generator: Generator, time: ArrayLike, floor: ArrayLike
) -> Float64[Array, "..."]:
    """Largest slope of the flow beyond m (def:slope_modulus, lem:L).

        L_a(m) = φ(R_a(m))/φ(m),  m > 0;     L_a(0) = exp(−a φ'(0+))

    It lies in [0, 1] because dR_a/ds = exp(−∫φ') and φ' ≥ 0; that R_a(s) ≤ s, as the
    paper argues, would not be enough (erratum E-24).
    """
    m = nonnegatives("floor", floor)
    return np.asarray(np.exp(generator.log_slope(time, m)))


@broadcasting
def relative_decrease(
    generator: Generator, time: ArrayLike, state: ArrayLike
) -> Float64[Array, "..."]:
    """1 − R_a(s)/s without cancellation (erratum E-32); its limit at s = 0."""
    return np.asarray(-np.expm1(-generator.log_shrink(time, state)))


@broadcasting
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
        return unscaled(*product(self.coefficient, s, s))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = s/(1 + κas)  (eq:quadratic_R)."""
        a, s = time_and_state(time, state)
        mantissa, exponent = product(self.coefficient, a, s)
        x = unscaled(mantissa, np.minimum(exponent, BIG))
        share, power = product(s)
        safe = np.where(mantissa > 0, mantissa, 1.0)
        beyond = unscaled(share / safe, power - exponent)
        return np.where(exponent > BIG, beyond, s / (1 + x))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """log(1 + κas)."""
        return log1p_scaled(*product(self.coefficient, *time_and_state(time, state)))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = 1/(1 + κam)²  (eq:quadratic_lambda)."""
        return np.asarray(-2 * self.log_shrink(time, floor))

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = (1/s − 1/s_ref)/κ."""
        s, top = positives("state", state), positives("reference", reference)
        above, below_ = product(top - s), product(self.coefficient, s, top)
        return unscaled(above[0] / below_[0], above[1] - below_[1])


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
        """Check ranges and shapes."""
        names = ("coefficient", "power")
        values = {name: positives(name, getattr(self, name)) for name in names}
        broadcast(values)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def origin_slope(self) -> Float64[Array, "..."]:
        """φ'(0+) = 0."""
        return np.zeros(np.broadcast_shapes(self._kappa.shape, self._p.shape))

    def value(self, state: ArrayLike) -> Float64[Array, "..."]:
        """κs^{1+p}."""
        s = nonnegatives("state", state)
        return unscaled(*product(self._kappa, s, power_of=(s, self._p)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = (s^{−p} + κpa)^{−1/p}  (eq:power_R).

        Taken from s where x = κpa s^p is small, from (κpa)^{−1/p} where it is large.
        """
        a, s = time_and_state(time, state)
        p = self._p
        mantissa, exponent = product(self._kappa, p, a, power_of=(s, p))
        near = s * np.exp(-log1p_scaled(mantissa, exponent) / p)
        large = (exponent > 0) & (mantissa > 0)
        limit, shift = product(self._kappa, p, np.where(a > 0, a, 1.0))
        inverse = unscaled(1 / np.where(large, mantissa, 1.0), -exponent)
        with np.errstate(over="ignore"):  # of entries that `where` leaves out
            far = np.exp2(-(np.log2(limit) + shift) / p)
            far = far * np.exp(-np.log1p(np.where(large, inverse, 0.0)) / p)
        return np.where(large, far, near)

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """log(1 + κpa s^p)/p."""
        a, s = time_and_state(time, state)
        x = product(self._kappa, self._p, a, power_of=(s, self._p))
        return np.asarray(log1p_scaled(*x) / self._p)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = (1 + κpa m^p)^{−1−1/p}  (eq:power_lambda)."""
        return np.asarray(-(1 + self._p) * self.log_shrink(time, floor))

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = (s^{−p} − s_ref^{−p})/(κp), from the larger of the two powers."""
        s, top = positives("state", state), positives("reference", reference)
        p = self._p
        part = -np.expm1(-p * log_ratio(s, top))
        above = product(part, power_of=(np.minimum(s, top), -p))
        below_ = product(self._kappa, p)
        size = unscaled(above[0] / below_[0], above[1] - below_[1])
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
        return unscaled(*product(self.rate, nonnegatives("state", state)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """R_a(s) = e^{−ρa} s  (eq:exp_R)."""
        a, s = time_and_state(time, state)
        half = np.exp(-unscaled(*product(self.rate, a)) / 2)
        return np.asarray(s * half * half)  # e^{−ρa} may underflow where R does not

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Float64[Array, "..."]:
        """ρa, whatever s."""
        a, s = time_and_state(time, state)
        return np.asarray(unscaled(*product(self.rate, a)) + 0 * s)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Float64[Array, "..."]:
        """L_a(m) = e^{−ρa}, whatever m  (eq:exp_lambda)."""
        return np.asarray(-self.log_shrink(time, floor))

    def coordinate(
        self, state: ArrayLike, reference: ArrayLike
    ) -> Float64[Array, "..."]:
        """χ(s) = log(s_ref/s)/ρ."""
        s, top = positives("state", state), positives("reference", reference)
        ratio = log_ratio(s, top)
        return np.asarray(np.sign(top - s) * ratio / self.origin_slope)


def time_and_state(
    time: ArrayLike, state: ArrayLike
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """Checked a and s."""
    return nonnegatives("time", time), nonnegatives("state", state)
