"""Paired comparisons: the same seeds, the same draws, a confidence interval."""

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import scipy.special
from jaxtyping import Float64

from hewfl.core.checks import Array, ArrayLike, invalid
from hewfl.experiments.axes import Axis, places
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
    d, varies = _differences(a, b)
    count = len(d)
    if count == 0:
        return Comparison(math.nan, math.nan, math.nan, 0, "undecided")
    mean = float(d.mean())
    if count == 1:
        return Comparison(mean, -math.inf, math.inf, 1, "undecided")
    half = half_width(d)
    low, high = mean - half, mean + half
    verdict: Verdict = "undecided"
    if varies and (high < 0 or low > 0):
        verdict = "better" if (mean < 0) != larger_is_better else "worse"
    return Comparison(mean, low, high, count, verdict)


def half_width(values: Float64[Array, " seeds"]) -> float:
    """Half the confidence interval of the mean of two values or more: Student's t."""
    count = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    return float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error


def pair(
    results: Results,
    first: str,
    second: str,
    quantity: str,
    *,
    axis: Axis = "rounds",
) -> Comparison:
    """Two methods after equal cost, seed by seed, by the models they are judged by.

    Equal rounds are all rounds. Equal scalars are as many as both have sent at the end:
    the one that sends more in a round is taken earlier, between two evaluations by a
    straight line. A method that diverged for every seed is behind one that did not.

    Args:
        results: of a run.
        first: label of a method.
        second: label of another.
        quantity: what `Results.curve` knows.
        axis: what is equal: rounds, scalars sent by our count or the paper's, seconds.
    """
    both = (first, second)
    if axis == "rounds":
        a, b = (final_of(results, label, quantity) for label in both)
    else:
        sent = [places(results, label, axis) for label in both]
        budget = np.minimum(sent[0][:, -1], sent[1][:, -1])
        a, b = (_after(results, label, quantity, axis, budget) for label in both)
    return compare_finals(a, b, quantity)


def compare_finals(
    first: Float64[Array, " seeds"], second: Float64[Array, " seeds"], quantity: str
) -> Comparison:
    """Two methods by their last values of a quantity, seed by seed.

    A method that diverged for every seed is behind one that did not.
    """
    a, b, better = first, second, quantity in LARGER_IS_BETTER
    if np.isfinite(a).any() and not np.isfinite(b).any():
        return Comparison(math.nan, math.nan, math.nan, 0, "better")
    if np.isfinite(b).any() and not np.isfinite(a).any():
        return Comparison(math.nan, math.nan, math.nan, 0, "worse")
    return compare(a, b, larger_is_better=better)


def final_of(results: Results, label: str, quantity: str) -> Float64[Array, " seeds"]:
    """The last values of one method, by the model it is judged by; NaN if none."""
    quantity = results.judged(label, quantity)
    if results.measures(label, quantity):
        return results.final(label, quantity)
    return np.full(len(results.spec.seeds), np.nan)  # it diverged in every seed


def _after(
    results: Results,
    label: str,
    quantity: str,
    axis: Axis,
    budget: Float64[Array, " seeds"],
) -> Float64[Array, " seeds"]:
    """A quantity when so much has been sent, seed by seed; NaN where it diverged."""
    values = results.values(label, results.judged(label, quantity))
    rows = zip(budget, places(results, label, axis), values, strict=True)
    found = []
    for most, sent, curve in rows:
        known = np.isfinite(curve)
        ended = not known[sent <= most].all() or not known.any()
        kept = np.nan if ended else float(np.interp(most, sent[known], curve[known]))
        found.append(kept)
    return np.array(found)


def paired_p(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided p of a paired t-test: how likely so large a difference is by chance.

    One where fewer than two pairs are finite, or the differences do not vary.

    >>> round(paired_p([1.0, 1.2, 1.1], [2.0, 2.1, 2.2]), 3)
    0.003
    """
    d, varies = _differences(_values("first", first), _values("second", second))
    count = len(d)
    if not varies:
        return 1.0
    t = float(d.mean() / (d.std(ddof=1) / math.sqrt(count)))
    return float(2 * scipy.special.stdtr(count - 1, -abs(t)))


def holm(p: ArrayLike) -> Float64[Array, " tests"]:
    """Holm's correction: a false find among all the tests becomes rare.

        max over j ≤ k of min(1, (m − j + 1) p_(j))   for p_(k),  p_(1) ≤ … ≤ p_(m)

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = _values("p", p)
    order = np.argsort(given, kind="stable")
    m = len(given)
    stepped = np.maximum.accumulate(given[order] * np.arange(m, 0, -1))
    found = np.empty(m)
    found[order] = np.minimum(stepped, 1.0)
    return found


def _differences(
    first: Float64[Array, " seeds"], second: Float64[Array, " seeds"]
) -> tuple[Float64[Array, " pairs"], bool]:
    """Differences where both are finite, and whether they vary by more than rounding.

    What does not vary has no error to judge by.
    """
    both = np.isfinite(first) & np.isfinite(second)
    a, b = first[both], second[both]
    if len(a) < 2:
        return a - b, False
    scale = float(np.abs([a, b]).max())
    return a - b, float((a - b).std(ddof=1)) > ROUNDING * scale


def _values(name: str, values: ArrayLike) -> Float64[Array, " seeds"]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise invalid(name, "one value per seed", f"shape {array.shape}")
    return array
