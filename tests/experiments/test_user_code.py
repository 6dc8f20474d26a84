"""Rules, problems, partitions and laws of the user's own, named in a spec."""

import importlib.metadata
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.core import plugins as own_code
from hewfl.core.plugins import absolute_name
from hewfl.errors import DataError, InvalidInputError, RuleError
from hewfl.experiments import Results, frame, run
from hewfl.experiments.run_folder import open_folder
from hewfl.experiments.spec import USER_CODE

RULES = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from beside import SHARE
from hewfl import Decision, Demands, LocalPlan

@dataclass(frozen=True)
class Mine:
    smoothness: float
    step_scale: float
    tilt: float = 0.0
    name: ClassVar[str] = "Mine"
    demands: ClassVar[Demands] = Demands()

    def __post_init__(self):
        if self.tilt < 0:
            raise ValueError("tilt is negative")

    def init(self, n, d, gradients):
        return None

    def plan(self, cohort, state):
        step = self.step_scale / self.smoothness
        return LocalPlan(np.full(len(cohort.clients), step))

    def decide(self, round_, state):
        s = len(round_.cohort.clients)
        if self.tilt == 9 and round_.cohort.round == 1:
            return Decision(np.full(s + 1, SHARE / s), "one too many"), state
        return Decision(np.full(s, SHARE / s), "equal"), state

def made(step_scale=0.2):
    return Mine(1.0, step_scale)

class Plain:
    name, demands = "Plain", Demands()
    init = plan = decide = None

def halves(labels, n, seed, turn=0):
    return np.array_split(np.roll(np.arange(len(labels)), turn), n)

def twice(labels, n):
    return [np.arange(len(labels))] * n

@dataclass(frozen=True)
class Odd:
    most: int = 3
    def draw(self, seed, t, sizes, batches):
        return 1 + np.arange(len(sizes)) % self.most

@dataclass(frozen=True)
class Early:
    def draw(self, seed, t, n):
        return np.arange(n - 1)

def softmax(data, l2=0.1):
    from hewfl.problems import softmax_from_arrays
    X, y = data.features, data.labels
    return softmax_from_arrays(X, y, data.shards, l2=l2, test=data.test)
"""
MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self, features, classes, width=4):
        super().__init__()
        nn = torch.nn
        ends = nn.Linear(features, width), nn.Linear(width, classes)
        self.layers = nn.Sequential(ends[0], nn.ReLU(), ends[1])
    def forward(self, x):
        return self.layers(x)
"""
MINE = {"method": "rules:Mine", "step_scale": 0.2}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "beside.py").write_text("SHARE = 1.0\n")
    (tmp_path / "nets.py").write_text(MODEL)
    return tmp_path


def asked(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "own",
        "rounds": 2,
        "seeds": [0],
        "data": {"subsample": 120},
        "clients": {"n": 3, "batch_size": 4},
        "problem": {"solve_optimum": False},
        "tune": {"rounds": 1, "seeds": [0]},
        "methods": [MINE],
    }
    return base | changes


def test_an_own_rule_is_tuned_run_and_read(place: Path) -> None:
    tuned = {"method": "rules:Mine", "grid": {"step_scale": [0.1, 0.3], "tilt": [0.0]}}
    same = {"method": "UniformLocalSGD", "step_scale": 0.3}
    results = run(asked(methods=[tuned, same]))
    assert results.labels == ("Mine", "UniformLocalSGD")
    mine, ours = (results.curve(label, "objective") for label in results.labels)
    assert mine.shape == (1, 3)
    if results.spec.methods[0].parameters["step_scale"] == 0.3:
        np.testing.assert_allclose(mine, ours, rtol=1e-6)
    (folder,) = (place / "runs").iterdir()
    kept = json.loads((folder / "code.json").read_text())
    assert {Path(file).name for file in kept} == {"rules.py", "beside.py"}
    assert (folder / "code" / "rules.py").read_text() == RULES
    (place / "rules.py").unlink()  # a report loads no code
    assert open_folder(folder).results.labels == results.labels


def test_worker_processes_find_the_code(place: Path) -> None:
    (place / "specs").mkdir()
    for name in ("rules.py", "beside.py"):
        (place / name).rename(place / "specs" / name)
    text = 'name = "x"\nrounds = 1\nseeds = [0]\n[data]\nsubsample = 90\n'
    text += "[clients]\nn = 3\n[problem]\nsolve_optimum = false\n"
    text += '[[methods]]\nmethod = "rules:Mine"\nstep_scale = 0.1\n'
    (place / "specs" / "a.toml").write_text(text)
    assert run("specs/a.toml", jobs=1).labels == ("Mine",)


@pytest.mark.parametrize("name", ["rules.py", "beside.py"])
def test_changed_code_is_refused(place: Path, name: str) -> None:
    run(asked())
    text = (place / name).read_text()
    (place / name).write_text(text + "\n# a word more\n")
    with pytest.raises(DataError, match=f"{name} has changed since the run .* began"):
        run(asked())
    (place / name).write_text(text)
    assert run(asked()).labels == ("Mine",)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": [MINE | {"method": "rules:Nobody"}]}, "has no attribute 'Nobody'"),
        ({"methods": [MINE | {"method": "nowhere:Mine"}]}, "No module named 'nowhere'"),
        ({"methods": [MINE | {"method": "rules:RULES"}]}, "has no attribute 'RULES'"),
        ({"methods": [MINE | {"method": "rules:np.pi"}]}, "a class or a function"),
        ({"methods": [MINE | {"tlit": 1.0}]}, "tlit` must be one of .*mean `tilt`"),
        ({"methods": [MINE | {"grid": {"x": [1]}}]}, "grid.x` must be one of"),
        ({"methods": [{"method": "rules:Mine"}]}, "step_scale` must be given"),
        ({"methods": [MINE | {"tilt": "x"}]}, "tilt` must be a number; got 'x'"),
        ({"methods": [MINE | {"tilt": -1.0}]}, "ValueError: tilt is negative"),
        ({"methods": [{"method": "rules:Plain"}]}, "must be one that shows its hyper"),
        ({"methods": [{"method": "rules:halves"}]}, "labels` must be given"),
        ({"clients": {"n": 3, "partition": "rules:twice"}}, "each of the 96 rows once"),
        (
            {"clients": {"local_steps": "rules:Early"}},
            "own, seed 0: .*takes 4 positional",
        ),
        (
            {"clients": {"local_steps": {"kind": "rules:Odd", "x": 1}}},
            "x` must be one of",
        ),
        (
            {"problem": {"factory": "rules:halves", "solve_optimum": False}},
            "given; got nothing",
        ),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], told: str, place: Path) -> None:
    with pytest.raises((InvalidInputError, RuleError), match=told) as caught:
        run(asked(**changes))
    assert "\n" not in str(caught.value)
    assert not (place / "runs").exists() or not any((place / "runs").iterdir())


def test_a_faulty_rule_names_run_seed_entry_and_round() -> None:
    told = "own, seed 0, entry 'mine', round 2, decide: the rule .*Mine is wrong: "
    with pytest.raises(RuleError, match=told):
        run(asked(methods=[MINE | {"tilt": 9.0, "label": "mine"}]))


def test_own_partitions_laws_and_problems() -> None:
    clients = {"n": 3, "batch_size": 4, "partition": "rules:halves"}
    clients |= {"options": {"turn": 5}, "participation": "rules:Early"}
    clients |= {"local_steps": {"kind": "rules:Odd", "most": 2}}
    problem = {"factory": "rules:softmax", "options": {"l2": 0.05}}
    results = run(asked(clients=clients, problem=problem))
    record = results.records[0][0][1]
    assert record.clients == (0, 1)
    assert record.horizons == (1, 2)
    assert results.constants[0]["samples"] == [32, 32, 32]
    assert results.final("Mine", "gap")[0] > 0
    made = run(asked(methods=[{"method": "rules:made", "step_scale": 0.1}], name="m"))
    assert made.labels == ("made",)


@pytest.mark.torch
def test_an_own_module(place: Path) -> None:  # noqa: ARG001 - where it lies
    pytest.importorskip("torch")
    problem = {"model": "nets:Net", "options": {"width": 3}, "learning_rate": 0.1}
    results = run(asked(problem=problem, methods=[{**MINE, "step_scale": 1.0}]))
    assert results.constants[0]["d"] == 64 * 3 + 3 + 3 * 10 + 10
    assert np.isfinite(results.final("Mine", "test_loss")).all()


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.syspath_prepend(str(place))
    point = importlib.metadata.EntryPoint("Theirs", "rules:Mine", "hewfl.methods")

    def offered(group: str) -> dict[str, Any]:
        return {"Theirs": point} if group == "hewfl.methods" else {}

    monkeypatch.setattr(own_code, "entry_points", offered)
    results = run(asked(methods=[{"method": "Theirs", "step_scale": 0.2}]))
    assert results.labels == ("Theirs",)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tidy_rows(library: Any) -> None:
    pytest.importorskip(library)
    results: Results = run(asked())
    found = results.frame(library)
    names = ["panel", "method", "seed", "round", "quantity", "value"]
    assert list(found.columns) == names
    both = frame([results, results], library)
    assert len(both) == 2 * len(found)
    rows = [dict(zip(names, row, strict=True)) for row in _rows(found)]
    kept = [r for r in rows if r["quantity"] == "objective"]
    assert [r["round"] for r in kept] == [0, 1, 2]
    assert [r["value"] for r in kept] == results.curve("Mine", "objective")[0].tolist()
    assert {r["panel"] for r in rows} == {"own"}
    with pytest.raises(InvalidInputError, match='`library` must be "pandas" or'):
        results.frame("numpy")


def _rows(found: Any) -> Any:
    return found.iter_rows() if hasattr(found, "iter_rows") else found.values.tolist()


PLACES: dict[str, Any] = {
    "method": lambda code, more: {"methods": [{"method": code} | more]},
    "partition": lambda code, more: {"clients": {"partition": code, "options": more}},
    "local_steps": lambda code, more: {
        "clients": {"local_steps": {"kind": code} | more}
    },
    "participation": lambda code, more: {
        "clients": {"participation": {"kind": code} | more}
    },
    "faults": lambda code, more: {
        "clients": {"scenario": {"faults": [{"kind": code} | more]}}
    },
    "model": lambda code, more: {"problem": {"model": code, "options": more}},
    "factory": lambda code, more: {"problem": {"factory": code, "options": more}},
}
"""Every field of a spec that names code."""


def test_every_field_of_user_code_is_planted() -> None:
    assert {name for _, name in USER_CODE} <= set(PLACES)


@pytest.mark.parametrize("field", PLACES)
@pytest.mark.parametrize("code", ["os:system", "planted.py:Code"])
def test_reading_a_run_runs_no_code(field: str, code: str, place: Path) -> None:
    run(asked(methods=[{"method": "FedAvg", "step_scale": 0.1}]))
    (folder,) = (place / "runs").iterdir()
    (place / "planted.py").write_text("open('trace', 'w')\nCode = dict\n")
    more = {"command": "touch trace"} if code == "os:system" else {}
    code = str(absolute_name(code, place))
    table = tomllib.loads((folder / "spec.toml").read_text())
    for name, value in PLACES[field](code, more).items():
        table[name] = table[name] | value if isinstance(value, dict) else value
    (folder / "spec.toml").write_text(tomli_w.dumps(table))
    for words in (["ls", "runs"], ["report", str(folder), "-o", "page.html"]):
        CliRunner().invoke(app, words)
        assert not (place / "trace").exists(), words


def test_a_fault_of_ones_own_is_refused() -> None:
    clients = {"n": 3, "scenario": {"faults": [{"kind": "rules:Odd"}]}}
    with pytest.raises(InvalidInputError, match=r"faults\[0\].kind.*HiddenBatches"):
        run(asked(clients=clients))
