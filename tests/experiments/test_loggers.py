"""Rounds sent to TensorBoard, W&B and MLflow by their own libraries, and read back."""

import importlib
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.core.atomic import read_json
from hewfl.errors import InvalidInputError, MissingExtraError
from hewfl.experiments import loggers
from hewfl.experiments.executor import Progress, Task
from hewfl.experiments.loggers import LOGGED, LoggedRun, check_targets, logged
from hewfl.experiments.results import Results
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for
from tests.experiments.runs import TEXT, small
from tests.experiments.test_run_folder import Stop, contents

Values = dict[str, dict[int, float]]
"""By quantity and round."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return folder_for(small(), tmp_path / "runs")


def execute(run: Folder, *targets: str, progress: Progress | None = None) -> Results:
    with logged([run], targets, progress or Progress()) as wrapped:
        run_all([run], jobs=0, progress=wrapped)
    return run.results


def check(values: Values, results: Results, label: str, seed: int) -> None:
    """What was sent is what the results say, in every round."""
    for quantity in ("objective", "test_accuracy", "scalars", "worst_tenth_accuracy"):
        want = results.curve(label, quantity)[seed]
        assert list(values[quantity]) == results.rounds.tolist()
        np.testing.assert_allclose(list(values[quantity].values()), want, rtol=1e-6)


def events(folder: Path) -> Values:
    """The scalars in files of events: each a length, its sum, bytes and their sum."""
    proto: Any = importlib.import_module("tensorboardX.proto.event_pb2")
    values: Values = {}
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            event = proto.Event.FromString(content[12 : 12 + size])
            content = content[16 + size :]
            for value in event.summary.value:
                values.setdefault(value.tag, {})[event.step] = value.simple_value
    return values


def test_tensorboard(run: Folder) -> None:
    pytest.importorskip("tensorboardX")
    results = execute(run, "tensorboard:events")
    for label in results.labels:
        for k, seed in enumerate(results.spec.seeds):
            folder = Path("events", run.path.name, label, f"seed-{seed}")
            check(events(folder), results, label, k)


def test_mlflow(run: Folder) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    results = execute(run, "mlflow:tracking")
    client = mlflow.MlflowClient(tracking_uri=Path("tracking").resolve().as_uri())
    where = client.get_experiment_by_name("small").experiment_id
    runs = {each.info.run_name: each for each in client.search_runs([where])}
    assert len(runs) == 6
    for label in results.labels:
        for k, seed in enumerate(results.spec.seeds):
            each = runs[f"{label}, seed {seed}"]
            assert each.info.status == "FINISHED"
            assert each.data.params["seed"] == str(seed)
            histories = {
                name: client.get_metric_history(each.info.run_id, name)
                for name in each.data.metrics
            }
            values = {k: {m.step: m.value for m in h} for k, h in histories.items()}
            check(values, results, label, k)


@pytest.mark.slow
def test_wandb_offline(run: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    results = execute(run, "wandb:study")
    files = sorted(Path("wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 6
    assert all(values_of(file).keys() >= {"objective", "scalars"} for file in files)
    found = [values_of(file) for file in files]
    for label in results.labels:
        for k in range(len(results.spec.seeds)):
            want = results.final(label, "objective")[k]
            (same,) = (v for v in found if np.isclose(v["objective"][6], want))
            check(same, results, label, k)


def values_of(file: Path) -> Values:
    """The history in a file of W&B: records in blocks of 32 KiB, as in LevelDB."""
    proto: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content, at, record = file.read_bytes(), 7, b""  # 7 bytes of its own
    values: Values = {}
    while at + 7 <= len(content):
        left = 2**15 - at % 2**15
        if left < 7:  # no header fits in
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):  # more parts follow
            continue
        history, record = proto.Record.FromString(record).history, b""
        for item in history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                here = values.setdefault(name, {})
                here[history.step.num] = float(item.value_json)
    return values


class Memory:
    """A target that remembers, and fails at a round if it is told to."""

    sent: dict[str, list[int]]
    fails_at: int | None = None

    def __init__(self, place: str, run: LoggedRun, key: str) -> None:
        assert place == "here"
        self.key = key or f"key of {run.name}"
        self.rounds = self.sent.setdefault(self.key, [])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("the server is gone")
        assert "gap" in values
        self.rounds.append(step)

    def flush(self) -> None:
        pass

    def close(self, *, is_done: bool) -> None:
        self.sent.setdefault("closed", []).append(int(is_done))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    monkeypatch.setattr(Memory, "sent", {}, raising=False)
    monkeypatch.setattr(Memory, "fails_at", None)
    monkeypatch.setattr(loggers, "PAUSE", 0.0)
    monkeypatch.setitem(loggers.TARGETS, "memory", Memory)
    monkeypatch.setitem(loggers.LIBRARIES, "memory", "json")
    return Memory


class StopsAfter(Progress):
    """Ends the run after some rounds of its first seed."""

    stage = ""

    def begin(self, tasks: Sequence[Task]) -> None:
        self.stage = tasks[0].stage

    def step(self, task: int, done: int) -> None:
        if self.stage == "rounds" and (task, done) == (0, 4):
            raise Stop


def test_a_run_that_is_resumed_sends_each_round_once(
    run: Folder, memory: type[Memory], tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        execute(run, "memory:here", progress=StopsAfter())
    begun = {key: list(rounds) for key, rounds in memory.sent.items()}
    assert begun.pop("closed") == [0] * 3
    assert all(0 < len(rounds) < 7 for rounds in begun.values())
    execute(run, "memory:here")
    assert memory.sent.pop("closed") == [0] * 3 + [1] * 6
    assert all(rounds == list(range(7)) for rounds in memory.sent.values())
    assert set(begun) < set(memory.sent)  # the same runs there
    table = read_json(run.path / LOGGED)
    assert table["memory:here"]["1"]["lines"] == 21
    plain = folder_for(small(), tmp_path / "plain")
    run_all([plain], jobs=0, progress=Progress())
    sent, without = contents(run), contents(plain)
    sent.pop(LOGGED)
    assert sent == without


def test_a_run_that_is_done_can_be_sent(run: Folder, memory: type[Memory]) -> None:
    run_all([run], jobs=0, progress=Progress())
    for _ in range(2):  # the second time nothing is left
        execute(run, "memory:here")
        memory.sent.pop("closed", None)
        assert len(memory.sent) == 6
        assert all(rounds == list(range(7)) for rounds in memory.sent.values())


def test_a_target_that_fails_does_not_stop_the_run(
    run: Folder, memory: type[Memory]
) -> None:
    memory.fails_at = 4
    text = r"memory:here failed \(the server is gone\); resume with --log"
    with pytest.warns(UserWarning, match=text):
        execute(run, "memory:here")
    assert run.is_done
    memory.fails_at = None
    execute(run, "memory:here")
    memory.sent.pop("closed")
    assert all(set(rounds) == set(range(7)) for rounds in memory.sent.values())


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("tensorbord:x", "did you mean `tensorboard:FOLDER`"),
        ("wandb", "`--log` must be one of tensorboard:FOLDER, wandb:PROJECT"),
        ("mlflow:", "`--log` must be one of"),
    ],
)
def test_mistakes_are_named(target: str, text: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        check_targets([target])
    assert text in str(error.value)


def test_an_absent_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="install hewfl's extra wandb"):
        check_targets(["wandb:study"])


def test_the_command_logs_a_run_and_a_sweep(run: Folder, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert run.path.parent == tmp_path / "runs"
    Path("small.toml").write_text(TEXT)
    words = ["--jobs", "0", "--log", "tensorboard:events", "--set", "seeds=[0]"]
    for more in ([], ["--sweep", "clients.alpha=0.3,0.4"]):
        result = CliRunner().invoke(app, ["run", "small.toml", *words, *more])
        assert result.exit_code == 0, result.output
    assert len(list(Path("events").glob("small*/*/seed-0"))) == 9
    wrong = CliRunner().invoke(app, ["run", "small.toml", "--log", "events"])
    assert wrong.exit_code == 2
    assert "`--log` must be one of tensorboard:FOLDER" in wrong.output
