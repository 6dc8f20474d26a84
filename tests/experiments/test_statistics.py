"""Who wins and how sure that is; what a target costs; ranks over panels."""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from hewfl.core.validation import Array
from hewfl.experiments.results import Results, available_axes, axis_values
from hewfl.experiments.statistics import (
    Ranking,
    common_target,
    compare,
    compare_pairs,
    decide,
    detectable_text,
    friedman_p,
    from_json,
    holm,
    interval_text,
    mean_ranks,
    measure,
    paired_p,
    rank_methods,
    reason_text,
    rounds_to_target,
    sign_flip_p,
    target_text,
)
from hewfl.experiments.summary import summarise
from hewfl.server.trace import RoundRecord
from tests.experiments.runs import small

SEEDS = 6
NOISE = np.random.default_rng(0).normal(scale=0.01, size=(4, SEEDS))
NOISE -= NOISE.mean(axis=1, keepdims=True)
ENDS = {"a": 1.0, "b": 1.001, "c": 2.0, "a again": 1.0}


def results_with(curves: Mapping[str, Array], **clients: Any) -> Results:
    """Results of methods with such objectives: seeds × rounds."""
    spec = small()
    methods = tuple(replace(spec.methods[0], label=label) for label in curves)
    seeds, points = next(iter(curves.values())).shape
    records = tuple(
        tuple(
            tuple(
                RoundRecord(
                    t,
                    entry,
                    float(own[s, t]),
                    scalars=10 * t,
                    clients=(0, 1),
                    horizons=(1, 8),
                    weights=(0.5, 0.5),
                )
                for t in range(points)
            )
            for entry, own in enumerate(curves.values())
        )
        for s in range(seeds)
    )
    spec = replace(
        spec,
        methods=methods,
        seeds=tuple(range(seeds)),
        rounds=points - 1,
        clients=replace(spec.clients, **clients),
    )
    known = ({"objective": 0.0, "pooled": 0.0, "n": 2, "samples": [1, 1]},) * seeds
    return Results(spec, np.arange(points), records, known)


@pytest.fixture(scope="module")
def results() -> Results:
    rows = dict(zip(ENDS, NOISE, strict=True))
    rows["a again"] = rows["a"]
    return results_with({k: (ENDS[k] + rows[k])[:, None] + [[1, 0]] for k in ENDS})


@pytest.fixture(scope="module")
def standing(results: Results) -> Ranking:
    return rank_methods(results, "objective")


def test_p_is_corrected_over_all_pairs(standing: Ranking) -> None:
    assert standing.labels[-1] == "c"
    names, found = list(standing.pairs), list(standing.pairs.values())
    raw = [paired_p(standing.finals[a], standing.finals[b]) for a, b in names]
    np.testing.assert_allclose([c.corrected_p for c in found], holm(raw))
    assert len(names) == 6
    assert {c.family for c in found} == {6}
    assert max(c.corrected_p for c in found) == 1


def test_a_pair_reads_both_ways(standing: Ranking) -> None:
    ahead, behind = standing.compare("a", "c"), standing.compare("c", "a")
    assert (ahead.verdict, behind.verdict) == ("better", "worse")
    assert ahead.corrected_p == behind.corrected_p < 0.01
    assert ahead.is_ratio
    assert ahead.mean == pytest.approx(1 / behind.mean)
    assert (ahead.low, ahead.high) == pytest.approx((1 / behind.high, 1 / behind.low))
    assert (ahead.ahead, ahead.behind) == (behind.behind, behind.ahead) == (SEEDS, 0)
    again = from_json(json.loads(json.dumps(ahead.as_json())))
    assert again == ahead


def test_equals_share_the_first_place_and_doubt_is_not_equality(
    standing: Ranking,
) -> None:
    assert set(standing.best) == {"a", "a again"}
    assert standing.is_equal("a", "a again")
    assert not standing.is_equal("a", "b")
    told = standing.by_verdict("a")
    assert told == {"better": ["c"], "worse": [], "undecided": ["b"]}


def test_what_diverged_everywhere_is_behind_without_a_test() -> None:
    lost = np.full((SEEDS, 2), np.nan)
    kept = 1 + np.tile(NOISE[0][:, None], 2)
    found = rank_methods(results_with({"lost": lost, "kept": kept}), "objective")
    assert found.labels == ("kept", "lost")
    pair = found.compare("kept", "lost")
    assert (pair.verdict, pair.corrected_p, pair.family) == ("better", 0, 0)
    assert pair.reason == "the other diverged in 6 of 6 seeds"
    assert pair.ahead == SEEDS


# ------------------------------------------------------------------ one pair

COLLAPSE, STEADY = [345.0, 16.0, 354.0, 75.0, 6.3], [0.63, 0.64, 0.57, 0.56, 0.60]


def test_a_collapse_is_worse() -> None:
    """The t-interval on the raw scale holds zero."""
    c = compare(COLLAPSE, STEADY)
    assert (c.verdict, c.ahead, c.behind) == ("worse", 0, 5)
    assert c.reason == "has at least 10 times the loss in each of 5 seeds"
    assert compare(STEADY, COLLAPSE).verdict == "better"
    assert c.low > 1
    assert compare(COLLAPSE, STEADY, scale="difference").low < 0
    milder = [v / 4 for v in COLLAPSE]  # no rule: the test on logarithms decides
    assert compare(milder, STEADY).reason == ""
    assert compare(milder, STEADY).verdict == "worse"


def test_a_ratio_and_its_interval_by_hand() -> None:
    a, b = np.array([2.0, 4.0, 9.0]), np.array([1.0, 1.0, 1.0])
    c, logs = compare(a, b), np.log(a)
    half = 4.302653 * logs.std(ddof=1) / np.sqrt(3)
    assert c.mean == pytest.approx(72 ** (1 / 3))
    assert math.log(c.high / c.mean) == pytest.approx(half, rel=1e-6)
    assert math.log(c.mean / c.low) == pytest.approx(half, rel=1e-6)
    assert c.p == pytest.approx(scipy.stats.ttest_1samp(logs, 0).pvalue)


def test_accuracies_and_losses_that_are_not_positive_are_differences() -> None:
    up = compare([0.9, 0.91, 0.92], [0.8, 0.8, 0.81], larger_is_better=True)
    assert (up.scale, up.verdict, up.ahead) == ("difference", "better", 3)
    below = compare([-1.0, 0.5, 0.2], [1.0, 2.4, 2.1])
    assert (below.scale, below.verdict) == ("difference", "better")
    assert below.mean == pytest.approx(-5.8 / 3)
    family = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 1.0]), "c": np.zeros(2)}
    pairs = compare_pairs(family, [("a", "b"), ("a", "c")], "objective")
    assert {c.scale for c in pairs.values()} == {"difference"}  # a table has one unit


@pytest.mark.parametrize(
    ("first", "second", "verdict", "reason"),
    [
        ([1, np.inf, 1], [9, 9.1, 9], "worse", "diverged in 1 of 3 seeds"),
        ([10, 30, 10], [9, 9.1, 9], "worse", "ended above its start in 1 of 3 seeds"),
        ([32, 64, 32], [16, 16, 32], "worse", "ended above its start in 3 of 3 seeds"),
        ([1, 30, 1], [9, 9.1, 9], "undecided", ""),  # ahead in two seeds
        ([21, 21, 21], [1, 90, 90], "undecided", ""),  # all lost, and ahead in two
        ([np.nan, 30, 1], [9, 9.1, 9], "worse",
         "diverged in 1 and ended above its start in 1 of 3 seeds"),
        ([9, 9.1, 9], [np.nan] * 3, "better", "the other diverged in 3 of 3 seeds"),
        ([np.nan] * 3, [np.nan, 1, 1], "worse", "diverged in 3 of 3 seeds"),
        ([np.nan, 1, 1], [1, np.nan, 1], "undecided", ""),
        ([np.nan] * 3, [np.nan] * 3, "undecided", ""),
    ],
)  # fmt: skip
def test_what_diverged_is_behind_in_words(
    first: list[float], second: list[float], verdict: str, reason: str
) -> None:
    values = {"a": np.array(first, float), "b": np.array(second, float)}
    starts = dict.fromkeys("ab", np.full(3, 20.0))
    (c,) = compare_pairs(values, [("a", "b")], "objective", starts).values()
    assert (c.verdict, c.reason) == (verdict, reason)
    assert reason_text(c).startswith(reason)
    both = "both diverged in every seed"
    assert (reason_text(c) == both) == (not np.isfinite([*first, *second]).any())
    assert c.reverse().reverse() == c or c.seeds == 0
    assert c.reverse().verdict == {"better": "worse", "worse": "better"}.get(
        verdict, verdict
    )
    turned = compare_pairs(values, [("b", "a")], "objective", starts)["b", "a"]
    assert turned.reason == c.reverse().reason


def test_a_pair_that_needs_no_test_is_not_in_the_correction() -> None:
    rng = np.random.default_rng(0)
    values = {k: 1 + 0.1 * rng.random(5) for k in "abc"} | {"d": np.full(5, np.nan)}
    pairs = compare_pairs(values, itertools.combinations("abcd", 2), "objective")
    assert {c.family for c in pairs.values()} == {3}
    assert pairs["a", "d"].verdict == "better"


def test_sign_flips_are_all_tried() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 5, 8):
        d = rng.normal(0.5, 1, n).round(1)
        signs = itertools.product((-1, 1), repeat=n)
        sums = np.array([abs(np.dot(s, d)) for s in signs])
        expected = (sums >= abs(d.sum()) - 1e-12).mean()
        assert sign_flip_p(d) == pytest.approx(expected)
    assert sign_flip_p(np.ones(7)) == 2 / 2**7
    assert sign_flip_p([]) == 1
    assert math.isnan(sign_flip_p(np.ones(41)))


def test_undecided_says_what_the_seeds_would_have_shown() -> None:
    """With that shift and the spread that was seen, four of five are decided."""
    c = compare([1.0, 1.1, 0.95, 1.02, 0.97], np.ones(5))
    assert c.verdict == "undecided"
    assert detectable_text(c).startswith("these 5 seeds would have shown a ratio of 1.")
    two = compare([1.0, 4.0], np.ones(2))
    assert two.detectable > 1e4
    assert detectable_text(two) == "these 2 seeds would not have shown a ratio of 100"
    rng = np.random.default_rng(2)
    logs = math.log(c.detectable) + c.spread * rng.standard_normal((4000, 5))
    p = scipy.stats.ttest_1samp(logs, 0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.03)
    crowd = decide(dict.fromkeys(range(10), c))
    assert crowd[0].detectable > c.detectable  # ten pairs need more
    assert detectable_text(compare([1.0], [2.0])) == "one seed shows nothing"
    assert interval_text(compare([1.0], [2.0])) == "0.5000 times, no interval"


LAWS: dict[str, Any] = {
    "log-normal": lambda rng, size: rng.normal(size=size),
    "Student's t, 2 degrees": lambda rng, size: rng.standard_t(2, size=size),
    "one seed in ten goes astray": lambda rng, size: (
        rng.normal(size=size) + 5 * (rng.random(size) < 0.1)
    ),
}
"""Of logarithms of losses, seed by seed."""


@pytest.mark.parametrize("seeds", [3, 5, 7])
@pytest.mark.parametrize("law", LAWS)
def test_methods_that_are_alike_are_seldom_told_apart(law: str, seeds: int) -> None:
    """False verdicts of the rule under the null, one pair and a family of ten.

    The sign-flip test alone would decide nothing with three and five seeds.
    """
    rng, runs = np.random.default_rng(seeds), 1500
    logs = LAWS[law](rng, (runs, 5, seeds)) + rng.normal(size=(runs, 1, seeds))
    alone = [measure(*np.exp(0.1 * run[:2])) for run in logs]
    wrong = [decide({0: c})[0].verdict != "undecided" for c in alone]
    assert np.mean(wrong) < 0.065
    if seeds < 6:
        assert min(c.exact_p for c in alone) > 0.05
    families = (
        {k: np.exp(0.1 * row) for k, row in zip("abcde", run, strict=True)}
        for run in logs[:300]
    )
    decided = (
        compare_pairs(values, itertools.combinations(values, 2), "objective").values()
        for values in families
    )
    any_wrong = [any(c.verdict != "undecided" for c in pairs) for pairs in decided]
    assert np.mean(any_wrong) < 0.08


@pytest.mark.parametrize(("seeds", "least"), [(3, 0.55), (5, 0.95), (7, 0.99)])
def test_a_difference_of_four_standard_deviations_is_seen(
    seeds: int, least: float
) -> None:
    rng = np.random.default_rng(seeds)
    first = np.exp(rng.normal(0, 0.01, (500, seeds)))
    second = np.exp(rng.normal(0.04 * np.sqrt(2), 0.01, (500, seeds)))
    verdicts = [compare(a, b).verdict for a, b in zip(first, second, strict=True)]
    assert np.mean([v == "better" for v in verdicts]) > least
    assert "worse" not in verdicts


def test_limits_are_drawn_and_never_ranked() -> None:
    curves = {k: v + NOISE[i] for i, (k, v) in enumerate(ENDS.items())}
    results = results_with({k: v[:, None] + [[1, 0]] for k, v in curves.items()})
    methods = list(results.spec.methods)
    methods[0] = replace(methods[0], method="oracle")  # "a", the best of all
    known = {**results.constants[0], "yardsticks": ["b"]}  # of the user's own
    spec = replace(results.spec, methods=tuple(methods))
    results = replace(results, spec=spec, constants=(known,) * SEEDS)
    ranking = rank_methods(results, "objective")
    assert results.yardsticks == ("a", "b")
    assert set(ranking.limits) == {"a", "b"}
    assert ranking.best == ("a again",)
    assert set(ranking.pairs) == {("a again", "c")}
    assert ranking.compare("c", "a again").family == 1
    pairs = summarise(results)["pairs"]
    assert {(p["first"], p["second"]) for p in pairs} == {("c", "a again")}


# ------------------------------------------------------------------ a target


def test_a_target_is_reached_between_evaluations() -> None:
    curves = {"a": np.array([[4.0, 2.0, 1.0], [4.0, 3.0, 2.5]])}
    found = rounds_to_target(results_with(curves), "a", "objective", 3.0, "rounds")
    np.testing.assert_allclose(found, [0.5, 1.0])
    sent = rounds_to_target(results_with(curves), "a", "objective", 3.0, "scalars")
    np.testing.assert_allclose(sent, [5, 10])
    never = rounds_to_target(results_with(curves), "a", "objective", 2.0, "rounds")
    np.testing.assert_allclose(never, [1, np.inf])
    assert rounds_to_target(
        results_with(curves), "a", "objective", 9.0, "rounds"
    ).tolist() == [
        0,
        0,
    ]


def test_a_target_in_words() -> None:
    assert target_text(np.array([10.0, 12.0, 14.0])) == "12 [7.03, 17]"
    assert target_text(np.array([1.0, 2.0, np.inf])) == "in 2 of 3 seeds, median 2"
    assert target_text(np.array([1.0, np.inf, np.inf])) == "in 1 of 3 seeds"
    assert target_text(np.array([np.inf])) == "not reached"
    assert target_text(np.array([2.5e6])) == "2.5 M"


def test_the_common_target_is_reached_by_the_middle_one(results: Results) -> None:
    standing = rank_methods(results, "objective")
    target = common_target(standing)
    assert target is not None
    there = [
        np.isfinite(rounds_to_target(results, k, "objective", target, "rounds")).all()
        for k in standing.labels
    ]
    assert sum(there) == 2


def test_seconds_follow_from_budget_and_speeds() -> None:
    curves = {"a": np.ones((2, 4))}
    law = {"kind": "TimedSteps", "budget": 2.0, "speeds": [4.0, 4.0]}
    quick = results_with(curves, local_steps=law, n=2)
    assert available_axes(quick)[-1] == "seconds"
    assert axis_values(quick, "a", "seconds").tolist() == [[0, 2, 4, 6]] * 2
    law["speeds"] = [0.2, 4.0]  # the first client's one step takes five seconds
    slow = results_with(curves, local_steps=law, n=2)
    assert axis_values(slow, "a", "seconds").tolist() == [[0, 5, 10, 15]] * 2
    assert "seconds" not in available_axes(results_with(curves))


# ------------------------------------------------------------------ panels


def test_ranks_over_panels(standing: Ranking) -> None:
    rows = {row.label: row for row in mean_ranks([standing, standing])}
    assert set(rows) == {"a", "b", "c", "a again"}
    assert rows["a"].rank == rows["a again"].rank == 1.5
    assert (rows["c"].rank, rows["c"].losses, rows["c"].wins) == (4, 6, 0)
    assert (rows["a"].best, rows["a"].wins, rows["a"].panels) == (2, 2, 2)
    assert mean_ranks([standing]) == []


def panels_of(table: Array) -> list[Ranking]:
    """One ranking per row of final values; a column is a method."""
    names = "abcdef"[: table.shape[1]]
    rows = (dict(zip(names, row[:, None], strict=True)) for row in table)
    return [Ranking("objective", row, {}, {}) for row in rows]


def test_ranks_are_of_the_methods_that_all_panels_share(standing: Ranking) -> None:
    """A panel of two methods makes no ranks; one of three ranks these three."""
    others = results_with({k: np.full((SEEDS, 2), v) for k, v in ENDS.items()})
    few = replace(others, spec=replace(others.spec, methods=others.spec.methods[:2]))
    assert mean_ranks([standing, rank_methods(few, "objective")]) == []
    assert friedman_p([standing, rank_methods(few, "objective")]) is None
    three = replace(others, spec=replace(others.spec, methods=others.spec.methods[:3]))
    rows = mean_ranks([standing, rank_methods(three, "objective")])
    assert {row.label: row.rank for row in rows} == {"a": 1, "b": 2, "c": 3}


def test_friedman_is_scipy_s() -> None:
    table = np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 2.0], [1.0, 3.0, 4.0], [2.0, 1.0, 5]])
    expected = scipy.stats.friedmanchisquare(*table.T).pvalue
    assert friedman_p(panels_of(table)) == pytest.approx(expected)
    assert friedman_p(panels_of(table)[:1]) is None
    assert friedman_p(panels_of(np.ones((3, 4)))) == 1.0


def test_friedman_is_corrected_for_ties() -> None:
    """Without the correction p is 0.789."""
    rows = ["1133", "3331", "1122", "2131", "2311", "2211"]
    table = np.array([[float(digit) for digit in row] for row in rows])
    assert friedman_p(panels_of(table)) == pytest.approx(0.72617, abs=1e-5)
