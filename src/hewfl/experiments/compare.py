"""Paired comparisons: the same seeds, the same draws, a confidence interval."""

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import scipy.special
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, invalid
from hewfl.experiments.results import Results
from hewfl.experiments.tune import LARGER_IS_BETTER

Verdict = Literal["better", "worse", "undecided"]
LEVEL = 0.95
"""Of the confidence intervals."""
ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Spread of differences, relative to what was compared, that is none."""


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """How much lower one method's quantity is than another's, seed by seed.

    Attributes:
        mean: of the differences, first minus second.
        low: end of the confidence interval of the mean (Student's t).
        high: the other end.
        seeds: pairs that count; those where either is not finite do not.
        verdict: whether the first is better, as less is better; undecided where the
            interval holds zero, there are fewer than two pairs, or the differences are
            equal up to rounding: what does not vary has no error to judge by.
    """

    mean: float
    low: float
    high: float
    seeds: int
    verdict: Verdict


def compare(
    first: ArrayLike, second: ArrayLike, *, larger_is_better: bool = False
) -> Comparison:
    """Compare two methods on the same seeds.

    >>> compare([1.0, 1.2, 1.1], [2.0, 2.1, 2.2]).verdict
    'better'
    """
    a, b = _values("first", first), _values("second", second)
    if a.shape != b.shape:
        raise invalid("second", f"of shape {a.shape} like `first`", b.shape)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    d = a - b
    count = len(d)
    if count == 0:
        return Comparison(math.nan, math.nan, math.nan, 0, "undecided")
    mean = float(d.mean())
    if count == 1:
        return Comparison(mean, -math.inf, math.inf, 1, "undecided")
    deviation = float(d.std(ddof=1))
    error = deviation / math.sqrt(count)
    half = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    low, high = mean - half, mean + half
    verdict: Verdict = "undecided"
    scale = float(np.abs([a, b]).max())
    if deviation > ROUNDING * scale and (high < 0 or low > 0):
        verdict = "better" if (mean < 0) != larger_is_better else "worse"
    return Comparison(mean, low, high, count, verdict)


def pair(results: Results, first: str, second: str, quantity: str) -> Comparison:
    """Two methods after the last round, seed by seed, by the models they are judged by.

    A method that diverged for every seed is behind one that did not.
    """
    better = quantity in LARGER_IS_BETTER
    a, b = (_final(results, label, quantity) for label in (first, second))
    if np.isfinite(a).any() and not np.isfinite(b).any():
        return Comparison(math.nan, math.nan, math.nan, 0, "better")
    if np.isfinite(b).any() and not np.isfinite(a).any():
        return Comparison(math.nan, math.nan, math.nan, 0, "worse")
    return compare(a, b, larger_is_better=better)


def _final(results: Results, label: str, quantity: str) -> Float64[Array, " seeds"]:
    quantity = results.judged(label, quantity)
    if results.measures(label, quantity):
        return results.final(label, quantity)
    return np.full(len(results.spec.seeds), np.nan)  # it diverged in every seed


def _values(name: str, values: ArrayLike) -> Float64[Array, " seeds"]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise invalid(name, "one value per seed", f"shape {array.shape}")
    return array
