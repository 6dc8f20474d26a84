"""Rules, problems, partitions and laws of the user's own, named in a spec."""

import contextlib
import importlib.metadata
import json
import os
import py_compile
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.core import plugins as own_code
from hewfl.core.atomic import read_checksums
from hewfl.core.plugins import absolute_name
from hewfl.errors import (
    DataError,
    InvalidInputError,
    MissingExtraError,
    RuleError,
)
from hewfl.experiments import Results, frame, run
from hewfl.experiments.executor import Progress
from hewfl.experiments.run import run_all
from hewfl.experiments.run_folder import (
    open_folder,
    read_partial_results,
    write_folder_checksums,
)
from hewfl.experiments.spec import USER_CODE, spec_from_table, write_spec
from hewfl.experiments.user_code import record_user_files, user_code_names

RULES = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from beside import SHARE
from hewfl import Aggregator, Decision, Demands, LocalPlan

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
class Pull:
    share: float = 0.4
    strength: float = 3.0
    def corrupt(self, displacements, t, rng, common):
        return -self.strength * displacements

@dataclass(frozen=True)
class Against:
    share: float = 0.4
    epsilon: float = 0.1
    def attack(self, view):
        return np.tile(-self.epsilon * view.mean, (view.b, 1))

@dataclass(frozen=True)
class Swap:
    share: float
    answer: str = "right"
    def relabel(self, labels, classes, rng):
        if self.answer == "short":
            return labels[1:]
        return labels + 1 if self.answer == "beyond" else (labels + 1) % classes

@dataclass(frozen=True)
class Shapeless(Pull):
    def corrupt(self, displacements, t, rng, common):
        return displacements[0]

@dataclass(frozen=True)
class Leaves(Pull):
    def corrupt(self, displacements, t, rng, common):
        raise SystemExit(3)

@dataclass(frozen=True)
class Hungry(Pull):
    def corrupt(self, displacements, t, rng, common):
        raise MemoryError("no room")

class Silent:
    share = 0.4
    def corrupt(self, displacements, t, rng, common):
        return displacements

@dataclass(frozen=True)
class Shareless:
    def corrupt(self, displacements, t, rng, common):
        return displacements

@dataclass(frozen=True)
class Idle:
    share: float = 0.4

@dataclass(frozen=True)
class Never(Aggregator):
    pass

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
    assert set(read_checksums(folder / "code.json")) == {
        "code/rules.py",
        "code/beside.py",
    }
    assert (folder / "code" / "rules.py").read_text() == RULES
    assert str(place) not in (folder / "spec.toml").read_text()
    assert str(place) not in (folder / "tuned.toml").read_text()
    (place / "rules.py").unlink()  # a report loads no code
    assert open_folder(folder).results.labels == results.labels


def test_no_compiled_file_is_written_or_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (place / "beside.py").write_text("SHARE = 9.0\n")
    compiled = Path(str(py_compile.compile(str(place / "beside.py"), doraise=True)))
    stamp = (place / "beside.py").stat()
    (place / "beside.py").write_text("SHARE = 1.0\n")  # of the same length and time
    os.utime(place / "beside.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    left = compiled.read_bytes()
    own_code.load("rules.py:Mine", "hewfl.methods", "method")
    assert sys.modules["beside"].__dict__["SHARE"] == 1.0
    assert compiled.read_bytes() == left
    run(asked())
    (folder,) = (place / "runs").iterdir()
    assert not list(folder.rglob("*.pyc"))
    assert not sys.dont_write_bytecode


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
    "method": lambda code, more: {
        "methods": [{"method": code, "label": "FedAvg"} | more]
    },
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
    last = {field.removesuffix("[]").rpartition(".")[2] for field in USER_CODE}
    assert last == set(PLACES)


PLANTED = "open('trace', 'w').close()\nCode = dict\n"
"""A module that writes a file when it is imported."""
CODES = ("os:system", "planted.py:Code", "planted:Code", "holder.inner:Code", "Entry")
READING = (
    ["ls", "runs"],
    ["report", "RUN", "-o", "page.html"],
    ["table", "RUN"],
    ["table", "RUN", "--by", "client"],
    ["resume", "RUN"],
    ["run", "RUN/spec.toml"],
    ["run", "RUN/tuned.toml"],
)
"""What reads a finished run."""


@pytest.fixture
def planted(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that tell when they are imported: files, a package, an entry point."""
    monkeypatch.syspath_prepend(str(place))
    (place / "planted.py").write_text(PLANTED)
    (place / "holder").mkdir()
    (place / "holder" / "__init__.py").write_text(PLANTED)
    (place / "holder" / "inner.py").write_text(PLANTED)
    offered = {"Entry": importlib.metadata.EntryPoint("Entry", "planted:Code", "any")}
    monkeypatch.setattr(own_code, "entry_points", lambda _: offered)
    return place


def changed_spec(folder: Path, field: str, code: str, place: Path) -> None:
    """Write a run's spec with code in one field."""
    more = {"command": "touch trace"} if code == "os:system" else {}
    code = str(absolute_name(code, place)) if code.endswith("py:Code") else code
    table = tomllib.loads((folder / "spec.toml").read_text())
    for name, value in PLACES[field](code, more).items():
        table[name] = table[name] | value if isinstance(value, dict) else value
    (folder / "spec.toml").write_text(tomli_w.dumps(table))


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("field", PLACES)
@pytest.mark.parametrize("code", CODES)
def test_reading_a_run_runs_no_code(
    field: str, code: str, is_recorded: bool, planted: Path
) -> None:
    run(asked(methods=[{"method": "FedAvg", "step_scale": 0.1}]))
    (folder,) = (planted / "runs").iterdir()
    changed_spec(folder, field, code, planted)
    spec = open_folder(folder).spec
    assert len(user_code_names(spec)) == 1
    if is_recorded:  # as the author of a run would send it: finished and sealed
        folder = folder.rename(folder.with_name(f"{spec.name}-{spec.digest}"))
        record_user_files(folder, spec)
        write_folder_checksums(open_folder(folder))
        assert open_folder(folder).is_whole
        changed = json.loads((folder / "summary.json").read_text())
        assert open_folder(folder).summary == changed
    read_in_python(folder)
    for command in READING:
        words = [word.replace("RUN", str(folder)) for word in command]
        result = CliRunner().invoke(app, words)
        assert not (planted / "trace").exists(), (words, result.output)
        if is_recorded and words[0] in ("ls", "report", "table", "resume"):
            assert result.exit_code == 0, (words, result.output)
        if not is_recorded and words[0] == "ls":
            break  # the others may run what is not finished


def read_in_python(folder: Path) -> None:
    """Read all that Python can read of a run, damaged or not."""
    opened = open_folder(folder)
    readers = (
        lambda: opened.results.frame("polars"),
        lambda: opened.summary,
        lambda: (opened.tuned, opened.choices, opened.is_done),
        lambda: read_partial_results(opened),
        lambda: write_spec(opened.spec),
    )
    for read in readers:
        with contextlib.suppress(DataError, MissingExtraError):
            read()


def test_the_planted_module_would_tell(planted: Path) -> None:
    with pytest.raises((InvalidInputError, RuleError)):
        run(asked(methods=[{"method": "planted:Code"}]))
    assert (planted / "trace").exists()


@pytest.mark.parametrize("name", ["times.json", "summary.json", "checksums.json"])
def test_what_is_written_again_without_code(name: str, place: Path) -> None:
    run(asked())
    (folder,) = (place / "runs").iterdir()
    before = files_below(folder)
    (folder / "code" / "rules.py").read_text()
    marker = "open('trace', 'w').close()\n"
    (folder / "code" / "beside.py").write_text(marker)
    for each in (name, "checksums.json", "code.json"):
        (folder / each).unlink(missing_ok=True)
    run_all([open_folder(folder)], jobs=0, progress=Progress())
    assert not (place / "trace").exists()
    assert set(files_below(folder)) == set(before)


def test_nothing_of_installed_code_is_imported_to_find_its_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(place))
    (place / "outer").mkdir()
    (place / "outer" / "__init__.py").write_text("open('trace', 'w')\n")
    (place / "outer" / "inner.py").write_text("class Rule: ...\n")
    files = own_code.code_files("outer.inner:Rule", "hewfl.methods")
    assert files == (place / "outer" / "inner.py",)
    assert own_code.code_files("outer.nothing:Rule", "hewfl.methods") == ()
    assert own_code.code_files("outer.inner.deeper:Rule", "hewfl.methods") == ()
    assert not (place / "trace").exists()


# ------------------------------------------------------------------ faults


def with_faults(*faults: Any, n: int = 5) -> dict[str, Any]:
    clients = {"n": n, "batch_size": 4, "scenario": {"faults": list(faults)}}
    method = {"method": "UniformLocalSGD", "step_scale": 0.2}
    return asked(clients=clients, methods=[method])


def test_a_fault_of_ones_own_acts_and_is_kept(place: Path) -> None:
    ours = {"kind": "ScaledUpdates", "share": 0.4, "factor": -3.0}
    expected = run(with_faults(ours))
    own = {"kind": "rules:Pull", "strength": 3.0}
    results = run(with_faults(own) | {"name": "pulled"})
    assert results.records[0][0][0].scenario == expected.records[0][0][0].scenario
    for quantity in ("objective", "pooled"):
        curves = [
            each.curve("UniformLocalSGD", quantity) for each in (results, expected)
        ]
        np.testing.assert_array_equal(curves[0], curves[1])
    (folder,) = (place / "runs").glob("pulled-*")
    assert (folder / "code" / "rules.py").read_text() == RULES
    swapped = run(with_faults({"kind": "rules.py:Swap", "share": 0.2}))
    assert len(swapped.records[0][0][0].scenario["faulty"]) == 1


def test_an_attack_of_ones_own_sees_everything_and_is_kept(place: Path) -> None:
    expected = run(with_faults({"kind": "IPM", "share": 0.4}))
    own = {"kind": "rules:Against"}
    results = run(with_faults(own) | {"name": "against"})
    sleeping = {"kind": "Sleeper", "rounds": 1, "base": own | {"share": 0.4}}
    slept = run(with_faults(sleeping) | {"name": "slept"})
    curves = [r.curve("UniformLocalSGD", "objective") for r in (results, expected)]
    np.testing.assert_array_equal(curves[0], curves[1])
    later = slept.curve("UniformLocalSGD", "objective")
    assert not np.array_equal(later, curves[0])
    for name in ("against", "slept"):
        (folder,) = (place / "runs").glob(f"{name}-*")
        assert (folder / "code" / "rules.py").read_text() == RULES


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "rules:Idle"}, r"kind` must be a fault or an attack with .*has no "),
        ({"kind": "rules:Shareless"}, "which has no `share`"),
        ({"kind": "rules:Silent"}, "shows its hyper-parameters by `repr`"),
        ({"kind": "rules:Nobody"}, r"faults\[0\].kind` .*no attribute 'Nobody'"),
        ({"kind": "rules:Pull", "x": 1}, r"faults\[0\].x` must be one of share, str"),
        ({"kind": "rules:Pull", "share": 0.05}, "on at least one of 5 clients"),
        ({"kind": "rules:Pull", "share": 1.0}, "share` must be from 0 to below 1"),
        ({"kind": "rules:Pull", "share": 0.95}, "one of 5 is honest"),
        ({"kind": "Pull"}, "one of .*ScaledUpdates.*; got 'Pull'"),
        ({"kind": "rules:Shapeless"}, r"updates of Shapeless` must be .* got dtype"),
        (
            {"kind": "rules:Swap", "share": 0.2, "answer": "short"},
            "labels of Swap` must be .* whole numbers below 10",
        ),
        (
            {"kind": "rules:Swap", "share": 0.2, "answer": "beyond"},
            "labels of Swap` must be .* whole numbers below 10",
        ),
        ({"kind": "rules:Leaves"}, "own, seed 0: code of your own .* SystemExit: 3"),
        ({"kind": "rules:Hungry"}, "own, seed 0: code of your own .*Error: no room"),
    ],
)
def test_mistakes_in_faults_are_named(fault: Any, told: str, place: Path) -> None:
    with pytest.raises((InvalidInputError, RuleError), match=told):
        run(with_faults(fault))
    assert not (place / "runs").exists() or not any((place / "runs").iterdir())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"clients": {"n": 3, "local_steps": "rules:Mine"}},
            "step_scale` must be given|smoothness` must be given",
        ),
        (
            {"clients": {"n": 3, "local_steps": "rules:Idle"}},
            "a law with `draw`; got Idle.* which has no `draw`",
        ),
        (
            {"clients": {"n": 3, "participation": "rules:Idle"}},
            "with `draw`, or `draw_after`; got Idle.*has no `draw` or `draw_after`",
        ),
        (
            {"problem": {"factory": "rules:Idle", "solve_optimum": False}},
            "problem.factory` must be code .*; got Idle.* has no .*, `objectives`",
        ),
        ({"methods": [{"method": "rules:Idle"}]}, "Idle.*has no .*`plan`, `decide`"),
        (
            {"methods": [{"method": "rules:Never", "learning_rate": 0.1}]},
            "an aggregator with `decide`; got Never.* which has no `decide`",
        ),
    ],
)
def test_a_wrong_class_is_refused_with_what_it_lacks(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        run(asked(**changes))


# ------------------------------------------------------------------ elsewhere


def everywhere(place: Path) -> dict[str, Any]:
    """A spec with code of every kind but modules, from two folders."""
    (place / "laws").mkdir()
    laws = RULES.replace("class Odd", "class Law").replace("from beside", "from other")
    (place / "laws" / "mine.py").write_text(laws)
    (place / "laws" / "other.py").write_text("SHARE = 1.0\n")
    (place / "parts").mkdir()
    (place / "parts" / "rules.py").write_text(RULES.replace("beside", "pack.deep"))
    (place / "parts" / "pack").mkdir()
    (place / "parts" / "pack" / "__init__.py").write_text("")
    (place / "parts" / "pack" / "deep.py").write_text("SHARE = 1.0\n")
    clients = {"n": 5, "batch_size": 4, "partition": "parts/rules.py:halves"}
    clients |= {"local_steps": {"kind": "laws/mine.py:Law", "most": 2}}
    clients |= {"participation": "rules:Early"}
    clients |= {"scenario": {"faults": [{"kind": "rules.py:Pull"}]}}
    problem = {"factory": "rules:softmax", "options": {"l2": 0.05}}
    return asked(clients=clients, problem=problem, rounds=3)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != "times.json"
    }


def test_a_run_is_read_and_resumed_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = everywhere(place)
    run(table)
    (folder,) = (place / "runs").iterdir()
    before = files_below(folder)
    assert {"code/rules.py", "code/2/mine.py", "code/3/pack/deep.py"} <= set(before)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    moved = folder.rename(elsewhere / folder.name)
    for each in place.glob("*.py"):
        each.unlink()
    for name in ("laws", "parts", "runs"):
        shutil.rmtree(place / name)
    monkeypatch.chdir(elsewhere)
    page = CliRunner().invoke(app, ["report", str(moved), "-o", "page.html"])
    assert page.exit_code == 0, page.output
    assert CliRunner().invoke(app, ["resume", str(moved)]).exit_code == 0
    for name in ("seed-0", "summary.json", "checksums.json"):
        shutil.rmtree(moved / name) if name == "seed-0" else (moved / name).unlink()
    resumed = CliRunner().invoke(app, ["resume", str(moved), "--jobs", "1"])
    assert resumed.exit_code == 0, resumed.output
    assert files_below(moved) == before
    tuned = CliRunner().invoke(app, ["ls", str(elsewhere)])
    assert "done" in tuned.output


def test_the_name_of_a_run_does_not_depend_on_its_place(place: Path) -> None:
    digests = []
    for name in ("a", "b"):
        (place / name).mkdir()
        (place / name / "rules.py").write_text(RULES)
        (place / name / "beside.py").write_text("SHARE = 1.0\n")
        digests.append(spec_from_table(asked(), place / name).digest)
    assert digests[0] == digests[1]
    run(spec_from_table(asked(), place / "a"))
    (place / "b" / "beside.py").write_text("SHARE = 0.5\n")
    with pytest.raises(DataError, match=r"b/beside.py has changed since the run"):
        run(spec_from_table(asked(), place / "b"))


def test_files_of_one_name_are_not_mixed(place: Path) -> None:
    finals = []
    for share in (1.0, 0.5, 0.25):
        (place / "beside.py").write_text(f"SHARE = {share}\n")
        results = run(asked(name=f"share-{share}"))
        finals.append(results.final("Mine", "objective")[0])
    assert len(set(finals)) == 3
    (place / "b").mkdir()
    (place / "b" / "rules.py").write_text(RULES)
    (place / "b" / "beside.py").write_text("SHARE = 1.0\n")
    again = run(spec_from_table(asked(name="again"), place / "b"))
    assert again.final("Mine", "objective")[0] == finals[0]


def test_a_copy_that_is_damaged_is_named(place: Path) -> None:
    run(asked())
    (folder,) = (place / "runs").iterdir()
    for name in ("summary.json", "checksums.json"):
        (folder / name).unlink()
    (folder / "seed-0" / "trace.jsonl").unlink()
    copy, text = folder / "code" / "rules.py", RULES + "# edited"
    copy.write_text(text)
    for given in (folder, asked()):
        with pytest.raises(DataError, match=r"rules.py has changed since the run"):
            run(given)
    copy.unlink()
    with pytest.raises(DataError, match=r"rules.py is missing: put it back, or run"):
        run(folder)
    assert "is missing: put it" in " ".join(
        CliRunner().invoke(app, ["ls"]).output.split()
    )
    assert run(asked()).labels == ("Mine",)
    assert copy.read_text() == RULES
