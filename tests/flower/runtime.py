"""Flower's own processes on loopback, which end with us."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
APP = Path(__file__).parent / "app"
MASKED = Path(__file__).parent / "masked"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_until(what: Callable[[], Any], seconds: float, text: str) -> None:
    """Wait for something to be true, and not for ever."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"{text}: not within {seconds:g} s")
        time.sleep(0.2)


class Federation:
    """A SuperLink and SuperNodes.

    Args:
        folder: for logs and Flower's own files.
        simulation: whether the SuperLink simulates its nodes itself.
    """

    def __init__(self, folder: Path, *, simulation: bool = False) -> None:
        self.folder, self.simulation = folder, simulation
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home"
        home.mkdir()
        text = f'[superlink.loop]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(text)
        self.env = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=log,
            stderr=log,
            env=self.env,
            cwd=self.folder,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        return process

    def link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        extra = ["--simulation"] if self.simulation else []
        self.spawn(
            "link",
            "flower-superlink",
            "--insecure",
            *("--host", "127.0.0.1", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
            *extra,
        )
        wait_until(self._listens, 300, "the SuperLink listens")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def node(self, i: int, n: int) -> None:
        """Start the SuperNode of a partition."""
        self.spawn(
            f"node-{i}",
            "flower-supernode",
            "--insecure",
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"partition-id={i} num-partitions={n}"),
        )

    def run(self, name: str, app: Path = APP, **config: Any) -> subprocess.Popen[bytes]:
        """`flwr run` of an app, streaming its log."""
        here = self.folder / app.name
        if not here.exists():
            shutil.copytree(app, here, ignore=shutil.ignore_patterns("__pycache__"))
        told = " ".join(
            f"{key}='{value}'" if isinstance(value, str | Path) else f"{key}={value}"
            for key, value in config.items()
        )
        extra = []
        if self.simulation:
            told_nodes = f"num-supernodes={config['clients']}"
            extra = ["--federation-config", f"{told_nodes} client-resources-num-cpus=1"]
        command = ("flwr", "run", str(here), "loop", "--stream", "-c", told)
        return self.spawn(name, *command, *extra)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a process and all it started, at once; some lead groups of their own."""
        process = self.processes.pop(name)
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=120)


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and those that they did."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after_name = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(after_name[1])
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return sorted(found - {pid})


@contextmanager
def federation(folder: Path, *, simulation: bool = False) -> Iterator[Federation]:
    """A federation that leaves nothing running behind."""
    found = Federation(folder, simulation=simulation)
    try:
        yield found
    finally:
        for name in list(found.processes):
            found.kill(name)
