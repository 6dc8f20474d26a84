"""Options of `hewfl run` and `tune`, without running anything."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from hewfl.cli import run_commands as run
from hewfl.errors import DataError
from hewfl.experiments.spec import Spec

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MODULE = str(RESULTS / "head" / "spec.toml")
runner = CliRunner()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """The specs that commands would have run."""
    found: list[Spec] = []

    def keep(spec: Spec, _: Path) -> Any:
        found.append(spec)
        raise DataError("enough")

    monkeypatch.setattr(run, "folder_for", keep)
    return found


@pytest.mark.parametrize("words", [["run", MODULE], ["tune", MODULE]])
@pytest.mark.parametrize(("given", "meant"), [("7", 7), ("auto", "auto")])
def test_client_chunk_sets_the_field(
    asked: list[Spec], words: list[str], given: str, meant: object
) -> None:
    result = runner.invoke(app, [*words, "--client-chunk", given])
    assert "error: enough" in result.output
    (spec,) = asked
    assert spec.problem.client_chunk == meant


def test_client_chunk_goes_before_the_file(asked: list[Spec]) -> None:
    changed = ["--set", "problem.client_chunk=5"]
    runner.invoke(app, ["run", MODULE, *changed])
    runner.invoke(app, ["run", MODULE, *changed, "--client-chunk", "auto"])
    assert [spec.problem.client_chunk for spec in asked] == [5, "auto"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", MODULE, "--client-chunk", "0"], "\"auto\" or at least 1; got '0'"),
        (["run", MODULE, "--client-chunk", "-1"], "\"auto\" or at least 1; got '-1'"),
        (
            ["tune", MODULE, "--client-chunk", "few"],
            "\"auto\" or at least 1; got 'few'",
        ),
    ],
)
def test_client_chunk_is_refused_by_name(
    asked: list[Spec], words: list[str], told: str
) -> None:
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert f"error: `--client-chunk` must be {told}" in result.output
    assert asked == []
