"""Who wins and how sure that is; what a target costs; ranks over panels."""

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
    friedman_p,
    holm,
    mean_ranks,
    paired_p,
    rank_methods,
    rounds_to_target,
    target_text,
)
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
    np.testing.assert_allclose([c.p for c in found], holm(raw))
    assert len(names) == 6
    assert max(c.p for c in found) == 1


def test_a_pair_reads_both_ways(standing: Ranking) -> None:
    ahead, behind = standing.compare("a", "c"), standing.compare("c", "a")
    assert (ahead.verdict, behind.verdict) == ("better", "worse")
    assert ahead.p == behind.p < 0.01
    assert ahead.comparison.mean == -behind.comparison.mean
    assert (ahead.comparison.low, ahead.comparison.high) == (
        -behind.comparison.high,
        -behind.comparison.low,
    )


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
    assert found.compare("kept", "lost").p == 0
    assert found.compare("kept", "lost").verdict == "better"


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
    assert rows["a"].rank == rows["a again"].rank == 1.5
    assert (rows["c"].rank, rows["c"].losses, rows["c"].wins) == (4, 6, 0)
    assert (rows["a"].best, rows["a"].wins, rows["a"].panels) == (2, 2, 2)
    assert mean_ranks([standing]) == []


def panels_of(table: Array) -> list[Ranking]:
    """One ranking per row of final values; a column is a method."""
    names = "abcdef"[: table.shape[1]]
    rows = (dict(zip(names, row[:, None], strict=True)) for row in table)
    return [Ranking("objective", row, {}) for row in rows]


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
