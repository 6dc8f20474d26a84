"""Run a spec: tune, then every seed; kept in a folder, and resumed from it.

    folder/spec.toml       the spec as asked for
    folder/tuned.toml      the same with the chosen hyper-parameters
    folder/tuning.json     every candidate's scores
    folder/trials/         scores of single trials, until the choice is made
    folder/seed-0/         trace.jsonl, checkpoint and constants.json of a seed
    folder/summary.json    what came of it
    folder/times.json      seconds, versions and the machine

Killed at any instant and resumed, a run leaves the same bytes in all but the last.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, final

from hewfl.core.checks import invalid
from hewfl.data import CATALOGUE
from hewfl.data.own_files import SUFFIXES
from hewfl.data.places import file_sha256
from hewfl.errors import DataError, HewError
from hewfl.experiments.circumstances import Watch, circumstances
from hewfl.experiments.files import read_json, write_json, write_text
from hewfl.experiments.lock import locked
from hewfl.experiments.spec import Spec, read_spec, write_spec
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import (
    Candidates,
    Choice,
    Scores,
    Trials,
    best_of,
    candidates_of,
    choose,
    read_choices,
    trial_tables,
    trial_tasks,
)
from hewfl.experiments.workers import Report, Task, execute
from hewfl.experiments.world import (
    Constants,
    build_federation,
    build_problem,
    find_constants,
    lanes_of,
    start_of,
)
from hewfl.sim.audit import pathwise_audit
from hewfl.sim.engine import simulate
from hewfl.sim.lanes import Observer, Step

CHECKPOINT_EVERY = 10
"""Rounds; a run loses less than this by being killed."""


class Progress:
    """Told of the tasks of each stage and of their steps; this one keeps silent."""

    def begin(self, tasks: Sequence[Task]) -> None:
        """A stage with these tasks begins."""

    def step(self, task: int, done: int) -> None:
        """So many steps of a task are done."""


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """A run on disk.

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
        return (self.path / "summary.json").exists()

    @property
    def trials(self) -> Path:
        """Where finished trials are kept while others go on."""
        return self.path / "trials"

    def of_seed(self, seed: int) -> Path:
        """Where a seed's files are."""
        return self.path / f"seed-{seed}"


def folder_for(spec: Spec, root: Path) -> Folder:
    """The folder of a spec under a root; made when something is done in it.

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
    """A run that is there.

    Raises:
        DataError: there is none.
    """
    if not (path / "spec.toml").exists():
        raise DataError(f"{path} is not a run: it has no spec.toml")
    folder = Folder(path, read_spec(path / "spec.toml"))
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
        near = get_close_matches(spec.data.name, CATALOGUE, n=1)
        hint = f" (did you mean `{near[0]}`?)" if near else ""
        known = f"{', '.join(CATALOGUE)}, or a file ending in {', '.join(SUFFIXES)}"
        raise invalid("data.name", f"one of {known}{hint}", repr(spec.data.name))
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

    A new run that fails before anything worth keeping was done is taken away again.

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
            if is_new and not _is_begun(folder):
                _take_away(folder)
            raise


def _begin(folder: Folder) -> None:
    """Write the spec, last of all: a folder with one is a run."""
    digest = _own_file_digest(folder.spec)
    if digest is not None:
        write_json(folder.path / "data.json", {"sha256": digest})
    write_text(folder.path / "spec.toml", write_spec(folder.spec))


def _is_begun(folder: Folder) -> bool:
    """Whether there is anything that would have to be done again."""
    places = ("tuned.toml", "trials/*.json", "seed-*/manifest.json")
    return any(next(folder.path.glob(place), None) for place in places)


def _take_away(folder: Folder) -> None:
    (folder.path / "spec.toml").unlink(missing_ok=True)
    (folder.path / "data.json").unlink(missing_ok=True)
    for place in (folder.trials, *map(folder.of_seed, folder.spec.seeds)):
        shutil.rmtree(place, ignore_errors=True)


def run_all(folders: Sequence[Folder], *, jobs: int, progress: Progress) -> None:
    """Do what is left of several runs, on all cores at once: tune, solve, simulate.

    Args:
        folders: runs, new or begun.
        jobs: processes; 0 for none but this one.
        progress: told of every stage.

    Raises:
        DataError: another process is at one of them.
    """
    left = [folder for folder in folders if not folder.is_done]
    with held(left):
        todo = [folder for folder in left if not folder.is_done]
        watch = Watch()
        resumed = any(map(_is_begun, todo))
        _tune(todo, jobs, progress)
        watch.lap("tuning")
        _stage(_constant_tasks(todo), jobs, progress)
        watch.lap("constants")
        _stage(_seed_tasks(todo), jobs, progress)
        watch.lap("rounds")
        for folder in todo:
            finish(folder)
            facts = {"resumed": resumed, "runs": len(todo), "jobs": jobs}
            found = watch.seconds | facts | circumstances(folder.spec)
            write_json(folder.path / "times.json", found)


def finish(folder: Folder) -> None:
    """Write the summary of a run whose seeds are all done."""
    spec = folder.tuned
    assert spec is not None
    seeds = {seed: folder.of_seed(seed) for seed in spec.seeds}
    write_json(folder.path / "summary.json", summarise(spec, seeds))


def tune_all(folders: Sequence[Folder], *, jobs: int, progress: Progress) -> None:
    """Choose hyper-parameters where that is still to be done: screen, then try.

    Raises:
        DataError: another process is at one of the runs.
    """
    with held([folder for folder in folders if folder.tuned is None]):
        _tune(folders, jobs, progress)


def _tune(folders: Sequence[Folder], jobs: int, progress: Progress) -> None:
    todo = [folder for folder in folders if folder.tuned is None]
    trials = {folder.path: candidates_of(folder.spec) for folder in todo}
    screens: dict[Path, list[Trials]] = {}
    screened = [folder for folder in todo if folder.spec.tune.screen_rounds]
    for folder, scores in _trials(screened, trials, jobs, progress, screen=True):
        spec, tried = folder.spec, trials[folder.path]
        screens[folder.path] = trial_tables(spec, tried, scores)
        kept = best_of(spec, tried, scores, spec.tune.keep)
        trials[folder.path] = tuple(
            tuple(part[k] for k in sorted(chosen))
            for part, chosen in zip(tried, kept, strict=True)
        )
    for folder, scores in _trials(todo, trials, jobs, progress, screen=False):
        tried, screen = trials[folder.path], screens.get(folder.path, [])
        tuned, choices = choose(folder.spec, tried, scores, screen)
        write_json(folder.path / "tuning.json", [asdict(c) for c in choices])
        write_text(folder.path / "tuned.toml", write_spec(tuned))
    for folder in folders:
        shutil.rmtree(folder.trials, ignore_errors=True)


def _trials(
    folders: Sequence[Folder],
    candidates: Mapping[Path, Candidates],
    jobs: int,
    progress: Progress,
    *,
    screen: bool,
) -> list[tuple[Folder, list[Scores]]]:
    """The trials of all runs in one stage; the scores of each, seed by seed."""
    tasks = []
    for folder in folders:
        how, given = folder.spec.tune, candidates[folder.path]
        rounds = how.screen_rounds if screen else how.rounds
        seeds = how.screen_seeds if screen else how.seeds
        place = folder.trials / ("screen" if screen else "last")
        tasks.append(trial_tasks(folder.spec, given, rounds, seeds, place))
    scores = _stage([task for part in tasks for task in part], jobs, progress)
    found = []
    for folder, part in zip(folders, tasks, strict=True):
        found.append((folder, scores[: len(part)]))
        scores = scores[len(part) :]
    return found


def _stage(tasks: Sequence[Task], jobs: int, progress: Progress) -> list[Any]:
    if not tasks:
        return []
    progress.begin(tasks)
    report: Report = progress.step
    return execute(tasks, jobs=jobs, report=report)


def _constant_tasks(folders: Sequence[Folder]) -> list[Task]:
    """Each optimum once: runs that share data and partition share the answer."""
    found: dict[tuple[Any, ...], Task] = {}
    for folder in folders:
        spec, c = folder.spec, folder.spec.clients
        if spec.problem.is_module:  # nothing to solve for
            continue
        for seed in spec.seeds:
            if _constants_file(folder.of_seed(seed)).exists():
                continue
            part = (c.n, c.partition, c.alpha, c.minimum)
            key = (spec.data, spec.problem, spec.dtype, seed, part)
            name = f"{spec.data.name}, {c.partition}, seed {seed}"
            task = Task("constants", name, 1, solve_constants, (spec, seed))
            found.setdefault(key, task)
    return list(found.values())


def _seed_tasks(folders: Sequence[Folder]) -> list[Task]:
    tasks = []
    for folder in folders:
        spec = folder.tuned
        assert spec is not None
        for seed in spec.seeds:
            given = (spec, seed, folder.of_seed(seed))
            name = f"{spec.name}, seed {seed}"
            done, cost = rounds_done(given[2]), len(spec.methods)
            tasks.append(Task("rounds", name, spec.rounds, run_seed, given, done, cost))
    return tasks


# ------------------------------------------------------------------ in the worker


def solve_constants(spec: Spec, seed: int, on_step: Callable[[int], None]) -> Constants:
    """L and the optima, left in the cache."""
    found = find_constants(spec, seed, build_problem(spec, seed))
    on_step(1)
    return found


def run_seed(
    spec: Spec, seed: int, folder: Path, on_round: Callable[[int], None]
) -> None:
    """One seed of a tuned spec, from where its folder says it is."""
    if _constants_file(folder).exists() and rounds_done(folder) == spec.rounds:
        on_round(spec.rounds)
        return
    problem = build_problem(spec, seed)
    smoothness = _settled_smoothness(spec, seed, problem, folder)
    observers: list[Observer] = []
    if spec.audit_every:
        observers.append(_every(spec.audit_every, pathwise_audit))
    simulate(
        problem,
        build_federation(spec),
        lanes_of(spec, spec.methods, smoothness),
        rounds=spec.rounds,
        seed=seed,
        start=start_of(problem),
        dtype=spec.dtype,
        evaluate_every=spec.evaluate_every,
        observers=observers,
        checkpoint=folder,
        checkpoint_every=CHECKPOINT_EVERY,
        on_round=on_round,
    )


def _settled_smoothness(spec: Spec, seed: int, problem: Any, folder: Path) -> float:
    """The L of a seed, settled with all its constants before its first round.

    They stay in the seed's folder: another L, if only by a bit, is another run.

    Raises:
        DataError: the file is damaged.
    """
    file = _constants_file(folder)
    found = read_json(file, missing=True)
    if found is None:
        known = asdict(find_constants(spec, seed, problem))
        sizes = {"n": problem.n, "d": problem.d, "samples": problem.data_sizes.tolist()}
        found = known | sizes
        write_json(file, found)
    try:
        return float(found["smoothness"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} is damaged: it has no L; delete {folder}") from error


def _constants_file(folder: Path) -> Path:
    return folder / "constants.json"


def rounds_done(folder: Path) -> int:
    """Rounds that the checkpoint of a seed holds.

    Raises:
        DataError: the checkpoint is damaged.
    """
    file = folder / "manifest.json"
    found = read_json(file, missing=True)
    try:
        return 0 if found is None else int(found["round"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} is damaged: {error!r}; delete {folder}") from error


def _every(rounds: int, observer: Observer) -> Observer:
    def observe(step: Step) -> Any:
        return observer(step) if step.round_number % rounds == 0 else {}

    return observe
