"""When the methods of a deep-learning line are compared, and their values then.

The paper compares curves over communication. Three moments stand for them: after the
last round; in the round of each method and seed with the best validation accuracy, as
a user who keeps the best model would; and at a shared budget, the numbers that the
thriftiest method has sent at its end, in our count and in the paper's.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.core.checks import Array, Ints
from hewfl.experiments.compare import Comparison, compare_finals
from hewfl.experiments.results import Group, Results
from hewfl.experiments.tune import LARGER_IS_BETTER

SLACK = 1e-3
"""Share of the budget that does not count: HEW sends one number more than others."""
LATE = 0.25
"""The last part of the rounds, over which weights are averaged besides."""


class Moment(StrEnum):
    """When methods are compared."""

    last = "last round"
    best = "best validation round"
    budget = "equal scalars"
    paper_budget = "equal scalars, the paper's count"


def at_moment(
    results: Results, label: str, quantity: str, moment: Moment
) -> Float64[Array, " seeds"]:
    """A quantity of one method at a moment, seed by seed; NaN where it diverged.

    Args:
        results: of a line.
        label: of the method.
        quantity: such as `test_accuracy`.
        moment: when.
    """
    if not results.measures(label, quantity):
        return np.full(len(results.spec.seeds), np.nan)
    values = results.curve(label, quantity)
    return np.take_along_axis(values, _points(results, label, moment)[:, None], 1)[:, 0]


def compare_at(
    results: Results, pair: tuple[str, str], quantity: str, moment: Moment
) -> Comparison:
    """The first method of a pair against the second at a moment, seed by seed."""
    first, second = (at_moment(results, label, quantity, moment) for label in pair)
    return compare_finals(first, second, quantity)


def late_mass(results: Results, label: str) -> dict[Group, Float64[Array, " seeds"]]:
    """Weight of the clients of each group, the mean over the last quarter of rounds."""
    lane, found = results.labels.index(label), dict[Group, Float64[Array, " seeds"]]()
    first = round((1 - LATE) * results.spec.rounds) + 1
    for seed, by_lane in enumerate(results.records):
        late = [r for r in by_lane[lane] if r.round >= first and r.clients]
        for record in late:
            groups = results.groups(seed, record)
            for h, weight in zip(groups, record.weights, strict=True):
                empty = np.zeros(len(results.records))
                found.setdefault(h, empty)[seed] += weight / len(late)
    return dict(sorted(found.items()))


def share_ahead(results: Results, pair: tuple[str, str], quantity: str) -> float:
    """Share of the evaluated rounds, after a tenth, in which the first's mean leads."""
    first, second = (results.curve(label, quantity).mean(axis=0) for label in pair)
    late = results.rounds > 0.1 * results.spec.rounds
    lead = first - second if quantity in LARGER_IS_BETTER else second - first
    return float((lead[late] > 0).mean())


def _points(results: Results, label: str, moment: Moment) -> Int64[Ints, " seeds"]:
    """Which of the evaluated rounds stands for the moment, seed by seed."""
    seeds = len(results.spec.seeds)
    if moment == Moment.last:
        return np.full(seeds, len(results.rounds) - 1)
    if moment == Moment.best:
        values = results.curve(label, "validation_accuracy")
        return np.asarray(np.argmax(np.nan_to_num(values, nan=-np.inf), axis=1))
    count = "scalars" if moment == Moment.budget else "paper_scalars"
    budget = _shared(results, results.labels, count) * (1 + SLACK)
    within = results.curve(label, count) <= budget[:, None]
    return np.asarray(within.sum(axis=1) - 1)


def _shared(
    results: Results, labels: Sequence[str], count: str
) -> Float64[Array, " seeds"]:
    """What the thriftiest method has sent at its end, seed by seed."""
    ends = [results.curve(label, count)[:, -1] for label in labels]
    return np.asarray(np.min(ends, axis=0))
