"""Stop and go on: same bits, whatever happened in between."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl import (
    ChoiceSteps,
    DataError,
    Federation,
    HewHet,
    InvalidInputError,
    SampledParticipation,
    simulate,
)
from hewfl.experiments.run import rounds_done
from hewfl.server.checkpoint import (
    Checkpoint,
    check_trace,
    flatten,
    load_checkpoint,
    save_checkpoint,
    unflatten,
)
from tests.simulation.test_engine import all_entries
from tests.simulation.toy import least_squares

ROOT = Path(__file__).parents[2]
FEDERATION = Federation(ChoiceSteps(every_round=True), 4, SampledParticipation(4))


def test_five_and_five_rounds_are_ten(tmp_path: Path) -> None:
    problem = least_squares()
    entries = all_entries(problem.smoothness)
    whole = simulate(problem, FEDERATION, entries, rounds=10, seed=1)
    simulate(problem, FEDERATION, entries, rounds=5, seed=1, checkpoint=tmp_path)
    rest = simulate(
        problem, FEDERATION, entries, rounds=10, seed=1, checkpoint=tmp_path
    )
    assert np.array_equal(whole.anchors, rest.anchors)
    assert whole.records == rest.records
    again = simulate(
        problem, FEDERATION, entries, rounds=10, seed=1, checkpoint=tmp_path
    )
    assert again.records == whole.records  # nothing left to do


SCRIPT = """
import sys
from pathlib import Path
from hewfl import simulate
from tests.server.test_checkpoint import FEDERATION
from tests.simulation.test_engine import all_entries
from tests.simulation.toy import least_squares
problem = least_squares()
entries = all_entries(problem.smoothness)
simulate(problem, FEDERATION, entries, rounds=24, seed=1, checkpoint=Path(sys.argv[1]))
"""


def test_a_killed_process_goes_on_as_if_nothing_had_been(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    command = [sys.executable, "-c", SCRIPT, str(killed)]
    undisturbed = subprocess.Popen([*command[:-1], str(calm)], cwd=ROOT)
    manifest = killed / "manifest.json"
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=ROOT)
        before = manifest.read_text() if manifest.exists() else ""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and process.poll() is None:
            if manifest.exists() and manifest.read_text() != before:
                time.sleep(float(rng.uniform(0, 0.1)))
                break
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2
    subprocess.run(command, cwd=ROOT, check=True)
    assert undisturbed.wait(600) == 0
    assert (killed / "trace.jsonl").read_bytes() == (calm / "trace.jsonl").read_bytes()
    names = sorted(path.name for path in calm.iterdir())
    assert sorted(p.name for p in killed.iterdir() if ".partial" not in p.name) == names
    for name in names:
        assert (killed / name).read_bytes() == (calm / name).read_bytes(), name


def test_the_manifest_comes_when_all_else_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.jsonl").write_text("a line\n")
    order: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: order.append(os.fstat(file).st_ino))
    save_checkpoint(tmp_path, Checkpoint(3, {}, {"x": np.ones(2)}, 7))
    names = ("trace.jsonl", "state-00000003.safetensors", "manifest.json")
    assert order == [(tmp_path / name).stat().st_ino for name in names]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    problem = least_squares()
    entries = [HewHet(problem.smoothness, 0.4)]
    simulate(problem, FEDERATION, entries, rounds=2, seed=1, checkpoint=tmp_path)
    return tmp_path


def go_on(folder: Path, *, seed: int = 1, amplitude: float = 0.4) -> None:
    problem = least_squares()
    entries = [HewHet(problem.smoothness, amplitude)]
    simulate(problem, FEDERATION, entries, rounds=4, seed=seed, checkpoint=folder)


def test_damaged_checkpoints_are_refused(stopped: Path) -> None:
    state = next(stopped.glob("state-*.safetensors"))
    good = state.read_bytes()
    state.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(DataError, match="its checksum does not match"):
        go_on(stopped)
    state.unlink()
    with pytest.raises(DataError, match="its checksum does not match"):
        go_on(stopped)
    state.write_bytes(good)
    manifest = stopped / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="is damaged"):
        go_on(stopped)
    manifest.write_text(json.dumps({**json.loads(text), "format": 99}))
    with pytest.raises(DataError, match="has format 99"):
        go_on(stopped)
    manifest.write_text(text)
    trace = stopped / "trace.jsonl"
    trace.write_text(trace.read_text()[:10])
    with pytest.raises(DataError, match="damaged or shorter than its checkpoint") as e:
        go_on(stopped)
    assert str(e.value).endswith(f"; delete the folder {stopped} to start again")


def test_another_run_is_refused(stopped: Path) -> None:
    with pytest.raises(DataError, match="another run: its seed is 1, asked for is 2"):
        go_on(stopped, seed=2)
    with pytest.raises(DataError, match="another run: its entries"):
        go_on(stopped, amplitude=0.3)
    go_on(stopped)


def test_states_come_back_as_they_went() -> None:
    problem = least_squares()
    for entry in all_entries(problem.smoothness):
        algorithm = getattr(entry, "algorithm", entry)
        gradients = np.ones((6, 5)) if algorithm.demands.gradients else None
        state = algorithm.init(6, 5, gradients)
        back = unflatten(state, flatten(state))
        assert repr(back) == repr(state)


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    with pytest.raises(TypeError, match="a state may not hold a str"):
        flatten("text")


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(
    tmp_path: Path,
) -> None:
    problem = least_squares()
    entries = [HewHet(problem.smoothness, 0.4)]

    def dies_at(last: int) -> Any:
        def on_round(done: int) -> None:
            if done == last:
                raise KeyboardInterrupt

        return on_round

    given: dict[str, Any] = {"rounds": 10, "seed": 1, "checkpoint_every": 5}
    for last in (3, 7):
        with pytest.raises(KeyboardInterrupt):
            simulate(
                *(problem, FEDERATION, entries),
                checkpoint=tmp_path / "a",
                on_round=dies_at(last),
                **given,
            )
    trace = simulate(problem, FEDERATION, entries, checkpoint=tmp_path / "a", **given)
    assert [record.round for record in trace.records] == list(range(11))
    calm = tmp_path / "b"
    simulate(problem, FEDERATION, entries, checkpoint=calm, **given)
    ours, theirs = tmp_path / "a" / "trace.jsonl", calm / "trace.jsonl"
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    "change",
    [{"round": 1}, {"run": []}, {"state": 3}, {"trace_bytes": -5}, {"trace_bytes": 9}],
)
def test_a_changed_manifest_is_refused(stopped: Path, change: dict[str, Any]) -> None:
    manifest = stopped / "manifest.json"
    text = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(text | change))
    with pytest.raises(DataError, match="its checksum does not match"):
        go_on(stopped)


@pytest.mark.parametrize("key", ["round", "sha256", "trace_sha256", "trace_bytes"])
@pytest.mark.parametrize("read", [load_checkpoint, check_trace, rounds_done])
def test_a_flipped_bit_of_the_manifest_accuses_no_other_file(
    stopped: Path, key: str, read: Any
) -> None:
    """The trace was called damaged, and `hewfl ls` showed another progress."""
    manifest = stopped / "manifest.json"
    data = bytearray(manifest.read_bytes())
    value = json.dumps(json.loads(data)[key]).encode()
    at = data.index(b'"%s": ' % key.encode() + value) + len(key) + 4 + len(value) // 2
    data[at] ^= 1  # 4 is 5, a is `
    manifest.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        read(stopped)


def test_a_changed_digit_of_the_trace_is_refused(stopped: Path) -> None:
    trace = stopped / "trace.jsonl"
    data = bytearray(trace.read_bytes())
    data[data.index(b"objective") + 13] ^= 1
    trace.write_bytes(bytes(data))
    with pytest.raises(DataError, match="is damaged or shorter"):
        go_on(stopped)


def test_other_problems_and_starts_are_other_runs(stopped: Path) -> None:
    problem = least_squares()
    entries = [HewHet(problem.smoothness, 0.4)]
    given: dict[str, Any] = {"rounds": 4, "seed": 1, "checkpoint": stopped}
    with pytest.raises(DataError, match="its start is"):
        simulate(problem, FEDERATION, entries, start=np.ones(problem.d), **given)
    with pytest.raises(InvalidInputError, match="`rounds` must be at least the 2"):
        simulate(problem, FEDERATION, entries, **(given | {"rounds": 1}))
