"""What options of `hewfl run`, `tune` and `paper` come to, without running anything."""

from pathlib import Path
from typing import Any

import pytest
from reproduce import commands as paper
from reproduce import parts
from reproduce.claims import Claim
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
    monkeypatch.setattr(paper, "folder_for", keep)
    return found


@pytest.mark.parametrize(
    "words", [["run", MODULE], ["tune", MODULE], ["paper", "fig3"], ["paper", "fig6"]]
)
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
        *(
            (["paper", figure, "--client-chunk", "auto"], "left out: problem.model = ")
            for figure in ("fig1", "fig2", "all", "wide", "extended")
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


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        (("fig1",), "fig1"),
        (("fig2",), "fig2"),
        (("all",), "main"),
        (("fig3", "fig4"), "head"),
        (("fig5", "fig6"), "cnn"),
        (("wide",), "wide"),
        (("extended",), "extended"),
    ],
)
def test_each_part_of_the_paper_has_its_folder(
    monkeypatch: pytest.MonkeyPatch, figures: tuple[str, ...], part: str
) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        """Instead of the run."""

    def publish(*given: Any, is_quick: bool, **_: Any) -> list[Any]:
        outputs.append((given[-1], is_quick))
        return []

    outputs: list[tuple[Path, bool]] = []
    monkeypatch.setattr(paper, "require_extras", nothing)
    monkeypatch.setattr(paper, "execute", nothing)
    monkeypatch.setattr(paper, "publish", publish)
    for figure in figures:
        result = runner.invoke(app, ["paper", figure])
        assert f"figures and tables in paper/{part}" in result.output
    runner.invoke(app, ["paper", figures[0], "--quick"])
    runner.invoke(app, ["paper", figures[0], "--quick", "--output", "mine"])
    home = Path("paper")
    small = [(home / f"{part}-quick", True), (Path("mine"), True)]
    assert outputs == [(home / part, False)] * len(figures) + small


@pytest.mark.parametrize(
    ("module", "words", "told"),
    [
        *(
            ("matplotlib", [figure], "figures need matplotlib: install")
            for figure in ("fig1", "fig2", "all", "fig3", "fig5", "extended")
        ),
        ("torch", ["fig4"], "paper fig4 needs PyTorch: install"),
        ("torch", ["fig6"], "paper fig6 needs PyTorch"),
        ("torch", ["extended", "--device", "cpu"], "extended --device cpu needs PyTor"),
        ("torch", ["fig1"], "it began"),
    ],
)
def test_what_is_not_installed_is_said_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch, module: str, words: list[str], told: str
) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise DataError("it began")

    def found(name: str) -> object:
        return None if name == module else object()

    monkeypatch.setattr(paper, "execute", begin)
    monkeypatch.setattr(parts, "find_spec", found)
    result = runner.invoke(app, ["paper", *words])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert told in result.output
    assert ("it began" in result.output) == (told == "it began")


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_claims_that_were_not_run_and_quick_runs_are_said(
    monkeypatch: pytest.MonkeyPatch, quick: list[str]
) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        """Instead of the run."""

    def publish(*_: Any, **__: Any) -> list[Claim]:
        return [Claim("A is ahead", "not run", "not run: A")]

    monkeypatch.setattr(paper, "execute", nothing)
    monkeypatch.setattr(paper, "require_extras", nothing)
    monkeypatch.setattr(paper, "publish", publish)
    result = runner.invoke(app, ["paper", "fig3", *quick])
    assert "A is ahead: not run\n" in result.output
    assert ("decides nothing" in result.output) == bool(quick)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "file",
    sorted(RESULTS.rglob("*.toml")),
    ids=lambda file: str(file.relative_to(RESULTS)),
)
def test_published_specs_can_be_run(file: Path) -> None:
    spec = run.read(file, [])
    assert spec.is_tuned or file.name == "spec.toml"
