"""Sweeps: one run for each value of some fields, in one folder, and panels of runs.

    runs/study-by-alpha-1a2b3c4d/sweep.json                 its runs, in order
    runs/study-by-alpha-1a2b3c4d/study-alpha=0.1-5e6f7a8b/  a run as any other

A sweep with more values continues in the same folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hewfl.core.atomic import read_json, write_json
from hewfl.errors import DataError
from hewfl.experiments.overrides import (
    at_point,
    point_text,
    sweep_digest,
    sweep_points,
    with_overrides,
)
from hewfl.experiments.run import complete_table
from hewfl.experiments.run_folder import Folder, folder_for, open_folder
from hewfl.experiments.spec import Spec, read_toml

SWEEP = "sweep.json"
"""File of a sweep: the folder of each run, by the name of its panel."""


class Panel(NamedTuple):
    """A run in a table or a figure of several runs."""

    name: str
    folder: Folder


def sweep_specs(
    file: Path, overrides: Sequence[str], sweeps: Sequence[str]
) -> tuple[str, dict[str, Spec]]:
    """The name of a sweep's folder, and the spec of each panel by its name.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule, or has no effect; or a sweep does.
    """
    table = with_overrides(read_toml(file), overrides)
    points = sweep_points(sweeps)
    specs = {
        point_text(point): complete_table(at_point(table, point), file.parent)
        for point in points
    }
    fields = "-".join(key.rpartition(".")[2] for key in points[0])
    return f"{table.get('name')}-by-{fields}-{sweep_digest(table, points)}", specs


def open_sweep(path: Path, specs: dict[str, Spec]) -> list[Panel]:
    """The runs of a sweep, new or begun; the file of the sweep is written.

    Raises:
        InvalidInputError: as `folder_for`, and so below.
        DataError: data are missing, or a folder holds another spec.
    """
    panels = [Panel(name, folder_for(spec, path)) for name, spec in specs.items()]
    write_json(path / SWEEP, {name: folder.path.name for name, folder in panels})
    return panels


def is_sweep(path: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (path / SWEEP).exists()


def open_runs(paths: Sequence[Path]) -> list[Panel]:
    """Runs by their folders; the folder of a sweep stands for all of its runs.

    Raises:
        DataError: a path is neither a run nor a sweep, or its files are damaged.
    """
    panels = []
    for path in paths:
        listed: Any = read_json(path / SWEEP, missing=True)
        if listed is None:
            folder = open_folder(path)
            panels.append(Panel(folder.spec.name, folder))
            continue
        if not isinstance(listed, dict):
            raise DataError(f"{path / SWEEP} is damaged: it is no table")
        panels += [Panel(k, open_folder(path / str(v))) for k, v in listed.items()]
    return panels
