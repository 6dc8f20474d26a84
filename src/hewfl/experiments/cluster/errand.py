"""A task on its way to a worker and back, and what the worker does with it."""

import pickle
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

from hewfl.errors import HewError
from hewfl.experiments.cluster.code import (
    Modules,
    forget_other_code,
    require_same_code,
)
from hewfl.experiments.cluster.data import DataPart, place_of, places_here, relocated
from hewfl.experiments.cluster.files import files_of, write_files
from hewfl.experiments.cluster.likeness import require_like
from hewfl.experiments.workers import Warned

STEPS = "hewfl-steps"
"""Topic of Dask's events under which workers tell their steps."""
KEYS = "hewfl-"
"""How the keys of tasks begin."""
PERFORM = f"__import__('{__name__}', fromlist=['perform']).perform(client, errand)"
"""What a worker evaluates. A function of ours, sent as one, would break the connection
of a worker that has no hewfl or an older one: the text is an error of its task."""
TELL_EVERY = 0.5
"""Seconds between two such tellings of a task."""
_WAIT_FOR_DATA = 5.0
"""Seconds that a task waits for a file that its worker has asked for already: without
it, all tasks of the queue would run through the new worker and come back."""

_WAIT_FOR_CLIENT = 10.0
"""Seconds after which a worker does the next task though the last was not fetched."""


@final
@dataclass(frozen=True, slots=True)
class Errand:
    """What a worker is sent.

    Attributes:
        call: a function of a module, as a `Task` has it.
        arguments: of the call, as the client has them.
        writes: the argument that is a place to write to, None for none.
        files: what is there so far, as `files_of` says.
        data: files that the call reads.
        modules: checksums of installed code of the user's own that it needs.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    writes: Path | None
    files: Mapping[str, bytes]
    data: tuple[DataPart, ...]
    modules: Modules


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker sends back.

    Attributes:
        result: what the call returned.
        files: what is at the place now, as `files_of` says.
        warned: warnings that the call gave.
    """

    result: Any
    files: Mapping[str, bytes]
    warned: tuple[Warned, ...]


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """A worker's answer that it cannot begin before it has some files."""

    worker: str
    data: tuple[DataPart, ...]


class DroppedError(HewError):
    """Nobody waits for the task any more."""


# ------------------------------------------------------------------ in the worker

_one_at_a_time = threading.Lock()
_left_behind: set[str] = set()
_asked: dict[DataPart, float] = {}


def perform(client: Mapping[str, str], errand: bytes) -> Outcome | Wanted:
    """Do a task in a folder of this worker's own, and send back what it wrote.

    Args:
        client: `likeness` of the client.
        errand: an `Errand`, pickled: it is opened after the versions were compared, as
            another version may not have the same classes.

    Raises:
        HewError: this worker is not like the client; or what the task raises.
    """
    worker = import_module("distributed").get_worker()
    require_like(client, worker.address)
    given: Errand = pickle.loads(errand)
    require_same_code(given.modules, worker.address)
    wanted = _wanted(given.data)
    if wanted:
        return Wanted(worker.address, wanted)
    # A worker with several threads does one task after the other: they would share
    # caches and warnings, and gain nothing.
    with (
        _one_at_a_time,
        tempfile.TemporaryDirectory(dir=worker.local_directory) as own,
    ):
        _wait_until_fetched(worker)
        return _done(given, Path(own), _teller(worker))


def _wait_until_fetched(worker: Any) -> None:
    """Wait until the client has fetched what this worker has done before.

    A worker that dies takes along what was not fetched. So it is one task at most: the
    one that runs. Nobody fetches while the client is away: then work goes on.
    """
    end = time.monotonic() + _WAIT_FOR_CLIENT
    while kept := _kept(worker) - _left_behind:
        if time.monotonic() > end:
            _left_behind.update(kept)
        time.sleep(0.002)


def _kept(worker: Any) -> set[str]:
    """Keys of tasks of ours whose results are in this worker's memory."""
    known = tuple(worker.state.tasks.values())
    return {
        task.key
        for task in known
        if task.state == "memory" and str(task.key).startswith(KEYS)
    }


def _wanted(data: tuple[DataPart, ...]) -> tuple[DataPart, ...]:
    missing = [part for part in data if place_of(part) is None]
    until = max((_asked.get(part, 0.0) for part in missing), default=0.0)
    while missing and time.monotonic() < until:
        time.sleep(0.1)
        missing = [part for part in missing if place_of(part) is None]
    _asked.update(dict.fromkeys(missing, time.monotonic() + _WAIT_FOR_DATA))
    return tuple(missing)


def _done(given: Errand, own: Path, on_step: Callable[[int], None]) -> Outcome:
    place = None if given.writes is None else own / given.writes.name
    if place is not None:
        write_files(place, given.files)
    forget_other_code(given.data)
    places = places_here(given.data)
    arguments = [
        place if value == given.writes else relocated(value, places)
        for value in given.arguments
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        result = given.call(*arguments, on_step)
    return Outcome(
        result,
        {} if place is None else files_of(place),
        tuple((str(w.message), w.category, w.filename, w.lineno) for w in caught),
    )


def _teller(worker: Any) -> Callable[[int], None]:
    """What a task calls at each step: tells the client now and then.

    It ends a task that was cancelled: Dask itself cannot end a running one.
    """
    key, spoke = worker.get_current_task(), time.monotonic()

    def tell(done: int) -> None:
        nonlocal spoke
        now = time.monotonic()
        if now - spoke < TELL_EVERY:
            return
        spoke = now
        known = worker.state.tasks.get(key)
        if known is None or known.state == "cancelled":
            raise DroppedError(f"{key} was cancelled")
        worker.log_event(STEPS, [key, done])

    return tell
