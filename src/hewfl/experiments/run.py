"""Run specs: tune, then every seed, in stages on all cores.

`run` is the way in from Python; `run_all` and `tune_all` are those of the command.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from hewfl.core.atomic import read_json, write_json
from hewfl.core.validation import format_value, invalid
from hewfl.errors import DataError
from hewfl.experiments.build_problem import (
    build_federation,
    build_problem,
    entries_of,
    naming_run,
    samples_of,
    start_of,
)
from hewfl.experiments.executor import (
    Executor,
    Processes,
    Progress,
    Task,
    run_stage,
)
from hewfl.experiments.overrides import with_overrides
from hewfl.experiments.reference_optima import find_constants
from hewfl.experiments.results import Results
from hewfl.experiments.run_folder import (
    CHECKSUMS,
    Folder,
    Stopwatch,
    environment,
    folder_for,
    is_begun,
    lock_runs,
    open_folder,
    remove_leftovers,
    verify,
    write_folder_checksums,
)
from hewfl.experiments.spec import Spec, read_toml, spec_from_table
from hewfl.experiments.spec_lint import refuse_unused_fields
from hewfl.experiments.summary import summarise
from hewfl.experiments.tune import is_untuned, tune_runs
from hewfl.experiments.user_code import check_user_files, load_user_code
from hewfl.server.checkpoint import check_trace, read_manifest
from hewfl.simulation.audit import pathwise_audit_of_all
from hewfl.simulation.engine import simulate
from hewfl.simulation.rounds import Observer, Step

CHECKPOINT_EVERY = 10
"""Rounds; a killed run loses less than this."""
MANY = 6
"""From this number of runs on, their traces are read by several processes."""


def run(
    spec: Spec | Mapping[str, Any] | str | PathLike[str],
    *,
    runs_dir: str | PathLike[str] = "runs",
    jobs: int = 0,
    overrides: Sequence[str] = (),
    progress: Progress | None = None,
) -> Results:
    """Tune and run an experiment; resume it if it was begun, read it if it is done.

    The user's own code that the spec names is run, from files beside the spec, or in
    the current folder if the spec is no file.

    Args:
        spec: a `Spec`, a table as parsed from TOML, the path of a TOML file, or the
            folder of a run.
        runs_dir: folder that holds runs.
        jobs: worker processes; 0 for none but this one. With others, a script needs
            `if __name__ == "__main__":` around the call, as Python starts it anew.
        overrides: fields to replace, as `--set` takes them: "clients.n=10".
        progress: called with the progress of every stage; silent by default.

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
        folder = folder_for(complete_spec(spec, overrides), Path(runs_dir))
    run_all([folder], jobs=jobs, progress=progress or Progress())
    return folder.results


def complete_spec(
    spec: Spec | Mapping[str, Any] | str | PathLike[str], overrides: Sequence[str] = ()
) -> Spec:
    """The spec with its overrides; a field without effect is refused.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule, or has no effect.
    """
    if isinstance(spec, Spec):
        if overrides:
            rule = "left out with a Spec: replace its fields"
            raise invalid("overrides", rule, overrides)
        refuse_unused_fields(spec)
        return spec
    if isinstance(spec, Mapping):
        return complete_table(with_overrides(spec, overrides), Path())
    if isinstance(spec, str | PathLike):
        file = Path(spec)
        return complete_table(with_overrides(read_toml(file), overrides), file.parent)
    raise invalid("spec", "a Spec, a table or a file", format_value(spec))


def complete_table(table: Mapping[str, Any], folder: Path) -> Spec:
    """The spec of a table whose code is in a folder; as `complete_spec`."""
    spec = spec_from_table(table, folder)
    refuse_unused_fields(spec)
    return spec


def run_all(
    folders: Sequence[Folder],
    *,
    jobs: int,
    progress: Progress,
    cluster: Executor | None = None,
) -> None:
    """Do the remaining work of several runs together: tune and simulate.

    Args:
        folders: runs, new or begun.
        jobs: worker processes; 0 for none but this one.
        progress: called with the progress of every stage.
        cluster: other machines that do the work instead; summaries are made here.

    Raises:
        DataError: another process works on one of the runs.
    """
    for folder in folders:
        verify(folder.path, remakes="results" if folder.given is None else "all")
        if folder.is_whole:
            remove_leftovers(folder.path)
    left = [folder for folder in folders if not folder.is_whole]
    for folder in left:
        prepare_code(folder)
    with lock_runs(left), Processes(jobs) as here:
        todo = [folder for folder in left if not folder.is_whole]
        watch = Stopwatch()
        is_resumed = any(map(is_begun, todo))
        executor = cluster or here
        tune_runs(todo, executor, progress)
        watch.lap("tuning")
        run_stage(_seed_tasks(todo), executor, progress)
        watch.lap("rounds")
        for folder in todo:  # a rule may have been edited meanwhile
            check_user_files(folder.path, folder.spec)
        if len(todo) < MANY:
            for folder in todo:
                finish(folder)
        else:
            run_stage(_summary_tasks(todo), here, progress)
        for folder in todo:
            facts = {"resumed": is_resumed, "runs": len(todo), **executor.facts}
            times = watch.seconds | facts | environment(folder.spec)
            write_json(folder.path / "times.json", times)


def tune_all(
    folders: Sequence[Folder],
    *,
    jobs: int,
    progress: Progress,
    cluster: Executor | None = None,
) -> None:
    """Choose hyper-parameters that are still to be chosen; arguments of `run_all`.

    Raises:
        DataError: another process works on one of the runs.
    """
    todo = [folder for folder in folders if is_untuned(folder)]
    for folder in folders:
        if folder not in todo:
            remove_leftovers(folder.path)
    for folder in todo:
        prepare_code(folder)
    with lock_runs(todo), Processes(jobs) as here:
        tune_runs(folders, cluster or here, progress)
        for folder in todo:
            check_user_files(folder.path, folder.spec)


def prepare_code(folder: Folder) -> None:
    """Check and load the user's own files, if there is anything left to compute.

    Raises:
        DataError: data or code have changed since the run began.
        InvalidInputError: the code cannot be loaded, or does not fit its field.
    """
    if folder.has_results:
        return
    check_user_files(folder.path, folder.spec, has_source=folder.given is not None)
    load_user_code(folder.given or folder.spec)


def finish(folder: Folder) -> None:
    """Write the summary of a run whose seeds are all done, and all checksums.

    Raises:
        DataError: files of a seed are missing or damaged.
    """
    for seed in folder.spec.seeds:
        check_trace(folder.of_seed(seed))
    # Checksums of an earlier end no longer count: a file that was made again may
    # differ in a last digit, as by another version.
    (folder.path / CHECKSUMS).unlink(missing_ok=True)
    write_json(folder.path / "summary.json", summarise(folder.results))
    if not folder.spec.is_record:
        write_folder_checksums(folder)


def finish_in_worker(folder: Folder, on_step: Callable[[int], None]) -> None:
    """Do `finish` as a task of one step."""
    finish(folder)
    on_step(1)


def _summary_tasks(folders: Sequence[Folder]) -> list[Task]:
    return [
        Task("summary", folder.spec.name, 1, finish_in_worker, (folder,))
        for folder in folders
    ]


def _seed_tasks(folders: Sequence[Folder]) -> list[Task]:
    tasks = []
    for folder in folders:
        spec = folder.tuned
        assert spec is not None
        for seed in spec.seeds:
            path = folder.of_seed(seed)
            tasks.append(
                Task(
                    stage="rounds",
                    name=f"{spec.name}, seed {seed}",
                    steps=spec.rounds,
                    call=run_seed,
                    arguments=(spec, seed, path),
                    done=rounds_done(path),
                    cost=len(spec.methods),
                    shares=samples_of(spec, seed),
                    writes=path,
                )
            )
    return tasks


def run_seed(
    spec: Spec, seed: int, folder: Path, on_round: Callable[[int], None]
) -> None:
    """Run one seed of a tuned spec, from its checkpoint if there is one."""
    has_trace = (folder / "trace.jsonl").exists()
    is_over = has_trace and rounds_done(folder) == spec.rounds
    if is_over and _constants_file(folder).exists():
        on_round(spec.rounds)
        return
    _drop_half_checkpoint(folder)
    problem = build_problem(spec, seed)
    smoothness = _fixed_smoothness(spec, seed, problem, folder)
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


def rounds_done(folder: Path) -> int:
    """Rounds in the checkpoint of a seed.

    Raises:
        DataError: the checkpoint is damaged.
    """
    manifest = read_manifest(folder)
    return 0 if manifest is None else int(manifest["round"])


def _drop_half_checkpoint(folder: Path) -> None:
    """Start a seed again whose trace or state was deleted; a damaged one is refused."""
    manifest = read_manifest(folder)
    if manifest is not None:
        parts = (folder / "trace.jsonl", folder / str(manifest["state"]))
        if not all(part.exists() for part in parts):
            (folder / "manifest.json").unlink()


def _fixed_smoothness(spec: Spec, seed: int, problem: Any, folder: Path) -> float:
    """The L of a seed, computed with all its constants before the first round.

    They are kept in the seed's folder: a resumed run needs the same bits.
    """
    file = _constants_file(folder)
    constants = read_json(file, missing=True)
    if constants is None:
        sizes = {"n": problem.n, "d": problem.d, "samples": problem.data_sizes.tolist()}
        constants = asdict(find_constants(spec, seed, problem)) | sizes
        yardsticks = _yardsticks(spec, constants["smoothness"])
        constants |= {"yardsticks": yardsticks} if yardsticks else {}
        write_json(file, constants)
    try:
        return float(constants["smoothness"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{file} is damaged: it has no L; delete {folder}") from error


def _yardsticks(spec: Spec, smoothness: float) -> list[str]:
    """Labels of methods that need the truth; code of the user's own may as well."""
    entries = entries_of(spec, spec.methods, smoothness)
    demands = [(entry.name, entry.algorithm.demands) for entry in entries]
    return [k for k, d in demands if d.oracle or "truth" in d.needs]


def _constants_file(folder: Path) -> Path:
    return folder / "constants.json"


def _every(rounds: int, observer: Observer) -> Observer:
    def observe(step: Step) -> Any:
        return observer(step) if step.round_number % rounds == 0 else {}

    return observe
