"""The recipe for CIFAR-10 runs as written, on small files and for few rounds."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hewfl.cli import app
from tests.data.archives import cifar
from tests.data.test_images import put

PAGE = Path(__file__).parents[1] / "docs" / "recipe_cifar10.md"
BLOCK = re.compile(r'```(\w+)(?: title="([^"]+)")?\n(.*?)```', re.DOTALL)
SMALL = (
    *("device=cpu", "rounds=2", "seeds=[0]", "evaluate_every=1", "clients.n=4"),
    *("clients.min_samples=2", "clients.batch_size=8", "clients.participation=2"),
    "problem.options={width = 4}",
)


@pytest.mark.torch
@pytest.mark.unchecked
def test_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    put(monkeypatch, tmp_path, "cifar10", cifar("cifar10")[0])
    (_, _, commands), (_, title, spec) = BLOCK.findall(PAGE.read_text("utf-8"))
    Path(title).write_text(spec)
    output = ""
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        assert program == "hewfl"
        if words[0] == "run":
            words += ["--jobs", "0", *(w for s in SMALL for w in ("--set", s))]
        words = [
            f for w in words for f in (map(str, Path().glob(w)) if "*" in w else [w])
        ]
        result = CliRunner(env={"COLUMNS": "160"}).invoke(app, words)
        assert result.exit_code == 0, result.output
        output += result.output
    assert "after 2 rounds, 1 seeds" in output
    assert all(label in output for label in ("FedAvg", "FedAvgM", "Scaffold"))
    assert Path("cifar10.pdf").read_bytes().startswith(b"%PDF")
    assert "Scaffold" in Path("cifar10.html").read_text("utf-8")
