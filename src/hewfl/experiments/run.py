"""One seed of a run, in a worker: its constants, then its rounds."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.atomic import read_json, write_json, write_text
from hewfl.core.validation import invalid, shown
from hewfl.errors import DataError
from hewfl.experiments.build_problem import (
    build_federation,
    build_problem,
    entries_of,
    naming_run,
    samples_of,
    start_of,
)
from hewfl.experiments.executor import Crew, Processes, Task
from hewfl.experiments.local_search import Climb, beyond, joined
from hewfl.experiments.reference_optima import find_constants
from hewfl.experiments.results import Results
from hewfl.experiments.run_folder import (
    CHECKSUMS,
    Folder,
    Stopwatch,
    environment,
    folder_for,
    held,
    is_begun,
    open_folder,
    verify,
    write_checksums,
)
from hewfl.experiments.spec import (
    Spec,
    read_toml,
    spec_from_table,
    with_overrides,
    write_spec,
)
from hewfl.experiments.spec_lint import refuse_unused_fields
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
from hewfl.experiments.user_code import check_own, check_own_code
from hewfl.server.checkpoint import check_trace
from hewfl.simulation.audit import pathwise_audit_of_all
from hewfl.simulation.engine import simulate
from hewfl.simulation.rounds import Observer, Step

CHECKPOINT_EVERY = 10
"""Rounds; a run loses less than this by being killed."""


def run_seed(
    spec: Spec, seed: int, folder: Path, on_round: Callable[[int], None]
) -> None:
    """Run one seed of a tuned spec, from where its folder says it is."""
    has_trace = (folder / "trace.jsonl").exists()
    is_over = has_trace and rounds_done(folder) == spec.rounds
    if is_over and constants_file(folder).exists():
        on_round(spec.rounds)
        return
    _drop_half_checkpoint(folder)
    problem = build_problem(spec, seed)
    smoothness = _settled_smoothness(spec, seed, problem, folder)
    observers: list[Observer] = []
    if spec.audit_every:
        observers.append(_every(spec.audit_every, pathwise_audit_of_all()))
    with naming_run(spec, seed):
        simulate(
            problem,
            build_federation(spec),
            entries_of(spec, spec.methods, smoothness),
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


def _drop_half_checkpoint(folder: Path) -> None:
    """Begin a seed anew whose trace or state was deleted; a damaged one is refused."""
    known = read_json(folder / "manifest.json", missing=True)
    if isinstance(known, dict):
        parts = (folder / "trace.jsonl", folder / str(known.get("state")))
        if not all(part.exists() for part in parts):
            (folder / "manifest.json").unlink()


def _settled_smoothness(spec: Spec, seed: int, problem: Any, folder: Path) -> float:
    """The L of a seed, settled with all its constants before its first round.

    They stay in the seed's folder: another L, if only by a bit, is another run.
    """
    file = constants_file(folder)
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


def constants_file(folder: Path) -> Path:
    """Where the constants of a seed are kept."""
    return folder / "constants.json"


def rounds_done(folder: Path) -> int:
    """Count the rounds that the checkpoint of a seed holds.

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


# ------------------ Run specs: tune, then every seed, in stages on all cores

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
    _climb([f for f in todo if f.spec.tune.local_search], crew, progress)
    todo = [folder for folder in todo if not folder.spec.tune.local_search]
    trials = {folder.path: candidates_of(folder.spec) for folder in todo}
    screens: dict[Path, list[Trials]] = {}
    screened = [folder for folder in todo if folder.spec.tune.screen_rounds]
    for folder, tried, scores in _search(screened, trials, crew, progress, "screen"):
        spec = folder.spec
        screens[folder.path] = trial_tables(spec, tried, scores)
        kept = best_of(spec, tried, scores, spec.tune.screen_top_k)
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
            if turn < spec.tune.max_extensions:
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


# ------------------ Experiments from Python: a spec in, results out, kept and


def run(
    spec: Spec | Mapping[str, Any] | str | PathLike[str],
    *,
    runs_dir: str | PathLike[str] = "runs",
    jobs: int = 0,
    overrides: Sequence[str] = (),
    progress: Progress | None = None,
) -> Results:
    """Tune and run an experiment; one that was begun goes on, one that is done is read.

    Code of the user's own that the spec names is run, from files beside the spec, or in
    the current folder where there is no file.

    Args:
        spec: a `Spec`, a table as TOML has it, the path of a TOML file, or the folder
            of a run.
        runs_dir: folder that holds runs.
        jobs: processes; 0 for none but this one. With others, a script needs
            `if __name__ == "__main__":` around the call, as Python starts it anew.
        overrides: fields to replace, as `--set` takes them: "clients.n=10".
        progress: told of every stage; nobody by default.

    Returns:
        The records of all seeds; `Results.frame` makes a DataFrame of them.

    Raises:
        InvalidInputError: a field breaks a rule, or has no effect.
        RuleError: a rule of the user's own is wrong.
        DataError: data or files of the run are missing, damaged or changed.

    Examples:
        >>> import tempfile
        >>> table = {"name": "short", "rounds": 2, "seeds": [0], "clients": {"n": 3}}
        >>> table |= {"data": {"subsample": 90}, "problem": {"solve_optimum": False}}
        >>> table["methods"] = [{"method": "FedAvg", "step_scale": 0.2}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run(table, runs_dir=folder)
        >>> results.curve("FedAvg", "objective").shape
        (1, 3)
    """
    if isinstance(spec, str | PathLike) and (Path(spec) / "spec.toml").exists():
        if overrides:
            rule = "left out for an existing run"
            raise invalid("overrides", rule, list(overrides))
        folder = open_folder(Path(spec))
    else:
        folder = folder_for(_read(spec, overrides), Path(runs_dir))
    run_all([folder], jobs=jobs, progress=progress or Progress())
    return folder.results


def _read(spec: Any, overrides: Sequence[str]) -> Spec:
    """The spec with its changes, every field of which has an effect."""
    if isinstance(spec, Spec):
        if overrides:
            rule = "left out with a Spec: replace its fields"
            raise invalid("overrides", rule, overrides)
        found = spec
    elif isinstance(spec, Mapping):
        found = spec_from_table(with_overrides(dict(spec), overrides), Path())
    elif isinstance(spec, str | PathLike):
        file = Path(spec)
        found = spec_from_table(with_overrides(read_toml(file), overrides), file.parent)
    else:
        raise invalid("spec", "a Spec, a table or a file", shown(spec))
    refuse_unused_fields(found)
    return found
