"""The page "in five minutes": a rule, an attack, a sweep; every block of it runs."""

import re
import shlex
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hewfl.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "five_minutes.md"
BLOCK = re.compile(r'```(\w+)(?: title="([^"]+)")?\n(.*?)```', re.DOTALL)
SECONDS = 300


@pytest.mark.unchecked
def test_the_page_in_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert [title for _, title, _ in blocks] == [
        *("make_data.py", "my_rules.py", "mine.toml", "", "look.py"),
        *("my_attack.py", ""),
    ]
    began, output = time.process_time(), ""
    for kind, title, text in blocks:
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        if kind == "python" and not title.startswith("my_"):
            exec(compile(text, title, "exec"), {"__name__": "__main__"})
        for line in text.splitlines() if kind == "sh" else ():
            output += output_of(line)
    assert time.process_time() - began < SECONDS  # with one job, in this process
    assert "8 clients, natural partition" in output
    assert "how fast weights fall" in output
    assert "NearTheMean against FedAvg: " in output
    assert "report: hewfl report runs/wards-" in output
    assert "attacked: after 30 rounds, 3 seeds" in output
    assert "batch_size=16" in output
    pages = {
        name: (tmp_path / f"{name}.html").read_text("utf-8")
        for name in ("wards", "attacked", "sweep")
    }
    assert all("NearTheMean" in page for page in pages.values())
    assert "2 of 8 clients attack by Reverse: " in pages["attacked"]
    assert "no faulty clients" in pages["wards"]
    assert "of 2 panels" in pages["sweep"]
    assert (tmp_path / "sweep.pdf").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "NearTheMean" in printed
    assert "(3, 31)" in printed


def output_of(line: str) -> str:
    """The output of a command; a star stands for a folder, as in a shell."""
    program, *words = shlex.split(line)
    assert program == "hewfl"
    arguments = [
        str(f) for w in words for f in (sorted(Path().glob(w)) if "*" in w else [w])
    ]
    here = ["--jobs", "0"] if words[0] == "run" else []
    result = CliRunner().invoke(app, [*arguments, *here], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output
