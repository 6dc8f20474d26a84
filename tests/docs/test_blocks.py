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
TOGETHER = {"docs/experiments.md": "tests/test_five_minutes.py"}
"""Pages whose blocks are files of one project, and the test that runs it."""
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def check_command(line: str, where: str) -> None:
    """A command of this project that a page prints is one that exists."""
    words = line.split()
    if words[:1] == ["make"]:
        assert re.search(rf"^[\w -]*\b{words[1]}\b[\w -]*:", MAKEFILE, re.M), where
    elif words[:1] == ["python"] and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists(), where
    elif words[:1] == ["hewfl"] and words[1][0] != "-":
        from hewfl.cli.app import app  # noqa: PLC0415 - brings typer and rich

        assert words[1] in get_command(app).commands, where  # type: ignore[attr-defined]


def check(block: Block) -> None:
    where = f"{block.page.relative_to(ROOT)}:{block.line}"
    assert block.language in LANGUAGES, f"{where}: one of {LANGUAGES}"
    if block.language == "python" and not block.reason and not block.title:
        names: dict[str, object] = {"__name__": "__main__"}
        exec(compile(block.before, f"before {where}", "exec"), names)
        exec(compile(block.code, where, "exec"), names)
    elif block.language == "python":
        compile(block.code, where, "exec")
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language in ("sh", ""):
        assert not re.search(r"^(from|import) ", block.code, re.M), f"{where}: Python"
        for line in block.code.splitlines():
            check_command(line, where)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", WITH_CODE)
def test_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(WITH_CODE[name]):
        check(block)
    jobs = sys.modules.get("torch.distributed")
    if jobs is not None and jobs.is_initialized():
        jobs.destroy_process_group()


def test_blocks_with_a_file_name_have_a_test() -> None:
    titled = {p for p in PAGES if any(b.title for b in blocks(PAGES[p]))}
    assert titled <= set(TOGETHER)
    for page in titled:
        assert (ROOT / TOGETHER[page]).exists(), page


def test_few_blocks_are_not_run() -> None:
    reasons = [b.reason for page in PAGES.values() for b in blocks(page) if b.reason]
    assert len(reasons) <= 2, reasons


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    for link in LINK.finditer(CODE.sub("", page.read_text("utf-8"))):
        if not re.match(r"\w+:", link["target"]):
            assert (page.parent / link["target"]).exists(), link["target"]


def test_commands_that_do_not_exist_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nmake nothing-at-all\n```\n")
    (block,) = blocks(page)
    with pytest.raises(AssertionError):
        check_command(block.code, "page")
