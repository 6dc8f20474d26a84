"""The generators whose flow has a closed form: φ = κs², κs^{1+p} and ρs.

Everything broadcasts, and products such as κas are formed without overflow (E-32).
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.core.validation import (
    ArrayLike,
    Converted,
    Positives,
    Reals,
    broadcast,
    nonnegatives,
    positives,
)
from hewfl.theory.appendix.generator import (
    BIG,
    from_scaled,
    log1p_scaled,
    log_ratio,
    product,
    time_and_state,
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
        return from_scaled(*product(self.coefficient, s, s))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = s/(1 + κas)  (eq:quadratic_R)."""
        a, s = time_and_state(time, state)
        mantissa, exponent = product(self.coefficient, a, s)
        x = from_scaled(mantissa, np.minimum(exponent, BIG))
        share, power = product(s)
        safe = np.where(mantissa > 0, mantissa, 1.0)
        beyond = from_scaled(share / safe, power - exponent)
        return np.where(exponent > BIG, beyond, s / (1 + x))

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """log(1 + κas)."""
        return log1p_scaled(*product(self.coefficient, *time_and_state(time, state)))

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = 1/(1 + κam)²  (eq:quadratic_lambda)."""
        return np.asarray(-2 * self.log_shrink(time, floor))

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = (1/s − 1/s_ref)/κ."""
        s, top = positives("state", state), positives("reference", reference)
        above, below_ = product(top - s), product(self.coefficient, s, top)
        return from_scaled(above[0] / below_[0], above[1] - below_[1])


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
        broadcast({"coefficient": self._kappa, "power": self._p})

    @property
    def origin_slope(self) -> Reals:
        """φ'(0+) = 0."""
        return np.zeros(np.broadcast_shapes(self._kappa.shape, self._p.shape))

    def value(self, state: ArrayLike) -> Reals:
        """κs^{1+p}."""
        s = nonnegatives("state", state)
        return from_scaled(*product(self._kappa, s, power_of=(s, self._p)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = (s^{−p} + κpa)^{−1/p}  (eq:power_R).

        Taken from s where x = κpa s^p is small, from (κpa)^{−1/p} where it is large.
        """
        a, s = time_and_state(time, state)
        p = self._p
        mantissa, exponent = product(self._kappa, p, a, power_of=(s, p))
        near = s * np.exp(-log1p_scaled(mantissa, exponent) / p)
        large = (exponent > 0) & (mantissa > 0)
        limit, shift = product(self._kappa, p, np.where(a > 0, a, 1.0))
        inverse = from_scaled(1 / np.where(large, mantissa, 1.0), -exponent)
        with np.errstate(over="ignore"):  # of entries that `where` leaves out
            far = np.exp2(-(np.log2(limit) + shift) / p)
            far = far * np.exp(-np.log1p(np.where(large, inverse, 0.0)) / p)
        return np.where(large, far, near)

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """log(1 + κpa s^p)/p."""
        a, s = time_and_state(time, state)
        x = product(self._kappa, self._p, a, power_of=(s, self._p))
        return np.asarray(log1p_scaled(*x) / self._p)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = (1 + κpa m^p)^{−1−1/p}  (eq:power_lambda)."""
        return np.asarray(-(1 + self._p) * self.log_shrink(time, floor))

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = (s^{−p} − s_ref^{−p})/(κp), from the larger of the two powers."""
        s, top = positives("state", state), positives("reference", reference)
        p = self._p
        part = -np.expm1(-p * log_ratio(s, top))
        above = product(part, power_of=(np.minimum(s, top), -p))
        below_ = product(self._kappa, p)
        size = from_scaled(above[0] / below_[0], above[1] - below_[1])
        return np.asarray(np.sign(top - s) * size)

    @property
    def _kappa(self) -> Reals:
        return np.asarray(self.coefficient)

    @property
    def _p(self) -> Reals:
        return np.asarray(self.power)


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
        return from_scaled(*product(self.rate, nonnegatives("state", state)))

    def flow(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """R_a(s) = e^{−ρa} s  (eq:exp_R)."""
        a, s = time_and_state(time, state)
        half = np.exp(-from_scaled(*product(self.rate, a)) / 2)
        return np.asarray(s * half * half)  # e^{−ρa} may underflow where R does not

    def log_shrink(self, time: ArrayLike, state: ArrayLike) -> Reals:
        """ρa, whatever s."""
        a, s = time_and_state(time, state)
        return np.asarray(from_scaled(*product(self.rate, a)) + 0 * s)

    def log_slope(self, time: ArrayLike, floor: ArrayLike) -> Reals:
        """L_a(m) = e^{−ρa}, whatever m  (eq:exp_lambda)."""
        return np.asarray(-self.log_shrink(time, floor))

    def coordinate(self, state: ArrayLike, reference: ArrayLike) -> Reals:
        """χ(s) = log(s_ref/s)/ρ."""
        s, top = positives("state", state), positives("reference", reference)
        ratio = log_ratio(s, top)
        return np.asarray(np.sign(top - s) * ratio / self.origin_slope)
