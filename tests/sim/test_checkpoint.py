"""Stop and go on: same bits, whatever happened in between."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hewfl import (
    ChoiceHorizons,
    DataError,
    Federation,
    HewHet,
    SampledParticipation,
    simulate,
)
from hewfl.sim.checkpoint import flatten, load_checkpoint, unflatten
from tests.sim.test_engine import all_lanes
from tests.sim.toy import least_squares

ROOT = Path(__file__).parents[2]
FEDERATION = Federation(ChoiceHorizons(every_round=True), 4, SampledParticipation(4))


def test_five_and_five_rounds_are_ten(tmp_path: Path) -> None:
    problem = least_squares()
    lanes = all_lanes(problem.smoothness)
    whole = simulate(problem, FEDERATION, lanes, rounds=10, seed=1)
    simulate(problem, FEDERATION, lanes, rounds=5, seed=1, checkpoint=tmp_path)
    rest = simulate(problem, FEDERATION, lanes, rounds=10, seed=1, checkpoint=tmp_path)
    assert np.array_equal(whole.anchors, rest.anchors)
    assert whole.records == rest.records
    again = simulate(problem, FEDERATION, lanes, rounds=10, seed=1, checkpoint=tmp_path)
    assert again.records == whole.records  # nothing left to do


SCRIPT = """
import sys
from pathlib import Path
from hewfl import simulate
from tests.sim.test_checkpoint import FEDERATION
from tests.sim.test_engine import all_lanes
from tests.sim.toy import least_squares
problem = least_squares()
lanes = all_lanes(problem.smoothness)
simulate(problem, FEDERATION, lanes, rounds=60, seed=1, checkpoint=Path(sys.argv[1]))
"""


def test_a_killed_process_goes_on_as_if_nothing_had_been(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")]
    manifest = tmp_path / "killed" / "manifest.json"
    kills = 0
    for _ in range(4):
        process = subprocess.Popen(command, cwd=ROOT)
        before = manifest.read_text() if manifest.exists() else ""
        deadline = time.monotonic() + 60
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
    problem = least_squares()
    lanes = all_lanes(problem.smoothness)
    calm = tmp_path / "calm"
    simulate(problem, FEDERATION, lanes, rounds=60, seed=1, checkpoint=calm)
    killed = tmp_path / "killed"
    assert (killed / "trace.jsonl").read_bytes() == (calm / "trace.jsonl").read_bytes()
    names = sorted(path.name for path in calm.iterdir())
    assert sorted(p.name for p in killed.iterdir() if ".partial" not in p.name) == names
    for name in names:
        assert (killed / name).read_bytes() == (calm / name).read_bytes(), name


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    problem = least_squares()
    lanes = [HewHet(problem.smoothness, 0.4)]
    simulate(problem, FEDERATION, lanes, rounds=2, seed=1, checkpoint=tmp_path)
    return tmp_path


def go_on(folder: Path, *, seed: int = 1, amplitude: float = 0.4) -> None:
    problem = least_squares()
    lanes = [HewHet(problem.smoothness, amplitude)]
    simulate(problem, FEDERATION, lanes, rounds=4, seed=seed, checkpoint=folder)


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
    with pytest.raises(DataError, match="shorter than its checkpoint says"):
        go_on(stopped)


def test_another_run_is_refused(stopped: Path) -> None:
    with pytest.raises(DataError, match="another run: its seed is 1, asked for is 2"):
        go_on(stopped, seed=2)
    with pytest.raises(DataError, match="another run: its lanes"):
        go_on(stopped, amplitude=0.3)
    go_on(stopped)


def test_states_come_back_as_they_went() -> None:
    problem = least_squares()
    for lane in all_lanes(problem.smoothness):
        algorithm = getattr(lane, "algorithm", lane)
        gradients = np.ones((6, 5)) if algorithm.needs_gradients else None
        state = algorithm.init(6, 5, gradients)
        back = unflatten(state, flatten(state))
        assert repr(back) == repr(state)


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    with pytest.raises(TypeError, match="a state may not hold a str"):
        flatten("text")
