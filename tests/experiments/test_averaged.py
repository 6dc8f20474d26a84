"""Specs with outer options: grids of them, and judging by the averaged model."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl import InvalidInputError, ServerStep
from hewfl.experiments.candidates import all_candidates
from hewfl.experiments.executor import Progress
from hewfl.experiments.method_spec import SERVER_STEP, method_from_table
from hewfl.experiments.results import Results, measured, read_results
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for
from hewfl.experiments.spec import Spec, read_spec, spec_from_table, write_spec
from hewfl.experiments.spec_lint import refuse_unused_fields
from hewfl.experiments.statistics import compare, compare_methods
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import score_candidates
from hewfl.report.page import write_report
from tests.experiments.runs import table

FEDAVG = {"method": "FedAvg", "step_scale": 0.2}


def test_every_field_of_the_outer_step_can_be_in_a_grid() -> None:
    lists: dict[str, Any] = {
        "momentum": [0.0, 0.5],
        "server_learning_rate": [0.01, 0.1],
        "adapt": ["none", "adam", "yogi"],
        "average": ["none", "ema"],
    }
    method = method_from_table(FEDAVG | {"grid": lists}, "methods[0]")
    outers = [candidate.entry(1.0).server_step for candidate in method.candidates()]
    assert len(set(outers)) == 24
    assert ServerStep(0.1, 0.5, adapt="yogi", average="ema") in outers
    rest: dict[str, Any] = {"adapt": "adam", "average": "ema"}
    rest |= {"grid": {"beta2": [0.9, 0.99], "tau": [0.1], "average_decay": [0.5]}}
    assert len(method_from_table(FEDAVG | rest, "methods[0]").candidates()) == 2
    tail = {"average": "tail", "grid": {"average_from": [2, 5]}}
    assert method_from_table(FEDAVG | tail, "").candidates()[1].entry(
        1.0
    ).server_step == ServerStep(average="tail", average_from=5)
    told = {
        "grid": {
            "line_search_samples": [8, 64],
            "line_search_points": [[0.5, 2.0], [1.0, 2.0, 4.0]],
        }
    }
    measured = (
        method_from_table(FEDAVG | told, "").candidates()[-1].entry(1.0).server_step
    )
    assert measured == ServerStep(
        line_search_samples=64, line_search_points=(1.0, 2.0, 4.0)
    )
    known = {*lists, *rest["grid"], *told["grid"]}
    known |= {"nesterov", "average_from", "average_share"}
    assert set(SERVER_STEP) == known


def test_a_share_of_the_rounds_is_told_by_their_number() -> None:
    tail = {"average": "tail", "average_share": 0.25}
    method = method_from_table(FEDAVG | tail, "methods[0]")
    assert method.entry(1.0, rounds=40).server_step.average_from == 31  # the last ten
    for more in ({"average_share": 0.5}, tail | {"average_from": 3}):
        with pytest.raises(InvalidInputError, match="average_share` must be left out"):
            method_from_table(FEDAVG | more, "methods[0]")
    with pytest.raises(
        InvalidInputError, match=r"`methods.FedAvg.server_learning_rate` must be"
    ):
        method_from_table(FEDAVG | {"server_learning_rate": -1.0}, "methods[0]")


def averaged_spec(judge: str) -> Spec:
    given = table() | {"evaluate_model": judge, "audit_every": 0, "rounds": 4}
    given["data"] = {"subsample": 120}
    given["tune"] = {"rounds": 2, "seeds": [0]}
    hew, _, fedavg = given["methods"]
    hew["average"] = "ema"
    hew["grid"] = {"amplitude": [0.5, 8.0], "momentum": [0.0, 0.8]}
    return spec_from_table(given | {"methods": [hew, fedavg]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    root = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEWFL_CACHE", str(root / "cache"))
        run = folder_for(averaged_spec("averaged"), root)
        run_all([run], jobs=0, progress=Progress())
        yield run


def results_of(folder: Folder) -> Results:
    spec = folder.tuned
    assert spec is not None
    return read_results(spec, {seed: folder.of_seed(seed) for seed in spec.seeds})


def test_methods_are_tuned_by_the_model_that_is_asked_for(folder: Folder) -> None:
    (choice,) = folder.choices
    scores = {}
    for judge in ("iterate", "averaged"):
        spec = averaged_spec(judge)
        tried = score_candidates(spec, all_candidates(spec), 2, 0, lambda _: None)
        scores[judge] = tried[:, 0].tolist()
    assert [row["scores"] for row in choice.table] == [[s] for s in scores["averaged"]]
    assert all(a != b for a, b in zip(*scores.values(), strict=True))
    best = int(np.argmin(scores["averaged"]))
    assert choice.parameters == choice.table[best]["parameters"]


def test_methods_are_compared_by_the_model_that_is_asked_for(folder: Folder) -> None:
    by_average = results_of(folder)
    by_iterate = replace(
        by_average, spec=replace(by_average.spec, evaluate_model="iterate")
    )
    averaged = by_average.final("HEW", "averaged_objective")
    iterate = by_average.final("HEW", "objective")
    fedavg = by_average.final("FedAvgM", "objective")  # keeps no average
    for results, ours in ((by_average, averaged), (by_iterate, iterate)):
        pairs = compare_methods(results, "HEW", ["FedAvgM"], "objective")
        assert pairs == {"FedAvgM": compare(ours, fedavg)}
    summary = summarise(by_average)
    hew, other = summary["methods"]
    assert hew["final"]["averaged_gap"]["mean"] > 0
    assert "averaged_objective" not in other["final"]
    ratio = np.exp(np.log(averaged / fedavg).mean())
    assert summary["pairs"][0]["mean"] == pytest.approx(ratio)


def test_the_report_shows_both_models(folder: Folder, tmp_path: Path) -> None:
    write_report([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "training objective, averaged" in page
    assert "of the averaged model where a method keeps one" in page
    assert "by the averaged model of methods that keep one" in page
    curves = ("objective", "averaged_objective")
    assert measured(results_of(folder), curves) == list(curves)


def test_judging_by_what_nobody_keeps_is_refused() -> None:
    spec = spec_from_table(table() | {"evaluate_model": "averaged"})
    with pytest.raises(
        InvalidInputError, match="`evaluate_model` must be left out: no method"
    ):
        refuse_unused_fields(spec)
    refuse_unused_fields(averaged_spec("averaged"))


def test_a_spec_with_outer_options_survives_its_file(tmp_path: Path) -> None:
    spec = averaged_spec("averaged")
    file = tmp_path / "spec.toml"
    file.write_text(write_spec(spec), encoding="utf-8")
    assert read_spec(file) == spec
    assert spec.digest != replace(spec, evaluate_model="iterate").digest
