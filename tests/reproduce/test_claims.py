"""Claims are judged by paired intervals; what cannot be judged is said."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from reproduce.claims import EQUAL, SETS, as_trial, judge
from reproduce.publish import extended_text
from reproduce.specs import (
    FIXED_CORRECTED,
    HEW_CORRECTED,
    HEW_PLAIN,
    ONE_STEP,
    cnn_spec,
    extended_spec,
    main_spec,
)

from hewfl.cli.execute import verdict_lines
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.results import Results
from hewfl.experiments.spec import Spec
from hewfl.experiments.statistics import compare_methods
from hewfl.experiments.summary import summarise
from hewfl.server.trace import RoundRecord

NOISE = np.array([0.0, 1e-4, -1e-4, 2e-4, -2e-4, 1e-4, 0.0])
"""Of the seeds, shared by all methods up to a little."""


def made(
    spec: Spec,
    levels: Mapping[str, float],
    mass: Mapping[str, Sequence[float]] | None = None,
) -> Results:
    """Results whose accuracy is a level, whose losses and objective are one less it."""
    methods = tuple(MethodSpec("FedAvg", label, {}) for label in levels)
    spec = replace(spec, methods=methods, seeds=tuple(range(len(NOISE))))
    seeds = []
    for s, noise in enumerate(NOISE):
        entries = []
        for k, (label, level) in enumerate(levels.items()):
            # a little of its own: no two methods differ by the same in all seeds
            own = np.roll(NOISE, k)[s]
            accuracy = level + noise + (0.1 + 0.01 * k) * own
            metrics = {
                "validation_accuracy": accuracy,
                "test_accuracy": accuracy,
                "validation_loss": 1 - accuracy,
                "test_loss": 1 - accuracy,
            }
            weights = np.array((mass or {}).get(label, [0.25] * 4))
            weights = weights + 1e-3 * own * np.array([1, -1, 1, -1])
            entries.append(
                (
                    RoundRecord(
                        spec.rounds,
                        k,
                        objective=None if np.isnan(level) else 1 - accuracy,
                        metrics={} if np.isnan(level) else metrics,
                        clients=(0, 1, 2, 3),
                        horizons=(1, 2, 4, 8),
                        weights=tuple(weights.tolist()),
                    ),
                )
            )
        seeds.append(tuple(entries))
    known = {"samples": [64] * 40, "objective": 0.0, "pooled": 0.0}
    return Results(spec, np.array([0]), tuple(seeds), (known,) * len(NOISE))


def test_entries_that_stopped_are_listed() -> None:
    results = made(cnn_spec(), {HEW_PLAIN: 0.9, "FedAvg": 0.8, "q-FedAvg": 0.7})
    statuses = {1: "diverged, stopped", 2: "refused, stopped"}
    records = tuple(
        tuple(
            tuple(replace(r, status=statuses.get(entry, "optimal")) for r in own)
            for entry, own in enumerate(by_entry)
        )
        for by_entry in results.records
    )
    stopped = Results(results.spec, results.rounds, records, results.constants)
    methods = summarise(stopped)["methods"]
    seeds = list(results.spec.seeds)
    assert [m["diverged"] for m in methods] == [[], seeds, []]
    assert [m["refused"] for m in methods] == [[], [], seeds]


def main_levels(hew: float) -> dict[str, float]:
    levels = {m.label: 0.5 for m in main_spec("mnist", "het-equal").methods}
    return levels | {HEW_PLAIN: hew, HEW_CORRECTED: hew}


def test_the_regime_without_a_figure_is_judged_by_the_word_only() -> None:
    spec = main_spec("mnist", "het-equal")
    key = ("mnist", "het-equal")
    *ahead, worst = judge({key: made(spec, main_levels(0.6))})
    assert len(ahead) == 2 * len(EQUAL)
    for claim in ahead:
        assert claim.statement.endswith("(in no figure; by the text's «only»)")
        assert claim.verdict == "does not agree"
    assert "minibatch SGD with one step a round is worst" in worst.statement
    assert worst.verdict == "undecided"
    *level, _ = judge({key: made(spec, main_levels(0.5))})
    assert {claim.verdict for claim in level} == {"agrees"}


def test_a_claim_is_judged_on_the_paper_s_methods_and_with_fair_rivals() -> None:
    """HEW is ahead of what the paper compares it with, and level with one it leaves."""
    key = ("mnist", "het-random")
    levels = {m.label: 0.5 for m in main_spec(*key).methods}
    levels |= {HEW_PLAIN: 0.6, HEW_CORRECTED: 0.6, FIXED_CORRECTED[0]: 0.6}
    claims = judge({key: made(main_spec(*key), levels)})[:6]
    own, fair = claims[:3], claims[3:]
    assert all(SETS[True] in claim.statement for claim in own)
    assert all(SETS[False] in claim.statement for claim in fair)
    assert {claim.verdict for claim in own} == {"agrees"}
    assert {claim.verdict for claim in fair} == {"undecided"}
    assert "5 pairs" in own[0].because
    assert "12 pairs" in fair[0].because
    assert "7 seeds would have shown a ratio of" in fair[0].because
    trial = as_trial(claims)
    assert {claim.verdict for claim in trial} == {"no verdict"}
    assert {claim.because for claim in trial} == {"a trial run"}


@pytest.mark.parametrize(
    ("level", "verdict"), [(0.4, "agrees"), (0.9, "does not agree")]
)
def test_one_step_a_round_is_worst_or_not(level: float, verdict: str) -> None:
    levels = main_levels(0.6) | {ONE_STEP: level}
    spec = main_spec("mnist", "het-equal")
    assert judge({("mnist", "het-equal"): made(spec, levels)})[-1].verdict == verdict


def test_what_is_ahead_at_equal_rounds_may_be_behind_at_equal_scalars() -> None:
    """HEW sends twice as much by the paper's count: half the rounds are left to it."""
    spec = replace(main_spec("mnist", "het-random"), rounds=2)
    still = made(spec, main_levels(0.6))
    start = made(spec, dict.fromkeys(main_levels(0.6), 0.3))
    own = still.labels.index(HEW_CORRECTED)
    entries = [
        tuple(
            (
                replace(a, round=0, paper_scalars=0, scalars=0),
                replace(a, round=1, scalars=11, paper_scalars=21 if k == own else 11),
                replace(b, round=2, scalars=22, paper_scalars=42 if k == own else 22),
            )
            for k, ((a,), (b,)) in enumerate(zip(first, last, strict=True))
        )
        for first, last in zip(start.records, still.records, strict=True)
    ]
    results = Results(still.spec, np.arange(3), tuple(entries), still.constants)
    judged = judge({("mnist", "het-random"): results})
    claims = {c.statement.split(", ")[2]: c for c in judged[:3]}
    assert claims["at equal rounds"].verdict == "agrees"
    assert claims["at equal scalars"].verdict == "agrees"
    fallen = claims["at equal scalars by the paper's count"]
    assert fallen.verdict == "does not agree"
    assert "the best of them, worse (1.37" in fallen.because  # 1/21 of the last step


def test_a_method_that_diverged_is_behind() -> None:
    levels = main_levels(0.6) | {"FedAvg": np.nan}
    results = made(main_spec("mnist", "het-random"), levels)
    for first, second, verdict in (
        (HEW_PLAIN, "FedAvg", "better"),
        ("FedAvg", HEW_PLAIN, "worse"),
    ):
        pairs = compare_methods(results, first, [second], "objective")
        assert pairs[second].verdict == verdict
    claims = judge({("mnist", "het-random"): results})
    assert claims[0].verdict == "agrees"


def test_a_method_that_diverged_is_behind_in_the_summary_and_the_command() -> None:
    levels = {HEW_CORRECTED: 0.6, "FedAvg": np.nan, "FedNova": 0.5}
    results = made(main_spec("mnist", "het-random"), levels)
    summary = summarise(results)
    pairs = {
        (p["first"], p["second"]): p
        for p in summary["pairs"]
        if p["quantity"] == "objective"
    }
    assert len(pairs) == 3
    ahead = pairs[HEW_CORRECTED, "FedAvg"]
    assert ahead["verdict"] == "better"
    assert (ahead["mean"], ahead["low"], ahead["seeds"]) == (None, None, 0)
    assert ahead["reason"] == "the other diverged in 7 of 7 seeds"
    assert pairs["FedAvg", "FedNova"]["verdict"] == "worse"
    lines = verdict_lines(summary, "objective")
    assert lines[0] == (
        f"{HEW_CORRECTED} against FedAvg: better (the other diverged in 7 of 7 seeds)"
    )
    assert lines[1].startswith(f"{HEW_CORRECTED} against FedNova: better (0.79")


def test_a_quantity_that_nobody_measured_is_compared_for_nobody() -> None:
    results = made(main_spec("mnist", "het-random"), {HEW_PLAIN: 0.6, "FedAvg": 0.5})
    pairs = summarise(results)["pairs"]
    quantities = [p["quantity"] for p in pairs]
    assert quantities == ["objective", "validation_accuracy", "test_accuracy"]


@pytest.mark.parametrize(
    ("rival", "answer"),
    [(0.7, "behind some"), (0.5, "ahead of all"), (0.6, "undecided")],
)
def test_the_extended_comparison_takes_every_method_at_its_best(
    rival: float, answer: str
) -> None:
    spec = extended_spec("mnist", "het-random")
    levels = {m.label: 0.4 for m in spec.methods}
    levels |= {HEW_CORRECTED: 0.6, HEW_PLAIN: 0.9, "FedAvg": rival}
    text = extended_text({("mnist", "het-random"): made(spec, levels)})
    assert f"| mnist, heterogeneous, random H | **{answer}** | HEW (Alg. 2): " in text
    assert "objective of the averaged model, at equal rounds" in text
