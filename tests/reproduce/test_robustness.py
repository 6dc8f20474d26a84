"""The study of unequal quality: specs that can run, scores, verdicts, publishing."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.__main__ import app
from reproduce.robustness.publish_robustness import (
    finished_runs,
    judge_study,
    numbers_of,
    published_study,
)
from reproduce.robustness.robustness_specs import (
    ORACLE,
    OURS,
    PANELS,
    RULES,
    Key,
    Part,
    robustness_specs,
    study_keys,
)
from reproduce.robustness.scores import Scores, rank_by_worst
from reproduce.robustness.tables import unsteady
from reproduce.robustness.verdicts import verdicts
from typer.testing import CliRunner

from hewfl import InvalidInputError
from hewfl.core.atomic import write_json, write_text
from hewfl.experiments.spec import (
    read_spec,
    spec_from_table,
    spec_table,
    write_spec,
)
from hewfl.experiments.statistics import holm, paired_p

SEEDS = 7
SPECS = robustness_specs(None)
CLEAN: Key = ("mnist-hom", "clean")
LABELS: Key = ("mnist-hom", "labels")
DEEP: Key = ("fashion-cnn", "labels")


def summary(key: Key, losses: dict[str, float], lost: tuple[str, ...] = ()) -> Any:
    """Made-up numbers: a rule's loss, a little more under momentum and per seed."""
    methods = []
    for k, method in enumerate(SPECS[key].methods):
        rule, _, beta = method.label.partition(", momentum ")
        base = losses.get(rule, 1.5) + 0.01 * float(beta or 0)
        noise = 0.001 * np.random.default_rng(k).standard_normal(SEEDS)
        values = [None if rule in lost else float(base + v) for v in noise]
        final = {}
        for name in ("objective", "test_loss", "test_accuracy"):
            final[f"averaged_{name}"] = {"seeds": values}
            later = [
                None if v is None else v + 0.05 + 0.001 * j
                for j, v in enumerate(values)
            ]
            final[name] = {"seeds": later}
        methods.append(
            {
                "label": method.label,
                "parameters": {"amplitude": 1.0},
                "final": final,
                "weight_on_bad": {"mean": 0.25},
            }
        )
    return {"seeds": list(range(SEEDS)), "rounds": 90, "methods": methods}


@pytest.fixture(scope="module")
def scores() -> Scores:
    clean = summary(CLEAN, {OURS: 1.02, "horizon": 1.0, "uniform": 1.0, ORACLE: 1.0})
    bad = summary(LABELS, {OURS: 1.0, "horizon": 3.0, ORACLE: 0.99}, lost=("uniform",))
    return Scores({CLEAN: clean, LABELS: bad})


def test_the_specs_can_be_written_read_and_made_into_entries() -> None:
    specs = SPECS
    assert len({spec.name for spec in specs.values()}) == len(specs) == 34
    assert set(specs) == {
        *study_keys(Part.convex), *study_keys(Part.cnn)
    }  # fmt: skip
    for key in (LABELS, DEEP):
        spec = specs[key]
        assert spec_from_table(spec_table(spec)).digest == spec.digest
        for method in spec.methods:
            for candidate in method.candidates():
                assert candidate.entry(1.0).server_step.average == "ema"
    rules = [rule.label for rule in RULES]
    assert len(specs[LABELS].methods) == 3 * len(rules)
    names = {m.label.partition(",")[0] for m in specs[DEEP].methods}
    assert {"knows who is bad", OURS, "agreement"} <= names


def test_tuning_never_sees_a_seed_that_is_judged() -> None:
    for spec in SPECS.values():
        assert not set(spec.seeds) & set(spec.tune.seeds)
        assert len(spec.seeds) == SEEDS


def test_ratios_are_to_the_best_rule_and_the_yardstick_is_none(scores: Scores) -> None:
    assert scores.winner(CLEAN) in ("horizon", "uniform")
    assert scores.winner(LABELS) == OURS
    assert scores.ratio(LABELS, "horizon") == pytest.approx(3.0, rel=0.01)
    assert scores.ratio(LABELS, ORACLE) < 1
    assert math.isinf(scores.ratio(LABELS, "uniform"))
    first, ratio, key = rank_by_worst(scores, ["mnist-hom"])[0]
    assert (first, key) == (OURS, CLEAN)
    assert ratio == pytest.approx(1.02, abs=0.005)
    assert scores.best(LABELS, "horizon") == "horizon"  # the least momentum is best


def test_what_is_not_shown_to_be_behind_is_level(scores: Scores) -> None:
    level = {r for r in scores.rules("mnist-hom") if r != ORACLE}
    level = {rule for rule in level if scores.is_level(CLEAN, rule)}
    assert level == {"horizon", "uniform"}
    lost = scores.against_best(LABELS)["uniform"]
    assert (lost.verdict, lost.reason) == ("worse", "diverged in 7 of 7 seeds")
    assert ORACLE not in scores.against_best(LABELS)
    assert not scores.is_level(LABELS, ORACLE)  # a limit, which has no rank
    cases = [(CLEAN, "horizon"), (CLEAN, "uniform")]
    assert "7 seeds would have shown a ratio of 1.00" in scores.shown(cases)
    assert scores.shown([(LABELS, "horizon")]) == ""
    assert not scores.is_level(LABELS, "horizon")


def test_verdicts_follow_the_numbers(scores: Scores) -> None:
    said = {v.statement: v for v in verdicts(scores)}
    by_start = {name[:24]: v for name, v in said.items()}
    assert by_start["With bad labels fixed ru"].answer == "holds"
    assert by_start["With all clients good th"].answer == "does not hold"
    assert by_start["Averaging the iterates h"].answer == "holds"
    assert by_start["Trust is among the best "].answer == "holds in part"
    rest = [v.answer for name, v in said.items() if "CNN" in name]
    assert rest == ["not run"] * 2


def test_publishing_is_one_command(tmp_path: Path, scores: Scores) -> None:
    root, specs = tmp_path / "runs", SPECS
    for key, values in scores.summaries.items():
        folder = root / f"{specs[key].name}-0"
        write_text(folder / "spec.toml", write_spec(specs[key]))
        write_json(folder / "summary.json", values)
    output = tmp_path / "out"
    asked = [
        "study",
        "robustness",
        "--publish",
        "--runs-dir",
        str(root),
        "-o",
        str(output),
    ]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    text = (output / "results.md").read_text()
    assert "Not run: " in text
    assert f"| {OURS} |" in text
    assert "**" in text
    assert "lost" in text
    assert "| best |" in text
    rows = [line for line in text.splitlines() if line.startswith("| horizon | ")]
    assert any(", 3.0" in row or " to 3.0" in row for row in rows)  # 3 and 1
    assert "| limit | limit |" in text
    assert (output / "loss_ratios.png").stat().st_size > 10_000
    numbers = json.loads((output / "summary.json").read_text())
    assert len(numbers["mnist-hom, labels"]["methods"][OURS]["averaged_objective"]) == 7
    assert "**holds**" in (output / "verdicts.md").read_text()
    assert set(finished_runs(root)) == {CLEAN, LABELS}


def test_runs_that_went_astray_are_counted() -> None:
    values = summary(DEEP, {}, lost=(OURS,))
    (row,) = (m for m in values["methods"] if m["label"] == "FedAvg, momentum 0.8")
    row["final"]["test_loss"]["seeds"][3] = 9.0
    (line,) = unsteady(Scores({DEEP: values}), DEEP[0])
    methods = len(values["methods"])
    assert line.startswith(f"Of {methods * SEEDS} runs {SEEDS + 1} end with more")
    assert line.endswith(f"averaged model {SEEDS}.")


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match="`root` must be a folder with finished"
    ):
        finished_runs(tmp_path)


def test_the_correction_of_holm_by_hand() -> None:
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, 0.2]), [0.09, 0.04, 0.09, 0.2])
    np.testing.assert_array_equal(holm([0.6, 0.9]), [1.0, 1.0])


def test_paired_p_is_that_of_a_t_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(7), rng.standard_normal(7) + 0.5  # some are negative
    assert paired_p(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    ratios = stats.ttest_rel(a, b + 0 * a).pvalue, paired_p(np.exp(a), np.exp(b))
    assert ratios[0] == pytest.approx(ratios[1])
    assert paired_p([1.0, math.nan], [2.0, 3.0]) == 1.0


def test_a_trial_gives_no_verdicts(tmp_path: Path, scores: Scores) -> None:
    answers = judge_study(scores, {}, tmp_path, is_quick=True)
    assert {v.answer for v in answers} == {"no verdict"}
    text = (tmp_path / "verdicts.md").read_text(encoding="utf-8")
    assert "a trial, which gives no verdicts" in text
    assert "**holds" not in text
    assert "**does not hold" not in text


def test_verdicts_can_be_made_again_from_what_is_published(
    tmp_path: Path, scores: Scores
) -> None:
    write_json(tmp_path / "summary.json", numbers_of(scores))
    for key in scores.keys:
        spec = tmp_path / "panels" / "-".join(key) / "spec.toml"
        write_text(spec, write_spec(SPECS[key]))
    again, folders = published_study(tmp_path)
    assert set(folders) == set(scores.keys)
    assert verdicts(again) == verdicts(scores)


def test_panels_are_those_of_the_issue() -> None:
    assert [panel.data.name for panel in PANELS.values()] == [
        "mnist", "mnist", "covertype", "fashion_mnist"
    ]  # fmt: skip


@pytest.mark.parametrize("key", [CLEAN, LABELS, ("mnist-het", "many"), DEEP])
def test_what_is_published_was_made_by_these_specs(key: Key) -> None:
    docs = Path(__file__).parents[2] / "docs" / "results" / "robustness"
    spec = read_spec(docs / "panels" / "-".join(key) / "spec.toml")
    assert replace(spec, device="numpy") == SPECS[key]
    values = json.loads((docs / "summary.json").read_text())[", ".join(key)]
    assert set(values["methods"]) == {method.label for method in spec.methods}
