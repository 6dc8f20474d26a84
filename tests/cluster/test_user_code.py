"""User code on a cluster: its files travel, also after an edit."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hewfl.errors import HewError
from hewfl.experiments.dask_executor import Cluster
from hewfl.experiments.dask_tasks import check_worker, installed_versions
from hewfl.experiments.executor import THREADS, Progress
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for
from hewfl.experiments.spec import spec_from_table
from tests.cluster.processes import Processes
from tests.experiments.runs import TEXT

RULE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from steps import SHARE

from hewfl import Decision, Demands, LocalPlan


@dataclass(frozen=True)
class Shy:
    smoothness: float
    scale: float = 0.5
    name: ClassVar[str] = "Shy"
    demands: ClassVar[Demands] = Demands()

    def init(self, n, d, gradients):
        return None

    def plan(self, cohort, state):
        step = SHARE * self.scale / self.smoothness
        return LocalPlan(np.full(len(cohort.clients), step))

    def decide(self, round_, state):
        n = round_.displacements.n
        return Decision(np.full(n, 1 / n), "shy"), state
"""


def runs(place: Path, name: str, **given: Any) -> list[Folder]:
    """The same run twice: for here and for the cluster."""
    shy = {"method": "rules:Shy", **given}
    table = tomllib.loads(TEXT) | {"name": name, "methods": [shy], "audit_every": 0}
    spec = spec_from_table(table | {"rounds": 2, "seeds": [0]}, place)
    return [folder_for(spec, place / root) for root in ("here", "there")]


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != "times.json"
    }


@pytest.mark.cluster
def test_an_own_rule_and_what_it_imports_travel(
    fleet: Processes, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "rules.py").write_text(RULE)
    traces = []
    grids: list[dict[str, Any]] = [{"grid": {"scale": [0.2, 0.5]}}, {}]
    for share, grid in zip((1.0, 0.25), grids, strict=True):
        # The second time, workers know the first helper.
        (tmp_path / "steps.py").write_text(f"SHARE = {share}\n")
        here, there = runs(tmp_path, f"own-{share}", **grid)
        run_all([here], jobs=1, progress=Progress())
        run_all([there], jobs=0, progress=Progress(), cluster=cluster)
        assert files_below(there.path) == files_below(here.path)
        traces.append((there.of_seed(0) / "trace.jsonl").read_bytes())
    assert traces[0] != traces[1]
    kept = [fleet.cache(name).glob("files/code/*/steps.py") for name in ("a", "b")]
    assert any(len(list(places)) for places in kept)


def test_installed_code_must_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.setenv(name, "1")
    code = [("tests.cluster.tasks:marked", "hewfl.methods")]
    versions = installed_versions(["numpy"], code)
    check_worker(versions, "w")
    name = "tests.cluster.tasks:marked of hewfl.methods"
    with pytest.raises(HewError, match=r"w differs .*marked of hewfl\.methods .* abc"):
        check_worker({**versions, name: "abc"}, "w")
    with pytest.raises(HewError, match=r"nowhere:Rule of .* missing there"):
        check_worker({"nowhere:Rule of hewfl.methods": "abc"}, "w")
