"""`hewfl methods`: every method with all its hyper-parameters."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.cli.method_list import read_sheet
from hewfl.cli.references import REFERENCES
from hewfl.experiments.method_spec import _parameters
from hewfl.methods.registry import METHODS

ROOT = Path(__file__).parents[2]
runner = CliRunner()


@pytest.mark.parametrize("name", METHODS)
def test_each_hyper_parameter_of_a_spec_is_told(name: str) -> None:
    told = read_sheet(name)
    assert told.sentence.endswith(".")
    assert all(one.meaning for one in told.parameters), told.parameters
    own = {one.name for one in told.parameters}
    assert own == set(_parameters(name))


def test_works_cited_are_those_of_the_bibliography() -> None:
    text = (ROOT / "PAPER.md").read_text(encoding="utf-8")
    for key, work in REFERENCES.items():
        row = next(x for x in text.splitlines() if x.startswith(f"| [{key}]"))
        title = work.split(". ")[1]
        assert title.rstrip(".").lower() in row.lower()
        assert work.split(",")[0].split(" et al")[0].split("-")[0] in row


def test_the_list_and_one_of_it() -> None:
    listed = runner.invoke(app, ["methods"], env={"COLUMNS": "120"}).output
    assert all(name in listed for name in METHODS)
    assert "McMahan 2017" in listed
    one = runner.invoke(app, ["methods", "krum"], env={"COLUMNS": "120"}).output
    assert "Blanchard et al." in one
    assert "0.25" in one  # the default of `f`
    assert "momentum" in one


def test_an_unknown_name_is_one_line() -> None:
    result = runner.invoke(app, ["methods", "Scafold"])
    assert result.exit_code == 2
    assert "did you mean `Scaffold`?" in result.output
    assert "now called krum" in runner.invoke(app, ["methods", "Krum"]).output
