"""Run specs: tune, then every seed, in stages on all cores."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.atomic import write_json, write_text
from hewfl.experiments.checksums import NAME as CHECKSUMS
from hewfl.experiments.checksums import verify, write_checksums
from hewfl.experiments.climb import Climb
from hewfl.experiments.environment import Stopwatch, environment
from hewfl.experiments.folder import Folder, held, is_begun
from hewfl.experiments.own import check_own, check_own_code
from hewfl.experiments.problem import samples_of
from hewfl.experiments.seed import rounds_done, run_seed
from hewfl.experiments.spec import Spec, write_spec
from hewfl.experiments.stretch import beyond, joined
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import (
    Candidates,
    Choice,
    Scores,
    Trials,
    best_of,
    candidates_of,
    choose,
    trial_tables,
    trial_tasks,
)
from hewfl.experiments.workers import Crew, Processes, Task
from hewfl.server.checkpoint import check_trace

MANY = 6
"""From so many runs on, their traces are read by several processes."""


class Progress:
    """Told of the tasks of each stage and of their steps; this one keeps silent."""

    def begin(self, tasks: Sequence[Task]) -> None:
        """A stage with these tasks begins."""

    def step(self, task: int, done: int) -> None:
        """So many steps of a task are done."""

    def note(self, words: str) -> None:
        """What else there is to say of the stage: who works at it."""


def run_all(
    folders: Sequence[Folder],
    *,
    jobs: int,
    progress: Progress,
    cluster: Crew | None = None,
) -> None:
    """Do what is left of several runs, on all cores at once: tune and simulate.

    Args:
        folders: runs, new or begun.
        jobs: processes; 0 for none but this one.
        progress: told of every stage.
        cluster: other machines that do the work instead; summaries stay here.

    Raises:
        DataError: another process is at one of them.
    """
    left = [folder for folder in folders if not folder.is_whole]
    for folder in folders:
        verify(folder.path, [name for name in folder.wanted if folder.has(name)])
    for folder in left:
        check_own_code(folder.spec)
    with held(left), Processes(jobs) as here:
        todo = [folder for folder in left if not folder.is_whole]
        watch = Stopwatch()
        resumed = any(map(is_begun, todo))
        crew = cluster or here
        _tune(todo, crew, progress)
        watch.lap("tuning")
        _stage(_seed_tasks(todo), crew, progress)
        watch.lap("rounds")
        for folder in todo:  # somebody may have edited a rule meanwhile
            check_own(folder.path, folder.spec)
        if len(todo) < MANY:
            for folder in todo:
                finish(folder)
        else:
            _stage(_summary_tasks(todo), here, progress)
        for folder in todo:
            facts = {"resumed": resumed, "runs": len(todo), **crew.facts}
            found = watch.seconds | facts | environment(folder.spec)
            write_json(folder.path / "times.json", found)


def finish(folder: Folder) -> None:
    """Write the summary of a run whose seeds are all done, and all checksums.

    Raises:
        DataError: files of a seed are missing or damaged.
    """
    for seed in folder.spec.seeds:
        check_trace(folder.of_seed(seed))
    # Those of an earlier end: what was made again since may differ in a last digit, as
    # by another version, and is what counts now.
    (folder.path / CHECKSUMS).unlink(missing_ok=True)
    write_json(folder.path / "summary.json", summarise(folder.results))
    if not folder.spec.is_record:
        write_checksums(folder.path, folder.wanted)


def summarise_folder(folder: Folder, on_step: Callable[[int], None]) -> None:
    """Write the summary of a run, in a worker."""
    finish(folder)
    on_step(1)


def tune_all(
    folders: Sequence[Folder],
    *,
    jobs: int,
    progress: Progress,
    cluster: Crew | None = None,
) -> None:
    """Choose hyper-parameters where that is still to be done; arguments of `run_all`.

    Raises:
        DataError: another process is at one of the runs.
    """
    todo = [folder for folder in folders if _is_untuned(folder)]
    for folder in todo:
        check_own_code(folder.spec)
    with held(todo), Processes(jobs) as here:
        _tune(folders, cluster or here, progress)
        for folder in todo:
            check_own(folder.path, folder.spec)


def _is_untuned(folder: Folder) -> bool:
    """Whether hyper-parameters are to be chosen, or how they were is not known."""
    if folder.spec.is_tuned:
        return False
    return folder.tuned is None or not (folder.path / "tuning.json").exists()


def _tune(folders: Sequence[Folder], crew: Crew, progress: Progress) -> None:
    todo = [folder for folder in folders if _is_untuned(folder)]
    _climb([f for f in todo if f.spec.tune.search == "climb"], crew, progress)
    todo = [folder for folder in todo if folder.spec.tune.search != "climb"]
    trials = {folder.path: candidates_of(folder.spec) for folder in todo}
    screens: dict[Path, list[Trials]] = {}
    screened = [folder for folder in todo if folder.spec.tune.screen_rounds]
    for folder, tried, scores in _search(screened, trials, crew, progress, "screen"):
        spec = folder.spec
        screens[folder.path] = trial_tables(spec, tried, scores)
        kept = best_of(spec, tried, scores, spec.tune.keep)
        trials[folder.path] = tuple(
            tuple(part[k] for k in sorted(chosen))
            for part, chosen in zip(tried, kept, strict=True)
        )
    for folder, tried, scores in _search(todo, trials, crew, progress, "last"):
        screen = screens.get(folder.path, [])
        _keep(folder, *choose(folder.spec, tried, scores, screen))
    for folder in folders:
        shutil.rmtree(folder.trials, ignore_errors=True)


def _keep(folder: Folder, tuned: Spec, choices: Sequence[Choice]) -> None:
    write_json(folder.path / "tuning.json", [asdict(c) for c in choices])
    write_text(folder.path / "tuned.toml", write_spec(tuned))


def _climb(folders: Sequence[Folder], crew: Crew, progress: Progress) -> None:
    """Search long grids of all runs together, one stage after the other."""
    climbs = {folder.path: Climb.of(folder.spec) for folder in folders}
    for stage in itertools.count():
        trials = {path: climb.next() for path, climb in climbs.items()}
        todo = [folder for folder in folders if any(trials[folder.path])]
        if not todo:
            break
        for folder, scores in _trials(todo, trials, crew, progress, f"climb-{stage}"):
            path = folder.path
            climbs[path] = climbs[path].after(trials[path], scores)
    for folder in folders:
        _keep(folder, *choose(folder.spec, *climbs[folder.path].found()))


def _search(
    folders: Sequence[Folder],
    candidates: Mapping[Path, Candidates],
    crew: Crew,
    progress: Progress,
    name: str,
) -> list[tuple[Folder, Candidates, list[Scores]]]:
    """Try candidates, and what lies beyond the ends of lists that hold the best one."""
    trials, found = dict(candidates), dict[Path, tuple[Candidates, list[Scores]]]()
    for turn in itertools.count():
        todo = [folder for folder in folders if any(trials[folder.path])]
        if not todo:
            break
        stage = f"{name}+{turn}" if turn else name
        for folder, scores in _trials(todo, trials, crew, progress, stage):
            path, spec = folder.path, folder.spec
            now = trials[path], scores
            found[path] = joined(found[path], now) if path in found else now
            trials[path] = ()
            if turn < (spec.tune.extend or 0):
                whole = name == "screen" or not spec.tune.screen_rounds
                trials[path] = beyond(spec, *found[path], whole=whole)
    return [(folder, *found[folder.path]) for folder in folders]


def _trials(
    folders: Sequence[Folder],
    candidates: Mapping[Path, Candidates],
    crew: Crew,
    progress: Progress,
    name: str,
) -> list[tuple[Folder, list[Scores]]]:
    """The trials of all runs in one stage; the scores of each, seed by seed."""
    screen = name.startswith("screen")
    tasks = list[list[list[Task]]]()
    for folder in folders:
        spec, given = folder.spec, candidates[folder.path]
        rounds = spec.tune.screen_rounds if screen else spec.tune.rounds
        seeds = spec.tune.screen_seeds if screen else spec.tune.seeds
        place = folder.trials / name
        tasks.append([trial_tasks(spec, given, rounds, s, place) for s in seeds])
    every = [task for seeds in tasks for own in seeds for task in own]
    done = iter(_stage(every, crew, progress))
    scores = [
        [np.concatenate([next(done) for _ in own]) for own in seeds] for seeds in tasks
    ]
    return list(zip(folders, scores, strict=True))


def _stage(tasks: Sequence[Task], crew: Crew, progress: Progress) -> list[Any]:
    """Do the tasks of a stage; results in their order.

    Runs on the same data follow each other seed by seed, as a worker keeps the samples
    that it prepared last; data sets backwards by name, as tasks on MNIST are the
    longest, and a long task at the end would let other workers wait.
    """
    if not tasks:
        return []
    order = sorted(range(len(tasks)), key=lambda k: tasks[k].shares)
    order.sort(key=lambda k: tasks[k].shares.rpartition(" ")[0], reverse=True)
    turns = [tasks[k] for k in order]
    progress.begin(turns)
    results = crew.execute(turns, progress.step, progress.note)
    found = dict(zip(order, results, strict=True))
    return [found[k] for k in range(len(tasks))]


def _summary_tasks(folders: Sequence[Folder]) -> list[Task]:
    return [
        Task("summary", folder.spec.name, 1, summarise_folder, (folder,))
        for folder in folders
    ]


def _seed_tasks(folders: Sequence[Folder]) -> list[Task]:
    tasks = []
    for folder in folders:
        spec = folder.tuned
        assert spec is not None
        for seed in spec.seeds:
            given = (spec, seed, folder.of_seed(seed))
            name = f"{spec.name}, seed {seed}"
            done, cost = rounds_done(given[2]), len(spec.methods)
            shares = samples_of(spec, seed)
            parts = (name, spec.rounds, run_seed, given, done, cost, shares)
            tasks.append(Task("rounds", *parts, writes=given[2]))
    return tasks
