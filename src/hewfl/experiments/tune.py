"""Tuning: short trials of candidates in lockstep, and the choice of each method.

A spec is tuned by its whole grid, with a first, shorter trial of all candidates if
`tune.screen_rounds` is set, or by local search (`hewfl.experiments.local_search`).
Trials of all runs are done together, stage by stage.
"""

import itertools
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from hewfl.core.atomic import read_json, write_json, write_text
from hewfl.experiments.build_problem import (
    build_federation,
    build_problem,
    entries_of,
    naming_run,
    samples_of,
    start_of,
)
from hewfl.experiments.candidates import (
    Candidates,
    Choice,
    Scores,
    Trials,
    all_candidates,
    best_candidates,
    choose,
    extended_candidates,
    join_trials,
    trial_tables,
)
from hewfl.experiments.executor import Executor, Progress, Task, run_stage
from hewfl.experiments.local_search import LocalSearch
from hewfl.experiments.reference_optima import find_smoothness
from hewfl.experiments.results import LARGER_IS_BETTER
from hewfl.experiments.run_folder import Folder
from hewfl.experiments.spec import Spec, write_spec
from hewfl.server.trace import AVERAGED, RoundRecord
from hewfl.simulation.engine import simulate

MODULE_ENTRIES = 12
"""Candidates of a module in one trial."""
CHECKPOINT_EVERY = 20
"""Rounds of a module's trial; a killed trial loses less than this."""


def is_untuned(folder: Folder) -> bool:
    """Whether hyper-parameters are still to be chosen, or their record is missing."""
    if folder.spec.is_tuned:
        return False
    return folder.tuned is None or not (folder.path / "tuning.json").exists()


def tune_runs(
    folders: Sequence[Folder], executor: Executor, progress: Progress
) -> None:
    """Choose hyper-parameters of all runs that are not tuned, stage by stage."""
    todo = [folder for folder in folders if is_untuned(folder)]
    _tune_by_search([f for f in todo if f.spec.tune.local_search], executor, progress)
    _tune_by_grid([f for f in todo if not f.spec.tune.local_search], executor, progress)
    for folder in folders:
        shutil.rmtree(folder.trials, ignore_errors=True)


def _tune_by_grid(
    folders: Sequence[Folder], executor: Executor, progress: Progress
) -> None:
    """Try all candidates, of which those of a first, shorter trial go on if any."""
    trials = {folder.path: all_candidates(folder.spec) for folder in folders}
    screens: dict[Path, list[Trials]] = {}
    screened = [folder for folder in folders if folder.spec.tune.screen_rounds]
    stage = _grid_stage(screened, trials, executor, progress, "screen")
    for folder, tried, scores in stage:
        spec = folder.spec
        screens[folder.path] = trial_tables(spec, tried, scores)
        best = best_candidates(spec, tried, scores, spec.tune.screen_top_k)
        trials[folder.path] = tuple(
            tuple(part[k] for k in sorted(chosen))
            for part, chosen in zip(tried, best, strict=True)
        )
    for folder, tried, scores in _grid_stage(
        folders, trials, executor, progress, "last"
    ):
        screen = screens.get(folder.path, [])
        _write_choices(folder, *choose(folder.spec, tried, scores, screen))


def _grid_stage(
    folders: Sequence[Folder],
    candidates: Mapping[Path, Candidates],
    executor: Executor,
    progress: Progress,
    name: str,
) -> list[tuple[Folder, Candidates, list[Scores]]]:
    """Try candidates, and extensions of lists that have the best one at their end."""
    trials, tried = dict(candidates), dict[Path, tuple[Candidates, list[Scores]]]()
    for turn in itertools.count():
        todo = [folder for folder in folders if any(trials[folder.path])]
        if not todo:
            break
        stage = f"{name}+{turn}" if turn else name
        for folder, scores in _run_trials(todo, trials, executor, progress, stage):
            path, spec = folder.path, folder.spec
            now = trials[path], scores
            tried[path] = join_trials(tried[path], now) if path in tried else now
            trials[path] = ()
            if turn < spec.tune.max_extensions:
                is_full = name == "screen" or not spec.tune.screen_rounds
                new = extended_candidates(spec, *tried[path], is_full=is_full)
                trials[path] = new
    return [(folder, *tried[folder.path]) for folder in folders]


def _tune_by_search(
    folders: Sequence[Folder], executor: Executor, progress: Progress
) -> None:
    """Search the grids of all runs together, one stage after the other."""
    searches = {folder.path: LocalSearch.start(folder.spec) for folder in folders}
    for turn in itertools.count():
        trials = {path: search.next_candidates() for path, search in searches.items()}
        todo = [folder for folder in folders if any(trials[folder.path])]
        if not todo:
            break
        stage = f"search-{turn}"
        for folder, scores in _run_trials(todo, trials, executor, progress, stage):
            path = folder.path
            searches[path] = searches[path].with_scores(trials[path], scores)
    for folder in folders:
        tried = searches[folder.path].all_tried()
        _write_choices(folder, *choose(folder.spec, *tried))


def _write_choices(folder: Folder, tuned: Spec, choices: Sequence[Choice]) -> None:
    write_json(folder.path / "tuning.json", [asdict(c) for c in choices])
    write_text(folder.path / "tuned.toml", write_spec(tuned))


def _run_trials(
    folders: Sequence[Folder],
    candidates: Mapping[Path, Candidates],
    executor: Executor,
    progress: Progress,
    name: str,
) -> list[tuple[Folder, list[Scores]]]:
    """The trials of all runs in one stage; the scores of each, seed by seed."""
    is_screen = name.startswith("screen")
    tasks = list[list[list[Task]]]()
    for folder in folders:
        spec, given = folder.spec, candidates[folder.path]
        rounds = spec.tune.screen_rounds if is_screen else spec.tune.rounds
        seeds = spec.tune.screen_seeds if is_screen else spec.tune.seeds
        file = folder.trials / name
        tasks.append([trial_tasks(spec, given, rounds, s, file) for s in seeds])
    flat = [task for seeds in tasks for parts in seeds for task in parts]
    results = iter(run_stage(flat, executor, progress))
    scores = [
        [np.concatenate([next(results) for _ in parts]) for parts in seeds]
        for seeds in tasks
    ]
    return list(zip(folders, scores, strict=True))


def trial_tasks(
    spec: Spec, candidates: Candidates, rounds: int, seed: int, file: Path
) -> list[Task]:
    """Trials of the candidates for one seed, in the order of `split_candidates`.

    Args:
        spec: with grids.
        candidates: to try.
        rounds: of each trial.
        seed: of the trials.
        file: beginning of the names of the files that keep the scores.
    """
    tasks, parts = [], split_candidates(spec, candidates)
    for j, part in enumerate(parts):
        which = "" if len(parts) == 1 else f"-{j}"
        kept = file.with_name(f"{file.name}-{seed}{which}.json")
        tasks.append(
            Task(
                stage="tuning",
                name=f"{spec.name}, seed {seed}",
                steps=rounds,
                call=run_trial,
                arguments=(spec, part, rounds, seed, kept),
                done=rounds if kept.exists() else 0,
                cost=sum(map(len, part)),
                shares=samples_of(spec, seed),
                writes=kept,
            )
        )
    return tasks


def split_candidates(spec: Spec, candidates: Candidates) -> list[Candidates]:
    """Candidates in parts, in order, whose trials run side by side.

    Softmax entries share the products of a round and stay together. Entries of a module
    share only their draws: parts keep more processes busy beside the one that waits for
    the GPU, and less is lost when a trial is stopped.
    """
    if not spec.problem.is_module:
        return [candidates]
    flat = [(k, each) for k, part in enumerate(candidates) for each in part]
    parts = []
    for lo in range(0, len(flat), MODULE_ENTRIES):
        some = flat[lo : lo + MODULE_ENTRIES]
        methods = dict.fromkeys(k for k, _ in some)
        parts.append(tuple(tuple(c for j, c in some if j == k) for k in methods))
    return parts


def run_trial(
    spec: Spec,
    candidates: Candidates,
    rounds: int,
    seed: int,
    file: Path,
    on_round: Callable[[int], None],
) -> Scores:
    """Scores of a trial, from its file if it was done before."""
    table = read_json(file, missing=True)
    if table is None:
        is_long = spec.problem.is_module and rounds > CHECKPOINT_EVERY
        checkpoint = file.with_suffix("") if is_long else None
        scores = score_candidates(spec, candidates, rounds, seed, on_round, checkpoint)
        table = [[s if math.isfinite(s) else None for s in row] for row in scores]
        write_json(file, table)
        if checkpoint is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)
    rows = [[math.inf if s is None else s for s in row] for row in table]
    return np.array(rows, dtype=np.float64)


def score_candidates(
    spec: Spec,
    candidates: Candidates,
    rounds: int,
    seed: int,
    on_round: Callable[[int], None],
    checkpoint: Path | None = None,
) -> Scores:
    """Scores after a trial; infinite where a candidate diverged.

    Args:
        spec: with grids.
        candidates: to try.
        rounds: of the trial.
        seed: of the trial.
        on_round: called with the number of rounds done.
        checkpoint: folder from which a stopped trial goes on, None for none.
    """
    problem = build_problem(spec, seed)
    metrics = (spec.tune.metric, *spec.tune.tie_metrics)
    if spec.problem.is_softmax and not any(q.startswith("test_") for q in metrics):
        problem = replace(problem, test=None)  # the test part need not be evaluated
    L = find_smoothness(spec, seed, problem)
    entries = entries_of(spec, [c for part in candidates for c in part], L, rounds)
    with naming_run(spec, seed):
        trace = simulate(
            problem,
            build_federation(spec),
            entries,
            rounds=rounds,
            seed=seed,
            start=start_of(problem),
            dtype=spec.dtype,
            evaluate_every=rounds,
            checkpoint=checkpoint,
            checkpoint_every=CHECKPOINT_EVERY,
            on_round=on_round,
        )
    records = [trace.of(k) for k in range(len(entries))]
    return np.array([[_score(spec, each, q) for q in metrics] for each in records])


def _score(spec: Spec, records: Sequence[RoundRecord], quantity: str) -> float:
    """A quantity of a candidate after the last round; less is better."""
    record = records[-1]
    if quantity == "local_steps":
        return float(sum(sum(each.horizons) for each in records))
    is_averaged = spec.evaluate_model == "averaged"
    if is_averaged and f"{AVERAGED}{quantity}" in record.metrics:
        quantity = f"{AVERAGED}{quantity}"
    value = record.metrics.get(quantity, getattr(record, quantity, None))
    if value is None or not math.isfinite(value):
        return math.inf
    return float(-value if quantity in LARGER_IS_BETTER else value)
