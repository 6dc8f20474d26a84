"""The table of rules in docs/results/torch.md: how it is made, and what was run."""

from typing import Any

import numpy as np
import pytest
import torch
from reproduce import rules_table, torch_rules
from reproduce.stacked_job import BATCH, Fault, Job, Scenario, decide_weights
from reproduce.stacked_models import CharTransformer

pytestmark = [pytest.mark.torch, pytest.mark.unchecked]


def made(losses: dict[str, list[float]]) -> dict[str, Any]:
    """Scores of some rules in a clean scenario and one with a bad rank."""
    entries = {
        f"{rule} | plain": {
            "loss": values,
            "average loss": values,
            "weights": [0.4, 0.3, 0.2, 0.1],
        }
        for rule, values in losses.items()
    }
    return {"cnn": {"clean, 2:1": entries, "labels, 2:1": entries}}


def test_verdicts_are_by_paired_intervals() -> None:
    cells = made(
        {
            "equal": [1.0, 2.0, 3.0],
            "better": [0.9, 1.89, 2.91],
            "worse": [1.1, 2.11, 3.09],
            "unclear": [1.1, 1.9, 3.01],
            "diverged": [np.nan, np.inf, 1e9],
        }
    )
    assert rules_table.summary(cells, "loss")[2:] == [
        "| better | 1 / 0 | 1 / 0 |",
        "| worse | 0 / 1 | 0 / 1 |",
        "| unclear | 0 / 0 | 0 / 0 |",
        "| diverged | 0 / 1 | 0 / 1 |",
    ]
    table = rules_table.one_table(cells["cnn"], "plain", "loss")
    start = "| clean, 2:1 | 2.000 | −0.100 ± 0.025 ✓ | **+0.100 ± 0.025** | "
    assert table[2].startswith(start)
    assert rules_table.weights_table(cells)[2] == (
        "| equal | 0.40 0.30 0.20 0.10 | 0.40 |"
    )
    worse = ["cnn, plain, clean, 2:1: **+0.100 ± 0.025**"]
    assert rules_table.worse_cells(cells, "worse", "loss")[:1] == worse


def decide(rule: str, rows: Any, steps: Any = (16, 4, 2, 1)) -> Any:
    algorithm = torch_rules.rules(0.1)[rule]
    return decide_weights(rule, algorithm, rows @ rows.T, steps, None)[0]


def spread(n: int = 4) -> Any:
    return np.random.default_rng(0).normal(size=(n, 50)) + 0.3


def test_rules_decide_from_products_as_from_displacements() -> None:
    """The stand-in has as many numbers as there are ranks."""
    rows, steps = spread(), np.array([16, 4, 2, 1])
    tokens = steps * BATCH
    assert decide("tokens", rows) == pytest.approx(tokens / tokens.sum())
    quality = tokens**2 / steps
    quality = quality / quality.sum()
    assert decide("tokens²/steps", rows) == pytest.approx(quality)
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    cosines = ((unit @ unit.T).sum(axis=1) - 1) / 3
    assert decide("agreement", rows) == pytest.approx(cosines**2 / (cosines**2).sum())
    direction = quality @ unit
    step = quality @ np.linalg.norm(rows, axis=1) * direction
    expected = step / np.linalg.norm(direction)
    assert decide("radial-directional", rows) @ rows == pytest.approx(expected)


def test_ranks_that_are_not_finite_or_do_not_move_are_left_out() -> None:
    rows = spread()
    rows[2, 7] = np.nan
    assert decide("equal", rows) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    assert np.isnan(decide("equal", rows * np.nan)).all()
    frozen = spread()
    frozen[1] = 0
    assert decide("equal", frozen) == pytest.approx([0.25] * 4)  # as published
    assert decide("sieve, per step", frozen)[1] == 0


def test_faults_change_gradients_and_rates_of_bad_ranks_alone() -> None:
    pairs: dict[Fault, Any] = {
        "flipped": (-1, 1),
        "rate": (1, 10),
        "frozen": (1, 0),
        "noisy": (1, 1),
    }
    for fault, factor in pairs.items():
        scenario = Scenario((2, 2), fault, (1,))
        assert (scenario.factor(0), scenario.factor(1)) == ((1, 1), factor)
    assert [scenario.batch(rank) for rank in (0, 1)] == [BATCH[0], 1]


def test_all_rules_train_side_by_side() -> None:
    """Three characters in turn: every rule must learn that in three rounds."""
    text = torch.arange(400) % 3
    model = CharTransformer(text, text[:100], 3, width=8, blocks=1, context=4, heads=2)
    rules = torch_rules.rules(0.01)
    job = Job(model, "adamw", 0.01, 3, Scenario(), 0)
    scores = job.run(rules, torch_rules.OUTERS, "cpu")
    assert len(scores) == 2 * len(rules)
    for entry, values in scores.items():
        assert values["loss"] < 1.0, entry  # log 3 = 1.1 at the start
    assert scores["equal | plain"]["weights"] == [0.25] * 4
    alone = job.run({"trust": rules["trust"]}, torch_rules.OUTERS, "cpu")
    assert alone["trust | nesterov"]["loss"] == pytest.approx(
        scores["trust | nesterov"]["loss"], rel=1e-4
    )
