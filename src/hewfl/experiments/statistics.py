"""Statistics of a comparison: verdicts on pairs, rankings, rounds to a target.

Methods of a run share seeds and draws, so they are compared seed by seed.

Scale. Losses and gaps are compared by the logarithms of their ratios: the spread of a
loss over seeds grows with the loss, and on the raw scale one seed of a method that
collapses makes the interval so wide that it decides nothing. Accuracies are compared by
their differences, and so are losses as soon as one of the family is zero or negative
(an objective may be), where there is no ratio.

Verdict. Student's t on that scale, paired, with Holm's correction over the family of
pairs that is shown, at 5 %: `decide` is the only place where verdicts are made. Beside
it stand the seeds in which a method is ahead and the exact p of a sign-flip test. That
test cannot decide: of n seeds its least p is 2 / 2ⁿ, which is 0.25 with three, 0.0625
with five and 0.016 with seven, so that with fewer than six seeds it never rejects, and
under a correction for several pairs not with seven either. The t-test needs a normal
law instead. If two methods are exchangeable within a seed, their difference is
symmetric about zero whatever the law, and under symmetric laws with heavy tails the
t-test rejects less often than it claims; tests/experiments/test_statistics.py measures
that for 3, 5 and 7 seeds.

Diverged. A seed is lost for a method if its value is not finite, or if its loss ends
above its own start. A method that lost seeds is behind one that lost none, and one that
lost all behind one that did not, without a test; and so is a method whose loss is
`GROSS` times as large in every seed of three or more. But a finite loss has a ratio: a
method that ended above its start in some seeds, and is ahead in others, is tested.

Methods that know the truth (`hewfl.aggregators.YARDSTICKS`) are limits: they have no
rank and no verdict.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import combinations
from typing import Any, Literal, TypeVar, final

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, stdtr, stdtrit

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, ArrayLike, invalid
from hewfl.experiments.results import LARGER_IS_BETTER, Axis, Results, axis_values

# scipy.stats takes longer to import than the command needs to start: it is imported
# where a test over panels is done.

Verdict = Literal["better", "worse", "undecided"]
Scale = Literal["ratio", "difference"]
Pair = tuple[str, str]
Key = TypeVar("Key")
LEVEL = 0.95
"""Of the confidence intervals; one less it is the level of the tests."""
POWER = 0.8
"""With which the detectable difference is detected."""
GROSS = 10.0
"""Ratio of two losses that, in every seed, needs no test."""
ENOUGH = 3
"""Seeds for that."""
ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Spread of differences, relative to the values, that counts as none."""
EQUAL = 1e-7
"""Relative difference below the resolution of single precision."""
MOST_FLIPPED = 40
"""Seeds up to which the sign-flip test is exact."""
RANKED = ("objective", "pooled", "validation_accuracy", "test_accuracy")
"""Quantities by which the methods of a run are ranked."""
SHARED = 3
"""Methods that panels have to share for ranks over panels."""
_OPPOSITE: dict[Verdict, Verdict] = {
    "better": "worse",
    "worse": "better",
    "undecided": "undecided",
}


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """Two methods in one quantity, seed by seed, as one pair of a family.

    Attributes:
        scale: "ratio" or "difference".
        mean: geometric mean of the ratios first / second, or mean of the differences
            first − second.
        low: lower end of its confidence interval (Student's t, of this pair alone).
        high: upper end.
        seeds: pairs with two finite values.
        ahead: seeds in which the first is better; it is if the second diverged.
        behind: seeds in which it is worse.
        spread: standard deviation of the log ratios or differences; 0 without pairs.
        p: two-sided, of the paired t-test; 1 where there is no variation to test by.
        exact_p: two-sided, of the sign-flip test; NaN beyond `MOST_FLIPPED` seeds.
        larger_is_better: as accuracies are.
        reason: why the first is ahead or behind without a test; empty with one.
        corrected_p: p with Holm's correction; 0 where no test is needed.
        family: pairs that were tested together.
        detectable: ratio, or difference, that these seeds would have shown with a
            power of 80 %, had the others of the family been as they are.
        verdict: of the first.
    """

    scale: Scale
    mean: float
    low: float
    high: float
    seeds: int
    ahead: int
    behind: int
    spread: float
    p: float
    exact_p: float
    larger_is_better: bool = False
    reason: str = ""
    corrected_p: float = 1.0
    family: int = 1
    detectable: float = math.inf
    verdict: Verdict = "undecided"

    def reverse(self) -> "Comparison":
        """The second method against the first."""
        mean, low, high = self.mean, self.low, self.high
        if self.scale == "ratio":
            mean, low, high = (_inverse(v) for v in (mean, high, low))
        else:
            mean, low, high = -mean, -high, -low
        reason = self.reason.removeprefix(_OTHER)
        if self.reason and reason == self.reason:
            reason = _OTHER + reason
        return replace(
            self,
            reason=reason,
            mean=mean,
            low=low,
            high=high,
            ahead=self.behind,
            behind=self.ahead,
            verdict=_OPPOSITE[self.verdict],
        )

    @property
    def is_ratio(self) -> bool:
        """Whether the numbers are ratios."""
        return self.scale == "ratio"

    @property
    def half(self) -> float:
        """Half the interval, of logarithms if they are ratios."""
        if self.is_ratio:
            return math.log(self.high / self.mean) if self.low > 0 else math.inf
        return self.high - self.mean

    def as_json(self) -> dict[str, Any]:
        """Fields by name; null for what is not finite."""
        return {key: _finite(value) for key, value in asdict(self).items()}


def from_json(row: Mapping[str, Any]) -> Comparison:
    """A comparison from the fields that `Comparison.as_json` gave."""
    names = [field.name for field in fields(Comparison)]
    known: dict[str, Any] = {k: math.nan if row[k] is None else row[k] for k in names}
    return Comparison(**known)


def compare(
    first: ArrayLike,
    second: ArrayLike,
    *,
    larger_is_better: bool = False,
    scale: Scale | None = None,
) -> Comparison:
    """Compare two methods on the same seeds: a family of one pair.

    Args:
        first: values of a method, one for each seed.
        second: values of another.
        larger_is_better: as accuracies are.
        scale: ratios if absent, or differences for accuracies and where a value is not
            positive.

    >>> compare([345.0, 16.0, 354.0, 75.0, 6.3], [0.63, 0.64, 0.57, 0.56, 0.60]).verdict
    'worse'
    """
    c = measure(first, second, larger_is_better=larger_is_better, scale=scale)
    return decide({0: c})[0]


def measure(
    first: ArrayLike,
    second: ArrayLike,
    *,
    larger_is_better: bool = False,
    scale: Scale | None = None,
    starts: tuple[ArrayLike, ArrayLike] | None = None,
) -> Comparison:
    """The numbers of a comparison, without a verdict: `decide` makes it.

    Args:
        first: values of a method, one for each seed.
        second: values of another.
        larger_is_better: as accuracies are.
        scale: as in `compare`.
        starts: values of both before the first round.
    """
    a, b = _vector("first", first), _vector("second", second)
    if a.shape != b.shape:
        raise invalid("second", f"of shape {a.shape} like `first`", b.shape)
    scale = scale or scale_of((a, b), larger_is_better=larger_is_better)
    is_a, is_b = np.isfinite(a), np.isfinite(b)
    both = is_a & is_b
    x, y = a[both], b[both]
    if scale == "ratio":
        d, size = np.log(x) - np.log(y), 1.0
    else:
        d, size = x - y, float(np.abs([x, y]).max(initial=0.0))
    count = len(d)
    signs = np.where(np.abs(d) <= ROUNDING * size, 0.0, np.sign(d))
    signs = signs if larger_is_better else -signs
    ahead = int((signs > 0).sum() + (is_a & ~is_b).sum())
    behind = int((signs < 0).sum() + (is_b & ~is_a).sum())
    spread = float(d.std(ddof=1)) if count > 1 else 0.0
    mean, half = (float(d.mean()), math.inf) if count else (math.nan, math.nan)
    p = 1.0
    if count > 1:
        error = spread / math.sqrt(count)
        half = _t_quantile(count - 1) * error
        if spread > ROUNDING * size:  # without variation there is no estimate of error
            p = float(2 * stdtr(count - 1, -abs(mean) / error))
    lost = _lost(a, b, starts, larger_is_better=larger_is_better)
    ends = (mean, mean - half, mean + half)
    if scale == "ratio":
        ends = tuple(_exp(v) for v in ends)  # type: ignore[assignment]  # three as well
    counts = (count, ahead, behind)
    c = Comparison(scale, *ends, *counts, spread, p, sign_flip_p(d), larger_is_better)
    logs = d if scale == "ratio" else None
    return replace(c, reason=_reason(lost, logs, (ahead, behind), len(a)))


def scale_of(values: Iterable[ArrayLike], *, larger_is_better: bool = False) -> Scale:
    """Ratios where all finite values are positive losses, else differences."""
    if larger_is_better:
        return "difference"
    every = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values])
    return "ratio" if (every[np.isfinite(every)] > 0).all() else "difference"


def decide(family: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """Verdicts on a family of pairs: Holm's correction over those that need a test.

    Args:
        family: what `measure` gave, by any key.

    Returns:
        The same with corrected p, family, detectable difference and verdict.
    """
    tested = [key for key, c in family.items() if not c.reason]
    corrected = holm([family[key].p for key in tested]) if tested else np.empty(0)
    levels = dict(zip(tested, corrected.tolist(), strict=True))
    open_ = sum(p >= 1 - LEVEL for p in levels.values())
    decided = {}
    for key, c in family.items():
        p, verdict = levels.get(key, 0.0), _OPPOSITE["undecided"]
        if c.reason:
            verdict = "better" if c.reason.startswith(_OTHER) else "worse"
        elif p < 1 - LEVEL:
            middle = 1.0 if c.is_ratio else 0.0
            verdict = "better" if (c.mean < middle) != c.larger_is_better else "worse"
        shown = _detectable(c, max(open_, 1))
        decided[key] = replace(
            c, corrected_p=p, family=len(tested), detectable=shown, verdict=verdict
        )
    return decided


def sign_flip_p(differences: ArrayLike) -> float:
    """Two-sided p of the exact sign-flip (paired permutation) test of zero.

        #{s ∈ {−1, 1}ⁿ : |Σ s_i d_i| ≥ |Σ d_i|} / 2ⁿ

    NaN for more than 40 differences; 1 for none.

    >>> sign_flip_p([0.1, 0.2, 0.3, 0.4, 0.5])  # 2 / 2⁵
    0.0625
    """
    d = _vector("differences", differences)
    if len(d) > MOST_FLIPPED:
        return math.nan
    total = abs(float(d.sum())) - 1e-12 * float(np.abs(d).sum())
    if total <= 0:
        return 1.0
    # All sums of a half each; of the second sorted ones those that reach the total.
    parts = [np.zeros(1), np.zeros(1)]
    for k, value in enumerate(d):
        sums = parts[k % 2]
        parts[k % 2] = np.concatenate((sums - value, sums + value))
    ordered = np.sort(parts[1])
    reached = len(ordered) - np.searchsorted(ordered, total - parts[0])
    return float(2 * reached.sum() / 2.0 ** len(d))


_OTHER = "the other "
"""How a reason begins that is one of the second method."""


def _lost(
    a: Float64[Array, " seeds"],
    b: Float64[Array, " seeds"],
    starts: tuple[ArrayLike, ArrayLike] | None,
    *,
    larger_is_better: bool,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of each method the seeds that diverged, and those that end above their start."""
    begun = starts if starts is not None and not larger_is_better else (np.inf, np.inf)
    rows = []
    for values, start in zip((a, b), begun, strict=True):
        finite = np.isfinite(values)
        above = finite & (values > np.broadcast_to(np.asarray(start), values.shape))
        rows.append((int((~finite).sum()), int(above.sum())))
    return rows[0], rows[1]


def _reason(
    lost: tuple[tuple[int, int], tuple[int, int]],
    logs: Float64[Array, " pairs"] | None,
    won: tuple[int, int],
    seeds: int,
) -> str:
    """Why no test is needed, in words about the one behind; empty if one is.

    Args:
        lost: of each method the seeds that diverged, and that ended above their start.
        logs: log ratios, where losses are compared by them.
        won: seeds in which each method is ahead.
        seeds: how many there are.
    """
    (first, second) = (sum(counts) for counts in lost)
    for (diverged, above), own, other, ahead, who in (
        (lost[0], first, second, won[0], ""),
        (lost[1], second, first, won[1], _OTHER),
    ):
        is_all = own == seeds and other < seeds
        if (is_all or (own and other == 0)) and (diverged or ahead == 0):
            parts = [f"diverged in {diverged}"] if diverged else []
            parts += [f"ended above its start in {above}"] if above else []
            return f"{who}{' and '.join(parts)} of {seeds} seeds"
    if logs is not None and len(logs) == seeds >= ENOUGH:
        text = f"at least {GROSS:g} times the loss in each of {seeds} seeds"
        if logs.min() >= math.log(GROSS):
            return f"has {text}"
        if logs.max() <= -math.log(GROSS):
            return f"{_OTHER}has {text}"
    return ""


def _exp(value: float) -> float:
    if math.isnan(value) or value == math.inf:  # of one seed no interval is known
        return value
    return math.exp(min(value, 700.0))


def _inverse(value: float) -> float:
    return math.inf if value == 0 else 1 / value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def half_width(values: Float64[Array, " seeds"]) -> float:
    """Half the confidence interval of the mean of two values or more: Student's t."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return _t_quantile(len(values) - 1) * error


@cache  # a report asks thousands of times for the same one
def _t_quantile(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def _detectable(c: Comparison, tests: int) -> float:
    """What a test at level 5 % / tests detects, with the spread that was seen."""
    if c.seeds < 2 or c.spread == 0:
        return math.inf
    shift = _noncentrality(c.seeds - 1, tests) * c.spread / math.sqrt(c.seeds)
    return _exp(shift) if c.is_ratio else shift


@cache
def _noncentrality(freedom: int, tests: int) -> float:
    """The shift, in standard errors, that a t-test at 5 % / tests detects in 80 %.

    The variance is integrated over its quantiles: P(Z + δ > c √(V/ν)), V ~ χ²_ν.
    """
    critical = float(stdtrit(freedom, 1 - (1 - LEVEL) / tests / 2))
    shares = (np.arange(2000) + 0.5) / 2000
    bounds = critical * np.sqrt(chdtri(freedom, 1 - shares) / freedom)

    def missing(delta: float) -> float:
        return POWER - float(ndtr(delta - bounds).mean())

    return float(brentq(missing, 0.0, 10 + bounds[-1]))


def paired_p(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided p of a paired t-test on the scale of `compare`, for one pair.

    >>> round(paired_p([1.0, 1.2, 1.1], [2.0, 2.1, 2.2]), 3)
    0.005
    """
    return measure(first, second).p


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


def compare_pairs(
    values: Mapping[str, Float64[Array, " seeds"]],
    pairs: Iterable[Pair],
    quantity: str,
    starts: Mapping[str, Float64[Array, " seeds"]] | None = None,
) -> dict[Pair, Comparison]:
    """Verdicts on pairs of methods in one quantity: one scale, one family.

    Args:
        values: of the methods, seed by seed.
        pairs: that are shown together.
        quantity: such as `objective` or `test_accuracy`.
        starts: values before the first round, where they are known.
    """
    larger = quantity in LARGER_IS_BETTER
    scale = scale_of(values.values(), larger_is_better=larger)
    family = {
        (a, b): measure(
            values[a],
            values[b],
            larger_is_better=larger,
            scale=scale,
            starts=None if starts is None else (starts[a], starts[b]),
        )
        for a, b in pairs
    }
    return decide(family)


def compare_methods(
    results: Results,
    first: str,
    others: Sequence[str],
    quantity: str,
    *,
    axis: Axis = "rounds",
) -> dict[str, Comparison]:
    """Compare a method of a run with others at equal cost, by the models evaluated.

    Equal rounds are all rounds. Equal scalars are as many as both have sent at the end:
    the method that sends more in a round is read off earlier, by linear interpolation
    between two evaluations.

    Args:
        results: of a run.
        first: label of a method.
        others: labels of the others; all pairs are one family.
        quantity: as in `Results.curve`.
        axis: what is equal: rounds, scalars sent by our count or the paper's, seconds.
    """
    larger = quantity in LARGER_IS_BETTER
    columns = {k: _at_equal_cost(results, (first, k), quantity, axis) for k in others}
    scale = scale_of(
        (v for pair in columns.values() for v in pair), larger_is_better=larger
    )
    begun = {k: start_values(results, k, quantity) for k in (first, *others)}
    family = {
        k: measure(
            *pair,
            larger_is_better=larger,
            scale=scale,
            starts=(begun[first], begun[k]),
        )
        for k, pair in columns.items()
    }
    return decide(family)


def _at_equal_cost(
    results: Results, labels: Pair, quantity: str, axis: Axis
) -> tuple[Float64[Array, " seeds"], Float64[Array, " seeds"]]:
    if axis == "rounds":
        a, b = (final_values(results, label, quantity) for label in labels)
        return a, b
    spent = [axis_values(results, label, axis) for label in labels]
    budget = np.minimum(spent[0][:, -1], spent[1][:, -1])
    a, b = (_values_at(results, k, quantity, axis, budget) for k in labels)
    return a, b


def final_values(
    results: Results, label: str, quantity: str
) -> Float64[Array, " seeds"]:
    """The last values of a method, by the model that is evaluated; NaN if none."""
    quantity = results.evaluated_quantity(label, quantity)
    if results.measures(label, quantity):
        return results.final(label, quantity)
    return np.full(len(results.spec.seeds), np.nan)  # it diverged in every seed


def start_values(
    results: Results, label: str, quantity: str
) -> Float64[Array, " seeds"]:
    """Values before the first round; infinite where they were not measured."""
    if results.rounds[0] > 0 or len(results.rounds) < 2:
        return np.full(len(results.spec.seeds), np.inf)
    first = results.values(label, quantity)[:, 0]
    return np.where(np.isfinite(first), first, np.inf)


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


def _vector(name: str, values: ArrayLike) -> Float64[Array, " seeds"]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise invalid(name, "one value per seed", f"shape {array.shape}")
    return array


# ------------------------------------------------------------------ in words


def interval_text(c: Comparison) -> str:
    """The mean with its interval, to two digits of the interval's width.

    >>> interval_text(compare([0.94, 0.95, 0.93], [1.0, 1.0, 1.0]))
    '0.940 times, 0.915 to 0.965'
    """
    unit = " times" if c.is_ratio else ""
    if c.seeds == 0:
        return "no seed in which both are finite"
    if not math.isfinite(c.high):
        return f"{_number(c, c.mean, 4)}{unit}, no interval"
    width = c.high - c.low
    places = 6 if width <= 0 else min(6, max(0, 1 - math.floor(math.log10(width))))
    same = 1.0 if c.is_ratio else 0.0  # an end beside it must not be rounded to it
    while places < 6 and same in (round(c.low, places), round(c.high, places)):
        places += 1
    mean, low, high = (_number(c, v, places) for v in (c.mean, c.low, c.high))
    return f"{mean}{unit}, {low} to {high}"


def _number(c: Comparison, value: float, places: int) -> str:
    if abs(value) >= 1e4:
        return f"{value:.3g}" if c.is_ratio else f"{value:+.3g}"
    return f"{value:.{places}f}" if c.is_ratio else f"{value:+.{places}f}"


def seeds_text(c: Comparison) -> str:
    """The exact paired statement: seeds ahead, and the p of the sign-flip test."""
    count = max(c.seeds, c.ahead + c.behind)
    exact = "" if math.isnan(c.exact_p) else f" (exact p {_p_text(c.exact_p)})"
    return f"ahead in {c.ahead} of {count} seeds{exact if c.seeds > 1 else ''}"


LARGEST_RATIO = 100
"""No larger ratio is named as one that seeds would have shown."""


def detectable_text(c: Comparison) -> str:
    """How small a difference the seeds would have shown."""
    if c.seeds < 2:
        return "one seed shows nothing"
    if not math.isfinite(c.detectable):
        return "the differences do not vary, so nothing is known about their error"
    text = f"a difference of {c.detectable:.2g}"
    if c.is_ratio and c.detectable > LARGEST_RATIO:
        return f"these {c.seeds} seeds would not have shown a ratio of {LARGEST_RATIO}"
    if c.is_ratio:
        text = f"a ratio of {_ratio_text(c.detectable)}"
    return f"these {c.seeds} seeds would have shown {text}"


def _ratio_text(ratio: float) -> str:
    """A ratio above one, to two digits of its distance from one, rounded up.

    >>> _ratio_text(1.0812), _ratio_text(3.21)
    ('1.082', '3.3')
    """
    if ratio >= 1000:
        return f"{ratio:.1e}"
    excess = max(ratio - 1, 1e-6)
    places = min(6, max(0, 1 - math.floor(math.log10(excess))))
    return f"{math.ceil(ratio * 10**places - 1e-9) / 10**places:.{places}f}"


def _p_text(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def reason_text(c: Comparison) -> str:
    """What a verdict rests on: the test and its interval, or why none is needed."""
    if c.reason:
        return c.reason
    if c.seeds == c.ahead == c.behind == 0:
        return "both diverged in every seed"
    parts = [interval_text(c), seeds_text(c)]
    if c.seeds > 1:
        pairs = "pair" if c.family == 1 else f"{c.family} pairs"
        of = "" if c.family == 1 else f", Holm over {pairs}"
        parts.append(f"p {_p_text(c.corrected_p)}{of}")
    if c.verdict == "undecided":
        parts.append(detectable_text(c))
    return "; ".join(parts)


def verdict_text(c: Comparison) -> str:
    """The verdict and what it rests on.

    >>> verdict_text(compare([1.0, 2.0], [2.0, 1.0])).partition("; ")[0]
    'undecided (1 times, 0 to 6683'
    """
    return f"{c.verdict} ({reason_text(c)})"


# ------------------------------------------------------------------ rankings


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The methods of a run by one quantity, after the last round.

    Attributes:
        quantity: as in `Results.curve`.
        finals: last values of each method, seed by seed, best mean first; methods that
            diverged in a seed come last.
        pairs: the better of two against the other; one family.
        limits: last values of the methods that know the truth, which have no rank.
    """

    quantity: str
    finals: Mapping[str, Float64[Array, " seeds"]]
    pairs: Mapping[Pair, Comparison]
    limits: Mapping[str, Float64[Array, " seeds"]]

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
        if not self.labels or not np.isfinite(self.mean(self.labels[0])):
            return ()
        top = self.labels[0]
        return tuple(k for k in self.labels if k == top or self.is_equal(top, k))

    def compare(self, first: str, second: str) -> Comparison:
        """One method against another, in either order."""
        if (first, second) in self.pairs:
            return self.pairs[first, second]
        return self.pairs[second, first].reverse()

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

    def ranks(self, labels: Sequence[str] | None = None) -> dict[str, float]:
        """1 for the best mean; equal means share theirs, diverged methods are last.

        Args:
            labels: of the methods that are ranked; all if absent.
        """
        from scipy import stats  # noqa: PLC0415 - slow to import

        labels = self.labels if labels is None else labels
        sign = -1 if self.quantity in LARGER_IS_BETTER else 1
        means = np.array([sign * self.mean(label) for label in labels])
        ranks = stats.rankdata(np.where(np.isfinite(means), means, np.inf))
        return dict(zip(labels, ranks.tolist(), strict=True))


def rank_methods(results: Results, quantity: str) -> Ranking:
    """Compare all methods of a run by a quantity, each by the model evaluated.

    All pairs are one family. Methods that know the truth are limits: they have no rank,
    and are in no pair.
    """
    sign = -1 if quantity in LARGER_IS_BETTER else 1
    values = {label: final_values(results, label, quantity) for label in results.labels}
    limits = {label: values.pop(label) for label in results.yardsticks}
    means = {k: sign * float(v.mean()) for k, v in values.items()}
    order = sorted(values, key=lambda k: (not np.isfinite(means[k]), means[k]))
    finals = {label: values[label] for label in order}
    starts = {label: start_values(results, label, quantity) for label in order}
    pairs = compare_pairs(finals, combinations(order, 2), quantity, starts)
    return Ranking(quantity, finals, pairs, limits)


@final
@dataclass(frozen=True, slots=True)
class MeanRank:
    """One method over several panels.

    Attributes:
        label: of the method.
        rank: mean over the panels, among the methods that all panels have; 1 is best.
        panels: how many there are.
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


def shared_labels(rankings: Sequence[Ranking]) -> tuple[str, ...]:
    """The methods that all panels rank; none if they are fewer than three.

    Ranks of panels with different methods are not comparable.
    """
    first, *rest = (ranking.labels for ranking in rankings)
    shared = tuple(label for label in first if all(label in other for other in rest))
    return shared if len(rankings) > 1 and len(shared) >= SHARED else ()


def mean_ranks(rankings: Sequence[Ranking]) -> list[MeanRank]:
    """The methods that all panels share, best mean rank first; none if below three."""
    shared = shared_labels(rankings)
    ranks = [ranking.ranks(shared) for ranking in rankings] if shared else []
    rows = []
    for label in shared:
        groups = [ranking.by_verdict(label) for ranking in rankings]
        rows.append(
            MeanRank(
                label,
                float(np.mean([each[label] for each in ranks])),
                len(rankings),
                sum(label in ranking.best for ranking in rankings),
                sum(len(group["better"]) for group in groups),
                sum(len(group["worse"]) for group in groups),
            )
        )
    return sorted(rows, key=lambda row: row.rank)


def friedman_p(rankings: Sequence[Ranking]) -> float | None:
    """Friedman's test, corrected for ties, that all methods rank alike: its p.

    By the methods that all panels share; None with fewer than two panels or three
    methods.
    """
    shared = shared_labels(rankings)
    if not shared:
        return None
    from scipy import stats  # noqa: PLC0415 - slow to import

    ranks = [ranking.ranks(shared) for ranking in rankings]
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
