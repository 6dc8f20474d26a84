"""Paired comparisons: the same seeds, the same draws, a confidence interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, final

import numpy as np
import scipy.special

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, ArrayLike, invalid
from hewfl.experiments.results import Axis, Results, places
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


# ------------------ Who wins on a quantity, and how sure that is: all pairs, with

EQUAL = 1e-7
"""Relative difference that single precision cannot tell from none."""
_OTHER: dict[Verdict, Verdict] = {
    "better": "worse",
    "worse": "better",
    "undecided": "undecided",
}


@final
@dataclass(frozen=True, slots=True)
class Certain:
    """Two methods of several, compared with regard to how many pairs there are.

    Attributes:
        found: the comparison for itself.
        p: corrected by Holm over all pairs of the quantity; 0 where one method
            diverged for every seed, which needs no test.
    """

    found: Comparison
    p: float

    @property
    def verdict(self) -> Verdict:
        """Better or worse where the corrected p leaves no more than 5 % doubt."""
        return self.found.verdict if self.p < 1 - LEVEL else "undecided"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The methods of a run on one quantity, after the last round.

    Attributes:
        quantity: what `Results.curve` knows.
        finals: last values of each method, seed by seed, best mean first; those that
            diverged in a seed come last.
        pairs: the earlier of two against the later.
    """

    quantity: str
    finals: Mapping[str, Float64[Array, " seeds"]]
    pairs: Mapping[tuple[str, str], Certain]

    @property
    def labels(self) -> tuple[str, ...]:
        """Best first."""
        return tuple(self.finals)

    def mean(self, label: str) -> float:
        """Over all seeds; NaN if it diverged in one."""
        return float(self.finals[label].mean())

    @property
    def best(self) -> tuple[str, ...]:
        """Methods with the best mean, several if they are equal; may be none."""
        top = self.labels[0]
        if not np.isfinite(self.mean(top)):
            return ()
        return tuple(k for k in self.labels if k == top or self.is_equal(top, k))

    def against(self, first: str, second: str) -> Certain:
        """One method against another, either way round."""
        if (first, second) in self.pairs:
            return self.pairs[first, second]
        known = self.pairs[second, first]
        c = known.found
        turned = replace(
            c, mean=-c.mean, low=-c.high, high=-c.low, verdict=_OTHER[c.verdict]
        )
        return Certain(turned, known.p)

    def is_equal(self, first: str, second: str) -> bool:
        """Whether two methods have the same value in every seed, up to rounding."""
        a, b = self.finals[first], self.finals[second]
        return bool((np.abs(a - b) <= EQUAL * np.abs(a)).all())

    def split(self, label: str) -> dict[Verdict, list[str]]:
        """The other methods by the verdict on one; those equal to it left out."""
        told: dict[Verdict, list[str]] = {"better": [], "worse": [], "undecided": []}
        for other in self.labels:
            if other != label and not self.is_equal(label, other):
                told[self.against(label, other).verdict].append(other)
        return told


def stand(results: Results, quantity: str) -> Standing:
    """Compare all methods of a run on a quantity, each by the model it is judged by."""
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    found = {label: final_of(results, label, quantity) for label in results.labels}
    worth = {k: sign * float(v.mean()) for k, v in found.items()}
    order = sorted(found, key=lambda k: (not np.isfinite(worth[k]), worth[k]))
    finals = {label: found[label] for label in order}
    names = list(combinations(order, 2))
    seen = [compare_finals(finals[a], finals[b], quantity) for a, b in names]
    tested = [paired_p(finals[a], finals[b]) for a, b in names]
    # a method that diverged everywhere is behind without a test: not of the family
    sure = [c.seeds == 0 and c.verdict != "undecided" for c in seen]
    kept = iter(holm([p for p, s in zip(tested, sure, strict=True) if not s]).tolist())
    p = [0.0 if s else next(kept) for s in sure]
    rows = zip(names, seen, p, strict=True)
    return Standing(quantity, finals, {name: Certain(c, q) for name, c, q in rows})


# ------------------ Methods over several panels: mean ranks, certain wins and


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One method over the panels it is in.

    Attributes:
        label: what tables call it.
        rank: the mean over panels; 1 is best, equal means share theirs.
        panels: how many it is in.
        best: in how many it has the best mean.
        wins: certain wins over other methods, all panels together.
        losses: certain losses.
    """

    label: str
    rank: float
    panels: int
    best: int
    wins: int
    losses: int


def rank(standings: Sequence[Standing]) -> list[Row]:
    """Rank methods over panels, best mean rank first; those in one panel left out."""
    ranks: dict[str, list[float]] = {}
    for standing in standings:
        for label, place in _places(standing).items():
            ranks.setdefault(label, []).append(place)
    rows = []
    for label, own in ranks.items():
        mine = [s for s in standings if label in s.finals]
        told = [s.split(label) for s in mine]
        rows.append(
            Row(
                label,
                float(np.mean(own)),
                len(own),
                sum(label in s.best for s in mine),
                sum(len(t["better"]) for t in told),
                sum(len(t["worse"]) for t in told),
            )
        )
    several = [row for row in rows if row.panels > 1]
    return sorted(several, key=lambda row: row.rank)


def friedman(standings: Sequence[Standing]) -> float | None:
    """Friedman's p: how likely ranks differ so much between methods by chance alone.

        χ² = 12 N / (k (k + 1)) Σ_j (R_j − (k + 1)/2)²    on k − 1 degrees of freedom

    for N panels and the k methods that are in all of them, R_j the mean rank among
    these; None with fewer than two panels or three methods.
    """
    first, *rest = (s.labels for s in standings)
    shared = [label for label in first if all(label in own for own in rest)]
    N, k = len(standings), len(shared)
    if N < 2 or k < 3:
        return None
    table = np.array([[_places(s)[label] for label in shared] for s in standings])
    among = np.array([[(row < v).sum() + _half(row, v) for v in row] for row in table])
    R = among.mean(axis=0)
    chi2 = 12 * N / (k * (k + 1)) * float(((R - (k + 1) / 2) ** 2).sum())
    return float(scipy.special.chdtrc(k - 1, chi2))


def _half(row: "np.typing.NDArray[np.float64]", value: float) -> float:
    """Place among equals, the mean of those they share."""
    return float(((row == value).sum() + 1) / 2)


def _places(standing: Standing) -> dict[str, float]:
    """Rank of each method in one panel; a method that diverged is behind all others."""
    sign = -1 if standing.quantity in LARGER_IS_BETTER else 1
    means = {label: sign * standing.mean(label) for label in standing.labels}
    worth = {k: v if np.isfinite(v) else np.inf for k, v in means.items()}
    row = np.array(list(worth.values()))
    return {k: float((row < v).sum()) + _half(row, v) for k, v in worth.items()}


# ------------------ What a method needs to reach a target: rounds, scalars sent,


def common_target(standing: Standing) -> float | None:
    """A level that about half of the methods reach: the middle one's worst seed.

    None where no method came through every seed.
    """
    kept = [v for v in standing.finals.values() if np.isfinite(v).all()]
    if not kept:
        return None
    middle = kept[(len(kept) - 1) // 2]
    is_up = standing.quantity in LARGER_IS_BETTER
    return float(middle.min() if is_up else middle.max())


def reach(
    results: Results, label: str, quantity: str, target: float, axis: Axis
) -> Float64[Array, " seeds"]:
    """Where each seed of a method first is at a target; infinite where it never is.

    Between two evaluations by a straight line.
    """
    values = results.values(label, results.judged(label, quantity))
    sign = -1.0 if quantity in LARGER_IS_BETTER else 1.0
    found = []
    for at, row in zip(places(results, label, axis), sign * values, strict=True):
        there = np.flatnonzero(row <= sign * target)
        if there.size == 0:
            found.append(np.inf)
            continue
        k = there[0]
        before = row[k - 1] if k else row[k]
        whole = before - row[k]
        part = (before - sign * target) / whole if np.isfinite(whole) and whole else 1.0
        found.append(at[k - 1] + part * (at[k] - at[k - 1]) if k else at[k])
    return np.array(found)


def reach_text(found: Float64[Array, " seeds"]) -> str:
    """Mean with its interval; where seeds never arrive, the median and how many do."""
    arrived = np.isfinite(found)
    if not arrived.any():
        return "not reached"
    if not arrived.all():
        middle = np.sort(found)[(len(found) - 1) // 2]
        half = f", median {short(middle)}" if np.isfinite(middle) else ""
        return f"in {arrived.sum()} of {len(found)} seeds{half}"
    mean = float(found.mean())
    if len(found) == 1:
        return short(mean)
    width = half_width(found)
    return f"{short(mean)} [{short(max(mean - width, 0.0))}, {short(mean + width)}]"


def short(value: float) -> str:
    """Three digits, thousands as k, millions as M."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
