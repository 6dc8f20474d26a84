"""Options of `python -m reproduce paper`, without running anything."""

from pathlib import Path
from typing import Any

import pytest
from reproduce import commands, parts
from reproduce.__main__ import app
from reproduce.claims import Claim
from typer.testing import CliRunner

from hewfl.errors import DataError
from hewfl.experiments.spec import Spec

runner = CliRunner()


@pytest.mark.parametrize("figure", ["fig3", "fig6"])
@pytest.mark.parametrize(("given", "meant"), [("7", 7), ("auto", "auto")])
def test_client_chunk_sets_the_field(
    monkeypatch: pytest.MonkeyPatch, figure: str, given: str, meant: object
) -> None:
    specs: list[Spec] = []

    def keep(spec: Spec, _: Path) -> Any:
        specs.append(spec)
        raise DataError("enough")

    monkeypatch.setattr(commands, "folder_for", keep)
    result = runner.invoke(app, ["paper", figure, "--client-chunk", given])
    assert "error: enough" in result.output
    (spec,) = specs
    assert spec.problem.client_chunk == meant


@pytest.mark.parametrize("figure", ["fig1", "fig2", "all", "wide", "extended"])
def test_client_chunk_is_for_modules_alone(figure: str) -> None:
    result = runner.invoke(app, ["paper", figure, "--client-chunk", "auto"])
    assert result.exit_code == 2
    assert "`--client-chunk` must be left out" in result.output


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
    monkeypatch.setattr(commands, "require_extras", nothing)
    monkeypatch.setattr(commands, "execute", nothing)
    monkeypatch.setattr(commands, "publish", publish)
    for figure in figures:
        result = runner.invoke(app, ["paper", figure])
        assert f"figures and tables in paper/{part}" in result.output
    runner.invoke(app, ["paper", figures[0], "--quick"])
    runner.invoke(app, ["paper", figures[0], "--quick", "--output", "mine"])
    home = Path("paper")
    small = [(home / f"{part}-quick", True), (Path("mine"), True)]
    assert outputs == [(home / part, False)] * len(figures) + small


@pytest.mark.parametrize(
    ("module", "words", "message"),
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
    monkeypatch: pytest.MonkeyPatch, module: str, words: list[str], message: str
) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise DataError("it began")

    def find_spec_stub(name: str) -> object:
        return None if name == module else object()

    monkeypatch.setattr(commands, "execute", begin)
    monkeypatch.setattr(parts, "find_spec", find_spec_stub)
    result = runner.invoke(app, ["paper", *words])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert message in result.output
    assert ("it began" in result.output) == (message == "it began")


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_claims_that_were_not_run_and_quick_runs_are_said(
    monkeypatch: pytest.MonkeyPatch, quick: list[str]
) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        """Instead of the run."""

    def publish(*_: Any, **__: Any) -> list[Claim]:
        return [Claim("A is ahead", "not run", "not run: A")]

    monkeypatch.setattr(commands, "execute", nothing)
    monkeypatch.setattr(commands, "require_extras", nothing)
    monkeypatch.setattr(commands, "publish", publish)
    result = runner.invoke(app, ["paper", "fig3", *quick])
    assert ("A is ahead: not run\n" in result.output) != bool(quick)
    assert ("a trial (--quick): it gives no verdicts" in result.output) == bool(quick)
