"""Experiments from Python: a spec in, results out, kept and resumed."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from hewfl.core.checks import invalid, shown
from hewfl.experiments.folder import folder_for, open_folder
from hewfl.experiments.overrides import overridden
from hewfl.experiments.results import Results
from hewfl.experiments.run import Progress, run_all
from hewfl.experiments.spec import Spec, read_toml, spec_from_table
from hewfl.experiments.unused import refuse_unused_fields


def run(
    spec: Spec | Mapping[str, Any] | str | PathLike[str],
    *,
    root: str | PathLike[str] = "runs",
    jobs: int = 0,
    changes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Results:
    """Tune and run an experiment; one that was begun goes on, one that is done is read.

    Code of the user's own that the spec names is run, from files beside the spec, or in
    the current folder where there is no file.

    Args:
        spec: a `Spec`, a table as TOML has it, the path of a TOML file, or the folder
            of a run.
        root: folder that holds runs.
        jobs: processes; 0 for none but this one. With others, a script needs
            `if __name__ == "__main__":` around the call, as Python starts it anew.
        changes: fields to replace, as `--set` takes them: "clients.n=10".
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
        >>> table |= {"data": {"subsample": 90}, "problem": {"optimum": False}}
        >>> table["methods"] = [{"method": "FedAvg", "step_scale": 0.2}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     results = run(table, root=folder)
        >>> results.curve("FedAvg", "objective").shape
        (1, 3)
    """
    if isinstance(spec, str | PathLike) and (Path(spec) / "spec.toml").exists():
        if changes:
            raise invalid("changes", "left out for a run that is there", list(changes))
        folder = open_folder(Path(spec))
    else:
        folder = folder_for(_read(spec, changes), Path(root))
    run_all([folder], jobs=jobs, progress=progress or Progress())
    return folder.results


def _read(spec: Any, changes: Sequence[str]) -> Spec:
    """The spec with its changes, every field of which has an effect."""
    if isinstance(spec, Spec):
        if changes:
            raise invalid(
                "changes", "left out with a Spec: replace its fields", changes
            )
        found = spec
    elif isinstance(spec, Mapping):
        found = spec_from_table(overridden(dict(spec), changes), Path())
    elif isinstance(spec, str | PathLike):
        file = Path(spec)
        found = spec_from_table(overridden(read_toml(file), changes), file.parent)
    else:
        raise invalid("spec", "a Spec, a table or a file", shown(spec))
    refuse_unused_fields(found)
    return found
