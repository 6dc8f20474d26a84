"""Hundreds of malformed specs: each is refused by one line that names the field."""

import dataclasses
import datetime
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.errors import HewError
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import SECTIONS, Spec, spec_from_table
from hewfl.experiments.spec_lint import refuse_unused_fields
from hewfl.experiments.user_code import load_user_code
from tests.experiments.runs import TEXT, table

ODD: tuple[Any, ...] = (
    *(-1, 0, 10**18, 2.5, math.nan, math.inf, -math.inf, True),
    *("", "x", "a\nb", "no_such:Thing", "no_such.py:Thing", ":", "a:", ":b"),
    *([], [None], ["x"], [-1], [[1]], {}, {"kind": "x"}, {"kind": []}, {"x": 1}),
    datetime.date(2026, 1, 1),
)
RULES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"nesterov": True}, "nesterov` must be left out without `momentum`"),
    ({"grid": {"step_scale": [0.1, 0.1]}}, "must be different values, each tried once"),
    ({"grid": {"step_scale": []}}, "must be a list of values"),
    ({"grid": {"step_scale": 0.1}}, "must be a list of values"),
    ({"grid": 3}, "must be a table of lists"),
    ({"grid": {"x": [1]}}, "must be one of"),
    ({"label": "two\nlines"}, "label` must be text on one line"),
    ({"label": ""}, "label` must be text on one line"),
    ({"step_scale": -1.0}, "step_scale"),
    ({"step_scale": "x"}, "step_scale` must be a number"),
    ({"momentum": 1.0}, "momentum"),
    ({"grid": {"momentum": [0.5]}, "momentum": 0.1}, "either given or in the grid"),
    ({"average_share": 2.0, "average": "tail"}, "average_share` must be at most 1"),
    ({"ground": "equal"}, "ground` no longer exists: use `amplitude`"),
    ({"amplitude": 1.0}, "exactly one of"),
)


def judged(given: dict[str, Any], place: Path) -> str | None:
    """What is said of a table; None if it is a spec that can be run."""
    try:
        spec = spec_from_table(given, place)
        refuse_unused_fields(spec)
        load_user_code(folder_for(spec, place).spec)
    except HewError as error:
        return str(error)
    return None


def fields() -> list[tuple[str, str]]:
    top = [("", f.name) for f in dataclasses.fields(Spec)]
    inner = [(s, f.name) for s, r in SECTIONS.items() for f in dataclasses.fields(r)]
    return top + inner


@pytest.mark.unchecked
@pytest.mark.parametrize("count", [6, pytest.param(len(ODD), marks=pytest.mark.sweep)])
def test_every_field_with_every_odd_value(tmp_path: Path, count: int) -> None:
    rng, refused = random.Random(19), 0
    for section, name in fields():
        for value in rng.sample(ODD, count):
            given = table()
            if section:
                given[section] = {**given.get(section, {}), name: value}
            else:
                given[name] = value
            told = judged(given, tmp_path)
            if told is not None:
                refused += 1
                assert "\n" not in told, told
                assert name in told, (section, name, value, told)
                assert len(told) < 1500
    assert refused > 0.7 * count * len(fields())  # the others are specs, if strange


@pytest.mark.parametrize(("change", "told"), RULES, ids=lambda v: str(v)[:40])
def test_rules_of_methods(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    method = {"method": "FedAvg", "step_scale": 0.1} | change
    if "step_scale" in str(change.get("grid")):
        del method["step_scale"]
    found = judged({"name": "a", "methods": [method]}, tmp_path)
    assert found is not None
    assert told in found


def test_a_probability_of_nobody(tmp_path: Path) -> None:
    law = {"kind": "RandomParticipation", "probability": 0.0}
    given = table()
    given["clients"]["participation"] = law
    assert "probability` must be above 0" in str(judged(given, tmp_path))


TEXTS = (
    "",
    "name",
    'name = "a"\nname = "b"',
    "[[methods]",
    "rounds = 1e",
    'name = "a"\n[methods]\nmethod = "FedAvg"',
    "\x00",
    "methods = 3",
    'methods = ["FedAvg"]',
    "data = 3\n" + TEXT.replace("[data]", "[other]"),
)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_that_is_no_spec(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "a.toml")])
    assert result.exit_code in (1, 2)
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_the_table_is_a_spec(tmp_path: Path) -> None:
    assert judged(tomllib.loads(TEXT), tmp_path) is None
