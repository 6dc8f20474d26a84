"""The command, as a user types it."""

import subprocess
import sys

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
