"""Real processes on loopback that run one function after the other, each a rank.

Starting a process costs seconds, a process group milliseconds: processes are kept, and
every function gets a group of its own. Where the system can fork, one server loads what
`tests.torch.loaded` names, and all processes are its copies. Nothing waits for ever: a
rank that does not answer in time is killed, and the test fails. A pool that has lost a
rank makes new ones for the next test.
"""

import multiprocessing as mp
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

LIMIT = 90.0
"""Seconds for one function on all ranks, on a machine that is busy."""
START = 300.0
"""Seconds to load everything, likewise."""
QUIET = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

Scenario = Callable[..., Any]


def _serve(pipe: Connection, rank: int) -> None:
    """Run what comes through the pipe; answer with the result or the error.

    All ranks are in the group before one goes on: else a short scenario may end, and
    its rank close the connections, while another still makes them.
    """
    import tests.torch.loaded  # noqa: F401, PLC0415 - in the child only, and the first
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    pipe.send("ready")
    while (call := pipe.recv()) is not None:
        scenario, ranks, store, arguments = call
        pipe.send("loaded")  # the module of the scenario, which may take a while
        pipe.recv()  # until all ranks have: some scenarios count seconds
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=LIMIT),
        )
        pipe.send("joined")
        pipe.recv()
        try:
            answer = (True, scenario(rank, ranks, *arguments))
        except BaseException as error:  # the parent raises it
            answer = (False, (type(error).__name__, str(error), traceback.format_exc()))
        pipe.send(answer)
        if dist.is_initialized():
            dist.destroy_process_group()


def _context() -> Any:
    """How processes are started: as copies of a server, where there are such."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    server = mp.get_context("forkserver")
    server.set_forkserver_preload(["tests.torch.loaded"])
    return server


def started(target: Scenario, *arguments: Any, log: Path, **setting: str) -> Any:
    """A process of its own that calls a function, with torch loaded; kill it after use.

    Args:
        target: the function, of a module.
        arguments: of it.
        log: file for all that the process writes.
        setting: of its environment, besides.
    """
    run = (target, arguments, str(log), os.environ | QUIET | setting)
    process = _context().Process(target=_alone, args=run)
    process.start()
    return process


def _alone(
    target: Scenario, arguments: Any, log: str, setting: Mapping[str, str]
) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(setting)
    target(*arguments)


@final
class RankFailureError(Exception):
    """A rank raised; text and trace are its own."""


@final
class Pool:
    """n processes; use as a context manager."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._calls = ranks, 0
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._folder = tempfile.TemporaryDirectory()
        self._start()

    def _start(self) -> None:
        context = _context()
        for rank in range(self._ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._collect(self._ranks, START)

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def run(self, scenario: Scenario, ranks: int, *arguments: Any) -> list[Any]:
        """What the scenario returns on each rank; the first error is raised."""
        outcomes = self.outcomes(scenario, ranks, *arguments)
        for rank, outcome in enumerate(outcomes):
            if outcome is None or not outcome[0]:
                text = "its process has ended" if outcome is None else outcome[1][2]
                raise RankFailureError(f"rank {rank}: {text}")
        return [what for _, what in outcomes]

    def outcomes(self, scenario: Scenario, ranks: int, *arguments: Any) -> list[Any]:
        """The same with (False, (kind, text, trace)) for errors, None for the dead."""
        if not self._processes:
            self._start()
        self._calls += 1
        store = Path(self._folder.name, f"store{self._calls}")
        self._send((scenario, ranks, str(store), arguments), ranks)
        for reply in ("loaded", "joined"):
            if self._collect(ranks, START) != [reply] * ranks:
                self._stop()
                text = f"a process ended before all ranks had {reply}"
                raise RankFailureError(text)
            self._send("go", ranks)
        answers = self._collect(ranks, LIMIT)
        if None in answers:
            self._stop()
        return answers

    def _send(self, what: Any, ranks: int) -> None:
        for pipe in self._pipes[:ranks]:
            pipe.send(what)

    def _collect(self, ranks: int, limit: float) -> list[Any]:
        answers: list[Any] = []
        for rank, pipe in enumerate(self._pipes[:ranks]):
            if not pipe.poll(limit):
                self._stop()
                text = f"rank {rank} did not answer within {limit} s"
                raise TimeoutError(text)
            try:
                answers.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                answers.append(None)
        return answers
