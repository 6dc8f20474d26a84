"""Runs: tuned, finished, resumed to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl.errors import DataError
from hewfl.experiments.build_problem import build_problem
from hewfl.experiments.candidates import all_candidates, best_candidates, choose
from hewfl.experiments.executor import Progress, Task, execute
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.reference_optima import find_constants
from hewfl.experiments.results import read_results
from hewfl.experiments.run import run_all, tune_all
from hewfl.experiments.run_folder import Folder, folder_for, open_folder
from hewfl.experiments.spec import spec_from_table
from hewfl.experiments.statistics import compare
from tests.experiments.runs import TEXT, small, table


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = os.environ.get("HEWFL_CACHE")
    os.environ["HEWFL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["HEWFL_CACHE"]
    else:
        os.environ["HEWFL_CACHE"] = before


@pytest.fixture(scope="module")
def done(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Folder:  # noqa: ARG001 - a place
    folder = folder_for(small(), tmp_path_factory.mktemp("runs"))
    run_all([folder], jobs=0, progress=Progress())
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if file.name != "times.json"
    }


def test_a_run_leaves_what_it_promises(done: Folder) -> None:
    assert done.is_done
    names = set(contents(done.path))
    expected = {"spec.toml", "tuned.toml", "tuning.json", "summary.json"}
    assert expected < names
    for seed in (0, 1):
        assert f"seed-{seed}/trace.jsonl" in names
    summary = json.loads((done.path / "summary.json").read_text())
    assert [m["label"] for m in summary["methods"]] == ["HEW", "HewHet", "FedAvgM"]
    for method in summary["methods"]:
        final = method["final"]
        assert 0 < final["gap"]["mean"] < final["objective"]["mean"]
        assert 0.3 < final["test_accuracy"]["mean"] <= 1
        mass = sum(m["mean"] for m in method["mass_by_horizon"].values() if m["std"])
        assert mass <= 1 + 1e-9
    assert summary["methods"][0]["audit"]["checks"] == 6
    assert summary["methods"][2]["audit"] is None


def test_tuning_takes_the_best_mean_and_warns_of_edges() -> None:
    spec = small()
    candidates = all_candidates(spec)
    scores = [scored(3.0, 1.0, np.inf), scored(1.0, 2.0, 0.0)]
    tuned, (choice,) = choose(spec, candidates, scores)
    assert tuned.is_tuned
    assert choice.parameters["amplitude"] == 0.5
    assert choice.parameters["curvature_ratio"] == 1.5
    assert choice.at_edge == ()
    assert choice.table[2]["scores"] == [None, 0.0]
    _, (edge,) = choose(spec, candidates, [scored(0.0, 1.0, 2.0)])
    assert edge.at_edge == ("amplitude",)
    assert [m.label for m in tuned.methods] == ["HEW", "HewHet", "FedAvgM"]


def test_words_have_no_edge() -> None:
    """`curvature` is "given" or "online": no wider list could help."""
    grid = {"curvature": ("given", "online")}
    given = {"amplitude": 0.5, "curvature_ratio": 1.5}
    spec = replace(small(), methods=(MethodSpec("HewHom", "HEW", given, grid),))
    scores = [np.column_stack([(1.0, 0.0), (0.0, 0.0)])]
    _, (choice,) = choose(spec, all_candidates(spec), scores)
    assert choice.parameters["curvature"] == "online"
    assert choice.at_edge == ()


def scored(*values: float, ties: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Any:
    return np.column_stack([values, ties])


def test_near_ties_are_decided_by_the_second_quantity() -> None:
    plain, candidates = small(), all_candidates(small())
    spec = replace(plain, tune=replace(plain.tune, tie_tolerance=0.1))
    scores = [scored(1.05, 1.0, 0.99, ties=(1.0, 3.0, 2.0))]
    assert best_candidates(spec, candidates, scores, 3) == [(0, 2, 1)]
    assert best_candidates(plain, candidates, scores, 2) == [(2, 1)]


def test_screening_keeps_the_best_of_each_method(cache: None, tmp_path: Path) -> None:  # noqa: ARG001 - a place
    plain = small()
    how = replace(plain.tune, screen_rounds=2, screen_top_k=2)
    folder = folder_for(replace(plain, tune=how, name="screened"), tmp_path)
    tune_all([folder], jobs=0, progress=Progress())
    (choice,) = json.loads((folder.path / "tuning.json").read_text())
    assert len(choice["table"]) == 2
    assert folder.tuned is not None


def test_results_read_back_what_the_trace_says(done: Folder) -> None:
    spec = done.tuned
    assert spec is not None
    results = read_results(spec, {s: done.of_seed(s) for s in spec.seeds})
    objective = results.curve("HEW", "objective")
    assert objective.shape == (2, 7)
    lines = (done.of_seed(1) / "trace.jsonl").read_text().splitlines()
    record = json.loads(lines[3 * 4])  # the first of three entries after four rounds
    assert objective[1, 4] == record["objective"]
    least = results.constants[1]["objective"]
    np.testing.assert_allclose(results.curve("HEW", "gap")[1], objective[1] - least)
    mass = results.mass("FedAvgM")
    np.testing.assert_allclose(sum(mass.values()), 1.0)


def test_processes_and_one_process_leave_the_same_bytes(
    done: Folder, tmp_path: Path
) -> None:
    again = folder_for(small(), tmp_path)
    stages: list[str] = []
    seen: list[tuple[int, int]] = []

    class Watch(Progress):
        def begin(self, tasks: Sequence[Task]) -> None:
            stages.append(tasks[0].stage)

        def step(self, task: int, done: int) -> None:
            seen.append((task, done))

    run_all([again], jobs=2, progress=Watch())
    assert contents(again.path) == contents(done.path)
    assert (1, 6) in seen
    assert stages == ["tuning", "rounds"]


def test_a_killed_run_resumes_to_the_same_bytes(done: Folder, tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(TEXT)
    command = [sys.executable, "-m", "hewfl.cli", "run", str(spec), "--jobs", "1"]
    command += ["--runs-dir", str(tmp_path / "runs")]
    rng = np.random.default_rng(3)
    ended = False
    for _ in range(3):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(float(rng.uniform(1.0, 3.0)))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        else:
            ended = process.returncode == 0
            break
    if not ended:
        subprocess.run(command, check=True, capture_output=True)
    (found,) = (tmp_path / "runs").iterdir()
    assert contents(found) == contents(done.path)


def test_what_a_killed_process_left_goes(done: Folder) -> None:
    before = contents(done.path)
    for name in (".lock", ".holder", ".checksums.json-1-0abc.partial"):
        (done.path / name).write_text("left", encoding="utf-8")
    run_all([done], jobs=0, progress=Progress())
    assert contents(done.path) == before


def test_a_finished_run_is_left_alone(done: Folder) -> None:
    before = contents(done.path)
    run_all([done], jobs=0, progress=Progress())
    assert contents(done.path) == before
    assert open_folder(done.path).spec == done.spec


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a run: it has no spec.toml"):
        open_folder(tmp_path)


def test_constants_are_solved_once(
    cache: None,  # noqa: ARG001 - a place
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = small()
    problem = build_problem(spec, 5)
    first = find_constants(spec, 5, problem)
    monkeypatch.setattr(type(problem), "_minimiser", None)
    assert find_constants(spec, 5, problem) == first
    assert first.objective is not None
    assert first.pooled is not None
    assert first.objective != first.pooled


def test_partitions_of_a_spec() -> None:
    pool = build_problem(
        spec_from_table(table() | {"clients": {"partition": "pool"}}), 0
    )
    assert (pool.offsets == 0).all()
    even = build_problem(
        spec_from_table(table() | {"clients": {"partition": "iid"}}), 0
    )
    assert even.data_sizes.max() - even.data_sizes.min() <= 1


def test_torch_tensors_give_the_same_problem() -> None:
    here = build_problem(small(), 0)
    there = build_problem(spec_from_table(table() | {"device": "cpu"}), 0)
    x = np.linspace(-1, 1, here.d)[None]
    np.testing.assert_allclose(there.objectives(x), here.objectives(x), rtol=1e-12)
    assert type(there.features).__module__ == "torch"


def ignore(task: int, done: int) -> None:
    assert (task, done) >= (0, 0)


def fails(number: int, on_step: Any) -> int:
    on_step(1)
    if number == 2:
        raise ValueError("two is not liked")
    return number


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_failing_task_is_told(jobs: int) -> None:
    tasks = [Task("s", f"t{k}", 1, fails, (k,)) for k in range(4)]
    with pytest.raises(ValueError, match="two is not liked"):
        execute(tasks, jobs=jobs, report=ignore)
    good = [task for task in tasks if task.arguments != (2,)]
    assert execute(good, jobs=jobs, report=ignore) == [0, 1, 3]


def test_differences_are_paired() -> None:
    noise = np.array([0.0, 10.0, -5.0, 3.0])
    shifted = noise + np.array([0.1, 0.11, 0.09, 0.1])
    found = compare(shifted, noise)
    assert found.verdict == "worse"
    assert found.low < found.mean < found.high
    assert found.mean == pytest.approx(0.1)
    # t with three degrees of freedom: 3.1824 standard errors of 0.0040825
    assert found.high - found.mean == pytest.approx(3.182446 * 0.00408248, rel=1e-5)
    larger = compare(shifted, noise, larger_is_better=True)
    assert larger.verdict == "better"
    assert compare([1.0, 2.0], [1.5, 1.5]).verdict == "undecided"
    assert compare([1.0, np.nan], [2.0, 1.0]).seeds == 1


@pytest.mark.parametrize("larger", [False, True])
def test_differences_without_a_spread_decide_nothing(larger: bool) -> None:
    rows = np.array([640, 701]) / 800
    found = compare(rows - 1 / 800, rows, larger_is_better=larger, scale="difference")
    assert found.verdict == "undecided"
    assert found.mean == pytest.approx(-0.00125)
    assert found.high - found.low < 1e-12
    assert compare([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]).verdict == "undecided"
    little = [1.0, 1.0, 1.0 + 1e-12]  # far above rounding, and it varies
    assert compare(little, [2.0, 2.0, 2.0]).verdict == "better"
