"""A job of real processes in NVFLARE's simulator."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is not installed")

pytestmark = pytest.mark.nvflare
ROOT = Path(__file__).parents[2]
LIMIT, ATTEMPTS = 150, 3
LOST = ("Communication error with client", "run_client_thread error")
"""NVFLARE's simulator gives free ports to its workers before they listen there. Two may
get the same one; the job then waits for ever for a site that never started."""


def simulate(folder: Path) -> str | None:
    """The log of the simulated job; None where the simulator lost a worker."""
    log = folder / "log.txt"
    command = [sys.executable, "-m", "tests.nvflare.job", str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
    end, text = time.monotonic() + LIMIT, ""
    try:
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
            text = log.read_text(errors="replace")
            if any(words in text for words in LOST):
                return None
    finally:
        kill_session(folder)
        process.wait(timeout=20)
    assert process.returncode == 0, text[-3000:]
    return log.read_text(errors="replace")


def kill_session(folder: Path) -> None:
    """End what is left of a job: its processes have its folder as an argument."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder) in line.read_bytes().decode(errors="replace"):
                os.kill(int(line.parent.name), signal.SIGKILL)


def test_a_job_of_five_processes(tmp_path: Path) -> None:
    """Two sites agree on a step; one sends NaN, one a wrong shape, then 1e6."""
    log = None
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        log = log or simulate(folder)
        if log is not None:
            break
    assert log is not None, f"the simulator lost a worker {ATTEMPTS} times"
    model = np.load(next(tmp_path.rglob("models/server.npy")))
    # the steps are (1 + 2)/2; with momentum 1.5 and 1.5 + 0.75
    np.testing.assert_allclose(model, np.full((1, 3), 3.75), rtol=1e-6)
    assert "site-3 is left out, not-finite: 1 entries are not finite" in log
    assert 'site-4 is left out, malformed: `array "numpy_key"`' in log
    assert "site-4 is left out, implausible" in log
    assert "weights: site-1 0.5, site-2 0.5" in log
