"""What is installed by an extra may be absent: the rest works, and errors name it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.runs import TEXT

ROOT = Path(__file__).parents[2]
ALL = "torch,flwr,triton,transformers,matplotlib,pyarrow"


def without(
    packages: str, code: str, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A process of its own, for which the packages are not there."""
    script = Path(__file__).with_name("hidden.py")
    place = {} if folder is None else {"HEWFL_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-W", "error", str(script), packages, code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder or ROOT,
        env=os.environ | place | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )


def answer(packages: str, code: str, *arguments: str, **given: Any) -> Any:
    """What the code printed last, as JSON."""
    done = without(packages, code, *arguments, **given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------ imports

IMPORT_ALL = """
import importlib, json, sys
errors = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        errors[name] = [type(error).__name__, str(error)]
print(json.dumps(errors))
"""
NEEDS = {
    "torch": (
        "hewfl.torch",
        "hewfl.displacements.gpu",
        "hewfl.problems.module",
        "hewfl.experiments.build_torch_problem",
        "hewfl.flower.torch_client",
    ),
    "flwr": ("hewfl.flower",),
}
"""The modules that may ask for a package when they are imported, by how they begin."""
DOORS = {
    "torch": {
        "hewfl.torch",
        "hewfl.problems.module.torch_module",
    },
    "flwr": {"hewfl.flower", "hewfl.flower.strategy"},
}
"""Modules among them that certainly do."""


def modules() -> list[str]:
    """Every module of the library."""
    files = sorted((ROOT / "src" / "hewfl").rglob("*.py"))
    parts = [file.relative_to(ROOT / "src").with_suffix("").parts for file in files]
    names = [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts]
    return [name for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize(
    "hidden", ["torch", "flwr", "matplotlib,triton,transformers,pyarrow", ALL]
)
def test_only_what_needs_an_extra_fails_to_import(hidden: str) -> None:
    names = modules()
    prefixes = tuple(p for name in hidden.split(",") for p in NEEDS.get(name, ()))
    allowed = {name for name in names if prefixes and name.startswith(prefixes)}
    assert len(names) > 150
    assert len(allowed) < len(names) / 3
    errors = answer(hidden, IMPORT_ALL, json.dumps(names))
    assert set(errors) <= allowed
    assert set(errors) >= {m for n in hidden.split(",") for m in DOORS.get(n, ())}
    for name, (kind, text) in errors.items():
        assert kind == "MissingExtraError", (name, text)
        first = "flwr" in hidden and name.startswith("hewfl.flower")
        assert f"extra {'flower' if first else 'torch'}" in text, (name, text)


# ------------------------------------------------------------------ the rest works

SIMULATE = """
import json
from hewfl import ChoiceSteps, FedAvg, Federation, HewHet, HewHom, simulate
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.problems import random_quadratic
problem = random_quadratic(seed=0, n=5, d=6)
L = problem.smoothness
entries = [HewHet(L, 0.5), OnlineCurvature(HewHom(L, 0.5)), FedAvg(0.2 / L)]
trace = simulate(problem, Federation(ChoiceSteps(), 4), entries, rounds=8, seed=0)
print(json.dumps([trace.curve(k, "objective").tolist() for k in range(3)]))
"""


def test_simulate() -> None:
    for curve in answer(ALL, SIMULATE):
        assert len(curve) == 9
        assert curve[-1] < curve[0]


CERTIFY = """
import json
from hewfl.theory import Case, System, certify
case = Case(System(1.0, 1.0, [1, 2, 4, 8], 32, 1e-4))
print(json.dumps([row.label for row in certify(case, rounds=9).guarantees]))
"""
COMMAND = """
import sys
from hewfl.cli import app
code = app(sys.argv[1:], standalone_mode=False)
if code:
    sys.exit(code)
"""


def test_certify() -> None:
    assert "cor:realized-het-rate" in answer(ALL, CERTIFY)
    config = str(ROOT / "examples" / "certify.toml")
    short = ("--variants", "sharp", "--amplitude", "0.03")  # nothing is searched for
    arguments = ("certify", "--config", config, "--rounds", "9", "--json", *short)
    done = without(ALL, COMMAND, *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_run_and_report(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TEXT)
    arguments = ("run", "small.toml", "--jobs", "0")
    done = without(ALL, COMMAND, *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "after 6 rounds, 2 seeds" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert {m["label"] for m in summary["methods"]} == {"HEW", "HewHet", "FedAvgM"}
    arguments = ("report", str(folder), "-o", "page.html")
    assert without(ALL, COMMAND, *arguments, folder=tmp_path).returncode == 0
    assert "<html" in (tmp_path / "page.html").read_text()


SHORT_DEMO = """
import sys
from dataclasses import replace
from hewfl.cli import app
from hewfl.cli import demo as page
from hewfl.cli.demo import careless_spec, hostile_spec
from hewfl.experiments.spec_sections import TuneSpec
module = sys.modules["hewfl.cli.demo"]
def shortened(spec):
    return replace(spec, rounds=3, seeds=(0, 1), tune=TuneSpec(rounds=2, seeds=(0,)))
short = shortened(careless_spec()), shortened(hostile_spec())
module._specs = lambda: short
app(["demo", "--jobs", "0", "-o", "out"], standalone_mode=False)
"""


def test_the_demo_makes_its_page(tmp_path: Path) -> None:
    done = without(ALL, SHORT_DEMO, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Three of twenty clients have random labels: 5, 7 and 13" in done.stdout
    assert "details: out/report.html\n" in done.stdout


# ------------------------------------------------------------------ what is missed

MODULE = """
name = "module"
rounds = 2
seeds = [0]
[problem]
model = "medium_cnn"
learning_rate = 0.1
[[methods]]
method = "FedAvg"
step_scale = 1.0
"""


@pytest.mark.parametrize(
    ("text", "changes"),
    [(MODULE, ()), (TEXT, ("--set", "device=cpu"))],
    ids=["module", "tensors"],
)
def test_a_run_that_needs_torch_says_so(
    text: str, changes: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "spec.toml").write_text(text)
    arguments = ("run", "spec.toml", "--jobs", "0", *changes)
    done = without("torch", COMMAND, *arguments, folder=tmp_path)
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "extra torch" in output
    assert "Traceback" not in output


ASK = """
import importlib, json, sys
from hewfl import MissingExtraError
errors = []
for asked in sys.argv[1:]:
    module, name = asked.split()
    try:
        getattr(importlib.import_module(module), name)()
    except MissingExtraError as error:
        errors.append(str(error))
print(json.dumps(errors))
"""


@pytest.mark.parametrize(
    ("hidden", "extras"),
    [
        (
            "torch",
            {
                "hewfl.problems TorchModule": "extra torch",
                "hewfl.problems Training": "extra torch",
                "hewfl.torch HewLocalSGD": "extra torch",
            },
        ),
        ("flwr", {"hewfl.flower HewStrategy": "extra flower"}),
        ("matplotlib", {"hewfl.plotting import_matplotlib": "extra report"}),
    ],
)
def test_the_error_names_the_extra(hidden: str, extras: dict[str, str]) -> None:
    errors = answer(hidden, ASK, *extras)
    assert len(errors) == len(extras)
    for error, extra in zip(errors, extras.values(), strict=True):
        assert extra in error
