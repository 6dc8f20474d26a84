"""Run folders: opened, checked and held by one process at a time.

    folder/spec.toml       the spec as asked for
    folder/tuned.toml      the spec with the chosen hyper-parameters
    folder/tuning.json     every candidate's scores
    folder/trials/         scores of single trials, until the choice is made
    folder/seed-0/         trace.jsonl, checkpoint and constants.json of a seed
    folder/summary.json    what came of it
    folder/times.json      seconds, versions and the machine

Killed at any instant and resumed, a run leaves the same bytes in all but the last.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from hewfl.core.atomic import read_json, write_json, write_text
from hewfl.core.checks import invalid
from hewfl.core.conversion import one_of
from hewfl.data import CATALOGUE
from hewfl.data.own_files import SUFFIXES
from hewfl.data.places import file_sha256
from hewfl.errors import DataError, HewError
from hewfl.experiments.recorded import is_whole_record, read_folder_spec
from hewfl.experiments.results import Results, read_results
from hewfl.experiments.spec import Spec, read_spec, write_spec
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import Choice, read_choices
from hewfl.server.lock import locked


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """A run on disk: of a simulation, or of a job that left its record.

    Attributes:
        path: where.
        spec: as asked for.
    """

    path: Path
    spec: Spec

    @property
    def tuned(self) -> Spec | None:
        """The spec with its hyper-parameters chosen, once they are.

        Raises:
            DataError: the file is damaged.
        """
        if self.spec.is_tuned:
            return self.spec
        file = self.path / "tuned.toml"
        if not file.exists():
            return None
        try:
            return read_spec(file)
        except HewError as error:
            summary = self.path / "summary.json"
            again = f"delete it and, if it is there, {summary}; then resume {self.path}"
            raise DataError(f"{file} is damaged: {error}; {again}") from error

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What tuning found for each method with a grid, once it has."""
        return read_choices(self.path / "tuning.json", self.spec.tune)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return (self.path / "summary.json").exists() or (
            self.spec.is_record and is_whole_record(self.spec, self.path)
        )

    @property
    def results(self) -> Results:
        """The records of a run whose seeds are done, as arrays.

        Raises:
            DataError: it is not tuned, or files of a seed are missing or damaged.
        """
        spec = self.tuned
        if spec is None:
            raise DataError(f"{self.path} is not tuned: resume it")
        return read_results(spec, {seed: self.of_seed(seed) for seed in spec.seeds})

    @property
    def summary(self) -> dict[str, Any]:
        """What came of a run: its summary.json, or summed up now if it has none.

        Raises:
            DataError: files are missing or damaged.
        """
        file = self.path / "summary.json"
        if not file.exists():
            return summarise(self.results)
        found = read_json(file)
        if not isinstance(found, dict) or "methods" not in found:
            raise DataError(f"{file} is damaged: it is no summary; delete it")
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

    Args:
        spec: of the run.
        root: folder that holds runs.

    Returns:
        The run, new or begun.

    Raises:
        InvalidInputError: the data set is neither a known one nor a file.
        DataError: there is a folder of that name with another spec in it, or the data
            file is missing or has changed.
    """
    spec = _located(spec)
    path = root / f"{spec.name}-{spec.digest}"
    if not (path / "spec.toml").exists():
        _own_file_digest(spec)
        return Folder(path, spec)
    found = open_folder(path)
    if found.spec.digest != spec.digest:
        raise DataError(f"{path} holds another spec")
    _check_data(found)
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
        _check_data(folder)
    return folder


def _check_data(folder: Folder) -> None:
    """Require that the user's own data file is the one the run began with."""
    known = read_json(folder.path / "data.json", missing=True)
    if known is not None and _own_file_digest(folder.spec) != known["sha256"]:
        text = f"{folder.spec.data.name} has changed since the run {folder.path} began"
        raise DataError(f"{text}; give the spec another name, or delete the run")


def _located(spec: Spec) -> Spec:
    """The spec with the whole path of the user's own data file."""
    if spec.data.name in CATALOGUE:
        return spec
    if not spec.data.name.endswith(SUFFIXES):
        files = f"or a file ending in {', '.join(SUFFIXES)}"
        rule = one_of((*CATALOGUE, files), spec.data.name)
        raise invalid("data.name", rule, repr(spec.data.name))
    data = replace(spec.data, name=str(Path(spec.data.name).resolve()))
    return replace(spec, data=data)


def _own_file_digest(spec: Spec) -> str | None:
    """Checksum of the user's own data file; None for a data set known by name."""
    if spec.data.name in CATALOGUE:
        return None
    file = Path(spec.data.name)
    if not file.is_file():
        raise DataError(f"the data file {file} does not exist")
    return file_sha256(file)


@contextmanager
def held(folders: Sequence[Folder]) -> Iterator[None]:
    """Hold runs against other processes, and begin those that are new.

    A new run that fails before anything worth keeping was done is removed again.

    Raises:
        DataError: another process is at one of them.
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
            if is_new:
                _begin(folder)
            yield
        except Exception:
            if is_new and not is_begun(folder):
                _remove_start(folder)
            raise


def _begin(folder: Folder) -> None:
    """Write the spec, last of all: a folder with one is a run."""
    digest = _own_file_digest(folder.spec)
    if digest is not None:
        write_json(folder.path / "data.json", {"sha256": digest})
    write_text(folder.path / "spec.toml", write_spec(folder.spec))


def is_begun(folder: Folder) -> bool:
    """Whether a run has anything that would have to be done again without it."""
    places = ("known.json", "tuned.toml", "trials/*.json", "seed-*/manifest.json")
    return any(next(folder.path.glob(place), None) for place in places)


def _remove_start(folder: Folder) -> None:
    """Remove what a run wrote before anything worth keeping was done."""
    (folder.path / "spec.toml").unlink(missing_ok=True)
    (folder.path / "data.json").unlink(missing_ok=True)
    for place in (folder.trials, *map(folder.of_seed, folder.spec.seeds)):
        shutil.rmtree(place, ignore_errors=True)
