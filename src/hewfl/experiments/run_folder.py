"""One process at a time in a run's folder.

The lock is the operating system's, on a file in the folder, so that it ends with the
process however that ends. A second file says who holds it; both go with the lock.
`filelock` is imported where a lock is taken: that takes longer than the rest of the
command needs to start.
"""

import contextlib
import os
import platform
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, final

from hewfl.core.atomic import read_json, write_json, write_text
from hewfl.data import CATALOGUE
from hewfl.data.paths import file_sha256
from hewfl.errors import DataError, HewError
from hewfl.experiments.external_runs import is_whole_record, read_folder_spec
from hewfl.experiments.results import Results, read_results
from hewfl.experiments.spec import Spec, read_toml, spec_from_table, write_spec
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import Choice, read_choices
from hewfl.experiments.user_code import (
    CODE,
    DATA,
    check_own,
    located,
    note_own,
    own_names,
)
from hewfl.version import __version__

NAME, HOLDER = ".lock", ".holder"
_PATIENCE, _PAUSE = 0.2, 0.02
"""Seconds. `holder_of` takes the lock for an instant; others wait that out."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; make it if it is not there, and remove it if left empty.

    Where the file system has no locks, a warning says so and nothing is held.

    Raises:
        DataError: another process holds it; the text names both.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import

    lock = FileLock(folder / NAME, poll_interval=_PAUSE, fallback_to_soft=False)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=_PATIENCE)
        except FileNotFoundError:  # whoever held it before removed the folder just now
            continue
        except Timeout as error:
            holder = holder_of(folder) or "another process"
            text = f"{folder} is in use by {holder}; wait for it, or end it"
            raise DataError(text) from error
        except OSError as error:
            text = f"no locks in {folder} ({error.strerror}); start each run once"
            warnings.warn(text, stacklevel=3)
        break
    try:
        who = f"process {os.getpid()} on {platform.node() or 'this machine'}"
        (folder / HOLDER).write_text(who, encoding="utf-8")
        yield
    finally:
        # Removed while still held: who opened the old file finds that it is gone and
        # tries anew. After the release it might be the next holder's lock.
        for name in (HOLDER, NAME):
            with contextlib.suppress(OSError):  # Windows keeps open files
                (folder / name).unlink()
        lock.release()
        with contextlib.suppress(OSError):  # not empty, as a rule
            folder.rmdir()


def holder_of(folder: Path) -> str | None:
    """Who holds a folder, in words; None if nobody does, or it cannot be told."""
    if not (folder / NAME).exists():
        return None
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import

    try:
        with FileLock(folder / NAME, timeout=0, fallback_to_soft=False):
            return None
    except Timeout:
        with contextlib.suppress(OSError):
            return (folder / HOLDER).read_text(encoding="utf-8") or "a process"
        return "a process"
    except OSError:  # no locks here, or a file that may not be opened
        return None


# ------------------ Checksums of a finished run: a digit that changed later is

# checksums.json    sha256 of each file that holds results, by its name
#
# Written last of all. A report reads no result that does not match, and a run that is
# called again looks at all of them.

CHECKSUMS = "checksums.json"


def write_checksums(folder: Path, names: Sequence[str]) -> None:
    """Write down the checksums of some files of a run."""
    write_json(folder / CHECKSUMS, {name: file_sha256(folder / name) for name in names})


def verify(folder: Path, names: Sequence[str] | None = None) -> None:
    """Compare files of a finished run, all if not told which, with their checksums.

    Runs of earlier versions have none, and are taken as they are.

    Raises:
        DataError: a file has changed since the run was finished, or is gone; the text
            says what to do.
    """
    known = read_json(folder / CHECKSUMS, missing=True)
    if known is None:
        return
    if not isinstance(known, dict):
        raise DataError(f"{folder / CHECKSUMS} is damaged: it is no table; delete it")
    for name in known if names is None else names:
        file = folder / name
        if not file.exists():
            raise DataError(f"{file} is missing: resume {folder}")
        if name in known and file_sha256(file) != known[name]:
            again = "put the old one back" if name == "spec.toml" else "delete it"
            text = "has changed since the run was finished: its checksum does not match"
            raise DataError(f"{file} {text}; {again}, then resume {folder}")


# ------------------ How long a run took, and with what: the part of it that no seed


@final
class Stopwatch:
    """Seconds of each stage, and of all together, since it was made."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Note that a stage is over."""
        now = time.perf_counter()
        self._laps[stage] = round(now - self._last, 1)
        self._last = now

    @property
    def seconds(self) -> dict[str, Any]:
        """What `times.json` says of time."""
        total = round(self._last - self._began, 1)
        return {"seconds": total, "stages": dict(self._laps)}


def environment(spec: Spec) -> dict[str, Any]:
    """Versions of the packages that a run depends on, and the machine."""
    names = ["numpy", "scipy"]
    if spec.device != "numpy" or spec.problem.is_module:
        names.append("torch")
    return {
        "device": spec.device,
        "hewfl": __version__,
        **{name: metadata.version(name) for name in names},
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
    }


# ------------------ Run folders: opened, checked and held by one process at a time

# folder/spec.toml       the spec as asked for
#     folder/tuned.toml      the spec with the chosen hyper-parameters
#     folder/tuning.json     every candidate's scores
#     folder/trials/         scores of single trials, until the choice is made
#     folder/seed-0/         trace.jsonl, checkpoint and constants.json of a seed
#     folder/summary.json    what came of it
#     folder/checksums.json  of all of the above, once it is finished
#     folder/data.json       checksum of the user's own data file
#     folder/code.json       checksums of the user's own code, and `code/`, a copy of it
#     folder/times.json      seconds, versions and the machine
#
# Killed at any instant and resumed, a run leaves the same bytes in all but the last.
# Whatever is deleted is made again.


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """A run on disk: of a simulation, or of a job that left its record."""

    path: Path
    spec: Spec

    @property
    def tuned(self) -> Spec | None:
        """The spec with its hyper-parameters chosen, once they are."""
        if self.spec.is_tuned:
            return self.spec
        file = self.path / "tuned.toml"
        if not file.exists():
            return None
        try:
            return spec_from_table(read_toml(file))
        except HewError as error:
            again = f"delete it, then resume {self.path}"
            raise DataError(f"{file} is damaged: {error}; {again}") from error

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What tuning found for each method with a grid, once it has."""
        return read_choices(self.path / "tuning.json")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Files that hold the results of a finished simulation, by their names.

        The checkpoint of a finished seed is not among them: nothing needs it any more.
        """
        chosen = () if self.spec.is_tuned else ("tuned.toml", "tuning.json")
        of_seeds = (
            f"seed-{seed}/{name}"
            for seed in self.spec.seeds
            for name in ("trace.jsonl", "constants.json")
        )
        return ("spec.toml", *chosen, *of_seeds, "summary.json")

    @property
    def is_done(self) -> bool:
        """Whether all results are there."""
        if self.spec.is_record:
            return is_whole_record(self.spec, self.path)
        return all(map(self.has, self.wanted))

    def has(self, name: str) -> bool:
        """Whether a file of the run is there."""
        return (self.path / name).exists()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do, nor to write down about it."""
        also = [CHECKSUMS, "times.json"]
        also += [DATA] if self.spec.data.name not in CATALOGUE else []
        also += [CODE] if own_names(self.spec) else []
        if self.spec.is_record:
            return self.is_done
        return self.is_done and all(map(self.has, also))

    @property
    def results(self) -> Results:
        """The records of a run whose seeds are done, as arrays.

        Raises:
            DataError: it is not tuned, or files of a seed are missing, damaged or other
                than when the run was finished.
        """
        spec = self.tuned
        if spec is None:
            raise DataError(f"{self.path} is not tuned: resume it")
        if self.is_done:
            verify(self.path)
        return read_results(spec, {seed: self.of_seed(seed) for seed in spec.seeds})

    @property
    def summary(self) -> dict[str, Any]:
        """What came of a run: its summary.json, or summed up now if it has none."""
        file = self.path / "summary.json"
        if not file.exists():
            return summarise(self.results)
        found = read_json(file)
        if not isinstance(found, dict) or "methods" not in found:
            raise DataError(f"{file} is damaged: it is no summary; delete it")
        verify(self.path, ["summary.json"])
        return found

    @property
    def trials(self) -> Path:
        """Where finished trials are kept while others go on."""
        return self.path / "trials"

    def of_seed(self, seed: int) -> Path:
        """Where a seed's files are."""
        return self.path / f"seed-{seed}"


def folder_for(spec: Spec, root: Path) -> Folder:
    """Find the folder of a spec under a root; it is made when something is done in it.

    Raises:
        InvalidInputError: the data set is neither a known one nor a file.
        DataError: there is a folder of that name with another spec in it, or the data
            file is missing or has changed.
    """
    spec = located(spec)
    path = root / f"{spec.name}-{spec.digest}"
    if not (path / "spec.toml").exists():
        return Folder(path, spec)
    found = open_folder(path)
    if found.spec.digest != spec.digest:
        raise DataError(f"{path} holds another spec")
    check_own(path, found.spec)
    return found


def open_folder(path: Path) -> Folder:
    """Open a run that is there, begun or done.

    Raises:
        DataError: there is none, or the user's own data file has changed since.
        InvalidInputError: its spec breaks a rule.
    """
    if not (path / "spec.toml").exists():
        raise DataError(f"{path} is not a run: it has no spec.toml")
    folder = Folder(path, read_folder_spec(path))
    if not folder.is_done:
        check_own(path, folder.spec)
    return folder


@contextmanager
def held(folders: Sequence[Folder]) -> Iterator[None]:
    """Hold runs against other processes, and begin those that are new.

    A new run that fails before anything worth keeping was done is removed again.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_held(folder))
        yield


@contextmanager
def _held(folder: Folder) -> Iterator[None]:
    with locked(folder.path):
        is_new = not (folder.path / "spec.toml").exists()
        try:
            note_own(folder.path, folder.spec)
            if is_new:  # last of all: a folder with a spec is a run
                write_text(folder.path / "spec.toml", write_spec(folder.spec))
            yield
        except Exception:
            if is_new and not is_begun(folder):
                _remove_start(folder)
            raise


def is_begun(folder: Folder) -> bool:
    """Whether a run has anything that would have to be done again without it."""
    places = ("tuned.toml", "trials/*.json", "seed-*/manifest.json")
    return any(next(folder.path.glob(place), None) for place in places)


def _remove_start(folder: Folder) -> None:
    """Remove what a run wrote before anything worth keeping was done."""
    for name in ("spec.toml", DATA, CODE):
        (folder.path / name).unlink(missing_ok=True)
    for place in (
        folder.trials,
        folder.path / "code",
        *map(folder.of_seed, folder.spec.seeds),
    ):
        shutil.rmtree(place, ignore_errors=True)
