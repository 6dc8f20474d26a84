"""A scheduler, workers and clients as real processes on loopback."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds; a busy machine takes long to start a process."""


@final
class Processes:
    """Processes of a cluster, each with a folder of its own below one place."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = _free_port()
        self.alive: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def file(self) -> Path:
        return self.place / "scheduler.json"

    def scheduler(self) -> None:
        port = ["--port", str(self.port), "--scheduler-file", str(self.file)]
        self._start("scheduler", "distributed.cli.dask_scheduler", *port)

    def worker(self, name: str, **environment: str) -> None:
        given = [self.address, "--nthreads", "1", "--name", name, "--no-nanny"]
        given += ["--local-directory", str(self.place / name / "scratch")]
        given += ["--death-timeout", "60"]
        self._start(name, "distributed.cli.dask_worker", *given, **environment)

    def cache(self, name: str) -> Path:
        """The cache of one of the processes."""
        return self.place / name / "cache"

    def kill(self, name: str) -> None:
        """End one at once, as a power cut does."""
        process = self.alive.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def run(self, name: str, *call: str, **environment: str) -> None:
        """Start some other process that is part of the test."""
        folder = self.place / name
        folder.mkdir(exist_ok=True)
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        given = os.environ | dict.fromkeys(threads, "1")
        given |= {"HEWFL_CACHE": str(self.cache(name)), "PYTHONPATH": _paths()}
        log = (folder / "log").open("ab")
        self.alive[name] = subprocess.Popen(
            call, stdout=log, stderr=log, env=given | environment, cwd=self.place
        )
        log.close()

    def _start(self, name: str, module: str, *given: str, **environment: str) -> None:
        call = [sys.executable, "-m", module, *given]
        call += ["--host", "127.0.0.1", "--no-dashboard"]
        self.run(name, *call, **environment)

    def log(self, name: str) -> str:
        return (self.place / name / "log").read_text()

    def close(self) -> None:
        for process in reversed(self.alive.values()):
            process.kill()
        for process in self.alive.values():
            process.wait()


@contextlib.contextmanager
def processes(place: Path) -> Iterator[Processes]:
    started = Processes(place)
    try:
        yield started
    finally:
        started.close()


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE} s"
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _paths() -> str:
    """Where the workers find hewfl and these tests."""
    return os.pathsep.join([str(ROOT / "src"), str(ROOT)])
