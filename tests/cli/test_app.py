"""The command, as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hewfl import __version__
from hewfl.cli import app

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["version"])
    assert result.exit_code == 0
    assert __version__ in result.output


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "hewfl.cli", "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


def test_help_names_every_command() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    commands = ("demo", "run", "tune", "resume", "ls", "report", "paper", "certify")
    for name in (*commands, "study", "data", "spec", "version"):
        assert name in result.output


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["run", "a.toml", "--root", "here"], "is now --runs-dir"),
        (["tune", "a.toml", "--root=here"], "is now --runs-dir"),
        (["paper", "fig1", "--root", "here"], "is now --runs-dir"),
        (["report", "here", "--every", "3"], "is now --interval"),
        (["data", "show", "a.csv", "--label", "y"], "is now --label-column"),
        (["data", "show", "a.csv", "--client", "c"], "is now --client-column"),
        (["data", "show", "--minimum", "2"], "is now --min-samples"),
        (["data", "show", "--per-client", "2"], "is now --classes-per-client"),
        (["data", "encode", "ag_news"], "examples/encode_texts.py"),
        (["ls", "--root", "here"], "hewfl ls FOLDER"),
        (["resume", "here", "--root", "there"], "No such option"),
    ],
)
def test_an_old_option_is_refused_by_an_error_that_names_the_new_one(
    words: list[str], new: str
) -> None:
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert new in " ".join(result.output.replace("│", " ").split())


def test_without_a_checkout_the_reproduction_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site" / "hewfl" / "__init__.py"
    monkeypatch.setattr("hewfl.__file__", str(place))
    for command in ("paper", "study"):
        result = runner.invoke(app, [command, "--quick"])
        assert result.exit_code == 1
        assert f"python -m reproduce {command}" in result.output
        assert len(result.output.splitlines()) == 1
