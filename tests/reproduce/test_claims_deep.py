"""Claims about the deep-learning lines: at every moment, by paired intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from reproduce.claims import (
    LEADERS,
    Moment,
    at_moment,
    judge_cnn,
    judge_equal,
    judge_head,
    late_mass,
    share_ahead,
)
from reproduce.publish import _table
from reproduce.specs import HEW_CORRECTED, HEW_PLAIN, cnn_spec, head_spec

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.results import Results
from hewfl.experiments.spec import Spec
from hewfl.server.trace import RoundRecord

NOISE = np.array([0.0, 1e-4, -1e-4, 2e-4])
ROUNDS = 8
Level = float | tuple[float, float]
"""An accuracy, or one half way and one at the end."""


def made(
    spec: Spec,
    levels: Mapping[str, Level],
    mass: Mapping[str, Sequence[float]] | None = None,
    sent: Mapping[str, int] | None = None,
) -> Results:
    """Results of eight rounds, evaluated in every second, with these accuracies."""
    methods = tuple(MethodSpec("FedAvg", label, {}) for label in levels)
    clients = replace(spec.clients, local_steps=4)
    spec = replace(spec, methods=methods, rounds=ROUNDS, evaluate_every=2)
    spec = replace(spec, clients=clients)
    seeds = []
    for s, noise in enumerate(NOISE):
        entries = []
        for k, (label, level) in enumerate(levels.items()):
            middle, end = level if isinstance(level, tuple) else (level, level)
            weights = (mass or {}).get(label, [0.25] * 4)
            own = 1e-6 * (s * (k + 1) % 67)
            tilt = 1e-3 * np.roll(NOISE, k)[s] * np.array([1, -1, 1, -1])
            records = []
            for t in range(ROUNDS + 1):
                accuracy = (end if t > ROUNDS // 2 else middle) + noise + own
                quantities = ("validation", "test")
                metrics = {f"{q}_accuracy": accuracy for q in quantities}
                metrics |= {f"{q}_loss": 1 - accuracy for q in quantities}
                cost = (sent or {}).get(label, 100)
                records.append(
                    RoundRecord(
                        *(t, k),
                        objective=1 - accuracy,
                        metrics=metrics,
                        scalars=t * cost,
                        paper_scalars=t * cost,
                        clients=(0, 1, 2, 3),
                        horizons=(1, 2, 4, 8),
                        weights=tuple((np.array(weights) + tilt).tolist()),
                    )
                )
            entries.append(tuple(records))
        seeds.append(tuple(entries))
    known = {"samples": [64] * 40, "objective": 0.0, "pooled": 0.0}
    points = np.arange(0, ROUNDS + 1, 2)
    return Results(spec, points, tuple(seeds), (known,) * len(NOISE))


def verdicts(results: Results, judge: object = judge_head) -> dict[str, str]:
    assert callable(judge)
    return {claim.statement: claim.verdict for claim in judge(results)}


def of_paper() -> dict[str, Level]:
    """The ranking that the paper reports for its head line."""
    levels: dict[str, Level] = dict.fromkeys(LEADERS, 0.85)
    levels |= {HEW_PLAIN: 0.8, HEW_CORRECTED: 0.8, "SCAFFOLD": 0.7}
    return levels | {"HEW-Fixed": 0.6, "minibatch SGD": 0.3}


def test_the_paper_s_own_ranking_agrees_at_every_moment() -> None:
    sparse = dict.fromkeys((HEW_PLAIN, HEW_CORRECTED), (0.0, 0.0, 0.5, 0.5))
    answers = verdicts(made(head_spec(), of_paper(), sparse))
    assert set(answers.values()) == {"agrees"}
    assert len(answers) == 4 * 8 + 2 * 2


@pytest.mark.parametrize(
    ("change", "fallen"),
    [
        ({"FedNova": 0.2}, "FedAvg, FedProx, FedNova and Uniform lead"),
        ({HEW_PLAIN: 0.9}, "HEW (Alg. 3) is below those four"),
        ({HEW_CORRECTED: 0.5}, "HEW (Alg. 2) is above HEW-Fixed"),
        ({"SCAFFOLD": 0.5}, "SCAFFOLD lies between HEW (Alg. 3) and HEW-Fixed"),
        ({"minibatch SGD": 0.65}, "minibatch SGD is worst"),
    ],
)
def test_another_ranking_does_not(change: dict[str, Level], fallen: str) -> None:
    answers = verdicts(made(head_spec(), of_paper() | change))
    assert all(answers[f"{moment}: {fallen}"] == "does not agree" for moment in Moment)


def test_a_method_that_falls_back_is_judged_by_its_best_round_too() -> None:
    levels: dict[str, Level] = {HEW_PLAIN: (0.9, 0.5), "FedAvg": 0.8}
    results = made(cnn_spec(), levels)
    answers = verdicts(results, judge_cnn)
    said = "HEW (Alg. 3) beats FedAvg in accuracy"
    assert answers[f"last round: {said}"] == "does not agree"
    assert answers[f"best validation round: {said}"] == "agrees"
    best = at_moment(results, HEW_PLAIN, "test_loss", Moment.best)
    np.testing.assert_allclose(best, 0.1 - NOISE, atol=1e-4)
    pair = (HEW_PLAIN, "FedAvg")
    assert share_ahead(results, pair, "test_accuracy") == 0.5
    assert answers["HEW (Alg. 3) beats FedAvg for most of the run"] == "does not agree"


def test_at_equal_scalars_a_dear_method_is_judged_half_way() -> None:
    """Two vectors a round for one; a number more, as HEW sends, is no round less."""
    levels: dict[str, Level] = {HEW_PLAIN: (0.5, 0.9), "FedAvg": 0.8}
    said = "HEW (Alg. 3) beats FedAvg in both losses"
    for cost, verdict in ((20_000, "does not agree"), (10_001, "agrees")):
        sent = {HEW_PLAIN: cost, "FedAvg": 10_000}
        answers = verdicts(made(cnn_spec(), levels, sent=sent), judge_cnn)
        assert answers[f"last round: {said}"] == "agrees"
        assert answers[f"equal scalars: {said}"] == verdict
        assert answers[f"equal scalars, the paper's count: {said}"] == verdict


def test_weights_of_the_last_round_and_of_the_late_ones() -> None:
    levels: dict[str, Level] = {HEW_PLAIN: 0.9, "FedAvg": 0.85}
    mass = {HEW_PLAIN: (0.1, 0.1, 0.1, 0.7)}
    results = made(cnn_spec(), levels, mass)
    answers = verdicts(results, judge_cnn)
    moved = "HEW (Alg. 3) moves weight towards the longest local work (H = 4)"
    assert (
        answers[f"last round: {moved}"] == answers[f"last quarter: {moved}"] == "agrees"
    )
    late = late_mass(results, HEW_PLAIN)
    assert list(late) == [1, 2, 4, 8]
    np.testing.assert_allclose(late[8], 0.7, atol=1e-3)
    equal = verdicts(made(head_spec(), of_paper()))
    few = "HEW (Alg. 3) concentrates on fewer horizon groups than HEW-Fixed"
    assert equal[f"last round: {few}"] == "undecided"
    diffuse = {"HEW-Fixed": (1.0, 0.0, 0.0, 0.0)}
    other = verdicts(made(head_spec(), of_paper(), diffuse))
    assert other[f"last quarter: {few}"] == "does not agree"


def test_methods_that_were_not_run_are_named_and_intervals_are_told() -> None:
    levels = of_paper()
    del levels["FedNova"]
    lead = judge_head(made(head_spec(), levels))[0]
    assert (lead.verdict, lead.because) == ("not run", "not run: FedNova")
    first = judge_cnn(made(cnn_spec(), {HEW_PLAIN: 0.9, "FedAvg": 0.85}))[0]
    said = "test accuracy of HEW (Alg. 3) against FedAvg: better (+0.0"
    assert said in first.because
    equal = judge_equal(made(head_spec(), of_paper()))
    assert {c.verdict for c in equal} == {"agrees", "does not agree"}


def test_every_moment_is_on_paper() -> None:
    results = made(cnn_spec(), {HEW_PLAIN: (0.9, 0.5), "FedAvg": 0.8})
    rows = _table(results, Moment.best)
    assert rows[2].startswith(f"| {HEW_PLAIN} | 0.9001")
