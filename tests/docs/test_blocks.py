"""Every block of code in the pages runs, parses or names commands that exist."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from docs_tools.pages import ROOT, Block, blocks, pages
from docs_tools.stage import CODE, LINK
from typer.main import get_command

LANGUAGES = ("python", "toml", "sh", "text", "")
PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
WITH_CODE = {name: page for name, page in PAGES.items() if blocks(page)}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def check_command(line: str) -> None:
    """A command of this project that a page prints is one that exists."""
    words = [word for word in line.split() if "=" not in word]
    if words[:1] == ["make"]:
        assert re.search(rf"^[\w -]*\b{words[1]}\b[\w -]*:", MAKEFILE, re.M), line
    elif words[:1] == ["python"] and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists(), line
    elif words[:1] == ["hewfl"] and words[1][0] != "-":
        from hewfl.cli.app import app  # noqa: PLC0415 - brings typer and rich

        assert words[1] in get_command(app).commands, line  # type: ignore[attr-defined]


def check(block: Block) -> None:
    """Run, parse or compile one block; each starts without names of others."""
    assert block.language in LANGUAGES, f"{block.where}: one of {LANGUAGES}"
    if block.language == "python":
        code = compile(block.code, block.where, "exec")
        if not block.reason and not block.title:
            names: dict[str, object] = {"__name__": "__main__"}
            exec(compile(block.before, f"before {block.where}", "exec"), names)
            exec(code, names)
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language in ("sh", ""):
        for line in block.code.splitlines():
            check_command(line)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", WITH_CODE)
def test_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(WITH_CODE[name]):
        check(block)
    jobs = sys.modules.get("torch.distributed")
    if jobs is not None and jobs.is_initialized():
        jobs.destroy_process_group()


def test_few_blocks_are_not_run() -> None:
    """Files with a title are run by tests/test_five_minutes.py."""
    every = {name: blocks(page) for name, page in PAGES.items()}
    reasons = [block.reason for page in every.values() for block in page]
    assert len([reason for reason in reasons if reason]) <= 2
    titled = [name for name, page in every.items() if any(b.title for b in page)]
    assert titled == ["docs/five_minutes.md"]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    for link in LINK.finditer(CODE.sub("", page.read_text("utf-8"))):
        if not re.match(r"\w+:", link["target"]):
            assert (page.parent / link["target"]).exists(), link["target"]


@pytest.mark.parametrize("line", ["make nothing", "hewfl nothing", "python no.py"])
def test_commands_that_do_not_exist_are_seen(line: str) -> None:
    with pytest.raises(AssertionError):
        check_command(line)
