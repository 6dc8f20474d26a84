"""Run folders: opened, checked, and locked by one process at a time.

    folder/spec.toml         the spec as given
    folder/tuned.toml        the spec with the chosen hyper-parameters
    folder/tuning.json       the scores of every candidate
    folder/trials/           scores of single trials, until the choice is made
    folder/seed-0/           trace.jsonl, checkpoint and constants.json of a seed
    folder/summary.json      final values, comparisons, weights
    folder/data.json         checksum of the user's own data file
    folder/code.json         checksums of `code/`, the copy of the user's own code
    folder/checksums.json    of all of the above, once the run is finished
    folder/times.json        seconds, versions and the machine

A run that is killed at any instant and resumed leaves the same bytes in all files but
the last. A deleted file is made again.

A Flower federation or a torch job leaves the same folder, but needs no more than
`spec.toml`, with a name, `partition = "nodes"` under [clients] and its [[methods]], and
`seed-<number>/trace.jsonl`. Seeds, rounds and clients are then counted.
"""

import contextlib
import os
import platform
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, final

from hewfl.core.atomic import read_checksums, read_json, write_checksums, write_text
from hewfl.data import CATALOGUE
from hewfl.data.paths import file_sha256
from hewfl.errors import DataError, HewError, InvalidInputError
from hewfl.experiments.candidates import Choice, read_choices
from hewfl.experiments.results import Results, count_records, read_results
from hewfl.experiments.spec import CODE as CODE_FOLDER
from hewfl.experiments.spec import (
    Spec,
    is_record,
    read_toml,
    spec_from_table,
    with_code_in,
    write_spec,
)
from hewfl.experiments.summary import summarise
from hewfl.experiments.user_code import (
    CODE,
    DATA,
    check_sources,
    record_user_files,
    resolve_data,
    user_code_names,
)
from hewfl.version import __version__

CHECKSUMS = "checksums.json"
"""sha256 of each result file, by its name; written last."""
PARTIAL = ".*.partial"
"""Pattern of files that are being written (`hewfl.core.atomic`)."""
_NOT_COMPUTED = ("summary.json", DATA, CODE)
"""Results that are made without the user's own code."""
LOCK, HOLDER = ".lock", ".holder"
"""The operating system locks the first file and releases it when the process ends,
however it ends. The second names the holder."""
_PATIENCE, _PAUSE = 0.2, 0.02
"""Seconds. `holder_of` takes the lock for an instant; others wait for it."""


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """A run on disk: a simulation, or the record of a real job."""

    path: Path
    spec: Spec
    given: Spec | None = field(default=None, compare=False)
    """The spec with its code where the user has it; None for a run opened by its
    folder, which has a copy."""

    @property
    def tuned(self) -> Spec | None:
        """The spec with chosen hyper-parameters; None before tuning is done."""
        if self.spec.is_tuned:
            return self.spec
        file = self.path / "tuned.toml"
        if not file.exists():
            return None
        try:
            return spec_from_table(read_toml(file), self.path)
        except HewError as error:
            again = f"delete it, then resume {self.path}"
            raise DataError(f"{file} is damaged: {error}; {again}") from error

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choice of tuning for each method with a grid; empty before it is done."""
        return read_choices(self.path / "tuning.json")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the files that hold the results of a finished simulation.

        Checkpoints are not among them: a finished seed does not need its own.
        """
        chosen = () if self.spec.is_tuned else ("tuned.toml", "tuning.json")
        of_seeds = (
            f"seed-{seed}/{name}"
            for seed in self.spec.seeds
            for name in ("trace.jsonl", "constants.json")
        )
        return ("spec.toml", *chosen, *of_seeds, "summary.json", *self.user_files)

    @property
    def user_files(self) -> tuple[str, ...]:
        """Names of the files about the user's own data and code."""
        if self.spec.is_record:
            return ()
        data = () if self.spec.data.name in CATALOGUE else (DATA,)
        if not user_code_names(self.spec):
            return data
        return (*data, CODE, *read_checksums(self.path / CODE))

    @property
    def is_done(self) -> bool:
        """Whether all results exist."""
        if self.spec.is_record:
            return self._has_all_records()
        return all(map(self.has, self.wanted))

    def has(self, name: str) -> bool:
        """Whether a file of the run exists."""
        return (self.path / name).exists()

    @property
    def is_whole(self) -> bool:
        """Whether no file is left to write."""
        if self.spec.is_record:
            return self.is_done
        return self.is_done and self.has(CHECKSUMS) and self.has("times.json")

    @property
    def has_results(self) -> bool:
        """Whether tuning and all seeds are done: no code is needed any more."""
        return all(self.has(name) for name in self.wanted if name not in _NOT_COMPUTED)

    @property
    def results(self) -> Results:
        """The records of a run whose seeds are done, as arrays.

        Raises:
            DataError: it is not tuned, or files of a seed are missing, damaged or
                changed since the run was finished.
        """
        spec = self.tuned
        if spec is None:
            raise DataError(f"{self.path} is not tuned: resume it")
        if self.is_done:
            verify(self.path)
        return read_results(spec, {seed: self.of_seed(seed) for seed in spec.seeds})

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json; computed if there is none."""
        file = self.path / "summary.json"
        if not file.exists():
            return summarise(self.results)
        summary = read_json(file)
        if not isinstance(summary, dict) or "methods" not in summary:
            raise DataError(f"{file} is damaged: it is no summary; delete it")
        verify(self.path, ["summary.json"])
        return summary

    def _has_all_records(self) -> bool:
        """Whether the trace of every seed has all rounds."""
        spec, least = self.spec, len(self.spec.methods) * (self.spec.rounds + 1)
        return all(count_records(self.of_seed(s)) >= least for s in spec.seeds)

    @property
    def trials(self) -> Path:
        """Folder of the finished trials of a tuning that goes on."""
        return self.path / "trials"

    def of_seed(self, seed: int) -> Path:
        """Folder of a seed."""
        return self.path / f"seed-{seed}"


def folder_for(spec: Spec, runs_dir: Path) -> Folder:
    """The run of a spec, new or begun; its folder is made when work begins.

    Raises:
        InvalidInputError: the data set is neither a known one nor a file.
        DataError: there is a folder of that name with another spec in it, or the data
            file is missing or has changed.
    """
    spec = resolve_data(spec)
    path = runs_dir / f"{spec.name}-{spec.digest}"
    if not (path / "spec.toml").exists():
        return Folder(path, with_code_in(spec, path), spec)
    folder = open_folder(path)
    if folder.spec.digest != spec.digest:
        raise DataError(f"{path} holds another spec")
    check_sources(path, spec)
    return replace(folder, given=spec)


def open_folder(path: Path) -> Folder:
    """Open an existing run, begun or done.

    Raises:
        DataError: there is none, or its spec is not valid (as one of another version
            of hewfl).
    """
    if not (path / "spec.toml").exists():
        raise DataError(f"{path} is not a run: it has no spec.toml")
    try:
        return Folder(path, _read_folder_spec(path))
    except InvalidInputError as error:
        text = f"the run {path} cannot be read, it may be of another version of hewfl"
        raise DataError(f"{text}: {error}") from error


def _read_folder_spec(folder: Path) -> Spec:
    """The spec of a run; seeds and rounds of a real job are counted if absent."""
    table = read_toml(folder / "spec.toml")
    if not is_record(table):
        return spec_from_table(table, folder)
    names = [file.parent.name for file in folder.glob("seed-*/trace.jsonl")]
    numbers = [name.removeprefix("seed-") for name in names]
    seeds = sorted(int(number) for number in numbers if number.isdecimal())
    counted: dict[str, Any] = {"data": {"name": "data of the nodes"}}
    entries = len(table.get("methods", ()))
    if seeds:
        counted["seeds"] = seeds
    if seeds and entries:
        lines = [count_records(folder / f"seed-{seed}") for seed in seeds]
        counted["rounds"] = max(min(lines) // entries - 1, 1)
    return spec_from_table(counted | table)


def read_partial_results(folder: Folder) -> Results | None:
    """The seeds and rounds that an unfinished run has written.

    Seeds proceed at different speeds. The number of rounds is the one that gives most
    records over all seeds that have reached it; other seeds are left out.

    Returns:
        Results of a spec with these seeds and rounds; None while there are none.
    """
    spec = folder.tuned
    if spec is None:
        return None
    done = {seed: _evaluated_rounds(spec, folder.of_seed(seed)) for seed in spec.seeds}
    rounds = max(done.values(), key=lambda r: r * sum(k >= r for k in done.values()))
    if rounds == 0:
        return None
    seeds = tuple(seed for seed, k in done.items() if k >= rounds)
    part = replace(spec, rounds=rounds, seeds=seeds)
    return read_results(part, {seed: folder.of_seed(seed) for seed in seeds})


def _evaluated_rounds(spec: Spec, folder: Path) -> int:
    """Rounds that all methods of a seed have done, down to the last evaluated one."""
    if not spec.is_record and not (folder / "constants.json").exists():
        return 0
    rounds = max(0, count_records(folder) // len(spec.methods) - 1)
    return (
        spec.rounds if rounds >= spec.rounds else rounds - rounds % spec.evaluate_every
    )


@contextmanager
def lock_runs(folders: Sequence[Folder]) -> Iterator[None]:
    """Lock runs, and write the spec of those that are new.

    A new run that fails before it has any result is removed again.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_lock_run(folder))
        yield


@contextmanager
def _lock_run(folder: Folder) -> Iterator[None]:
    with lock(folder.path):
        is_new = not (folder.path / "spec.toml").exists()
        try:
            absent = [name for name in (DATA, CODE) if not folder.has(name)]
            record_user_files(folder.path, folder.given or folder.spec)
            _check_remade(folder, absent)
            if is_new:  # last of all: a folder with a spec is a run
                write_text(folder.path / "spec.toml", write_spec(folder.spec))
            yield
        except Exception:
            if is_new and not is_begun(folder):
                _remove_start(folder)
            raise


def _check_remade(folder: Folder, names: Sequence[str]) -> None:
    """Require that tables of checksums that were made again are as they were."""
    known = read_checksums(folder.path / CHECKSUMS)
    for name in names:
        file = folder.path / name
        if name in known and file_sha256(file) != known[name]:
            file.unlink()
            text = "data or code have changed since the run was finished"
            raise DataError(f"{file} cannot be made again: {text}")


def is_begun(folder: Folder) -> bool:
    """Whether a run has results, if only of a trial."""
    places = ("tuned.toml", "trials/*.json", "seed-*/manifest.json")
    return any(next(folder.path.glob(place), None) for place in places)


def _remove_start(folder: Folder) -> None:
    """Remove the files of a run without results."""
    for name in ("spec.toml", DATA, CODE):
        (folder.path / name).unlink(missing_ok=True)
    for place in (
        folder.trials,
        folder.path / CODE_FOLDER,
        *map(folder.of_seed, folder.spec.seeds),
    ):
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder; it is made if absent, and removed if left empty.

    A file system without locks gives a warning, and nothing is locked.

    Raises:
        DataError: another process holds it; the text names both.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import

    file = FileLock(folder / LOCK, poll_interval=_PAUSE, fallback_to_soft=False)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file.acquire(timeout=_PATIENCE)
        except FileNotFoundError:  # the last holder has just removed the folder
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
        for partial in folder.rglob(PARTIAL):  # of a holder that was killed
            partial.unlink(missing_ok=True)
        yield
    finally:
        # The files are removed before the release: after it they might belong to the
        # next holder. A process that waits for the removed file tries again.
        _remove_lock_files(folder)
        file.release()
        with contextlib.suppress(OSError):  # not empty, as a rule
            folder.rmdir()


def _remove_lock_files(folder: Path) -> None:
    """Remove the files of a lock that this process holds."""
    for name in (HOLDER, LOCK):
        with contextlib.suppress(OSError):  # Windows keeps open files
            (folder / name).unlink()


def holder_of(folder: Path) -> str | None:
    """The process that holds a folder, in words; None if none or unknown."""
    if not (folder / LOCK).exists():
        return None
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import

    try:
        with FileLock(folder / LOCK, timeout=0, fallback_to_soft=False):
            # Of a process that was killed; or it has just ended, and the line above
            # made the file again.
            _remove_lock_files(folder)
            return None
    except Timeout:
        with contextlib.suppress(OSError):
            return (folder / HOLDER).read_text(encoding="utf-8") or "a process"
        return "a process"
    except OSError:  # no locks here, or a file that may not be opened
        return None


def remove_leftovers(folder: Path) -> None:
    """Remove what a process left that was killed: lock files and half-written files."""
    is_locked = any((folder / name).exists() for name in (LOCK, HOLDER))
    has_partial = any(True for _ in folder.rglob(PARTIAL))
    if (is_locked or has_partial) and holder_of(folder) is None:
        with contextlib.suppress(DataError), lock(folder):
            pass


def write_folder_checksums(folder: Folder) -> None:
    """Write the checksums of the results of a run."""
    names = dict.fromkeys(folder.wanted)
    sums = {name: file_sha256(folder.path / name) for name in names}
    write_checksums(folder.path / CHECKSUMS, sums)


def verify(
    folder: Path,
    names: Sequence[str] | None = None,
    *,
    remakes: Literal["nothing", "results", "all"] = "nothing",
) -> None:
    """Compare files of a finished run, all by default, with their checksums.

    An unfinished run has none yet.

    Args:
        folder: of the run.
        names: of the files.
        remakes: files that may be missing, as they are made again: "all" where the
            user's own code is there, "results" where the folder has the only copy.

    Raises:
        DataError: a file has changed since the run was finished, or is missing; the
            text says what to do. Or the table of checksums is damaged.
    """
    known = read_checksums(folder / CHECKSUMS)
    for name in known if names is None else names:
        file = folder / name
        is_kept = name == "spec.toml" or name.startswith(f"{CODE_FOLDER}/")
        if not file.exists():
            if remakes == "all" or (remakes == "results" and not is_kept):
                continue
            again = f"put it back or run its spec again; {folder} cannot make it"
            text = again if is_kept else f"resume {folder}"
            raise DataError(f"{file} is missing: {text}")
        if name in known and file_sha256(file) != known[name]:
            again = "put the old one back" if is_kept else "delete it"
            text = "has changed since the run was finished: its checksum does not match"
            raise DataError(f"{file} {text}; {again}, then resume {folder}")


@final
class Stopwatch:
    """Seconds of each stage and in total."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """End a stage."""
        now = time.perf_counter()
        self._laps[stage] = round(now - self._last, 1)
        self._last = now

    @property
    def seconds(self) -> dict[str, Any]:
        """The times for `times.json`."""
        total = round(self._last - self._began, 1)
        return {"seconds": total, "stages": dict(self._laps)}


def environment(spec: Spec) -> dict[str, Any]:
    """Device, versions and machine, for `times.json`."""
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
