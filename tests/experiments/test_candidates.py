"""What tuning writes down: both stages, both quantities, as they were measured."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hewfl.errors import DataError
from hewfl.experiments.candidates import (
    all_candidates,
    choose,
    read_choices,
    trial_tables,
)
from hewfl.experiments.executor import Progress
from hewfl.experiments.results import LARGER_IS_BETTER
from hewfl.experiments.run import tune_all
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import read_spec
from hewfl.experiments.spec_sections import TuneSpec
from hewfl.experiments.tune import score_candidates
from tests.experiments.runs import small

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ACCURATE = TuneSpec(
    metric="test_accuracy", tie_tolerance=0.1, tie_metrics=("test_loss",)
)


def test_scores_are_written_as_measured() -> None:
    spec = replace(small(), tune=ACCURATE)
    scores = [
        np.array([[-0.7, 0.4], [-0.9, 0.3], [np.inf, np.inf]]),
        np.array([[-0.8, 0.5], [-0.6, 0.2], [-0.5, 0.6]]),
    ]
    (trials,) = trial_tables(spec, all_candidates(spec), scores)
    assert [t["parameters"]["amplitude"] for t in trials] == [0.25, 0.5, 1.0]
    assert [t["scores"] for t in trials] == [[0.7, 0.8], [0.9, 0.6], [None, 0.5]]
    assert [t["tie_scores"] for t in trials] == [[0.4, 0.5], [0.3, 0.2], [None, 0.6]]
    _, (choice,) = choose(spec, all_candidates(spec), scores)
    assert choice.parameters["amplitude"] == 0.5  # by the loss: 0.75 is a tie


def test_further_quantities_decide_between_those_that_are_equal() -> None:
    """Accuracies tie, losses are equal, so is what was sent: the least work wins."""
    how = replace(ACCURATE, tie_metrics=("test_loss", "scalars", "local_steps"))
    spec = replace(small(), tune=how)
    rows = [[-0.9, 0.4, 7.0, 3.0], [-0.85, 0.3, 7.0, 5.0], [-0.88, 0.3, 7.0, 4.0]]
    _, (choice,) = choose(spec, all_candidates(spec), [np.array(rows)])
    assert choice.parameters["amplitude"] == 1.0
    assert choice.table[0]["tie_scores"] == [0.4]
    assert spec.digest != replace(spec, tune=ACCURATE).digest


def test_the_work_of_a_trial_is_counted() -> None:
    spec = replace(
        small(), tune=replace(small().tune, tie_metrics=("objective", "local_steps"))
    )
    scores = score_candidates(spec, all_candidates(spec), 2, 0, lambda _: None)
    assert scores.shape == (3, 3)
    assert (scores[:, 2] == scores[0, 2]).all()
    assert scores[0, 2] >= 2 * spec.clients.n


def test_the_first_trial_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    plain = small()
    how = replace(plain.tune, screen_rounds=2, screen_seeds=(4,), screen_top_k=2)
    folder = folder_for(replace(plain, tune=how), tmp_path)
    tune_all([folder], jobs=0, progress=Progress())
    (choice,) = folder.choices
    assert [len(trial["scores"]) for trial in choice.screen] == [1, 1, 1]
    assert [len(trial["scores"]) for trial in choice.table] == [2, 2]
    best = sorted(choice.screen, key=lambda trial: trial["scores"])[:2]
    kept = [trial["parameters"]["amplitude"] for trial in choice.table]
    assert sorted(trial["parameters"]["amplitude"] for trial in best) == kept


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps([{"label": "HEW", "parameters": {}, "at_edge": []}]))
    with pytest.raises(DataError, match=r"tuning.json is damaged: KeyError"):
        read_choices(file)
    file.write_text('["HEW"]')
    with pytest.raises(DataError, match=r"tuning.json is damaged: TypeError"):
        read_choices(file)
    assert read_choices(tmp_path / "none.json") == ()


@pytest.mark.parametrize(
    "file",
    sorted(RESULTS.rglob("tuning.json")),
    ids=lambda file: str(file.parent.relative_to(RESULTS)),
)
def test_published_choices_are_the_best_of_their_trials(file: Path) -> None:
    how = read_spec(file.with_name("tuned.toml")).tune
    sign = -1 if how.metric in LARGER_IS_BETTER else 1
    choices = read_choices(file)
    assert choices
    for choice in choices:
        over = np.max if how.seed_reduction == "worst" else np.mean
        scores = [
            over(sign * np.array(trial["scores"], dtype=np.float64))
            for trial in choice.table
        ]
        tried = [trial["parameters"] for trial in choice.table]
        chosen = scores[tried.index(choice.parameters)]
        assert chosen <= np.nanmin(scores) + how.tie_tolerance + 1e-12
        if how.metric in LARGER_IS_BETTER:
            assert 0 <= sign * chosen <= 1
