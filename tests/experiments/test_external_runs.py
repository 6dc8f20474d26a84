"""Records of jobs that are no simulations: a spec and traces are enough."""

from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.core.atomic import write_json
from hewfl.errors import DataError, InvalidInputError
from hewfl.experiments.executor import Progress
from hewfl.experiments.run import finish, run_all
from hewfl.experiments.run_folder import open_folder
from hewfl.report.page import write_report
from hewfl.server.trace import RoundRecord, to_line

ROUNDS = 3
SPEC = {
    "name": "job",
    "clients": {"partition": "nodes"},
    "methods": [{"method": "MyOwnRule", "strength": 0.5, "lists": {"a": [1, 2]}}],
}


def record(round_number: int, seed: int) -> RoundRecord:
    if round_number == 0:
        return RoundRecord(0, 0, metrics={"test_accuracy": 0.1})
    return RoundRecord(
        round_number,
        0,
        metrics={"test_accuracy": 0.1 + 0.2 * round_number + 0.01 * seed},
        scalars=100 * round_number,
        clients=(0, 4),
        horizons=(1, 8),
        weights=(0.25, 0.75),
        status="optimal",
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """What a job has to leave, and nothing more."""
    folder = tmp_path / "runs" / "job"
    for seed in (7, 2):
        place = folder / f"seed-{seed}"
        place.mkdir(parents=True)
        lines = [to_line(record(t, seed)) for t in range(ROUNDS + 1)]
        (place / "trace.jsonl").write_text("".join(lines))
    (folder / "spec.toml").write_text(tomli_w.dumps(SPEC))
    return folder


def test_a_spec_and_traces_are_a_run(job: Path) -> None:
    folder = open_folder(job)
    assert (folder.spec.seeds, folder.spec.rounds) == ((2, 7), ROUNDS)
    assert folder.is_done
    (method,) = folder.summary["methods"]
    assert (method["method"], method["label"]) == ("MyOwnRule", "MyOwnRule")
    assert method["parameters"] == {"strength": 0.5, "lists": {"a": [1, 2]}}
    assert method["final"]["test_accuracy"]["mean"] == pytest.approx(0.745)
    assert method["mass_by_horizon"]["8"]["mean"] == 0.75
    assert folder.summary["constants"][0]["n"] == 5
    before = {file: file.read_bytes() for file in job.rglob("*") if file.is_file()}
    finish(folder)
    assert open_folder(job).summary == folder.summary
    (job / "summary.json").unlink()
    assert before == {f: f.read_bytes() for f in job.rglob("*") if f.is_file()}


def test_the_page_of_a_record_says_what_is_known(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(job), "-o", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "5 clients, data as the nodes hold them · 3 rounds, 2 seeds" in text
    assert "MyOwnRule" in text
    write_json(job / "seed-2" / "constants.json", {"n": 9, "d": 31, "samples": []})
    write_report([open_folder(job)], page)
    assert "9 clients, data as the nodes hold them · 31 parameters" in page.read_text()
    listed = CliRunner().invoke(app, ["ls", str(job.parent)]).output
    assert "done" in listed


def test_a_job_that_has_not_ended_is_not_done(job: Path, tmp_path: Path) -> None:
    (job / "spec.toml").write_text(tomli_w.dumps({**SPEC, "rounds": 5}))
    folder = open_folder(job)
    assert not folder.is_done
    assert not write_report([folder], tmp_path / "page.html")
    with pytest.raises(InvalidInputError, match="must be one that can be simulated"):
        run_all([folder], jobs=0, progress=Progress())


def test_epochs_without_sizes_are_told_as_steps(job: Path) -> None:
    clients = {"partition": "nodes", "local_steps": {"kind": "EpochSteps"}}
    (job / "spec.toml").write_text(tomli_w.dumps({**SPEC, "clients": clients}))
    assert set(open_folder(job).results.mass("MyOwnRule")) == {1, 8}


@pytest.mark.parametrize("method", [3, {"label": "x"}, {"method": ""}])
def test_a_record_names_its_methods(job: Path, method: object) -> None:
    (job / "spec.toml").write_text(tomli_w.dumps({**SPEC, "methods": [method]}))
    with pytest.raises(DataError, match=r"`methods\[0\]"):
        open_folder(job)
