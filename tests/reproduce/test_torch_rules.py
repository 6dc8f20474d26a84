"""The table of rules in docs/results/torch.md: how it is made, and what was run."""

from typing import Any

import numpy as np
import pytest
import torch
from reproduce import rules_table, torch_rules
from reproduce.stacked_job import BATCH, STEPS, Job, Scenario, decide_weights
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
    return {"cnn": {"clean": entries, "bad 1": entries}}


def test_verdicts_are_by_paired_intervals() -> None:
    cells = made(
        {
            "equal": [1.0, 2.0, 3.0],
            "better": [0.9, 1.81, 2.68],
            "worse": [1.1, 2.19, 3.32],
            "unclear": [1.1, 1.9, 3.01],
        }
    )
    assert rules_table.summary(cells, "loss")[2:] == [
        "| better | 1 better, 0 worse of 1 | 1 better, 0 worse of 1 |",
        "| worse | 0 better, 1 worse of 1 | 0 better, 1 worse of 1 |",
        "| unclear | 0 better, 0 worse of 1 | 0 better, 0 worse of 1 |",
    ]
    table = rules_table.one_table(cells["cnn"], "plain", "loss")
    assert table[2] == "| equal (its loss) | 2.000 | 2.000 |"
    assert table[3].startswith("| better | 0.899, 0.885 to 0.914 ✓ |")
    assert table[4].startswith("| worse | **1.")
    assert rules_table.weights_table(cells)[2] == (
        "| equal | 0.40 0.30 0.20 0.10 | 0.30 |"
    )


def test_rules_decide_from_products_as_from_displacements() -> None:
    """The stand-in has as many numbers as there are ranks."""
    rows = np.random.default_rng(0).normal(size=(4, 50)) + 0.3
    rule = torch_rules.rules(0.1)["tokens"]
    weights, _ = decide_weights("tokens", rule, rows @ rows.T, 0.1, None)
    tokens = STEPS * BATCH
    assert weights == pytest.approx(tokens / tokens.sum())
    agreement, _ = decide_weights(
        "agreement", torch_rules.rules(0.1)["agreement"], rows @ rows.T, 0.1, None
    )
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    cosines = ((unit @ unit.T).sum(axis=1) - 1) / 3
    assert agreement == pytest.approx(cosines**2 / (cosines**2).sum())


def test_a_rank_that_is_not_finite_is_left_out() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 50)) + 0.3
    rows[2, 7] = np.nan
    weights, _ = decide_weights(
        "equal", torch_rules.rules(0.1)["equal"], rows @ rows.T, 0.1, None
    )
    assert weights == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    none_finite, _ = decide_weights(
        "equal", torch_rules.rules(0.1)["equal"], np.full((4, 4), np.nan), 1, 0
    )
    assert np.isnan(none_finite).all()


def test_all_rules_train_side_by_side() -> None:
    """Three characters in turn: every rule must learn that in three rounds."""
    text = torch.arange(400) % 3
    model = CharTransformer(text, text[:100], 3, width=8, blocks=1, context=4, heads=2)
    rules = torch_rules.rules(0.01)
    job = Job(model, "adamw", 0.01, 3, Scenario(), 0)
    scores = job.run(rules, torch_rules.OUTERS, "cpu")
    assert len(scores) == 2 * len(rules)
    for entry, values in scores.items():
        assert values["loss"] < 0.9, entry  # log 3 = 1.1 at the start
    assert scores["equal | plain"]["weights"] == [0.25] * 4
    alone = job.run({"trust": rules["trust"]}, torch_rules.OUTERS, "cpu")
    assert alone["trust | nesterov"]["loss"] == pytest.approx(
        scores["trust | nesterov"]["loss"], rel=1e-4
    )
