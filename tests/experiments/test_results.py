"""Reading a run back: groups of clients, and traces that are not whole."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hewfl.errors import DataError
from hewfl.experiments.executor import Progress
from hewfl.experiments.results import Results
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, open_folder
from hewfl.federation import EpochSteps
from hewfl.server.trace import RoundRecord
from tests.experiments.runs import small
from tests.experiments.test_run_folder import contents
from tests.report.test_report import hostile_run, results_of

SIZES, BATCH, EPOCHS = np.array([5, 7, 13]), 4, (0.5, 1.0, 2.0, 3.0)


def groups(horizons: list[int], sizes: list[int]) -> tuple[float, ...]:
    spec = small()
    law = {"kind": "EpochSteps", "epochs": list(EPOCHS)}
    clients = replace(spec.clients, local_steps=law, batch_size=BATCH)
    known = ({"samples": sizes},)
    results = Results(replace(spec, clients=clients), np.array([0]), (), known)
    everybody = tuple(range(len(sizes)))
    return results.groups(
        0, RoundRecord(1, 0, clients=everybody, horizons=tuple(horizons))
    )


@pytest.mark.parametrize("epochs", EPOCHS)
def test_steps_are_counted_back_to_the_epochs_they_stand_for(epochs: float) -> None:
    """⌈e m / b⌉ tells these e apart; h b / m, rounded, does not."""
    steps = EpochSteps(epochs).draw(0, 0, SIZES, np.full(3, BATCH))
    assert groups(steps.tolist(), SIZES.tolist()) == (epochs,) * 3


def test_steps_of_several_epochs_or_of_none() -> None:
    assert groups([1, 100], [1, 5]) == (3, 3)  # the most of all four; the nearest


@pytest.fixture
def copy(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    run = hostile_run(tmp_path_factory.getbasetemp())
    shutil.copytree(run.path, tmp_path / "copy")
    return open_folder(tmp_path / "copy")


@pytest.mark.parametrize("lost", ["a line", "half a line"])
def test_a_trace_that_is_not_whole_says_what_to_do(
    copy: Folder, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    whole, seed = contents(copy), copy.of_seed(1)
    trace = seed / "trace.jsonl"
    *lines, last = trace.read_text().splitlines(keepends=True)
    rest = "" if lost == "a line" else last[: len(last) // 2]
    trace.write_text("".join(lines) + rest)
    with pytest.raises(DataError) as error:
        results_of(copy)
    summary = copy.path / "summary.json"
    told = f"delete {seed} and, if it is there, {summary}; then resume {copy.path}"
    assert f"the trace in {seed} cannot be read" in str(error.value)
    assert str(error.value).endswith(told)
    shutil.rmtree(seed)
    summary.unlink()
    run_all([copy], jobs=0, progress=Progress())
    assert contents(copy) == whole


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 0"])
def test_a_damaged_choice_says_what_to_delete(
    copy: Folder, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    whole, tuned = contents(copy), copy.path / "tuned.toml"
    tuned.write_text(text)
    with pytest.raises(DataError) as error:
        assert copy.tuned
    told = f"delete it, then resume {copy.path}"
    assert str(error.value).startswith(f"{tuned} is damaged: ")
    assert str(error.value).endswith(told)
    tuned.unlink()
    run_all([copy], jobs=0, progress=Progress())
    assert contents(copy) == whole


def test_a_manifest_without_its_round_is_said(copy: Folder) -> None:
    (copy.path / "summary.json").unlink()
    manifest = copy.of_seed(0) / "manifest.json"
    manifest.write_text(json.dumps({"state": "x"}))
    with pytest.raises(DataError, match=r"manifest\.json is damaged: .*delete "):
        run_all([copy], jobs=0, progress=Progress())


def test_a_run_of_another_version_is_refused_in_one_sentence(copy: Folder) -> None:
    spec, trace = copy.path / "spec.toml", copy.of_seed(0) / "trace.jsonl"
    (copy.path / "checksums.json").unlink()
    lines = trace.read_text()
    trace.write_text(lines.replace('"entry":', '"lane":'))
    with pytest.raises(DataError, match="another version of hewfl"):
        results_of(copy)
    spec.write_text(spec.read_text().replace("local_steps", "horizons"))
    with pytest.raises(
        DataError, match=r"another version of hewfl.*`clients\.local_st"
    ):
        open_folder(copy.path)
