"""Real processes on loopback that run one function after the other, each a rank.

Starting a process costs seconds, a process group milliseconds: processes are kept, and
every function gets a group of its own. Where the system can fork, one server loads what
`tests.torch.loaded` names, and the ranks are its copies. Nothing waits for ever: a rank
that does not answer in time is killed, and the test fails.
"""

import multiprocessing as mp
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

LIMIT = 60.0
"""Seconds for one function on all ranks, on a machine that is busy."""
START = 300.0
"""Seconds to load everything, likewise."""

Scenario = Callable[..., Any]


def _serve(pipe: Connection, rank: int) -> None:
    """Run what comes through the pipe; answer with the result or the error."""
    import tests.torch.loaded  # noqa: F401, PLC0415 - in the child only, and the first
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    pipe.send("ready")
    while True:
        call = pipe.recv()
        if call is None:
            return
        scenario, ranks, store, arguments = call
        pipe.send("loaded")  # the module of the scenario, which may take a while
        pipe.recv()  # until all ranks have: some scenarios count seconds
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=30),
            )
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


@final
class RankFailureError(Exception):
    """A rank raised; text and trace are its own."""


@final
class Pool:
    """n processes; use as a context manager."""

    def __init__(self, ranks: int) -> None:
        context = _context()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._folder = tempfile.TemporaryDirectory()
        self._calls = 0
        self._collect(range(ranks), START)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def run(self, scenario: Scenario, ranks: int, *arguments: Any) -> list[Any]:
        """What the scenario returns on each rank; the first error is raised."""
        outcomes = self.outcomes(scenario, ranks, *arguments)
        for rank, (fine, what) in enumerate(outcomes):
            if not fine:
                text = f"rank {rank}: {what[2]}"
                raise RankFailureError(text)
        return [what for _, what in outcomes]

    def outcomes(self, scenario: Scenario, ranks: int, *arguments: Any) -> list[Any]:
        """The same with (False, (kind, text, trace)) for errors, None for the dead."""
        self._calls += 1
        store = Path(self._folder.name, f"store{self._calls}")
        for pipe in self._pipes[:ranks]:
            pipe.send((scenario, ranks, str(store), arguments))
        self._collect(range(ranks), START)
        for pipe in self._pipes[:ranks]:
            pipe.send("go")
        return self._collect(range(ranks), LIMIT)

    def _collect(self, ranks: range, limit: float) -> list[Any]:
        answers: list[Any] = []
        for rank in ranks:
            pipe = self._pipes[rank]
            if not pipe.poll(limit):
                self.__exit__()
                text = f"rank {rank} did not answer within {limit} s"
                raise TimeoutError(text)
            try:
                answers.append(pipe.recv())
            except EOFError:
                answers.append(None)
        return answers
