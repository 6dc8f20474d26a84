"""Products beyond the range of floats, as a mantissa and a binary exponent (E-32)."""

import numpy as np

from hewfl.core.checks import ArrayLike, Reals

BIG = 1000
"""Binary exponent beyond which 1 + x is x, and x itself may overflow."""


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


def unscaled(mantissa: ArrayLike, exponent: ArrayLike) -> Reals:
    """The number itself: infinite or zero where it is out of range."""
    shift = np.clip(exponent, -4000, 4000).astype(np.int64)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(mantissa, shift))


def log1p_scaled(mantissa: Reals, exponent: Reals) -> Reals:
    """log(1 + x)."""
    x = unscaled(mantissa, np.minimum(exponent, BIG))
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
