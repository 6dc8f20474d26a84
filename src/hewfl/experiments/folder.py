"""Run folders: opened, checked and held by one process at a time.

    folder/spec.toml       the spec as asked for
    folder/tuned.toml      the spec with the chosen hyper-parameters
    folder/tuning.json     every candidate's scores
    folder/trials/         scores of single trials, until the choice is made
    folder/seed-0/         trace.jsonl, checkpoint and constants.json of a seed
    folder/summary.json    what came of it
    folder/checksums.json  of all of the above, once it is finished
    folder/data.json       checksum of the user's own data file
    folder/code.json       checksums of the user's own code, and `code/`, a copy of it
    folder/times.json      seconds, versions and the machine

Killed at any instant and resumed, a run leaves the same bytes in all but the last.
Whatever is deleted is made again.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hewfl.core.atomic import read_json, write_text
from hewfl.data import CATALOGUE
from hewfl.errors import DataError, HewError
from hewfl.experiments import checksums
from hewfl.experiments.own import CODE, DATA, check_own, located, note_own, own_names
from hewfl.experiments.recorded import is_whole_record, read_folder_spec
from hewfl.experiments.results import Results, read_results
from hewfl.experiments.spec import Spec, read_toml, spec_from_table, write_spec
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import Choice, read_choices
from hewfl.server.lock import locked


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
        also = [checksums.NAME, "times.json"]
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
            checksums.verify(self.path)
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
        checksums.verify(self.path, ["summary.json"])
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
