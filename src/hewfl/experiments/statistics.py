"""Statistics of a comparison: paired tests over seeds, rankings, rounds to a target.

Methods of a run share seeds and draws, so differences are taken seed by seed. One pair
is tested by Student's t; all pairs of a run by the same test with Holm's correction;
methods over several runs ("panels") by Friedman's test on their ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Literal, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, ArrayLike, invalid
from hewfl.experiments.results import LARGER_IS_BETTER, Axis, Results, axis_values

# scipy.stats takes longer to import than the command needs to start: it is imported
# where a test is done.

Verdict = Literal["better", "worse", "undecided"]
LEVEL = 0.95
"""Of the confidence intervals."""
ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Spread of differences, relative to the values, that counts as none."""
EQUAL = 1e-7
"""Relative difference below the resolution of single precision."""
_OPPOSITE: dict[Verdict, Verdict] = {
    "better": "worse",
    "worse": "better",
    "undecided": "undecided",
}


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two methods in one quantity, seed by seed.

    Attributes:
        mean: of the differences, first minus second.
        low: lower end of the confidence interval of the mean (Student's t).
        high: its upper end.
        seeds: pairs that count: both values are finite.
        verdict: whether the first method is better; undecided where the interval
            holds zero, there are fewer than two pairs, or the differences are equal up
            to rounding: without variation there is no estimate of the error.
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
    a, b = _vector("first", first), _vector("second", second)
    if a.shape != b.shape:
        raise invalid("second", f"of shape {a.shape} like `first`", b.shape)
    differences, varies = _differences(a, b)
    count = len(differences)
    if count == 0:
        return Comparison(math.nan, math.nan, math.nan, 0, "undecided")
    mean = float(differences.mean())
    if count == 1:
        return Comparison(mean, -math.inf, math.inf, 1, "undecided")
    half = half_width(differences)
    low, high = mean - half, mean + half
    verdict: Verdict = "undecided"
    if varies and (high < 0 or low > 0):
        verdict = "better" if (mean < 0) != larger_is_better else "worse"
    return Comparison(mean, low, high, count, verdict)


def half_width(values: Float64[Array, " seeds"]) -> float:
    """Half the confidence interval of the mean of two values or more: Student's t."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return _t_quantile(len(values) - 1) * error


@cache  # a report asks thousands of times for the same one
def _t_quantile(freedom: int) -> float:
    from scipy import stats  # noqa: PLC0415 - slow to import

    return float(stats.t.ppf((1 + LEVEL) / 2, freedom))


def paired_p(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided p of a paired t-test.

    1 where fewer than two pairs are finite, or the differences do not vary.

    >>> round(paired_p([1.0, 1.2, 1.1], [2.0, 2.1, 2.2]), 3)
    0.003
    """
    from scipy import stats  # noqa: PLC0415 - slow to import

    differences, varies = _differences(
        _vector("first", first), _vector("second", second)
    )
    if not varies:
        return 1.0
    # The formula of `stats.ttest_rel`, which takes ten times as long: a study of fifty
    # methods has a thousand pairs.
    count = len(differences)
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(count))
    return float(2 * stats.t.sf(abs(t), count - 1))


def holm(p: ArrayLike) -> Float64[Array, " tests"]:
    """Holm's correction of p values for the number of tests.

        max over j ≤ k of min(1, (m − j + 1) p_(j))   for p_(k),  p_(1) ≤ … ≤ p_(m)

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = _vector("p", p)
    order = np.argsort(given, kind="stable")
    m = len(given)
    stepped = np.maximum.accumulate(given[order] * np.arange(m, 0, -1))
    corrected = np.empty(m)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def compare_methods(
    results: Results,
    first: str,
    second: str,
    quantity: str,
    *,
    axis: Axis = "rounds",
) -> Comparison:
    """Compare two methods of a run at equal cost, by the models that are evaluated.

    Equal rounds are all rounds. Equal scalars are as many as both have sent at the end:
    the method that sends more in a round is read off earlier, by linear interpolation
    between two evaluations.

    Args:
        results: of a run.
        first: label of a method.
        second: label of another.
        quantity: as in `Results.curve`.
        axis: what is equal: rounds, scalars sent by our count or the paper's, seconds.
    """
    labels = (first, second)
    if axis == "rounds":
        a, b = (final_values(results, label, quantity) for label in labels)
    else:
        spent = [axis_values(results, label, axis) for label in labels]
        budget = np.minimum(spent[0][:, -1], spent[1][:, -1])
        a, b = (_values_at(results, k, quantity, axis, budget) for k in labels)
    return compare_finals(a, b, quantity)


def compare_finals(
    first: Float64[Array, " seeds"], second: Float64[Array, " seeds"], quantity: str
) -> Comparison:
    """Compare two methods by their last values of a quantity, seed by seed.

    A method that diverged for every seed is worse than one that did not.
    """
    if np.isfinite(first).any() and not np.isfinite(second).any():
        return Comparison(math.nan, math.nan, math.nan, 0, "better")
    if np.isfinite(second).any() and not np.isfinite(first).any():
        return Comparison(math.nan, math.nan, math.nan, 0, "worse")
    return compare(first, second, larger_is_better=quantity in LARGER_IS_BETTER)


def final_values(
    results: Results, label: str, quantity: str
) -> Float64[Array, " seeds"]:
    """The last values of a method, by the model that is evaluated; NaN if none."""
    quantity = results.evaluated_quantity(label, quantity)
    if results.measures(label, quantity):
        return results.final(label, quantity)
    return np.full(len(results.spec.seeds), np.nan)  # it diverged in every seed


def _values_at(
    results: Results,
    label: str,
    quantity: str,
    axis: Axis,
    budget: Float64[Array, " seeds"],
) -> Float64[Array, " seeds"]:
    """A quantity when a budget is spent, seed by seed; NaN where it diverged."""
    curves = results.values(label, results.evaluated_quantity(label, quantity))
    rows = zip(budget, axis_values(results, label, axis), curves, strict=True)
    values = []
    for most, spent, curve in rows:
        known = np.isfinite(curve)
        if known[spent <= most].all() and known.any():
            values.append(float(np.interp(most, spent[known], curve[known])))
        else:
            values.append(np.nan)
    return np.array(values)


def _differences(
    first: Float64[Array, " seeds"], second: Float64[Array, " seeds"]
) -> tuple[Float64[Array, " pairs"], bool]:
    """Differences where both are finite, and whether they vary beyond rounding."""
    both = np.isfinite(first) & np.isfinite(second)
    a, b = first[both], second[both]
    if len(a) < 2:
        return a - b, False
    scale = float(np.abs([a, b]).max())
    return a - b, float((a - b).std(ddof=1)) > ROUNDING * scale


def _vector(name: str, values: ArrayLike) -> Float64[Array, " seeds"]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise invalid(name, "one value per seed", f"shape {array.shape}")
    return array


@final
@dataclass(frozen=True, slots=True)
class CorrectedComparison:
    """A comparison that is one of several.

    Attributes:
        comparison: of the two methods alone.
        p: corrected by Holm over all pairs of the quantity; 0 where one method
            diverged for every seed, which needs no test.
    """

    comparison: Comparison
    p: float

    @property
    def verdict(self) -> Verdict:
        """Better or worse where the corrected p is below 5 %."""
        return self.comparison.verdict if self.p < 1 - LEVEL else "undecided"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The methods of a run by one quantity, after the last round.

    Attributes:
        quantity: as in `Results.curve`.
        finals: last values of each method, seed by seed, best mean first; methods that
            diverged in a seed come last.
        pairs: the better of two against the other.
    """

    quantity: str
    finals: Mapping[str, Float64[Array, " seeds"]]
    pairs: Mapping[tuple[str, str], CorrectedComparison]

    @property
    def labels(self) -> tuple[str, ...]:
        """Best first."""
        return tuple(self.finals)

    def mean(self, label: str) -> float:
        """Over all seeds; NaN if the method diverged in one."""
        return float(self.finals[label].mean())

    @property
    def best(self) -> tuple[str, ...]:
        """Methods with the best mean, several if they are equal; may be none."""
        top = self.labels[0]
        if not np.isfinite(self.mean(top)):
            return ()
        return tuple(k for k in self.labels if k == top or self.is_equal(top, k))

    def compare(self, first: str, second: str) -> CorrectedComparison:
        """One method against another, in either order."""
        if (first, second) in self.pairs:
            return self.pairs[first, second]
        reverse = self.pairs[second, first]
        c = reverse.comparison
        turned = replace(
            c, mean=-c.mean, low=-c.high, high=-c.low, verdict=_OPPOSITE[c.verdict]
        )
        return CorrectedComparison(turned, reverse.p)

    def is_equal(self, first: str, second: str) -> bool:
        """Whether two methods have the same value in every seed, up to rounding."""
        a, b = self.finals[first], self.finals[second]
        return bool((np.abs(a - b) <= EQUAL * np.abs(a)).all())

    def by_verdict(self, label: str) -> dict[Verdict, list[str]]:
        """The other methods by the verdict on one; those equal to it left out."""
        groups: dict[Verdict, list[str]] = {"better": [], "worse": [], "undecided": []}
        for other in self.labels:
            if other != label and not self.is_equal(label, other):
                groups[self.compare(label, other).verdict].append(other)
        return groups

    @property
    def ranks(self) -> dict[str, float]:
        """1 for the best mean; equal means share theirs, diverged methods are last."""
        from scipy import stats  # noqa: PLC0415 - slow to import

        sign = -1 if self.quantity in LARGER_IS_BETTER else 1
        means = np.array([sign * self.mean(label) for label in self.labels])
        ranks = stats.rankdata(np.where(np.isfinite(means), means, np.inf))
        return dict(zip(self.labels, ranks.tolist(), strict=True))


def rank_methods(results: Results, quantity: str) -> Ranking:
    """Compare all methods of a run by a quantity, each by the model evaluated."""
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    values = {label: final_values(results, label, quantity) for label in results.labels}
    means = {k: sign * float(v.mean()) for k, v in values.items()}
    order = sorted(values, key=lambda k: (not np.isfinite(means[k]), means[k]))
    finals = {label: values[label] for label in order}
    names = list(combinations(order, 2))
    comparisons = [compare_finals(finals[a], finals[b], quantity) for a, b in names]
    p = [paired_p(finals[a], finals[b]) for a, b in names]
    # A pair with a method that diverged for every seed needs no test: it does not
    # count as one in the correction.
    is_sure = [c.seeds == 0 and c.verdict != "undecided" for c in comparisons]
    tested = [value for value, sure in zip(p, is_sure, strict=True) if not sure]
    corrected = iter(holm(tested).tolist())
    pairs = {
        name: CorrectedComparison(c, 0.0 if sure else next(corrected))
        for name, c, sure in zip(names, comparisons, is_sure, strict=True)
    }
    return Ranking(quantity, finals, pairs)


@final
@dataclass(frozen=True, slots=True)
class MeanRank:
    """One method over the panels that have it.

    Attributes:
        label: of the method.
        rank: mean over the panels; 1 is best.
        panels: how many have it.
        best: in how many it has the best mean.
        wins: significant wins over other methods, all panels together.
        losses: significant losses.
    """

    label: str
    rank: float
    panels: int
    best: int
    wins: int
    losses: int


def mean_ranks(rankings: Sequence[Ranking]) -> list[MeanRank]:
    """Methods of two panels or more, best mean rank first."""
    rows = []
    for label in dict.fromkeys(k for ranking in rankings for k in ranking.labels):
        panels = [ranking for ranking in rankings if label in ranking.finals]
        groups = [ranking.by_verdict(label) for ranking in panels]
        rows.append(
            MeanRank(
                label,
                float(np.mean([ranking.ranks[label] for ranking in panels])),
                len(panels),
                sum(label in ranking.best for ranking in panels),
                sum(len(group["better"]) for group in groups),
                sum(len(group["worse"]) for group in groups),
            )
        )
    several = [row for row in rows if row.panels > 1]
    return sorted(several, key=lambda row: row.rank)


def friedman_p(rankings: Sequence[Ranking]) -> float | None:
    """Friedman's test, corrected for ties, that all methods rank alike: its p.

    By the methods that all panels share; None with fewer than two panels or three
    methods.
    """
    first, *rest = (ranking.labels for ranking in rankings)
    shared = [label for label in first if all(label in labels for labels in rest)]
    if len(rankings) < 2 or len(shared) < 3:
        return None
    from scipy import stats  # noqa: PLC0415 - slow to import

    ranks = [ranking.ranks for ranking in rankings]
    table = np.array([[each[label] for label in shared] for each in ranks])
    if (table == table[:, :1]).all():  # every panel is one tie
        return 1.0
    return float(stats.friedmanchisquare(*table.T).pvalue)


def common_target(ranking: Ranking) -> float | None:
    """A level that about half of the methods reach: the middle one's worst seed.

    None where every method diverged in a seed.
    """
    finite = [v for v in ranking.finals.values() if np.isfinite(v).all()]
    if not finite:
        return None
    middle = finite[(len(finite) - 1) // 2]
    is_up = ranking.quantity in LARGER_IS_BETTER
    return float(middle.min() if is_up else middle.max())


def rounds_to_target(
    results: Results,
    label: str,
    quantity: str,
    target: float,
    axis: Axis = "rounds",
) -> Float64[Array, " seeds"]:
    """Rounds, or another axis, until a method first reaches a target, seed by seed.

    Infinite where it never does; between two evaluations by linear interpolation.
    """
    values = results.values(label, results.evaluated_quantity(label, quantity))
    sign = -1.0 if quantity in LARGER_IS_BETTER else 1.0
    costs = []
    for at, row in zip(axis_values(results, label, axis), sign * values, strict=True):
        reached = np.flatnonzero(row <= sign * target)
        if reached.size == 0:
            costs.append(np.inf)
            continue
        k = reached[0]
        before = row[k - 1] if k else row[k]
        whole = before - row[k]
        part = (before - sign * target) / whole if np.isfinite(whole) and whole else 1.0
        costs.append(at[k - 1] + part * (at[k] - at[k - 1]) if k else at[k])
    return np.array(costs)


def target_text(costs: Float64[Array, " seeds"]) -> str:
    """Mean with its interval; where some seeds are infinite, the median and how many.

    >>> target_text(np.array([10.0, 12.0, 14.0]))
    '12 [7.03, 17]'
    """
    is_reached = np.isfinite(costs)
    if not is_reached.any():
        return "not reached"
    if not is_reached.all():
        middle = np.sort(costs)[(len(costs) - 1) // 2]
        median = f", median {short_number(middle)}" if np.isfinite(middle) else ""
        return f"in {is_reached.sum()} of {len(costs)} seeds{median}"
    mean = float(costs.mean())
    if len(costs) == 1:
        return short_number(mean)
    half = half_width(costs)
    low, high = short_number(max(mean - half, 0.0)), short_number(mean + half)
    return f"{short_number(mean)} [{low}, {high}]"


def short_number(value: float) -> str:
    """Three digits, thousands as k, millions as M."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
