"""The constants of a seed: solved once, kept in its folder, never another's."""

import json
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hewfl.errors import DataError
from hewfl.experiments.build_problem import build_federation, build_problem
from hewfl.experiments.executor import Progress
from hewfl.experiments.overrides import with_overrides
from hewfl.experiments.reference_optima import find_constants
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import Folder, folder_for
from hewfl.experiments.spec import Spec, spec_from_table
from hewfl.problems import Softmax
from tests.experiments.runs import small, table
from tests.experiments.test_run_folder import Stop, StopsAt, contents

CHANGES = ("n=4", "alpha=0.4", "min_samples=5", "partition=iid")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "constants"


def one_seed() -> Spec:
    """Nothing to tune, one seed."""
    spec = small()
    return replace(spec, methods=spec.methods[1:], seeds=(0,))


def test_each_partition_has_its_own_and_all_share_what_is_pooled(cache: Path) -> None:
    changes = [[], *([f"clients.{change}"] for change in CHANGES)]
    for change in changes:
        spec = spec_from_table(with_overrides(table(), change))
        find_constants(spec, 0, build_problem(spec, 0))
    kinds = Counter(file.name.partition("-")[0] for file in cache.glob("*.json"))
    assert kinds == {"smoothness": 1, "pooled": 1, "objective": len(changes)}


@pytest.mark.parametrize("change", [*(f"clients.{c}" for c in CHANGES), "device=cpu"])
def test_what_is_shared_is_the_same_to_the_bit(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no run depends on which one filled the cache."""
    found = []
    for k, changes in enumerate(([], [change])):
        monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / str(k)))
        spec = spec_from_table(with_overrides(table(), changes))
        problem = build_problem(spec, 0)
        assert problem.data_sizes.sum() == len(problem.labels)
        found.append(find_constants(spec, 0, problem))
    assert found[0].smoothness == found[1].smoothness
    assert found[0].pooled == found[1].pooled
    if change == "device=cpu":
        assert found[0] == found[1]


def stopped_after_one_round(root: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    module = sys.modules["hewfl.experiments.run"]  # the package has `run`, a function
    monkeypatch.setattr(module, "CHECKPOINT_EVERY", 1)
    folder = folder_for(one_seed(), root)
    with pytest.raises(Stop):
        run_all([folder], jobs=0, progress=StopsAt("rounds", 0))
    return folder


def test_a_resumed_seed_keeps_the_constants_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_after_one_round(tmp_path / "stopped", monkeypatch)
    calm = folder_for(one_seed(), tmp_path / "calm")
    run_all([calm], jobs=0, progress=Progress())
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr(Softmax, "smoothness_estimate", lambda _: 123.0)
    run_all([folder], jobs=0, progress=Progress())
    assert contents(folder) == contents(calm)


def test_damaged_constants_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_after_one_round(tmp_path, monkeypatch)
    file = folder.of_seed(0) / "constants.json"
    file.write_text(json.dumps({"objective": 1.0}))
    with pytest.raises(DataError) as error:
        run_all([folder], jobs=0, progress=Progress())
    assert f"{file} is damaged" in str(error.value)
    assert f"delete {folder.of_seed(0)}" in str(error.value)


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_run_without_a_writable_cache_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Neither parsed data nor constants can be kept, in any of the processes."""
    rows = "\n".join(f"{i % 7},{i % 3},{i % 2}" for i in range(60))
    (tmp_path / "own.csv").write_text(rows)
    spec = replace(one_seed(), seeds=(0, 1))
    data = replace(spec.data, name=str(tmp_path / "own.csv"), subsample=None)
    spec = replace(spec, data=data, clients=replace(spec.clients, min_samples=1))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "file"))
    folder = folder_for(spec, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run_all([folder], jobs=jobs, progress=Progress())
    assert folder.is_done
    (warning,) = caught
    told = f"cannot write to the cache {tmp_path / 'file'} (Not a directory); set"
    assert str(warning.message) == f"{told} HEWFL_CACHE"


def test_in_a_scenario_the_optimum_is_that_of_the_honest_clients(
    tmp_path: Path,
) -> None:
    given = table()
    given["clients"]["scenario"] = {"faults": [{"kind": "RandomLabels", "share": 0.4}]}
    spec = replace(spec_from_table(given), seeds=(0,), audit_every=0)
    problem = build_problem(spec, 0)
    known = find_constants(spec, 0, problem)
    federation = build_federation(spec)
    honest = federation.scenario.assign(0, federation.batches(5)).honest
    assert len(honest) == 3
    some = replace(
        problem,
        offsets=problem.offsets[honest],
        data_sizes=problem.data_sizes[honest],
    )
    assert known.objective == pytest.approx(some.optimum().objective, rel=1e-9)
    assert known.pooled == pytest.approx(some.pooled_optimum().objective, rel=1e-9)
    clean = find_constants(spec_from_table(table()), 0, problem)
    assert clean.objective != pytest.approx(known.objective, rel=1e-6)
    assert clean.smoothness == known.smoothness
    folder = folder_for(spec, tmp_path / "runs")
    run_all([folder], jobs=0, progress=Progress())
    for method in folder.summary["methods"]:
        assert method["final"]["gap"]["mean"] > 0
        assert 0 < method["weight_on_bad"]["mean"] < 1
