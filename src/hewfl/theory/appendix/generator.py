"""Scalar flows: how far a gap falls in a given time under v̇ = −φ(v).

A generator φ is convex with φ(0) = 0 and φ > 0 beyond (ass:generator). It determines

    R_a(s)   the flow: v(a) for v(0) = s, a ≥ 0
    χ(s)     the time coordinate: χ(R_a(s)) = χ(s) + a (prop:chi)
    L_a(m)   the slope modulus: the largest slope of R_a beyond m

Three generators have `closed_forms`; `convex_flow` integrates any other. Products
beyond the range of floats are held as a mantissa and a binary exponent (E-32).
"""

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import ArrayLike, Reals, as_float64, invalid, nonnegatives
from hewfl.theory.statement import Hypothesis, at_most, below

BIG = 1000
"""Binary exponent beyond which 1 + x is x, and x itself may overflow."""


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

    Smoothness between the points cannot be seen and is not claimed.

    The grid has increasing positive points; every configuration of φ has its own
    answer.
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


def time_and_state(time: ArrayLike, state: ArrayLike) -> tuple[Reals, Reals]:
    """Validated a and s."""
    return nonnegatives("time", time), nonnegatives("state", state)


def product(
    *factors: ArrayLike, power_of: tuple[ArrayLike, ArrayLike] | None = None
) -> tuple[Reals, Reals]:
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


def from_scaled(mantissa: ArrayLike, exponent: ArrayLike) -> Reals:
    """The number itself: infinite or zero where it is out of range."""
    shift = np.clip(exponent, -4000, 4000).astype(np.int64)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(mantissa, shift))


def log1p_scaled(mantissa: Reals, exponent: Reals) -> Reals:
    """log(1 + x)."""
    x = from_scaled(mantissa, np.minimum(exponent, BIG))
    safe = np.where(mantissa > 0, mantissa, 1.0)
    beyond = np.log(safe) + exponent * np.log(2.0)
    return np.where(exponent > BIG, beyond, np.log1p(x))


def log_ratio(one: Reals, other: Reals) -> Reals:
    """|log(one/other)| of positive numbers, whatever their exponents."""
    high, low = np.maximum(one, other), np.minimum(one, other)
    close = high / 2 < low
    near = np.log1p((high - low) / np.where(close, low, high))
    (top, up), (bottom, down) = product(high), product(low)
    far = np.log(top / bottom) + (up - down) * np.log(2.0)
    return np.where(close, near, far)
